"""A Markdown text for GitHub, GitLab and the like, of bounded length.

What comes from a tape stands in code spans only. There is no HTML in them, no
link, no ``@mention`` and no ``#reference``, whatever a tape says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from calltape_analyzer.text import counted, printable

__all__ = ["LIMIT", "Document"]

LIMIT = 60_000
"""Characters of a document. GitHub takes 65,536, and the reader adds words of their own."""

_FOR_NOTES = 2_000
_MAX_CELL = 200
_MAX_NOTES = 12


class Document:
    """Text that grows block by block until there is no room. What does not fit is counted, and the
    last lines say so.

    Args:
        title: of the document; our own words.
        limit: of its characters, at least 5,000.
    """

    def __init__(self, title: str, *, limit: int = LIMIT) -> None:
        self._blocks = [f"### {title}"]
        self._room = limit - _FOR_NOTES - len(title) - 10
        self._cut: list[str] = []

    def heading(self, words: str) -> None:
        """A heading in our own words."""
        self._add(f"#### {words}", "a heading")

    def table(self, what: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """A table.

        Args:
            what: its rows, for the note that some were cut: ``calls that fail``.
            head: our own words.
            rows: texts of any content.
        """
        lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
        shown = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
        room = self._room - sum(len(line) + 1 for line in shown) - 2
        fit = 0
        for line in lines:
            room -= len(line) + 1
            if room < 0:
                break
            fit += 1
        if fit < len(lines):
            self._cut.append(f"{len(lines) - fit:,} of {len(lines):,} {what}")
        if fit:
            self._add("\n".join([*shown, *lines[:fit]]), what)

    def text(self) -> str:
        """The document, with a note of what was cut."""
        blocks = list(self._blocks)
        if self._cut:
            shown = "; ".join(self._cut[:_MAX_NOTES])
            more = len(self._cut) - _MAX_NOTES
            rest = f"; and {more} more" if more > 0 else ""
            blocks.append(f"*Cut to keep this short: {shown}{rest}.*")
        return "\n\n".join(blocks) + "\n"

    def _add(self, block: str, what: str) -> None:
        if len(block) + 2 > self._room:
            self._cut.append(what)
            return
        self._room -= len(block) + 2
        self._blocks.append(block)


def span(text: str, most: int = _MAX_CELL) -> str:
    """A text of any content as a code span on one line."""
    shown = printable(" ".join(text.split("\n")) if "\n" in text else text)
    if len(shown) > most:
        shown = f"{shown[:most]}… and {counted(len(shown) - most, 'more character')}"
    if not shown.strip():
        return "-"
    fence = "`" * (_longest_run(shown) + 1)
    space = " " if shown[0] in "` " or shown[-1] in "` " else ""
    return f"{fence}{space}{shown}{space}{fence}"


def cell(text: str) -> str:
    """A text of any content as a cell of a table. A bar would end the cell, also within a code
    span, and readers differ in how it is escaped: it is shown as control characters are."""
    if not text or text == "-":
        return "-"
    return span(text.replace("|", "\\x7c"))


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
