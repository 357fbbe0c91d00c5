"""Words for people: text that is safe for a terminal and fits its width, lists that are cut, names
that are unique.

Takes texts and names of a tape, which may hold anything; returns text for messages and reports, and
lines. If there is a width, long lines break between words, and columns are made as narrow as they
must be. A word that is longer than a line or its column breaks between its parts; a row that does
not fit even so is a block of lines. Without a width, each line and each row is one line with full
values.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Any, TextIO, TypeVar

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
    """Names of variants, at most this many: ``decode; mask present, add=False; and 2 more``. Names
    contain commas, so semicolons separate them."""
    more = 0 if most is None else max(0, len(names) - most)
    return "; ".join([*names[:most], *[f"and {more} more"] * (more > 0)])


def joined(names: Sequence[str], most: int) -> str:
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
        unique_name, count = name, self._next.get(name, 2)
        while unique_name in self.names:
            unique_name, count = self._numbered.format(name, count), count + 1
            self._next[name] = count
        self.names.add(unique_name)
        return unique_name


def unique(names: Iterable[str]) -> list[str]:
    """The names, with numbers added to those that occur again."""
    names_taken = UniqueNames()
    return [names_taken.add(name) for name in names]


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
        same_pattern[0] if len(same_pattern) == 1 else f"{pattern} ({len(same_pattern)} of them)"
        for pattern, same_pattern in by_pattern.items()
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
    labels: set[str] = set()
    again: Counter[str] = Counter()
    for looks in lists.values():
        for said, names in looks.items():
            (shown,) = collapsed(names) if len(looks) == 1 else names[:1]
            if len(names) > 1 < len(looks):
                shown = f"{shown} and {len(names) - 1} like it"
            # The keys 1 and "1" of a dict give one name.
            label = shown
            while label in labels:
                again[shown] += 1
                label = f"{shown} (again {again[shown]})"
            labels.add(label)
            yield label, said


def listed(names: Sequence[str], limit: int = MAX_EXAMPLES) -> str:
    """At most ``limit`` names, with paths joined by :func:`collapsed`, and how many more there
    are."""
    return some_of(collapsed(names), limit)


class Listing:
    """Lists for each of many names what the others are, in a time that does not grow with their
    number."""

    def __init__(self, names: Iterable[str]) -> None:
        self._alike: dict[str, list[tuple[int, str]]] = {}
        for i, name in enumerate(names):
            self._alike.setdefault(pattern_of(name), []).append((i, name))

    def without(self, name: str) -> str:
        """What :func:`listed` says of all names except this one, which must be among them."""
        pattern = pattern_of(name)
        groups = (group for key, group in self._alike.items() if key != pattern)
        examples = [(*group[0], group) for group in islice(groups, MAX_EXAMPLES)]
        own_group = self._alike[pattern]
        if len(own_group) > 1:
            examples.append(
                (*(own_group[0] if own_group[0][1] != name else own_group[1]), own_group[1:])
            )
        # Each group stands at the position of its first name.
        examples.sort(key=lambda example: example[0])
        shown = [
            first if len(group) == 1 else f"{pattern_of(first)} ({len(group)} of them)"
            for _, first, group in examples[:MAX_EXAMPLES]
        ]
        more = len(self._alike) - (len(own_group) == 1) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


@lru_cache(_MAX_NAMES)
def pattern_of(name: str) -> str:
    """A path with stars for the positions in lists: equal for paths that differ in these only."""
    return _NUMBER.sub("*", name)


def shown_range(low: int, high: int) -> str:
    """``3``, ``3 to 7``."""
    return shown_value(low) if low == high else f"{shown_value(low)} to {shown_value(high)}"


_MAX_WIDTH = 100
"""Of a column: wider cells are followed by the next, and do not widen those of all other rows."""
_LEAST_WIDTH = 20
_LONG_PART = 20
"""A part of a word that is longer may be cut in a table: no table has room for a long one."""
_WORD = re.compile(r"\s*\S+")
_PART = re.compile(r"\s*(?:\.{2,}|[^\s.:\[/_])*[.:\[/_]?")
"""Of a word: ``cache.``, ``layers.``, ``0.``, ``values``. A range (``3..1595``) is one part."""
_CHARACTER = re.compile(r"\.\.\S?|.")
"""A range that is cut must not look as if it had no end."""
_GAP = 2
"""Between two columns."""


def terminal_width(stream: TextIO | None = None) -> int | None:
    """The width of the terminal that a stream (by default stdout) writes to, in columns; None if it
    is not a terminal. ``COLUMNS`` takes precedence."""
    if not is_terminal(sys.stdout if stream is None else stream):
        return None
    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def fitted(text: str, width: int | None, indent: int = 2, *, paths: bool = True) -> list[str]:
    """The lines of a text for a terminal of this width, made printable: what a tape says is not for
    terminals to obey. One line if there is no terminal.

    Args:
        text: without line breaks.
        width: of the terminal, or None.
        indent: of the further lines, beyond that of the first.
        paths: as for :func:`wrapped`.
    """
    shown = printable(text).rstrip()
    return [shown] if width is None else list(wrapped(shown, width, indent, paths=paths))


def wrapped(text: str, width: int, indent: int = 0, *, paths: bool = False) -> Iterator[str]:
    """A text in lines that fit, broken between words; a word that is too long breaks between its
    parts, and a part that is too long anywhere.

    Args:
        text: without line breaks.
        width: in columns; a wide character takes two.
        indent: of all lines but the first, beyond that of the first.
        paths: whether a word with a slash stays whole: it may be the path of a file, to copy.
    """
    if cells_of(text) <= width:
        yield text
        return
    indentation = len(text) - len(text.lstrip(" ")) if indent else 0
    hanging = " " * min(indentation + indent, width // 2)
    current = ""
    for piece in _pieces(text, width - len(hanging), paths):
        if current.strip() and cells_of(current) + cells_of(piece) > width:
            yield current
            current = hanging + piece.lstrip()
        else:
            current += piece
    yield current


def _pieces(text: str, width: int, paths: bool) -> Iterator[str]:
    """Words, parts of words, or characters, of which none but a path is wider than a line."""
    for word in _WORD.findall(text):
        if cells_of(word.strip()) <= width or (paths and "/" in word):
            yield word
            continue
        for part in filter(None, _PART.findall(word)):
            yield from (part,) if cells_of(part) <= width else _CHARACTER.findall(part)


def shortened(text: str, width: int) -> str:
    """A text that is cut to a width in columns, with an ellipsis if it was longer."""
    if cells_of(text) <= width:
        return text
    if text.isascii():
        return f"{text[: max(width - 1, 0)]}…"
    from rich.cells import set_cell_size

    return f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"


def table_lines(
    head: Sequence[str], rows: Iterable[Sequence[str]], width: int | None
) -> tuple[list[str], list[str]]:
    """The lines of the head, and of the rows, of columns side by side. Of rows that are blocks,
    there is no head.

    Args:
        head: the name of each column.
        rows: the cells of each row, which need not be printable.
        width: of the terminal; None if there is none.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    columns = list(zip(head, *shown, strict=True))
    if width is None:
        widths = [min(max(map(cells_of, column)), _MAX_WIDTH) for column in columns]
        return [_cells_in_row(head, widths)], [_cells_in_row(row, widths) for row in shown]
    fitted = _widths(columns, width)
    if fitted is None:
        return [], [line for row in shown for line in _block(head, row, width)]
    return _folded(head, fitted), [line for row in shown for line in _folded(row, fitted)]


