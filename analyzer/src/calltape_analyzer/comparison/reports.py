"""The result of running recorded calls: verdicts, the facts in them, and a report with a row per
call.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, computed_field
from typing_extensions import Self

from calltape_analyzer.facts import Fact, Names, Note
from calltape_analyzer.foreign_errors import ErrorMeaning, means
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.pytree.nodes import Unknown
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.text import counted, printable, table_lines, variant_names

__all__ = [
    "Against",
    "ArgumentsUnmade",
    "CallsKind",
    "CallsUnmade",
    "CorruptedTape",
    "Doubted",
    "ElementDifference",
    "Incomparable",
    "JsonFloat",
    "JsonText",
    "LeafDifference",
    "NoOutputs",
    "NotVerified",
    "NothingCompared",
    "OtherException",
    "OtherOutputs",
    "PartsUncompared",
    "Report",
    "ReportRow",
    "SlowCall",
    "SomeCalls",
    "Unsteady",
    "Verdict",
    "output_path",
]


def _encodable(text: object) -> object:
    return text.encode(errors="backslashreplace").decode() if isinstance(text, str) else text


def _number(value: object) -> object:
    return float(value) if value in ("inf", "-inf", "nan") and isinstance(value, str) else value


JsonFloat = Annotated[
    float,
    BeforeValidator(_number),
    PlainSerializer(lambda value: value if math.isfinite(value) else str(value), when_used="json"),
]
"""A float that is text in JSON if it is not finite, because JSON has no such numbers."""
JsonText = Annotated[
    str, BeforeValidator(_encodable), PlainSerializer(_encodable, return_type=str, when_used="json")
]
"""Text with lone surrogates as escapes. Names and messages may have some, which UTF-8 cannot
encode."""


_MAX_PARTS = 5

Against = Literal["tape", "module", "part", "shapes", "exception", "success", "declared", "nothing"]
"""What a result was compared with, as :class:`Verdict` has it."""


class ElementDifference(Fact, code="element_difference"):
    """An element of a tensor that differs.

    Attributes:
        index: where it is, one number per axis.
        recorded, got: both values as text, with as many digits as tell them apart.
    """

    index: tuple[int, ...]
    recorded: str
    got: str


class LeafDifference(Fact, code="leaf_difference"):
    """A leaf of the outputs that differs.

    Attributes:
        path: where it is: ``outputs.logits``.
        recorded, got: what differs: the values, or dtypes with shapes. Empty if elements differ.
        differing, total: how many elements of how many differ.
        max_abs, max_rel: by how much at most.
        elements: the first elements that differ.
    """

    path: str
    recorded: str = ""
    got: str = ""
    differing: int = 0
    total: int = 0
    max_abs: JsonFloat = 0.0
    max_rel: JsonFloat = 0.0
    elements: tuple[ElementDifference, ...] = ()


class OtherOutputs(Fact, code="other_outputs"):
    """Leaves are missing, or are there and were not recorded: the first of them."""

    missing: Names
    unexpected: Names


class Incomparable(Fact, code="incomparable"):
    """A leaf of the outputs that nothing can be compared with.

    Attributes:
        path: where it is: ``outputs.logits``.
        type_name, reason: of a value that cannot be described, as of :class:`Unknown`; empty for a
            tensor whose values are not on the tape.
    """

    path: str
    type_name: str = ""
    reason: str = ""

    @classmethod
    def of(cls, path: str, value: Unknown | Placeholder) -> Self:
        """That of a leaf by its path within the outputs."""
        return cls(output_path(path), value.type_name, value.reason)


class NotVerified(Fact, code="not_verified"):
    """Nothing differs, but not all was compared.

    Attributes:
        first: the first things that were not compared.
        total: how many there are.
        is_any: whether anything was compared.
        is_omitted: whether the model does not return all of what was recorded.
    """

    first: tuple[Fact, ...]
    total: int
    is_any: bool = True
    is_omitted: bool = False

    @classmethod
    def of(cls, parts: Sequence[Fact], *, is_any: bool = True, is_omitted: bool = False) -> Self:
        """That of all such parts."""
        return cls(tuple(parts[:_MAX_PARTS]), len(parts), is_any, is_omitted)


class NothingCompared(Fact, code="nothing_compared"):
    """No value was compared in any call: any model would give this."""


class OtherException(Fact, code="other_exception"):
    """A call did not raise what it raised when it was recorded.

    Attributes:
        recorded: the class of the recorded exception.
        raised: what it raised; None if it returned.
        is_known: whether the class is loaded here.
    """

    recorded: str
    raised: Fact | None = None
    is_known: bool = True


class NoOutputs(Fact, code="no_outputs"):
    """The outputs of a call are not on the tape."""

    why: str | None


class ArgumentsUnmade(Fact, code="arguments_unmade"):
    """A call was not tried, because its arguments hold objects that cannot be made here.

    Attributes:
        classes, reasons: of the objects, in the same order.
    """

    classes: Names
    reasons: Names


class SlowCall(Fact, code="slow_call"):
    """A call was too slow in the fastest of several runs.

    Attributes:
        seconds, runs: how long it took, in how many runs.
        most: how long it may take.
        times: how many times its recorded duration that is; None if it is not.
    """

    seconds: float
    runs: int
    most: float
    times: float | None


class Doubted(Fact, code="doubted"):
    """A call is not as it should be, which may have another reason than the target.

    Attributes:
        why: what is wrong.
        is_synthetic: whether arguments are not the recorded ones.
        missing: an object among the arguments that was not rebuilt; empty if there is none.
        draws: whether the call draws random numbers.
    """

    why: Fact
    is_synthetic: bool
    missing: str
    draws: bool


class Verdict(BaseModel):
    """The result of a comparison.

    Attributes:
        error: why the result is not what it should be: what differs, or was not compared. None if
            it is.
        against: what the result was compared with. ``"tape"``: all of what was recorded, within the
            tolerance of its dtype. ``"module"``: the tape has no values, or random ones, and the
            module was called instead. ``"part"``: the recorded values, and dtypes and shapes where
            the tape has no value. ``"shapes"``: structure, dtypes and shapes only.
            ``"exception"``: the exception that the call raised. ``"success"``: nothing, because the
            call only had to return. ``"declared"``: what the model declares about its inputs.
            ``"nothing"``: the call could not be tried, or has no outputs on the tape.
        max_abs, max_rel: the largest absolute and relative difference of any element
            (``|a - b| / |b|`` if ``b`` is not 0).
        compared: how many elements of tensors and other values were compared. An element that is
            NaN on both sides is the same, and proves nothing: it is not counted.
        differences: the first leaves that differ, with their first elements that do.
    """

    model_config = ConfigDict(frozen=True)

    error: Fact | None = None
    against: Against = "tape"
    max_abs: JsonFloat = 0.0
    max_rel: JsonFloat = 0.0
    compared: int = 0
    differences: tuple[LeafDifference, ...] = ()

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether the result is what it should be."""
        return self.error is None

    @property
    def agrees(self) -> bool:
        """Whether nothing that was compared differs, and there was something."""
        return self.error is None or (isinstance(self.error, NotVerified) and self.error.is_any)

    @property
    def unverified(self) -> tuple[Fact, ...]:
        """The first parts that could not be compared, if nothing differs."""
        return self.error.first if isinstance(self.error, NotVerified) else ()

    def with_error(self, error: Fact) -> Self:
        """This verdict with another error."""
        return self.model_copy(update={"error": error})

    def with_uncompared(self, parts: Sequence[Fact]) -> Self:
        """This verdict with more parts that could not be compared."""
        if not parts or not self.agrees:
            return self
        before = self.error if isinstance(self.error, NotVerified) else NotVerified((), 0)
        not_verified = NotVerified.of((*before.first, *parts))
        return self.with_error(replace(not_verified, total=before.total + len(parts)))


