"""What of a call does not go onto the tape although it could: by leaf path, as ``values`` says.

What is withheld is decided once per structure, from paths and kinds alone, so that a call of which
everything is kept pays nothing for it. docs/privacy.md is the table of what follows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

from calltape_schema.records import Parameter

__all__ = [
    "FEWEST_RANGED", "MANY", "SMALL", "Degree", "Withholding", "is_name", "is_public_default",
]  # fmt: skip

Degree = Literal["nothing", "values", "numbers"]
"""What is withheld at a path: nothing; tensors, text and bytes; numbers as well."""

FEWEST_RANGED = 1024
"""Different elements from which on the range of a withheld integer tensor says little of any."""
MANY = 8
"""More children than these are data, not sizes: their numbers are withheld like a tensor's."""
SMALL = 1024
"""Up to here, in either direction, an int that stands in code is a setting."""

_NAME = re.compile(r"[^\W\d][\w.\-/]{0,63}|\d{1,4}")
_MOST_DIGITS = 4
_WILDCARDS = frozenset("*?[")


class Withholding:
    """Answers for the paths of one recorded method.

    Args:
        values: pairs of a pattern and ``"all"`` or ``"none"``; the last that matches decides, and
            what none matches is kept.
        signature: of the method, which gives arguments that come by position their names.

    Attributes:
        withholds: whether anything is withheld anywhere.
        positional: how many arguments have a name when they come by position.
    """

    def __init__(
        self, values: Sequence[tuple[str, str]], signature: Sequence[Parameter] = ()
    ) -> None:
        self._latest_first = tuple(reversed(values))
        kinds = [(p.name, p.kind) for p in signature]
        self._names = [name for name, kind in kinds if kind.startswith("POSITIONAL")]
        self._known = {name for name, kind in kinds if not kind.startswith("VAR_")}
        self._rest = next((name for name, kind in kinds if kind == "VAR_POSITIONAL"), None)
        self._others = next((name for name, kind in kinds if kind == "VAR_KEYWORD"), None)
        self.positional = len(self._names)
        self.withholds = any(kept == "none" for _, kept in values)

    def degree(self, path: str) -> Degree:
        """What is withheld at a path such as ``args.0.x``, ``kwargs.prompt`` or ``outputs``.

        A pattern without wildcards names one thing, and withholds all of it; numbers that are
        reached by a wildcard only are sizes and settings, by which a program is exported.
        """
        names = self._names_of(path)
        found: Degree = "nothing"
        for pattern, kept in self._latest_first:
            # What withholds all parts of a thing withholds it where it has none: a bare tensor.
            whole = pattern.removesuffix(".*") if kept == "none" else pattern
            if not any(_matches(name, whole) for name in names):
                continue
            if kept == "all":
                return found
            if _WILDCARDS.isdisjoint(pattern):
                return "numbers"
            found = "values"
        return found

    def _names_of(self, path: str) -> list[str]:
        """A path, and the same by the name of its parameter: ``args.0.x`` is ``input_ids.x``."""
        side, _, rest = path.partition(".")
        first, dot, below = rest.partition(".")
        if side == "kwargs" and rest:
            found = [path, rest]
            if self._others is not None and first not in self._known:
                found.append(f"{self._others}.{rest}")
            return found
        if side == "args" and first.isdecimal():
            place = int(first)
            if place < len(self._names):
                return [path, f"{self._names[place]}{dot}{below}"]
            if self._rest is not None:
                return [path, f"{self._rest}.{place - len(self._names)}{dot}{below}"]
        return [path]


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}.*")


def is_name(key: Any) -> bool:
    """Whether a dict key looks like one that stands in code: a word with at most four digits, or a
    small int. An address, a number of a customer or a sentence does not; a plain word does, whoever
    wrote it."""
    kind = type(key)
    if kind is str:
        digits = sum([character.isdigit() for character in key])
        return digits <= _MOST_DIGITS and _NAME.fullmatch(key) is not None
    if kind is int:
        return bool(-SMALL <= key <= SMALL)
    if kind is tuple:
        return all(map(is_name, key))
    return key is None or kind is bool


_MOST_IN_WORD = 32
_SECRET = re.compile(r"key|token|secret|passw|auth|credential", re.IGNORECASE)


def is_public_default(default: Any, name: str, *, withholds: bool) -> bool:
    """Whether the default of a parameter may stand on every tape: nobody passed it, and it may be
    the host's own password.

    Args:
        default: a scalar.
        name: of the parameter.
        withholds: whether values are withheld: then no text may, and small numbers only.
    """
    kind = type(default)
    if default is None or kind is bool:
        return True
    if kind is int:
        return bool(-SMALL <= default <= SMALL if withholds else -(2**63) <= default < 2**63)
    if kind is float:
        return not withholds or not SMALL < abs(default) < float("inf")
    if kind is not str or withholds or _SECRET.search(name):
        return False
    return not default or (len(default) <= _MOST_IN_WORD and is_name(default))
