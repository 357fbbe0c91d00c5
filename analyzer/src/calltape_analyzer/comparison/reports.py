"""What came of running recorded calls through something: a row per call, and their sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from pydantic import BaseModel, Field, computed_field

from calltape_analyzer.comparison.verdicts import (
    Against,
    ArgumentsUnmade,
    JsonText,
    NothingCompared,
    NotVerified,
    Unsteady,
    Verdict,
)
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.foreign_errors import ErrorKind, means
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.text import counted, printable, table_lines, variant_names

__all__ = ["Report", "ReportRow"]


class ReportRow(Verdict):
    """One recorded call.

    Attributes:
        call: its number on the tape.
        address: its address, if the tape is of several recordings.
        variant: the program that it went through; None if no program accepts it.
        seconds: how long the call took, if that was measured: the fastest of its runs.
    """

    call: int
    variant: JsonText | None
    address: str | None = None
    seconds: float | None = None

    @property
    def is_verified(self) -> bool:
        """Whether all of what was recorded was compared, and is the same."""
        return self.ok and self.against not in _WITHOUT_VALUES

    @property
    def is_tested(self) -> bool:
        """Whether the call was tried, and there was something to judge it by."""
        return self.against != "nothing"

    @property
    def is_unreadable(self) -> bool:
        """Whether the call was not tried because the tape is damaged there."""
        return means(self.error, ErrorKind.OF_DAMAGE)


_WITHOUT_VALUES = ("part", "shapes", "success", "declared", "nothing")


class Report(BaseModel, Shown):
    """All rows, in the order of the calls. It is true in a condition if every row is ok.

    ``model_dump_json()`` gives it as JSON, which ``calltape replay --json`` prints. Its ``repr``
    begins with the calls that fail, so that ``assert replay(tape, model)`` explains itself.

    Attributes:
        rows: one per call.
        notes: what a reader should know: calls that were left out, programs that serve recorded
            sizes only, arguments that were made up.
        remarks: what was tried besides, and came out well.
    """

    rows: list[ReportRow]
    notes: list[Note] = Field(default_factory=list)
    remarks: list[Note] = Field(default_factory=list)

    def model_post_init(self, context: object) -> None:
        """If nothing was compared in any call, no row is ok: any model would give this."""
        if not self.has_compared:
            nothing = NothingCompared()
            self.rows = [row.but(nothing) if row.ok else row for row in self.rows]

    def __iter__(self) -> Iterator[ReportRow]:  # type: ignore[override]
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        shown = [f"call {_name(row)}: {_error(row)}" for row in self.failing[:_MAX_IN_REPR]]
        more = len(self.failing) - len(shown)
        rest = [f"and {counted(more, 'more call')}"] if more else []
        return printable(f"<Report: {'; '.join([*shown, *rest, self.summary])}>")

    def _sketch(self) -> Sketch:
        """The calls that fail, or the first ones if none does."""
        failing = self.failing
        shown = failing or self.rows
        rows = [_cells(row) for row in shown[:_MAX_LINES]]
        title = "Report: all calls are fine" if self.ok else f"Report: {len(failing):,} fail"
        return Sketch(title, head=_HEAD, rows=rows, total=len(shown), note=self.summary)

    @property
    def is_unsteady(self) -> bool:
        """Whether the target gave other values when a call that failed was run once more."""
        return any(isinstance(note, Unsteady) for note in self.notes)

    @property
    def unmade(self) -> Mapping[str, str]:
        """The classes of arguments that could not be made, so that their calls were not tried, each
        with the reason."""
        found = (row.error for row in self.rows if isinstance(row.error, ArgumentsUnmade))
        return {
            name: why for one in found for name, why in zip(one.classes, one.reasons, strict=False)
        }

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether there is a call, each did what its row is about, and anything was compared."""
        return self.has_compared and all(row.ok for row in self.rows)

    @property
    def failing(self) -> list[ReportRow]:
        """The rows that are not ok."""
        return [row for row in self.rows if not row.ok]

    @property
    def has_failed(self) -> bool:
        """Whether a call that could be read is not ok. A damaged one says nothing of the target."""
        return any(not row.is_unreadable for row in self.failing)

    @property
    def has_compared(self) -> bool:
        """Whether any call was compared with anything: values, dtypes and shapes, an exception, or
        that it returns."""
        return any(row.compared or (row.ok and row.against in _WITHOUT_VALUES) for row in self.rows)

    @property
    def reproduced(self) -> int:
        """How many calls were reproduced: all that was recorded of them was compared."""
        return sum(row.is_verified for row in self.rows)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def summary(self) -> str:
        """One line: how many calls were reproduced, by variant, and the largest difference; and how
        many are fine without that their values were compared."""
        if any(row.against == "declared" for row in self.rows):
            return "; in the way: ".join(self._accepted())
        done = f"{self.reproduced} of {len(self.rows)} recorded calls reproduced"
        by_variant = Counter(row.variant or "no variant" for row in self.rows)
        verified = Counter(row.variant or "no variant" for row in self.rows if row.is_verified)
        # A target of one piece has no variants to name.
        named = by_variant if any(row.variant for row in self.rows) else {}
        parts = variant_names(
            [
                f"{name}: {count}"
                if verified[name] == count
                else f"{name}: {verified[name]} of {count}"
                for name, count in named.items()
            ]
        )
        return "; ".join([f"{done} ({parts})" if parts else done, *self._details()])

    def _accepted(self) -> Iterator[str]:
        failing = self.failing
        accepted = len(self.rows) - len(failing)
        yield f"{accepted} of {len(self.rows)} recorded calls would be accepted"
        ways = Counter(getattr(row.error, "dimension", None) or _error(row) for row in failing)
        if ways:
            yield ", ".join(f"{way} ({count})" for way, count in ways.most_common(5))

    def _details(self) -> Iterator[str]:
        # A call may fail for something else: a difference of 0 would say too much of it.
        rows = [r for r in self.rows if r.compared and r.against != "exception"]
        finite = [r.max_abs for r in rows if (r.ok or r.max_abs) and math.isfinite(r.max_abs)]
        if any(row.ok for row in rows) and finite:
            yield f"largest difference {max(finite):.1e}"
        fine = Counter(row.against for row in self.rows if row.ok)
        for against, words in _FINE.items():
            if count := fine[against]:
                agree = "agrees" if count == 1 else "agree"
                yield f"{counted(count, 'call')} {words.format(agree=agree)}"
        lacks = any(isinstance(row.error, NothingCompared | NotVerified) for row in self.rows)
        if lacks and not self.has_compared:
            yield _NO_VALUE

    def table(self, *, every: bool = False, remarks: bool = False) -> str:
        """The calls that fail, a line of text each, how many others there are, the notes, and the
        summary.

        Args:
            every: a line for each call instead.
            remarks: whether to show :attr:`remarks`, too.
        """
        rows = self.rows if every else self.failing[:_MAX_LINES]
        first: dict[Fact | None, ReportRow] = {}
        cells = [_cells(row, first.setdefault(row.error, row)) for row in rows]
        head, below = table_lines(_HEAD, cells, None)
        lines = [*head, *below] if rows else []
        lines += [] if every else self._left_out(len(rows))
        told = [*self.notes, *(self.remarks if remarks else ())]
        return "\n".join([*lines, *map(printable, [*map(str, told), self.summary])])

    def _left_out(self, shown: int) -> Iterator[str]:
        """What is said of the calls without a line."""
        more, fine = len(self.failing) - shown, len(self.rows) - len(self.failing)
        if more:
            yield f"{counted(more, 'more call')} {'fails' if more == 1 else 'fail'}"
        if fine and self.failing:
            yield f"{counted(fine, 'other call')} {'is' if fine == 1 else 'are'} fine"

    def __str__(self) -> str:
        return self.table()


