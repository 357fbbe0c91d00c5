"""From recorded args and kwargs to the arguments that an inference is about.

The rules are those of ``torch.onnx.InputObserver`` (torch 2.15): a None, int, float, bool or str
passed by keyword is not an argument but, where it differs from a scalar default, a constant;
keyword arguments stand in the order of the signature; what ``value_if_missing`` gives is added to
every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

from calltape_analyzer.describing import Description, describe
from calltape_analyzer.errors import KeyTypeError, UnsupportedError, UsageError
from calltape_analyzer.flattening import Flattener, Form, Slot
from calltape_schema.records import Parameter, Target
from calltape_schema.tree import BoolNode, Node, NoneNode, ScalarNode, Structure, children_of

__all__ = ["Argument", "Bound", "Key", "Signature", "bind"]

Key: TypeAlias = "int | str"
"""A position or a name, as the argument was passed."""

Scalar: TypeAlias = "int | float | bool | str"


@dataclass(frozen=True)
class Signature:
    """The parameters of the recorded method, in the terms that an inference needs.

    ``removed`` are the names that the caller took out.
    """

    parameters: tuple[Parameter, ...]
    removed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, target: Target | None) -> Signature:
        """The signature of a target; one that takes anything where the tape does not know it."""
        known = target.signature if target is not None else None
        if known is None:
            known = (
                Parameter(name="args", kind="VAR_POSITIONAL"),
                Parameter(name="kwargs", kind="VAR_KEYWORD"),
            )
        return cls(known)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All parameter names, also those of ``*args`` and ``**kwargs``."""
        return tuple(p.name for p in self.parameters if p.name not in self.removed)

    @cached_property
    def _own_names(self) -> frozenset[str]:
        return frozenset(self.names)

    @cached_property
    def variadic_positional(self) -> tuple[str, int] | None:
        """Name and position of ``*args``."""
        for position, name in enumerate(self.names):
            if self.by_name[name].kind == "VAR_POSITIONAL":
                return name, position
        return None

    @cached_property
    def variadic_keyword(self) -> str | None:
        """Name of ``**kwargs``."""
        return next((p.name for p in self.parameters if p.kind == "VAR_KEYWORD"), None)

    @cached_property
    def places(self) -> dict[str, int]:
        """The place of each name among :attr:`names`."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters, those that were taken out too."""
        return {p.name: p for p in self.parameters}

    def name_at(self, position: int) -> str:
        """A readable, unique name for a positional argument."""
        variadic = self.variadic_positional
        if variadic is not None and position >= variadic[1]:
            return f"{variadic[0]}_{position - variadic[1]}"
        return self.names[position] if position < len(self.names) else f"arg_{position}"

    def name_of(self, key: Key) -> str:
        """A readable, unique name for any argument."""
        return key if isinstance(key, str) else self.name_at(key)

    def parameter(self, key: Key) -> str:
        """The parameter that an argument belongs to; ``*args`` and ``**kwargs`` by their name."""
        if isinstance(key, str):
            return key if key in self._own_names else self.variadic_keyword or key
        variadic = self.variadic_positional
        return variadic[0] if variadic and key >= variadic[1] else self.name_at(key)

    def is_constant(self, name: str, value: Scalar) -> bool:
        """Whether a scalar passed by keyword is kept, as a constant: it differs from a default that
        is itself a scalar, or the parameter has no default and the call needs it."""
        parameter = self.by_name.get(name)
        if parameter is None or name in self.removed:
            return False
        if not parameter.has_default:
            return parameter.kind not in ("VAR_POSITIONAL", "VAR_KEYWORD")
        if parameter.default_missing:  # in doubt the call needs it
            return True
        default = parameter.default
        return isinstance(default, int | float | bool | str) and value != default

    @cached_property
    def complete(self) -> Signature:
        """This signature with nothing taken out: what the positions of a recorded call count."""
        return replace(self, removed=frozenset())

    def without(self, names: frozenset[str]) -> Signature:
        """This signature, with parameters taken out."""
        return replace(self, removed=self.removed | names)


@dataclass(frozen=True)
class Argument:
    """One argument of one call, flattened.

    ``given`` holds what came from the caller of an inference instead of from a tape.
    """

    key: Key
    node: Node
    form: Form
    slots: tuple[Slot, ...]
    given: Description | None = None

    @property
    def tensors(self) -> int:
        """How many tensors it has."""
        return sum(slot.leaf is not None for slot in self.slots)

    @property
    def is_keyword(self) -> bool:
        return isinstance(self.key, str)


