"""Decides which values of a call are omitted from the tape, by leaf path, as ``values`` says.

``values="none"`` leaves on the tape:

- containers, classes, field names, and keys that look like names from code;
- dtype, shape, strides and device of each tensor, and the range of large integer tensors;
- bools, None, constants of torch, and names of enum members;
- single numbers in arguments, which are sizes and settings;
- the length of each text, and the type of an exception.

It omits the bytes of tensors, texts, all other keys, numbers in long lists and in outputs, and the
messages of exceptions. ``structures.py`` applies this to scalars, keys and enums, ``data_parts.py``
finds lists of data, ``write/encoding.py`` decides about ranges, and ``handler.py`` replaces
messages. docs/privacy.md has the whole table.

The decision is made once per structure, from paths and kinds alone, so a call of a known structure
costs nothing. If keys never recur, each structure is new and is built within the application's
call, so the decision about a path is remembered.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from calltape_recorder.bounds import MAX_KNOWN_PATHS, MAX_NAME_CHARACTERS, MAX_NAMED_PATTERNS
from calltape_schema.privacy import (
    SMALL,
    deciding,
    is_exact,
    is_name,
    literal_of,
    matches_whole,
)
from calltape_schema.records import Parameter

_WHOLE = frozenset(("", "args", "kwargs", "outputs"))

Degree = Literal["nothing", "values", "numbers"]
"""What is omitted at a path: nothing; ``values`` (tensors, text and bytes); or ``numbers``, which
means these and numbers as well."""


class Omissions:
    """Answers for the paths of one recorded method.

    Args:
        values: pairs of a pattern and ``"all"`` or ``"none"``. The last pattern that matches a
            path decides; a path that no pattern matches is kept.
        signature: the parameters of the method, which name the positional arguments.

    Attributes:
        omits_values: whether anything is omitted anywhere.
        positional: how many arguments have a name if they are passed by position.
        unmatched: the patterns that have matched no path so far. Patterns for a whole side of all
            calls (``*``, ``outputs.*``) are never in it: they cannot be mistyped.
    """

    def __init__(
        self, values: Sequence[tuple[str, str]], signature: Sequence[Parameter] = ()
    ) -> None:
        self._latest_first = [(literal_of(pair[0]), pair) for pair in reversed(values)]
        self._degrees: dict[str, Degree] = {}
        kinds = [(p.name, p.kind) for p in signature]
        self._names = [name for name, kind in kinds if kind.startswith("POSITIONAL")]
        self._keywords = {name for name, kind in kinds if not kind.startswith("VAR_")}
        self._variadic = next((name for name, kind in kinds if kind == "VAR_POSITIONAL"), None)
        self._variadic_keyword = next((name for name, kind in kinds if kind == "VAR_KEYWORD"), None)
        self.positional = len(self._names)
        self.omits_values = any(kept != "all" for _, kept in values)
        self.unmatched = {
            pattern for pattern, _ in values if pattern.removesuffix("*").strip(".") not in _WHOLE
        }

    def degree(self, path: str) -> Degree:
        """What is omitted at a path such as ``args.0.x``, ``kwargs.prompt`` or ``outputs``.

        A pattern without wildcards names one value, and omits all of it. A pattern with
        wildcards does not omit numbers: they are sizes and settings, which an export needs.
        """
        known = self._degrees.get(path)
        return self._decide(path) if known is None else known

    def meet(self, path: str) -> None:
        """Notes that a call has something at this path: a value, a container, or None."""
        if path not in self._degrees:
            self._decide(path)

    def _decide(self, path: str) -> Degree:
        """Notes that a call has something at a path, and returns what is omitted there."""
        names = self._names_of(path)
        text = "\n".join(names)
        matching = [
            pair for literal, pair in self._latest_first
            if literal in text and matches_whole(pair[0], names)
        ]  # fmt: skip
        # Several threads may be here. The set is changed in place, so none brings a pattern back.
        if path not in ("args", "kwargs"):
            self.unmatched.difference_update([pattern for pattern, _ in matching])
        degree: Degree = "nothing"
        for pattern, kept in deciding(matching, names):
            if kept == "all":
                break
            degree = "numbers" if is_exact(pattern) else "values"
            if degree == "numbers":
                break
        if len(path) <= MAX_NAME_CHARACTERS:
            if len(self._degrees) >= MAX_KNOWN_PATHS:
                self._degrees.clear()
            self._degrees[path] = degree
        return degree

    def _names_of(self, path: str) -> list[str]:
        """A path, and the same path by the name of its parameter: ``args.0.x`` is also
        ``input_ids.x``."""
        side, _, below_side = path.partition(".")
        first, dot, below = below_side.partition(".")
        if side == "kwargs" and below_side:
            names = [path, below_side]
            if self._variadic_keyword is not None and first not in self._keywords:
                names.append(f"{self._variadic_keyword}.{below_side}")
            return names
        if side == "args" and first.isdecimal():
            place = int(first)
            if place < len(self._names):
                return [path, f"{self._names[place]}{dot}{below}"]
            if self._variadic is not None:
                return [path, f"{self._variadic}.{place - len(self._names)}{dot}{below}"]
        return [path]


_MOST_IN_WORD = 32
_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


def is_public_default(default: Any, name: str, *, omits_values: bool) -> bool:
    """Whether the default of a parameter may be on every tape. It was not passed in a call, and may
    be a password of the application.

    Args:
        default: a scalar.
        name: the name of the parameter.
        omits_values: whether values are omitted. If so, no text is public, and only small numbers
            are.
    """
    kind = type(default)
    if default is None or kind is bool:
        return True
    if kind is int:
        return bool(-SMALL <= default <= SMALL if omits_values else -(2**63) <= default < 2**63)
    if kind is float:
        return not omits_values or not SMALL < abs(default) < float("inf")
    if kind is not str or omits_values or _SECRET.search(name):
        return False
    return not default or (len(default) <= _MOST_IN_WORD and is_name(default))


# Warnings about patterns that matched nothing: a mistyped one omits nothing.

_OMITTED_NOTHING = (
    "nothing was omitted there. If a name is wrong, the values you meant may be on the tape"
)


def strange_patterns(
    values: Sequence[tuple[str, str]], parameters: Sequence[Parameter]
) -> list[str]:
    """The patterns that match no parameter. A signature with ``**kwargs`` takes any name, so only
    its calls can show that."""
    if not parameters or any(p.kind.startswith("VAR_") for p in parameters):
        return []
    known = {"args", "kwargs", "outputs", *(parameter.name for parameter in parameters)}
    firsts = ((pattern, pattern.partition(".")[0]) for pattern, _ in values)
    return [
        pattern for pattern, first in firsts if not any(fnmatchcase(name, first) for name in known)
    ]


def unmatched_words(
    values: Sequence[tuple[str, str]], unmatched: Collection[str], *, outputs: bool
) -> Iterator[str]:
    """Warnings about the patterns that no recorded call matched.

    Args:
        values: all patterns, each with what it does.
        unmatched: these.
        outputs: whether outputs are recorded. If not, none can match.
    """
    for has_kept, effect in ((False, _OMITTED_NOTHING), (True, "nothing was kept there")):
        patterns = [
            pattern
            for pattern, kept in values
            if pattern in unmatched
            and (kept == "all") is has_kept
            and (outputs or pattern.partition(".")[0] != "outputs")
        ]
        if patterns:
            named = ", ".join(map(repr, patterns[:MAX_NAMED_PATTERNS]))
            if len(patterns) > MAX_NAMED_PATTERNS:
                named += f" and {len(patterns) - MAX_NAMED_PATTERNS} more"
            yield f"no recorded call has a value at {named}: {effect}"