_MAX_IN_REPR, _MAX_LINES = 3, 50
_LONG_ERROR = 100
"""A longer error is written once, and the other calls refer to the first one."""
_HEAD = ("call", "variant", "ok", "max abs", "max rel", "error")

_NO_VALUE = "no value was compared"
_FINE: dict[Against, str] = {
    "module": "compared with the model, not with the tape",
    "exception": "raised what was recorded",
    "part": "{agree} in part: the tape does not have all values",
    "shapes": f"{{agree}} in structure, dtypes and shapes; {_NO_VALUE}",
    "success": "returned, which is all that was asked",
}
"""What is said of calls that are fine for a weaker reason than values."""


def _cells(row: ReportRow, first: ReportRow | None = None) -> tuple[str, ...]:
    """The cells of a row.

    Args:
        row: what is shown.
        first: the first row with this error, if it is shown too.
    """
    error = _error(row)
    if first is not None and first is not row and len(error) > _LONG_ERROR:
        error = f"as call {_name(first)}"
    return tuple(
        map(
            printable,
            (
                _name(row),
                row.variant or "-",
                "yes" if row.ok else "NO",
                _shown_distance(row, row.max_abs),
                _shown_distance(row, row.max_rel),
                error,
            ),
        )
    )


def _shown_distance(row: ReportRow, largest: float) -> str:
    """A largest difference; of a call that gave nothing to compare it would say nothing."""
    is_known = row.compared or (largest and not math.isinf(largest))
    return f"{largest:.1e}" if is_known else "-"


def _name(row: ReportRow) -> str:
    return row.address or str(row.call)


def _error(row: ReportRow) -> str:
    return "" if row.error is None else " ".join(str(row.error).split())
