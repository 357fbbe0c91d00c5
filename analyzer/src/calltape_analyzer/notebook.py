"""What notebooks show of our objects: a short table in HTML, without a script.

In come facts as text, which may be from a stranger's tape. Out goes HTML in which all of it is
escaped and bounded. A notebook asks for it whenever an object is the last line of a cell: so it is
cheap, and raises nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from html import escape
from itertools import compress

from calltape_analyzer.text import printable

__all__ = ["MAX_ROWS", "Shown", "Sketch"]

MAX_ROWS = 20
"""So many rows are shown; who makes rows with work makes no more."""

_MAX_COLUMNS, _MAX_TEXT, _MAX_DEPTH = 10, 400, 20
_LONG_WORD = re.compile(r"\S{60}(?=\S)")
"""A line may break after it: a long name makes no table wider than the page."""


@dataclass
class Sketch:
    """What is shown of an object.

    Attributes:
        title: what it is.
        facts: names and texts.
        head: the columns of a table.
        rows: its rows; the first 20 are shown.
        lines: text below it, which keeps its indentation; the first 20 lines are shown.
        total: how many rows there are, if ``rows`` has some of them only.
        note: a last line.
        parts: what follows.
    """

    title: str = ""
    facts: Sequence[tuple[str, object]] = ()
    _: KW_ONLY
    head: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    lines: Sequence[str] = ()
    total: int | None = None
    note: str | None = None
    parts: Sequence[Sketch] = ()

    def html(self) -> str:
        """As HTML."""
        parts = [f"<strong>{_text(self.title)}</strong>"] if self.title else []
        if self.facts:
            cells = "".join(
                f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>"
                for name, value in self.facts[:MAX_ROWS]
            )
            parts.append(f"<table><tbody>{cells}</tbody></table>")
        if self.rows:
            parts.append(self._table())
        parts += [f"<div>{_indented(line)}</div>" for line in self.lines[:MAX_ROWS]]
        notes = [self.note] if self.note else []
        total = len(self.rows) if self.total is None else self.total
        more = total - min(len(self.rows), MAX_ROWS)
        more += len(self.lines[MAX_ROWS:])
        if more > 0:
            notes.insert(0, f"and {more:,} more")
        parts += [f"<div>{_text(note)}</div>" for note in notes]
        parts += [part.html() for part in self.parts]
        return f"<div>{''.join(parts)}</div>"

    def _table(self) -> str:
        """Without columns that are empty in all rows that are shown."""
        cells = [[_text(cell) for cell in row[:_MAX_COLUMNS]] for row in self.rows[:MAX_ROWS]]
        full = [any(column) for column in zip(*cells, strict=False)]
        head = "".join(f"<th>{_text(name)}</th>" for name in compress(self.head, full))
        rows = "".join(
            f"<tr>{''.join(f'<td>{cell}</td>' for cell in compress(row, full))}</tr>"
            for row in cells
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _text(value: object) -> str:
    """Any value as escaped text on one line."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if value.bit_length() <= 64 else f"an int of {value.bit_length()} bits"
    text = "" if value is None else str(value)
    shown = printable(" ".join(text[: 4 * _MAX_TEXT].split()))
    shown = shown if len(shown) <= _MAX_TEXT else f"{shown[:_MAX_TEXT]}…"
    # Printable text has no NUL.
    return escape(_LONG_WORD.sub("\\g<0>\0", shown)).replace("\0", "<wbr>")


def _indented(line: str) -> str:
    """The same of a line of a text, whose indentation shows how it is nested."""
    depth = len(line) - len(line.lstrip(" "))
    return "&nbsp;" * min(depth, _MAX_DEPTH) + _text(line)


class Shown:
    """An object that notebooks show as a table."""

    def _sketch(self) -> Sketch:
        """What is shown; of a class that does not say it, the ``repr``."""
        return Sketch(repr(self))

    def _repr_html_(self) -> str | None:
        """HTML for notebooks; None if it cannot be made now, for instance of a closed tape. Then
        they show the ``repr``."""
        try:
            return self._sketch().html()
        except Exception:
            return None
