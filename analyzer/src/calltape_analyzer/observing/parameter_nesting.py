"""How the arguments of a call stand in ``dynamic_shapes``: a tuple, or a dict by parameter.

In come the names of the arguments and the signature. Out goes the form that ``torch.export`` takes
(its documentation of ``dynamic_shapes``, checked with torch 2.6 to 2.15): what ``*args`` and
``**kwargs`` took stands under their names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Signature

__all__ = ["ParameterNesting"]


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