def _cells_in_row(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = (
        f"{cell}{' ' * (most - cells_of(cell))}" for cell, most in zip(cells, widths, strict=True)
    )
    return (" " * _GAP).join(padded).rstrip()


def _folded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row in as many lines as its longest cell needs."""
    cells = (wrapped(cell, most) for cell, most in zip(row, widths, strict=True))
    return [_cells_in_row(line, widths) for line in zip_longest(*cells, fillvalue="")]


def _block(head: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """A row in lines of a width: its first cell, and below it the others with their names, as many
    side by side as fit. A cell that has nothing is left out."""
    yield from wrapped(row[0], width)
    items = [f"{name}: {cell}" for name, cell in zip(head[1:], row[1:], strict=True) if cell]
    current = ""
    for place, item in enumerate(items):
        longer = f"{current} {item}" if current else item
        longer += ";" * (place + 1 < len(items))
        if current and cells_of(longer) > width - _GAP:
            yield from _indented(current, width)
            longer = longer[len(current) + 1 :]
        current = longer
    yield from _indented(current, width)


def _indented(text: str, width: int) -> Iterator[str]:
    return (" " * _GAP + line for line in wrapped(text, width - _GAP) if line)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """The width of each column, so that all fit. The widest columns shrink first; if possible no
    word is broken, or at least no short part of a word. None if not even these parts fit."""
    room = width - _GAP * (len(columns) - 1)
    widths = [min(max(map(cells_of, column)), width) for column in columns]
    for split, most in ((_WORD, width), (_PART, width), (_PART, _LONG_PART)):
        least = [min(_longest(split, column), most) for column in columns]
        if sum(least) <= room:
            break
    else:
        return None
    while sum(widths) > room:
        shrinks = [i for i, low in enumerate(least) if widths[i] > low]
        widths[max(shrinks, key=widths.__getitem__)] -= 1
    return widths


def _longest(split: re.Pattern[str], column: Sequence[str]) -> int:
    pieces = (piece.strip() for cell in column for piece in split.findall(cell))
    return max(map(cells_of, pieces), default=0)


def cells_of(text: str) -> int:
    """Columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
