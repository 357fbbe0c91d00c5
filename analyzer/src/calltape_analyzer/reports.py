"""What came of running recorded calls through something: a row per call, and their sum."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Report", "ReportRow", "failed_row"]


@dataclass(frozen=True)
class ReportRow:
    """One recorded call.

    Attributes:
        call: its number on the tape.
        variant: the program that it went through; None where none accepts it.
        ok: whether what came out is what was recorded, within the tolerance of its dtype.
        max_abs, max_rel: largest absolute and relative difference of any element.
        error: why it is not ok.
        against: ``"tape"``; ``"module"`` where the tape has no values to compare with and the
            module was called instead; ``"shapes"`` where only dtypes and shapes could be compared.
    """

    call: int
    variant: str | None
    ok: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    error: str | None = None
    against: str = "tape"


def failed_row(call: int, variant: str | None, error: Exception, against: str) -> ReportRow:
    """The row of a call that raised instead of giving a result."""
    said = (str(error).splitlines() or [""])[0]
    text = f"{type(error).__name__}: {said:.300}"
    return ReportRow(call, variant, False, math.inf, math.inf, text, against)


@dataclass
class Report:
    """All rows, in the order of the calls. True in a condition where every row is ok.

    ``notes`` say what a reader should know: calls that were left out, and programs that are kept
    to recorded sizes.
    """

    rows: list[ReportRow]
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[ReportRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether every call was reproduced, and there was one."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def reproduced(self) -> int:
        """How many calls were."""
        return sum(row.ok for row in self.rows)

    @property
    def summary(self) -> str:
        """One line: how many calls were reproduced, by variant, and the largest difference."""
        done = f"{self.reproduced} of {len(self.rows)} recorded calls reproduced"
        by_variant = Counter(row.variant or "no variant" for row in self.rows)
        # A target of one piece has no variants to tell of.
        told = by_variant if any(row.variant for row in self.rows) else {}
        parts = ", ".join(f"{name}: {count}" for name, count in told.items())
        weak = sum(row.against == "shapes" for row in self.rows)
        if weak:
            done += f" ({weak} of them in dtypes and shapes only: their values are not on the tape)"
        finite = [row.max_abs for row in self.rows if row.ok and math.isfinite(row.max_abs)]
        largest = f"; largest difference {max(finite):.1e}" if finite else ""
        return f"{done} ({parts}){largest}" if parts else done

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "ok": self.ok,
            "summary": self.summary,
            "notes": list(self.notes),
            "rows": [_finite(asdict(row)) for row in self.rows],
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.as_dict(), indent=2)

    def table(self) -> str:
        """A row of text per call, and the summary."""
        head = ("call", "variant", "ok", "max abs", "max rel", "error")
        rows: list[Sequence[str]] = [head, *(_cells(row) for row in self.rows)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
        lines = [
            "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]])
            for row in rows
        ]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes, self.summary])

    __str__ = table


def _cells(row: ReportRow) -> tuple[str, ...]:
    return (
        str(row.call),
        row.variant or "-",
        "yes" if row.ok else "NO",
        f"{row.max_abs:.1e}",
        f"{row.max_rel:.1e}",
        " ".join((row.error or "").split()),
    )


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