class CallsKind(Enum):
    """What is said of some calls of a report."""

    RAISED = "raised"
    UNDER_WAY = "under_way"
    """They had not ended when their process died."""
    INTERRUPTED = "interrupted"
    UNWRITTEN = "unwritten"
    """They fail, and could not be written to a tape because they are corrupted."""
    SYNTHETIC = "synthetic"
    """Arguments of them are not on the tape."""
    CONTIGUOUS = "contiguous"
    """They got contiguous copies of tensors that lay in memory in another way."""
    UNTIMED = "untimed"
    """Their durations are not on the tape."""
    CLASS_ONLY = "class_only"
    """Their exceptions have no message on the tape."""
    IN_ORDER = "in_order"
    """They are reproduced if each begins with the state that the call before left."""


class SomeCalls(Note, code="some_calls"):
    """What is said of some calls, and of how many."""

    kind: CallsKind
    count: int


class CallsUnmade(Note, code="calls_unmade"):
    """Calls were not tried, as of :class:`ArgumentsUnmade`."""

    count: int
    classes: Names
    reasons: Names


class PartsUncompared(Note, code="parts_uncompared"):
    """Outputs that were not compared, because the model does not return them, or only in dtype and
    shape, because their values are not on the tape."""

    paths: Names
    is_omitted: bool


