"""What came of running recorded calls through something: a row per call, and their sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, computed_field

from calltape_analyzer.comparison.comparing import Difference
from calltape_analyzer.text import counted

__all__ = ["JsonFloat", "JsonText", "Report", "ReportRow", "compared_row", "failed_row"]


_NOTHING = "no value was compared in any call: what came out is empty, or not a number"


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _encodable(text: object) -> object:
    return text.encode(errors="backslashreplace").decode() if isinstance(text, str) else text


JsonFloat = Annotated[float, PlainSerializer(_finite, when_used="json")]
"""A float that is text in JSON if it is not finite, because JSON has no such numbers."""
JsonText = Annotated[
    str, BeforeValidator(_encodable), PlainSerializer(_encodable, return_type=str, when_used="json")
]
"""Text with lone surrogates as escapes: names and messages may have them, and UTF-8 has none."""


class ReportRow(BaseModel):
    """One recorded call.

    Attributes:
        call: its number on the tape.
        address: its address, if the tape is of several recordings.
        variant: the program that it went through; None if no program accepts it.
        ok: whether all of what came out was compared, and is what was recorded, within the
            tolerance of its dtype.
        max_abs, max_rel: the largest absolute and relative difference of any element.
        error: why it is not ok: what differs, or what could not be compared.
        against: ``"tape"``; ``"module"`` if the tape has no values to compare with and the module
            was called instead; ``"shapes"`` if only dtypes and shapes could be compared, which is
            not enough to be ok.
        compared: how many elements and other values were compared. If it is 0, what came out is
            empty, or not a number on both sides.
    """

    model_config = ConfigDict(frozen=True)

    call: int
    variant: JsonText | None
    ok: bool
    max_abs: JsonFloat = 0.0
    max_rel: JsonFloat = 0.0
    error: JsonText | None = None
    against: str = "tape"
    compared: int = 0
    address: str | None = None


def compared_row(
    call: int, variant: str | None, found: Difference, against: str = "tape"
) -> ReportRow:
    """The row of a call whose result was compared."""
    return ReportRow(
        call=call,
        variant=variant,
        ok=found.ok,
        max_abs=found.max_abs,
        max_rel=found.max_rel,
        error=found.error,
        against=against,
        compared=found.compared,
    )


def failed_row(call: int, variant: str | None, error: Exception, against: str) -> ReportRow:
    """The row of a call that raised an error instead of giving a result."""
    first_line = (str(error).splitlines() or [""])[0]
    return ReportRow(
        call=call,
        variant=variant,
        ok=False,
        max_abs=math.inf,
        max_rel=math.inf,
        error=f"{type(error).__name__}: {first_line:.300}",
        against=against,
    )


class Report(BaseModel):
    """All rows, in the order of the calls. It is true in a condition if every row is ok.

    ``model_dump_json()`` gives it as JSON, which ``calltape replay --json`` prints.

    Attributes:
        rows: one per call.
        notes: what a reader should know: calls that were left out, and programs that serve recorded
            sizes only.
    """

    rows: list[ReportRow]
    notes: list[JsonText] = Field(default_factory=list)

    def model_post_init(self, context: object) -> None:
        """If no value of any call was compared, no row is ok: any model would give this."""
        if not self.has_compared:
            nothing = {"ok": False, "error": _NOTHING}
            self.rows = [row.model_copy(update=nothing) if row.ok else row for row in self.rows]

    def __iter__(self) -> Iterator[ReportRow]:  # type: ignore[override]
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return self.ok

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether there is a call, every call was reproduced, and any value was compared."""
        return self.has_compared and all(row.ok for row in self.rows)

    @property
    def has_compared(self) -> bool:
        """Whether any value was compared in any call."""
        return any(row.compared for row in self.rows)

    @property
    def reproduced(self) -> int:
        """How many calls were reproduced."""
        return sum(row.ok for row in self.rows)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def summary(self) -> str:
        """One line: how many calls were reproduced, by variant, and the largest difference."""
        done = f"{self.reproduced} of {len(self.rows)} recorded calls reproduced"
        by_variant = Counter(row.variant or "no variant" for row in self.rows)
        # A target of one piece has no variants to name.
        named = by_variant if any(row.variant for row in self.rows) else {}
        parts = ", ".join(f"{name}: {count}" for name, count in named.items())
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

    def table(self) -> str:
        """A line of text per call, the notes, and the summary."""
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
        row.address or str(row.call),
        row.variant or "-",
        "yes" if row.ok else "NO",
        f"{row.max_abs:.1e}" if row.compared or row.max_abs else "-",
        f"{row.max_rel:.1e}" if row.compared or row.max_rel else "-",
        " ".join((row.error or "").split()),
    )