@dataclass(frozen=True, eq=False)
class Bound:
    """The arguments of all calls of one structure: positional, by keyword in the order of the
    signature, the scalars passed by keyword as (name, node), and those that are an argument or
    part of one as (place, node)."""

    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    scalars: tuple[tuple[str, Any], ...] = ()
    inner: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of leaves, None included."""
        return sum(len(argument.slots) for argument in self.all)

    @cached_property
    def all(self) -> tuple[Argument, ...]:
        return (*self.args, *self.kwargs.values())

    def constant_values(
        self, scalars: Sequence[Any], signature: Signature
    ) -> tuple[tuple[str, Any], ...]:
        """The constants of a call whose record has these scalars, as (name, value)."""
        values = [(name, _scalar_of(node, scalars)) for name, node in self.scalars]
        return tuple((name, v) for name, v in values if signature.is_constant(name, v))

    def inner_values(self, scalars: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """The scalars among positional arguments and inside containers, as (place, value)."""
        return tuple((place, _scalar_of(node, scalars)) for place, node in self.inner)


def is_scalar(node: Any) -> bool:
    """Whether a node is an int, float, bool or str."""
    is_number = isinstance(node, ScalarNode) and node.kind in ("int", "float", "str")
    return is_number or isinstance(node, BoolNode)


def _scalar_of(node: Any, scalars: Sequence[Any]) -> Any:
    return node.value if isinstance(node, BoolNode) else scalars[node.scalar]


def argument_of(key: Key, node: Node, flattener: Flattener) -> Argument:
    """A recorded argument."""
    form = flattener.flatten(node)
    return Argument(key, node, form, tuple(form.slots()))


def given_argument(key: Key, value: Any) -> Argument:
    """An argument made from a Python value."""
    described = describe(value)
    form = described.form()
    return Argument(key, described.node, form, tuple(form.slots()), described)


def bind(
    structure: Structure,
    flattener: Flattener,
    signature: Signature,
    value_if_missing: Mapping[Key, Any],
) -> Bound:
    """The arguments of the calls of one structure.

    Args:
        structure: of the calls' inputs.
        flattener: of the first such call's inputs.
        signature: of the recorded method.
        value_if_missing: by name: used where a call does not pass the parameter; by position: put
            at this position of every call, as ``torch.onnx.InputObserver`` does.

    Raises:
        UsageError: ``value_if_missing`` names a parameter that does not exist.
        UnsupportedError: a position that the call did not pass.
        KeyTypeError: a key that is neither name nor position.
    """
    args_node, kwargs_node = children_of(structure.root)
    positional = [argument_of(i, n, flattener) for i, n in enumerate(args_node.children)]
    named: dict[str, Argument] = {}
    scalars: list[tuple[str, Any]] = []
    for name, node in zip(kwargs_node.keys, kwargs_node.children, strict=True):
        if is_scalar(node):
            scalars.append((name, node))
        elif not isinstance(node, NoneNode):
            named[name] = argument_of(name, node, flattener)
    _add_missing(positional, named, signature, value_if_missing)
    return _without_removed(positional, named, scalars, signature)


def _without_removed(
    positional: Sequence[Argument],
    named: Mapping[str, Argument],
    scalars: Sequence[tuple[str, Any]],
    signature: Signature,
) -> Bound:
    complete = signature.complete
    kept = [a for a in positional if complete.name_at(int(a.key)) not in signature.removed]
    args = tuple(replace(argument, key=i) for i, argument in enumerate(kept))
    ordered = [name for name in signature.names if name in named]
    known_names = set(complete.names)
    ordered += [name for name in named if name not in known_names]
    kwargs = {name: named[name] for name in ordered if name not in signature.removed}
    order = {name: i for i, name in enumerate(signature.names)}
    known = sorted((s for s in scalars if s[0] in order), key=lambda pair: order[pair[0]])
    inner = [
        (f"{signature.name_of(argument.key)}{slot.path}", slot.node)
        for argument in (*args, *kwargs.values())
        for slot in argument.slots
        if argument.given is None and is_scalar(slot.node)
    ]
    return Bound(args, kwargs, tuple(known), tuple(inner))


def _add_missing(
    positional: list[Argument],
    named: dict[str, Argument],
    signature: Signature,
    value_if_missing: Mapping[Key, Any],
) -> None:
    names = signature.complete.names
    places = {name: place for place, name in enumerate(names)}
    for key, value in value_if_missing.items():
        if isinstance(key, str):
            if key in named:
                continue
            if key not in places and signature.variadic_keyword is None:
                raise UsageError(
                    f"Unexpected keyword argument {key!r} in value_if_missing",
                    advice=f"name one of the parameters {', '.join(names)}",
                )
            place = places.get(key, len(positional))
            if place >= len(positional):
                named[key] = given_argument(key, value)
            elif isinstance(positional[place].node, NoneNode):
                positional[place] = given_argument(place, value)
        elif isinstance(key, int):
            _put_at(positional, key, value, names)
        else:
            raise KeyTypeError(
                f"Unexpected type {type(key).__name__} of the key {key!r} in value_if_missing",
                advice="use the name or the position of a parameter",
            )


def _put_at(positional: list[Argument], key: int, value: Any, names: Sequence[str]) -> None:
    if key >= len(names):
        raise UsageError(
            f"Unexpected keyword argument k={key} in value_if_missing: the recorded method has "
            f"{len(names)} parameters",
            advice=f"name one of the parameters {', '.join(names)}",
        )
    if key >= len(positional):
        raise UnsupportedError(
            f"Unexpected keyword argument k={key} in value_if_missing: a recorded call has "
            f"{len(positional)} positional arguments",
            advice=f"give the value by name, as {names[key]!r}",
        )
    positional[key] = given_argument(key, value)
