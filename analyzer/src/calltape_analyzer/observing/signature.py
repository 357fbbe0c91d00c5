"""The parameters of a recorded method, what a call passed for them, and how arguments are nested.

Takes the spec of a call's inputs; returns the nodes of its arguments with the names of their
parameters, before a rule says which of them counts; and the form in which ``dynamic_shapes`` takes
them (torch's documentation of ``dynamic_shapes``, checked with torch 2.6 to 2.15): a tuple, or a
dict in which what ``*args`` and ``**kwargs`` took stands under their names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from calltape_analyzer.errors import UsageError
from calltape_schema.records import Parameter, Target
from calltape_schema.tree import Node, ScalarNode, children_of

__all__ = [
    "PassedArguments",
    "Signature",
    "nested",
]


Key: TypeAlias = "int | str"
"""A position or a name, as the argument was passed."""


Scalar: TypeAlias = "int | float | bool | str"

_BEYOND = re.compile(r"arg_(\d{1,9})", re.ASCII)

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
        parameters = target.signature if target is not None else None
        if parameters is None:
            parameters = (
                Parameter(name="args", kind="VAR_POSITIONAL"),
                Parameter(name="kwargs", kind="VAR_KEYWORD"),
            )
        return cls(parameters)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All parameter names, ``*args`` and ``**kwargs`` included."""
        return tuple(p.name for p in self.parameters if p.name not in self.removed)

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

    def is_beyond(self, name: str) -> bool:
        """Whether :meth:`name_at` gave this name to a positional argument that no parameter takes,
        as far as the signature tells. If there is ``**kwargs``, such a name is that of a
        keyword."""
        match = _BEYOND.fullmatch(name)
        return (
            match is not None
            and self.variadic_keyword is None
            and name not in self.by_name
            and name == self.complete.name_at(int(match[1]))
        )

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
            return key if key in self.places else self.variadic_keyword or key
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


def nested(
    signature: Signature, positional: int, values: Mapping[str, Any]
) -> tuple[Any, ...] | dict[str, Any]:
    """Values by argument in the form of ``dynamic_shapes``: a tuple if all arguments are positional
    and ``*args`` took none of them, else a dict.

    Args:
        signature: of the method that was called.
        positional: how many of the arguments were passed by position.
        values: of all arguments, the positional ones first.

    Raises:
        UsageError: an argument has the name of ``**kwargs``.
    """
    name, begin = signature.variadic_positional or ("", positional)
    members = tuple(values.values())[begin:positional]
    if len(values) == positional and not members:
        return tuple(values.values())
    arguments: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    taken_by = signature.variadic_keyword
    for position, (argument, value) in enumerate(values.items()):
        if begin <= position < positional:
            arguments[name] = members  # torch.export wants no entry for *args that took nothing
        elif position < positional or taken_by is None or argument in signature.places:
            arguments[argument] = value
        else:
            extra[argument] = value
    if taken_by is not None and extra:
        if taken_by in list(values)[positional:]:
            raise UsageError(
                f"Keyword argument name collision: a call passes {taken_by!r}, which is also the "
                f"name of **{taken_by}",
                advice="rename the argument",
            )
        arguments[taken_by] = extra
    return arguments
