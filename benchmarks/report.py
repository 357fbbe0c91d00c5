"""The table of docs/costs.md."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Row", "table"]


@dataclass(frozen=True)
class Row:
    """One line: what was measured, calltape's own figure, and the ratios to what it is held
    against."""

    what: str
    calltape: str
    ratios: tuple[str, ...]


def table(rows: list[Row]) -> str:
    """GitHub-flavoured markdown."""
    lines = ["| measured | calltape | ratio to |", "| --- | --- | --- |"]
    lines += [f"| {row.what} | {row.calltape} | {'; '.join(row.ratios)} |" for row in rows]
    return "\n".join(lines)
