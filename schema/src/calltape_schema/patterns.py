"""Patterns of paths, in which users name leaves: ``mask``, ``cache.*``, ``outputs.*``.

The recorder's ``values=`` and the analyzer's commands take them. A leaf has several
names where it can be named by its place and by its parameter. A pattern matches all leaves below
what it names as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase

__all__ = ["deciding", "is_exact", "matches", "matches_whole", "specificity"]

_WILDCARDS = frozenset("*?[")
_CLOSING = "]"


def matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether one of the names of a leaf is that of the pattern, or is below it."""
    below = f"{pattern}.*"
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, below) for name in names)


def matches_whole(pattern: str, names: Iterable[str]) -> bool:
    """The same, but ``x.*`` matches ``x`` as well: where ``x`` is a bare tensor it has no parts,
    and who wants all parts treated wants it treated."""
    return matches(pattern.removesuffix(".*"), names)


def deciding(pairs: Iterable[tuple[str, str]], names: Collection[str]) -> Iterator[tuple[str, str]]:
    """The pairs whose pattern matches a leaf. The first one decides.

    Args:
        pairs: of a pattern and what becomes of the value (``"all"`` keeps it), the last one that
            was given first.
        names: of the leaf.
    """
    for pattern, kept in pairs:
        if (matches if kept == "all" else matches_whole)(pattern, names):
            yield pattern, kept


def is_exact(pattern: str) -> bool:
    """Whether a pattern has no wildcards, and so names one value."""
    return _WILDCARDS.isdisjoint(pattern)


def specificity(pattern: str) -> int:
    """How many characters of a pattern are no wildcards."""
    return sum(character not in _WILDCARDS and character != _CLOSING for character in pattern)
