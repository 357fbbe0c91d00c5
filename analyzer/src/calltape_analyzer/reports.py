"""What came of running recorded calls through something: a row per call, and their sum."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from calltape_analyzer.comparing import Difference
from calltape_analyzer.explanation import counted

__all__ = ["Report", "ReportRow", "compared_row", "failed_row"]


_NOTHING = "no value was compared in any call: what came out is empty, or not a number"


@dataclass(frozen=True)
class ReportRow:
    """One recorded call.

    Attributes:
        call: its number on the tape.
        variant: the program that it went through; None where none accepts it.
        ok: whether all of what came out was compared, and is what was recorded, within the
            tolerance of its dtype.
        max_abs, max_rel: largest absolute and relative difference of any element.
        error: why it is not ok: what differs, or what could not be compared.
        against: ``"tape"``; ``"module"`` where the tape has no values to compare with and the
            module was called instead; ``"shapes"`` where only dtypes and shapes could be compared,
            which is not enough to be ok.
        compared: how many elements and other values were compared. Where it is 0, what came out is
            empty, or not a number on both sides.
    """

    call: int
    variant: str | None
    ok: bool
    max_abs: float = 0.0
    max_rel: float = 0.0
    error: str | None = None
    against: str = "tape"
    compared: int = 0


def compared_row(
    call: int, variant: str | None, found: Difference, against: str = "tape"
) -> ReportRow:
    """The row of a call whose result was compared."""
    numbers = (found.max_abs, found.max_rel)
    return ReportRow(call, variant, found.ok, *numbers, found.error, against, found.compared)


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

    def __post_init__(self) -> None:
        if not self.has_compared:  # any model would give this
            self.rows = [replace(r, ok=False, error=_NOTHING) if r.ok else r for r in self.rows]

    def __iter__(self) -> Iterator[ReportRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """Whether every call was reproduced, there was one, and any value of one was compared."""
        return self.has_compared and all(row.ok for row in self.rows)

    @property
    def has_compared(self) -> bool:
        """Whether any value was compared in any call."""
        return any(row.compared for row in self.rows)

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
        finite = [r.max_abs for r in self.rows if r.ok and r.compared and math.isfinite(r.max_abs)]
        rest = f"; largest difference {max(finite):.1e}" if finite else ""
        weak = sum(row.against == "shapes" for row in self.rows)
        now = sum(row.ok and row.against == "module" for row in self.rows)
        if now:
            rest += f"; {counted(now, 'call')} compared with the model, not with the tape"
        if weak:
            rest += f"; {counted(weak, 'call')} in dtypes and shapes only: no values on the tape"
        elif any(row.error == _NOTHING for row in self.rows):
            rest += "; no value was compared"
        return f"{done} ({parts}){rest}" if parts else f"{done}{rest}"

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
        f"{row.max_abs:.1e}" if row.compared or row.max_abs else "-",
        f"{row.max_rel:.1e}" if row.compared or row.max_rel else "-",
        " ".join((row.error or "").split()),
    )


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }
