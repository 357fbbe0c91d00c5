"""What a benchmark measured, and the table of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Question", "Row", "table"]


class Question(Enum):
    """The tables of docs/costs.md, in their order, by their headings."""

    SERVER = "A call in a real server"
    NOTHING_NEW = "A call when nothing new is seen"
    RECORDED = "A recorded call by itself"
    DISK = "Bytes on disk"
    ANALYSIS = "Reading and analysis"
    EXPORTS = "Exporting models of real size"


@dataclass(frozen=True)
class Row:
    """One measurement, against one alternative.

    Attributes:
        what: was measured.
        calltape: the figure with calltape.
        without: the figure without it, after the name of the alternative if that is not obvious.
        ratio: of calltape to the alternative.
        question: the table of docs/costs.md that has this row; None if only the file of results
            has it.
    """

    what: str
    calltape: str
    without: str = ""
    ratio: str = ""
    question: Question | None = None


def table(rows: Iterable[Row]) -> str:
    """GitHub-flavoured markdown."""
    lines = ["| measured | with calltape | without | ratio |", "| --- | --- | --- | --- |"]
    for row in rows:
        cells = row.what, row.calltape or "–", row.without or "–", row.ratio or "–"
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
