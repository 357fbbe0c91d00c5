"""What came of running recorded calls through something: a row per call, and their sum."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, computed_field

from calltape_analyzer.comparison.comparing import Difference
from calltape_analyzer.comparison.json_values import JsonFloat, JsonText
from calltape_analyzer.comparison.leaf_differences import LeafDifference
from calltape_analyzer.foreign_errors import is_beyond_memory
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.text import counted, printable, variant_names
from calltape_schema.errors import TapeError

__all__ = [
    "Report", "ReportRow", "compared_row", "error_in_words", "failed_row",
    "text_of",
]  # fmt: skip


_NOTHING = "no value was compared in any call: what came out is empty, or not a number"


class ReportRow(BaseModel):
    """One recorded call.

    Attributes:
        call: its number on the tape.
        address: its address, if the tape is of several recordings.
        variant: the program that it went through; None if no program accepts it.
        ok: whether the call did what ``against`` says.
        max_abs, max_rel: the largest absolute and relative difference of any element.
        error: why it is not ok: what differs, or what could not be compared.
        against: what the result was compared with. ``"tape"``: all of what was recorded, within the
            tolerance of its dtype. ``"module"``: the tape has no values, or random ones, and the
            module was called instead. ``"part"``: the recorded values, and dtypes and shapes where
            the tape has no value. ``"shapes"``: structure, dtypes and shapes only.
            ``"exception"``: the exception that the call raised. ``"success"``: nothing, the call
            only had to return. ``"nothing"``: the call could not be tried, or has no outputs on the
            tape.
        compared: how many elements and other values were compared. If it is 0, what came out is
            empty, or not a number on both sides, or no value was looked at.
        differences: the first leaves and elements that differ.
        seconds: how long the call took, if that was measured: the fastest of its runs.
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
    differences: tuple[LeafDifference, ...] = ()
    seconds: float | None = None
    _is_unreadable: bool = PrivateAttr(default=False)

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
        return self._is_unreadable

    def set_unreadable(self) -> None:
        """Sets :attr:`is_unreadable`."""
        self._is_unreadable = True


_OF_DAMAGE = ("damaged", "invalid", "unsupported")
_OF_THE_TAPE = (*_OF_DAMAGE, "limit", "io", "closed")
"""Kinds of errors that reading a tape raises."""
_WITHOUT_VALUES = ("part", "shapes", "success", "nothing")


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


_BEYOND = " (of an argument, the memory between and beyond its elements is on no tape)"


def failed_row(call: int, variant: str | None, error: BaseException, against: str) -> ReportRow:
    """The row of a call that raised an error instead of giving a result. An error of the tape says
    nothing about the target."""
    kind = error.kind if isinstance(error, TapeError) else None
    row = ReportRow(
        call=call,
        variant=variant,
        ok=False,
        max_abs=math.inf,
        max_rel=math.inf,
        error=error_in_words(error),
        against="nothing" if kind in _OF_THE_TAPE else against,
    )
    if kind in _OF_DAMAGE:
        row.set_unreadable()
    return row


def error_in_words(error: BaseException) -> str:
    """The class of an exception, and the first line of its text. What reads beyond the memory of an
    argument is told why it cannot."""
    first_line = (text_of(error).splitlines() or [""])[0]
    beyond = _BEYOND if is_beyond_memory(first_line) else ""
    return f"{type(error).__name__}: {first_line:.300}{beyond}"


def text_of(error: BaseException) -> str:
    """The text of an exception, whatever its class does."""
    try:
        return str(error)
    except Exception as broken:  # code of its class
        return f"(its text raised {type(broken).__name__})"


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
    notes: list[JsonText] = Field(default_factory=list)
    remarks: list[JsonText] = Field(default_factory=list)
    _is_unsteady: bool = PrivateAttr(default=False)
    _unmade: dict[str, str] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: object) -> None:
        """If nothing was compared in any call, no row is ok: any model would give this."""
        if not self.has_compared:
            nothing = {"ok": False, "error": _NOTHING}
            self.rows = [row.model_copy(update=nothing) if row.ok else row for row in self.rows]

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
        return self._is_unsteady

    def set_unsteady(self, found: bool) -> None:
        """Sets :attr:`is_unsteady`."""
        self._is_unsteady = found

    @property
    def unmade(self) -> Mapping[str, str]:
        """The classes of arguments that could not be made, so that their calls were not tried, each
        with the reason."""
        return self._unmade

    def set_unmade(self, found: Mapping[str, str]) -> None:
        """Sets :attr:`unmade`."""
        self._unmade = dict(found)

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

    def _details(self) -> Iterator[str]:
        # A call may fail for something else: a difference of 0 would say too much of it.
        rows = [r for r in self.rows if r.compared and r.against != "exception"]
        finite = [r.max_abs for r in rows if (r.ok or r.max_abs) and math.isfinite(r.max_abs)]
        if any(row.ok for row in rows) and finite:
            yield f"largest difference {max(finite):.1e}"
        fine = Counter(row.against for row in self.rows if row.ok)
        for against, words in _FINE.items():
            if fine[against]:
                yield f"{counted(fine[against], 'call')} {words[fine[against] != 1]}"
        weak = sum(row.against == "shapes" and not row.ok for row in self.rows)
        if weak and not fine["shapes"]:
            yield f"{counted(weak, 'call')} in dtypes and shapes only: no values on the tape"
        elif any(row.error == _NOTHING for row in self.rows):
            yield _NO_VALUE

    def table(self, *, every: bool = False, remarks: bool = False) -> str:
        """The calls that fail, a line of text each, how many others there are, the notes, and the
        summary.

        Args:
            every: a line for each call instead.
            remarks: whether to show :attr:`remarks`, too.
        """
        rows = self.rows if every else self.failing[:_MAX_LINES]
        lines = _lines(rows) if rows else []
        lines += [] if every else self._left_out(len(rows))
        told = [*self.notes, *(self.remarks if remarks else ())]
        return "\n".join([*lines, *map(printable, told), printable(self.summary)])

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

_AGREE = ("agrees", "agree")
_NO_VALUE = "no value was compared"
_FINE = {
    "module": ("compared with the model, not with the tape",) * 2,
    "exception": ("raised what was recorded",) * 2,
    "part": tuple(f"{verb} in part: the tape does not have all values" for verb in _AGREE),
    "shapes": tuple(f"{verb} in structure, dtypes and shapes; {_NO_VALUE}" for verb in _AGREE),
    "success": ("returned, which is all that was asked",) * 2,
}
"""What is said of one call, and of several, that are fine for a weaker reason than values."""


def _lines(rows: Sequence[ReportRow]) -> list[str]:
    first: dict[str | None, ReportRow] = {}
    cells: list[Sequence[str]] = [
        _HEAD, *(_cells(row, first.setdefault(row.error, row)) for row in rows)
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEAD) - 1)]
    return [
        "  ".join([*(c.ljust(w) for c, w in zip(row[:-1], widths, strict=True)), row[-1]]).rstrip()
        for row in cells
    ]


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
    return " ".join((row.error or "").split())
