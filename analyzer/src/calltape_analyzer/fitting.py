"""How texts and tables fit a width.

Takes texts without line breaks; returns lines. If there is a width, long lines break between words,
and columns are made as narrow as they must be. A word that is longer than a line or its column
breaks between its parts; a row that does not fit even so is a block of lines. Without a width, each
line and each row is one line with full values.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TextIO

from calltape_analyzer.text import printable

__all__ = ["cells_of", "fitted", "shortened", "table_lines", "terminal_width", "wrapped"]

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
    """Columns of the terminal that a stream is, by default stdout; None if it is none. ``COLUMNS``
    says it first."""
    if not _is_terminal(sys.stdout if stream is None else stream):
        return None
    return max(shutil.get_terminal_size().columns, _LEAST_WIDTH)


def _is_terminal(stream: TextIO) -> bool:
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
    own = len(text) - len(text.lstrip(" ")) if indent else 0
    hanging = " " * min(own + indent, width // 2)
    made = ""
    for piece in _pieces(text, width - len(hanging), paths):
        if made.strip() and cells_of(made) + cells_of(piece) > width:
            yield made
            made = hanging + piece.lstrip()
        else:
            made += piece
    yield made


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
        return [_beside(head, widths)], [_beside(row, widths) for row in shown]
    fitted = _widths(columns, width)
    if fitted is None:
        return [], [line for row in shown for line in _block(head, row, width)]
    return _folded(head, fitted), [line for row in shown for line in _folded(row, fitted)]


def _beside(cells: Iterable[str], widths: Sequence[int]) -> str:
    padded = (
        f"{cell}{' ' * (most - cells_of(cell))}" for cell, most in zip(cells, widths, strict=True)
    )
    return (" " * _GAP).join(padded).rstrip()


def _folded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """A row in as many lines as its longest cell needs."""
    cells = (wrapped(cell, most) for cell, most in zip(row, widths, strict=True))
    return [_beside(one, widths) for one in zip_longest(*cells, fillvalue="")]


def _block(head: Sequence[str], row: Sequence[str], width: int) -> Iterator[str]:
    """A row in lines of a width: its first cell, and below it the others with their names, as many
    side by side as fit. A cell that has nothing is left out."""
    yield from wrapped(row[0], width)
    items = [f"{name}: {cell}" for name, cell in zip(head[1:], row[1:], strict=True) if cell]
    made = ""
    for place, item in enumerate(items):
        beside = f"{made} {item}" if made else item
        beside += ";" * (place + 1 < len(items))
        if made and cells_of(beside) > width - _GAP:
            yield from _indented(made, width)
            beside = beside[len(made) + 1 :]
        made = beside
    yield from _indented(made, width)


def _indented(text: str, width: int) -> Iterator[str]:
    return (" " * _GAP + one for one in wrapped(text, width - _GAP) if one)


def _widths(columns: Sequence[Sequence[str]], width: int) -> list[int] | None:
    """How wide each column is, so that all fit: the widest ones give way first, and if there is
    room for that, none breaks a word, or at least no part of one that is not long. None if there
    is no room even for these parts."""
    room = width - _GAP * (len(columns) - 1)
    found = [min(max(map(cells_of, column)), width) for column in columns]
    for split, most in ((_WORD, width), (_PART, width), (_PART, _LONG_PART)):
        least = [min(_longest(split, column), most) for column in columns]
        if sum(least) <= room:
            break
    else:
        return None
    while sum(found) > room:
        shrinks = [at for at, low in enumerate(least) if found[at] > low]
        found[max(shrinks, key=found.__getitem__)] -= 1
    return found


def _longest(split: re.Pattern[str], column: Sequence[str]) -> int:
    pieces = (one.strip() for cell in column for one in split.findall(cell))
    return max(map(cells_of, pieces), default=0)


def cells_of(text: str) -> int:
    """Columns that a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
