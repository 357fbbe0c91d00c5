"""From recorded args and kwargs to the arguments of the tape as one program.

In comes what a call passed. Out go its arguments, by the rules of ``torch.onnx.InputObserver``
(torch 2.15), which differ from those of a layout for its contract. A None, int, float, bool or str
that is passed by keyword is not an argument; it is a constant, if it differs from a scalar default.
One that is passed by position is an argument, even if it equals the default. Arguments by keyword
stand in the order of the signature. What ``value_if_missing`` gives is added to every call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from calltape_analyzer.errors import KeyTypeError, UnsupportedError, UsageError
from calltape_analyzer.observing.passed_arguments import PassedArguments
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.pytree.description import Description, describe
from calltape_analyzer.pytree.flattening import Flattener, FlatTree, Slot
from calltape_schema.tree import BoolNode, Node, NoneNode, ScalarNode, Structure

__all__ = ["Argument", "Bound", "bind", "bind_given", "given_argument"]


@dataclass(frozen=True)
class Argument:
    """One argument of one call, flattened.

    Attributes:
        key: its name, or its position.
        node: its spec.
        form: how it flattens.
        slots: of the form, in flattening order.
        given: its value, if it came from the caller of an inference and not from a tape.
    """

    key: Key
    node: Node
    form: FlatTree
    slots: tuple[Slot, ...]
    given: Description | None = None

    @property
    def tensors(self) -> int:
        """How many tensors it has."""
        return sum(slot.leaf is not None for slot in self.slots)

    @property
    def is_keyword(self) -> bool:
        """Whether it was passed by keyword."""
        return isinstance(self.key, str)


@dataclass(frozen=True, eq=False)
class Bound:
    """The arguments of all calls of one structure.

    Attributes:
        args: passed by position.
        kwargs: passed by keyword, in the order of the signature.
        scalars: the scalars passed by keyword, as (name, node).
        inner: the scalars that are a positional argument or part of an argument, as (path, node).
    """

    args: tuple[Argument, ...]
    kwargs: Mapping[str, Argument]
    scalars: tuple[tuple[str, Any], ...] = ()
    inner: tuple[tuple[str, Any], ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of slots."""
        return sum(len(argument.slots) for argument in self.all)

    @cached_property
    def all(self) -> tuple[Argument, ...]:
        """All arguments, positional ones first."""
        return (*self.args, *self.kwargs.values())

    def constant_values(
        self, scalars: Sequence[Any], signature: Signature
    ) -> tuple[tuple[str, Any], ...]:
        """The constants of a call whose record has these scalars, as (name, value)."""
        values = [(name, _scalar_of(node, scalars)) for name, node in self.scalars]
        return tuple((name, v) for name, v in values if signature.is_constant(name, v))

    def inner_values(self, scalars: Sequence[Any]) -> tuple[tuple[str, Any], ...]:
        """The scalars among positional arguments and inside containers, as (path, value)."""
        return tuple((path, _scalar_of(node, scalars)) for path, node in self.inner)


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
        value_if_missing: values by name or position. A value by name is the argument if the call
            does not pass the parameter. A value by position replaces the argument at this position
            of every call, as in ``torch.onnx.InputObserver``.

    Raises:
        UsageError: ``value_if_missing`` names a parameter that does not exist.
        UnsupportedError: it has a position that the call did not pass.
        KeyTypeError: it has a key that is neither name nor position.
    """
    passed = PassedArguments.of(structure.root, signature)
    positional = [argument_of(i, n, flattener) for i, (_, n) in enumerate(passed.positional)]
    named: dict[str, Argument] = {}
    scalars: list[tuple[str, Any]] = []
    for name, node in passed.named:
        if is_scalar(node):
            scalars.append((name, node))
        elif not isinstance(node, NoneNode):
            named[name] = argument_of(name, node, flattener)
    _add_missing(positional, named, signature, value_if_missing)
    return _without_removed(positional, named, scalars, signature)


def bind_given(
    given: tuple[Any, ...] | Mapping[str, Any], known: frozenset[str] | None = None
) -> Bound:
    """The arguments that the caller of an inference gave.

    Args:
        given: a tuple of positional arguments, or a dict by name. Its scalars are left out, because
            constants are those of the recorded calls.
        known: the names of a dict that count; None for all.
    """
    if isinstance(given, tuple):
        return Bound(tuple(given_argument(i, value) for i, value in enumerate(given)), {})
    kwargs = {
        name: given_argument(name, value)
        for name, value in given.items()
        if (known is None or name in known)
        and value is not None
        and not isinstance(value, int | float | str)
    }
    return Bound((), kwargs)


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
    positions = {name: position for position, name in enumerate(names)}
    for key, value in value_if_missing.items():
        if isinstance(key, str):
            if key in named:
                continue
            if key not in positions and signature.variadic_keyword is None:
                raise UsageError(
                    f"Unexpected keyword argument {key!r} in value_if_missing",
                    advice=f"name one of the parameters {', '.join(names)}",
                )
            position = positions.get(key, len(positional))
            if position >= len(positional):
                named[key] = given_argument(key, value)
            elif isinstance(positional[position].node, NoneNode):
                positional[position] = given_argument(position, value)
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
