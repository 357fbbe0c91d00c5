"""Words for people: text that is safe for a terminal, lists that are cut, names that are unique.

Takes texts and names of a tape, which may hold anything; returns text for messages and reports.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

__all__ = ["printable", "printable_lines", "some_of"]

GOES_ON = (
    "the recording goes on: its recorder still runs or was killed, or later files are not here"
)

_NUMBER = re.compile(r"(?<=\.)\d+")
_MAX_NAMES = 256  # the columns of one tensor come one after the other


def printable(text: str) -> str:
    """The text with escapes for all characters that are not visible (control and format characters,
    lone surrogates): in a terminal they could move the cursor or reverse text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def printable_lines(text: str) -> str:
    """Like :func:`printable`, for text of several lines. The line breaks stay."""
    if text.isprintable():  # one call instead of a split, because a text may be long
        return text
    return "\n".join(map(printable, text.split("\n")))


def time_text(nanoseconds: int) -> str:
    """A Unix time in nanoseconds as text, in UTC; the number itself if a clock was far off."""
    try:
        moment = datetime.fromtimestamp(nanoseconds / 1e9, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"{nanoseconds} ns"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def some_of(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """The first ``most`` names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def variant_names(names: Sequence[str], most: int | None = None) -> str:
    """Names of variants, at most so many: ``decode; mask present, add=False; and 2 more``. Commas
    are within names, so that they cannot stand between them."""
    more = 0 if most is None else max(0, len(names) - most)
    return "; ".join([*names[:most], *[f"and {more} more"] * (more > 0)])


def named(names: Sequence[str], most: int) -> str:
    """Names in a sentence: ``a``, ``a and b``, ``a, b and c``, ``a, b and 7 more``."""
    if 1 < len(names) <= most:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return some_of(names, most)


class UniqueNames:
    """Makes names unique: a name that comes again gets a number, from 2 on.

    The next number of each name is remembered, because a hostile tape may have thousands of equal
    names.

    Args:
        names: names that are taken already.
        numbered: the format of a name with a number.
    """

    def __init__(self, names: Iterable[str] = (), *, numbered: str = "{}_{}") -> None:
        self.names = set(names)
        self._numbered = numbered
        self._next: dict[str, int] = {}

    def add(self, name: str) -> str:
        """The name, or the name with a number if it is taken."""
        made, count = name, self._next.get(name, 2)
        while made in self.names:
            made, count = self._numbered.format(name, count), count + 1
            self._next[name] = count
        self.names.add(made)
        return made


def unique(names: Iterable[str]) -> list[str]:
    """Names, of which those that come again get a number."""
    taken = UniqueNames()
    return [taken.add(name) for name in names]


L = TypeVar("L", bound=Hashable)


MAX_EXAMPLES = 3


def shown_value(value: Any) -> str:
    """A scalar as ``repr`` shows it, cut if it is long."""
    if type(value) is int and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def counted(count: int, what: str) -> str:
    """``1 call``, ``2 calls``."""
    return f"{count} {what}{'s' * (count != 1)}"


def collapsed(names: Sequence[str]) -> list[str]:
    """Joins paths that differ only in the positions in lists:
    ``cache.layers.*.keys (32 of them)``."""
    by_pattern: dict[str, list[str]] = {}
    for name in names:
        by_pattern.setdefault(pattern_of(name), []).append(name)
    return [
        same[0] if len(same) == 1 else f"{pattern} ({len(same)} of them)"
        for pattern, same in by_pattern.items()
    ]


def merge_alike(places: Iterable[tuple[str, L]]) -> Iterator[tuple[str, L]]:
    """Joins paths that differ only in the positions in lists, if the same is said of them.

    If the same is said of all such paths, they are ``cache.layers.*.keys (32 of them)``;
    if something else is said of others, they are ``xs.0 and 3 like it``. Each name comes once.

    Args:
        places: paths, each with what is said of it (a text, or a tuple of texts).
    """
    lists: dict[str, dict[L, list[str]]] = {}
    for name, said in places:
        lists.setdefault(pattern_of(name), {}).setdefault(said, []).append(name)
    taken: set[str] = set()
    again: Counter[str] = Counter()
    for looks in lists.values():
        for said, names in looks.items():
            (shown,) = collapsed(names) if len(looks) == 1 else names[:1]
            if len(names) > 1 < len(looks):
                shown = f"{shown} and {len(names) - 1} like it"
            # The keys 1 and "1" of a dict give one name.
            made = shown
            while made in taken:
                again[shown] += 1
                made = f"{shown} (again {again[shown]})"
            taken.add(made)
            yield made, said


def listed(names: Sequence[str], limit: int = MAX_EXAMPLES) -> str:
    """At most ``limit`` names, with paths joined by :func:`collapsed`, and how many more there
    are."""
    return some_of(collapsed(names), limit)


class Listing:
    """Lists for each of many names what the others are, in a time that does not grow with their
    number."""

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: dict[str, list[tuple[int, str]]] = {}
        for at, name in enumerate(names):
            self._alike.setdefault(pattern_of(name), []).append((at, name))

    def without(self, name: str) -> str:
        """What :func:`listed` says of all names except this one, which must be among them."""
        pattern = pattern_of(name)
        others = (group for key, group in self._alike.items() if key != pattern)
        found = [(*group[0], group) for group in islice(others, MAX_EXAMPLES)]
        own = self._alike[pattern]
        if len(own) > 1:
            found.append((*(own[0] if own[0][1] != name else own[1]), own[1:]))
        # Each group stands at the position of its first name.
        found.sort(key=lambda one: one[0])
        shown = [
            first if len(group) == 1 else f"{pattern_of(first)} ({len(group)} of them)"
            for _, first, group in found[:MAX_EXAMPLES]
        ]
        more = len(self._alike) - (len(own) == 1) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


@lru_cache(_MAX_NAMES)
def pattern_of(name: str) -> str:
    """A path with stars for the positions in lists: equal for paths that differ in these only."""
    return _NUMBER.sub("*", name)


def shown_range(low: int, high: int) -> str:
    """``3``, ``3 to 7``."""
    return shown_value(low) if low == high else f"{shown_value(low)} to {shown_value(high)}"
