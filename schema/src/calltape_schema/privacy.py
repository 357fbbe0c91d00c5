"""Distinguishes data of users from names and settings in code, and matches leaves with the patterns
in which users name them: ``mask``, ``cache.*``, ``outputs.*``.

The recorder omits values by these rules, and the analyzer redacts by them. A leaf has several names
if it has both a place and a parameter. A pattern also matches all leaves below what it names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from fnmatch import translate
from functools import lru_cache
from typing import Any

FEWEST_RANGED = 1024
"""If an omitted integer tensor has at least this many different elements, its range says little
about each of them."""
FEW_NUMBERS = 4
"""More numbers than this without names, in a list and the lists within it, are data, like the ids
of a prompt. They are omitted like the values of a tensor. An image, a kernel or a padding has at
most this many sizes."""
SMALL = 1024
"""An int from -1024 to 1024 is taken for a setting from code."""

_NAME = re.compile(r"[^\W\d][\w.\-/]{0,63}|\d{1,4}")
_MOST_DIGITS = 4
_LENGTH = re.compile(r"\(\d{1,9} characters, not kept\)", re.ASCII)


def is_name(key: Any) -> bool:
    """Whether a dict key looks like a name from code: a word with at most four digits, or a small
    int. An address, the number of a customer or a sentence does not. A plain word always does, even
    if a user wrote it."""
    kind = type(key)
    if kind is str:
        digits = sum([character.isdigit() for character in key])
        return digits <= _MOST_DIGITS and _NAME.fullmatch(key) is not None
    if kind is int:
        return bool(-SMALL <= key <= SMALL)
    if kind is tuple:
        return all(map(is_name, key))
    return key is None or kind is bool


def is_position(key: Any) -> bool:
    """Whether a dict key names nothing, because it is a number, or digits."""
    return type(key) is int or (type(key) is str and key.isdecimal())


def is_setting(value: float) -> bool:
    """Whether a number looks like a setting from code: an int from -1024 to 1024, or a float of at
    most four significant digits. A length, a token id or the number of a customer may not."""
    if type(value) is int:
        return is_name(value)
    return not math.isfinite(value) or float(f"{value:.{_MOST_DIGITS}g}") == value


def length_of_text(text: str) -> str:
    """The placeholder for a text that must stay private, such as the message of an exception, which
    may quote an input: its length. A text of the application is replaced whatever it says."""
    return f"({len(text)} characters, not kept)"


def without_text(text: str) -> str:
    """The same for a text of a tape: the placeholder of a recorder or an earlier redaction
    stays."""
    return text if is_without_text(text) else length_of_text(text)


def is_without_text(text: str) -> bool:
    """Whether this is the placeholder of a text."""
    return _LENGTH.fullmatch(text) is not None


_WILDCARDS = frozenset("*?[")
_CLOSING = "]"


def matches(pattern: str, names: Iterable[str]) -> bool:
    """Whether one of the names of a leaf is that of the pattern, or is below it."""
    return any(map(_matcher(pattern), names))


@lru_cache(maxsize=4096)
def _matcher(pattern: str) -> Callable[[str], object]:
    """One expression for what a pattern names and all below it. A thousand patterns are asked about
    each leaf, and the cache of fnmatch has room for 256 before Python 3.12."""
    return re.compile(f"{translate(pattern)}|{translate(f'{pattern}.*')}").match


def matches_whole(pattern: str, names: Iterable[str]) -> bool:
    """The same, but ``x.*`` also matches ``x``: a bare tensor has no parts, and a pattern for all
    parts means it too."""
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


def literal_of(pattern: str) -> str:
    """A text that every name contains that the pattern matches. Searching for it rules out most
    patterns in a hundredth of the time."""
    known, _, _ = pattern.removesuffix(".*").partition("[")
    return max(known.replace("?", "*").split("*"), key=len)


def specificity(pattern: str) -> int:
    """How many characters of a pattern are no wildcards."""
    return sum(character not in _WILDCARDS and character != _CLOSING for character in pattern)
