"""The parameters of a recorded method, what a call passed for them, and how arguments are nested.

In comes the spec of a call's inputs. Out go the nodes of its arguments with the names of their
parameters, before a rule says which of them counts; and the form in which ``dynamic_shapes`` takes
them (torch's documentation of ``dynamic_shapes``, checked with torch 2.6 to 2.15): a tuple, or a
dict in which what ``*args`` and ``**kwargs`` took stands under their names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from calltape_analyzer.errors import UsageError
from calltape_schema.records import Parameter, Target
from calltape_schema.tree import Node, ScalarNode, children_of

__all__ = [
    "ParameterNesting",
    "PassedArguments",
]


Key: TypeAlias = "int | str"
"""A position or a name, as the argument was passed."""


Scalar: TypeAlias = "int | float | bool | str"

DataKeys: TypeAlias = "Callable[[], Mapping[str, frozenset[Hashable]]]"

_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.KEYWORD_ONLY,
        inspect.Parameter.VAR_KEYWORD,
    )
}


@dataclass(frozen=True)
class Signature:
    """The parameters of the recorded method.

    Attributes:
        parameters: all of them, in order.
        removed: the names of parameters that :meth:`Tape.remove_inputs` removed.
        varying: the names of ints with a default that vary from call to call. A call that leaves
            one out, or passes its default, has the default among its arguments.
        data_keys: gives, by the place of a dict with keys that are data, the other keys
            (:mod:`calltape_analyzer.observing.layout`). Asked when a call has a dict.
    """

    parameters: tuple[Parameter, ...]
    removed: frozenset[str] = frozenset()
    varying: frozenset[str] = frozenset()
    data_keys: DataKeys = field(default=dict, compare=False, repr=False)

    @classmethod
    def of(cls, target: Target | None) -> Signature:
        """The signature of a target; ``(*args, **kwargs)`` if the tape does not have it."""
        known = target.signature if target is not None else None
        if known is None:
            known = (
                Parameter(name="args", kind="VAR_POSITIONAL"),
                Parameter(name="kwargs", kind="VAR_KEYWORD"),
            )
        return cls(known)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All parameter names, ``*args`` and ``**kwargs`` included."""
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
    def positional(self) -> int:
        """How many arguments have a name if they are passed by position."""
        return sum(p.kind.startswith("POSITIONAL") for p in self.parameters)

    @cached_property
    def variadic_keyword(self) -> str | None:
        """Name of ``**kwargs``."""
        return next((p.name for p in self.parameters if p.kind == "VAR_KEYWORD"), None)

    @cached_property
    def places(self) -> dict[str, int]:
        """The position of each name among :attr:`names`."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """The parameters, removed ones included."""
        return {p.name: p for p in self.parameters}

    def name_at(self, position: int) -> str:
        """The name of a positional argument. One of ``*args`` is a place in it: ``args.0``."""
        variadic = self.variadic_positional
        if variadic is not None and position >= variadic[1]:
            return f"{variadic[0]}.{position - variadic[1]}"
        return self.names[position] if position < len(self.names) else f"arg_{position}"

    def is_of_variadic(self, name: str) -> bool:
        """Whether :meth:`name_at` gave this name to a member of ``*args``."""
        variadic = self.variadic_positional
        before, _, number = name.rpartition(".")
        return variadic is not None and before == variadic[0] and number.isdecimal()

    def name_of(self, key: Key) -> str:
        """The name of any argument."""
        return key if isinstance(key, str) else self.name_at(key)

    def may_lack(self, name: str) -> bool:
        """Whether calls may leave an argument out: its parameter has a default, or it is one of
        ``**kwargs``."""
        parameter = self.by_name.get(name)
        if parameter is not None:
            return parameter.has_default
        return self.variadic_keyword is not None and not self.is_of_variadic(name)

    def parameter(self, key: Key) -> str:
        """The parameter that an argument belongs to; ``*args`` and ``**kwargs`` by their name."""
        if isinstance(key, str):
            return key if key in self._own_names else self.variadic_keyword or key
        variadic = self.variadic_positional
        return variadic[0] if variadic and key >= variadic[1] else self.name_at(key)

    def is_constant(self, name: str, value: Scalar) -> bool:
        """Whether a scalar that is passed by keyword is kept as a constant: it differs from a
        default that is a scalar, or the parameter has no default and the call needs it."""
        parameter = self.by_name.get(name)
        if parameter is None or name in self.removed:
            return False
        if not parameter.has_default:
            return parameter.kind not in ("VAR_POSITIONAL", "VAR_KEYWORD")
        if parameter.default_missing:  # in doubt the call needs it
            return True
        default = parameter.default
        return isinstance(default, int | float | bool | str) and value != default

    def as_python(self) -> inspect.Signature | None:
        """This signature for :func:`inspect.signature`; None if Python has no such signature. A
        default that is not on the tape is None."""
        try:
            return inspect.Signature(
                [
                    inspect.Parameter(
                        p.name,
                        _KINDS[p.kind],
                        default=p.default if p.has_default else inspect.Parameter.empty,
                    )
                    for p in self.parameters
                    if p.name not in self.removed
                ]
            )
        except (ValueError, IndexError):  # names or an order that no Python function has
            return None

    @cached_property
    def int_defaults(self) -> dict[str, int]:
        """The default of each parameter that has an int as such."""
        return {
            p.name: p.default
            for p in self.parameters
            # A bool is an int in Python, and a constant here.
            if p.has_default and type(p.default) is int and p.name not in self.removed
        }

    @cached_property
    def varying_defaults(self) -> dict[str, int]:
        """The defaults of the ints that vary, in the order of the parameters."""
        return {name: value for name, value in self.int_defaults.items() if name in self.varying}

    def with_varying(self, names: Collection[str]) -> Signature:
        """This signature, in which these ints vary from call to call."""
        return replace(self, varying=self.varying | frozenset(names))

    @cached_property
    def complete(self) -> Signature:
        """This signature with no parameter removed, in which the positions of a recorded call
        count."""
        return replace(self, removed=frozenset())

    def without(self, names: frozenset[str]) -> Signature:
        """This signature without some parameters."""
        return replace(self, removed=self.removed | names)


def signature_text(target: Target | None) -> str | None:
    """The recorded signature as Python shows it, such as ``(x, mask=None)``."""
    if target is None or target.signature is None:
        return None
    parts: list[str] = []
    before = None
    for parameter in target.signature:
        kind = parameter.kind
        if before == "POSITIONAL_ONLY" and kind != before:
            parts.append("/")
        if kind == "KEYWORD_ONLY" and before not in ("KEYWORD_ONLY", "VAR_POSITIONAL"):
            parts.append("*")
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(kind, "")
        shown = "..." if parameter.default_missing else repr(parameter.default)
        default = f"={shown}" if parameter.has_default else ""
        parts.append(f"{stars}{parameter.name}{default}")
        before = kind
    if before == "POSITIONAL_ONLY":
        parts.append("/")
    return f"({', '.join(parts)})"


class PassedArguments(NamedTuple):
    """The arguments of one call, as (name, node).

    Attributes:
        positional: in the order in which they were passed. A position is counted with the
            parameters that :meth:`Tape.remove_inputs` took out.
        named: passed by keyword, in the order in which they were passed.
    """

    positional: tuple[tuple[str, Node], ...]
    named: tuple[tuple[str, Node], ...]

    def with_defaults(self, signature: Signature, scalars: int) -> PassedArguments:
        """These arguments, and the defaults of ints that vary (:attr:`Signature.varying`) and that
        the call leaves out, as if it passed them by keyword.

        Args:
            signature: of the method that was called.
            scalars: how many scalars the call has. The defaults have the numbers that follow.
        """
        passed = self.by_name()
        lacking = tuple(
            (name, ScalarNode(kind="int", scalar=scalars + i))
            for i, name in enumerate(signature.varying_defaults)
            if name not in passed
        )
        return self._replace(named=(*self.named, *lacking))

    @classmethod
    def of(cls, root: Node, signature: Signature) -> PassedArguments:
        """The arguments of a call.

        Args:
            root: the root of the spec of its inputs: a tuple of args and kwargs.
            signature: of the method that was called.
        """
        args, kwargs = children_of(root)
        name_at = signature.complete.name_at
        positional = tuple((name_at(i), node) for i, node in enumerate(args.children))
        return cls(positional, tuple(zip(kwargs.keys, kwargs.children, strict=True)))

    def by_name(self) -> dict[str, Node]:
        """All of them. Of a parameter that was passed twice, which is an error, the second."""
        return dict((*self.positional, *self.named))


@dataclass(frozen=True)
class ParameterNesting:
    """Where each argument of a call stands.

    Attributes:
        as_tuple: whether the form is a tuple: all arguments are positional, and ``*args`` took
            none of them.
        positional: how many arguments were passed by position.
        variadic: the name of ``*args``, and how many arguments stand before its first; None if it
            took nothing.
        extra: the name of ``**kwargs``, and the names of the arguments that it took; None if it
            took nothing.
    """

    as_tuple: bool
    positional: int
    variadic: tuple[str, int] | None = None
    extra: tuple[str, tuple[str, ...]] | None = None

    @classmethod
    def of(cls, signature: Signature, positional: int, names: Sequence[str]) -> ParameterNesting:
        """The nesting of a call.

        Args:
            signature: of the method that was called.
            positional: how many of the arguments were passed by position.
            names: of all arguments, the positional ones first.

        Raises:
            UsageError: an argument has the name of ``**kwargs``.
        """
        variadic = signature.variadic_positional
        if variadic is not None and positional <= variadic[1]:
            variadic = None  # torch.export wants no entry for *args that took nothing
        as_tuple = len(names) == positional and variadic is None
        extra = cls._extra(signature, names[positional:])
        return cls(as_tuple, positional, variadic, extra)

    @staticmethod
    def _extra(signature: Signature, named: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
        taken_by = signature.variadic_keyword
        known = frozenset(signature.names)
        outside = tuple(name for name in named if name not in known)
        if taken_by is None or not outside:
            return None
        if taken_by in named:
            raise UsageError(
                f"Keyword argument name collision: a call passes {taken_by!r}, which is also the "
                f"name of **{taken_by}",
                advice="rename the argument",
            )
        return taken_by, outside

    def arranged(self, values: Mapping[str, Any]) -> tuple[Any, ...] | dict[str, Any]:
        """Values by argument in this nesting.

        Args:
            values: in the order of the arguments, the positional ones first.
        """
        if self.as_tuple:
            return tuple(values.values())
        members: list[Any] = []
        extra = self.extra[1] if self.extra is not None else ()
        taken = frozenset(extra)
        made: dict[str, Any] = {}
        for position, (name, value) in enumerate(values.items()):
            if self.variadic and self.variadic[1] <= position < self.positional:
                members.append(value)
                made[self.variadic[0]] = ()  # holds the place of them all
            elif name not in taken:
                made[name] = value
        if self.variadic and members:
            made[self.variadic[0]] = tuple(members)
        if self.extra is not None:
            made[self.extra[0]] = {name: values[name] for name in extra}
        return made