class Unsteady(Note, code="unsteady"):
    """A call gives other values each time it is run, with these generators if they are known."""

    call: int
    generators: Names


class CorruptedTape(Note, code="corrupted_tape"):
    """The tape is corrupted in so many places."""

    places: int


def output_path(path: str) -> str:
    """Where a leaf is, by the name that the other reports and ``redact`` have for it."""
    return f"outputs{path}"


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
        """Whether the call ran and could be judged."""
        return self.against != "nothing"

    @property
    def is_unreadable(self) -> bool:
        """Whether the call did not run because the tape is corrupted there."""
        return means(self.error, ErrorMeaning.OF_DAMAGE)


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
        """If nothing was compared in any call, no row is ok: any model would pass."""
        if not self.has_compared:
            nothing = NothingCompared()
            self.rows = [row.with_error(nothing) if row.ok else row for row in self.rows]

    def __iter__(self) -> Iterator[ReportRow]:  # type: ignore[override]
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        rows = [f"call {_name(row)}: {_error(row)}" for row in self.failing[:_MAX_IN_REPR]]
        more = len(self.failing) - len(rows)
        more_rows = [f"and {counted(more, 'more call')}"] if more else []
        return printable(f"<Report: {'; '.join([*rows, *more_rows, self.summary])}>")

    def _sketch(self) -> Sketch:
        """The calls that fail, or the first ones if none does."""
        failing = self.failing
        shown = failing or self.rows
        rows = [_cells(row) for row in shown[:_MAX_LINES]]
        title = "Report: all calls are fine" if self.ok else f"Report: {len(failing):,} fail"
        return Sketch(title, head=_HEAD, rows=rows, total=len(shown), note=self.summary)

    @property
    def is_unsteady(self) -> bool:
        """Whether the target returned other values when a failing call ran again."""
        return any(isinstance(note, Unsteady) for note in self.notes)

    @property
    def unmade(self) -> Mapping[str, str]:
        """The classes of arguments that could not be made, so that their calls were not tried, each
        with the reason."""
        errors = (row.error for row in self.rows if isinstance(row.error, ArgumentsUnmade))
        return {
            name: why for one in errors for name, why in zip(one.classes, one.reasons, strict=False)
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
        """Whether a readable call fails. A corrupted one proves nothing about the target."""
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
        many are fine although their values were not compared."""
        if any(row.against == "declared" for row in self.rows):
            failing = self.failing
            accepted = f"{len(self.rows) - len(failing)} of {len(self.rows)} recorded calls"
            causes = Counter(
                getattr(row.error, "dimension", None) or _error(row) for row in failing
            )
            shown = ", ".join(f"{cause} ({count})" for cause, count in causes.most_common(5))
            summary = f"{accepted} would be accepted"
            return f"{summary}; in the way: {shown}" if shown else summary
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
        notes = [*self.notes, *(self.remarks if remarks else ())]
        return "\n".join([*lines, *map(printable, [*map(str, notes), self.summary])])

    def _left_out(self, shown: int) -> Iterator[str]:
        """Lines that count the other calls."""
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
"""Words for calls that are fine for a weaker reason than equal values."""


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
    """The largest difference; a dash for a call that compared nothing."""
    is_known = row.compared or (largest and not math.isinf(largest))
    return f"{largest:.1e}" if is_known else "-"


def _name(row: ReportRow) -> str:
    return row.address or str(row.call)


def _error(row: ReportRow) -> str:
    return "" if row.error is None else " ".join(str(row.error).split())
