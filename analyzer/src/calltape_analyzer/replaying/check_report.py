"""What came of a check: a row per call, and their sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import BaseModel, ConfigDict, Field, computed_field

from calltape_analyzer.comparison.json_values import JsonText
from calltape_analyzer.facts import Rejection
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.text import printable

__all__ = ["CheckReport", "CheckRow"]


class CheckRow(BaseModel):
    """One recorded call.

    Attributes:
        call: its number on the tape.
        address: its address, if the tape is of several recordings.
        accepted: whether the model would take it.
        variant: the program that would take it; None if the model has no variants.
        rejection: why it is rejected.
    """

    model_config = ConfigDict(frozen=True)

    call: int
    accepted: bool
    variant: JsonText | None = None
    rejection: Rejection | None = None
    address: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def reason(self) -> JsonText | None:
        """Why it is rejected, in words."""
        return None if self.rejection is None else str(self.rejection)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def dimension(self) -> JsonText | None:
        """The declared dimension that is in the way (``input_ids[1]``), if it is one."""
        return None if self.rejection is None else self.rejection.dimension


class CheckReport(BaseModel, Shown):
    """A row per call. It is true in a condition if every call would be accepted.

    ``model_dump_json()`` gives it as JSON, which ``calltape replay --dry-run --json`` prints.

    Attributes:
        rows: one per call that returned.
        notes: what a reader should know: calls that were left out, and results that nobody can
            verify.
    """

    rows: list[CheckRow]
    notes: list[JsonText] = Field(default_factory=list)

    def __iter__(self) -> Iterator[CheckRow]:  # type: ignore[override]
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __bool__(self) -> bool:
        return self.ok

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ok(self) -> bool:
        """Whether there is a call, and every call would be accepted."""
        return bool(self.rows) and all(row.accepted for row in self.rows)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def summary(self) -> str:
        """One line: how many calls would be accepted, and what is most in the way."""
        accepted = sum(row.accepted for row in self.rows)
        text = f"{accepted} of {len(self.rows)} recorded calls would be accepted"
        ways = Counter(row.dimension or row.reason for row in self.rows if not row.accepted)
        if not ways:
            return text
        return f"{text}; in the way: " + ", ".join(f"{w} ({n})" for w, n in ways.most_common(5))

    def __repr__(self) -> str:
        return printable(f"<CheckReport: {self.summary}>")

    def _sketch(self) -> Sketch:
        """The calls that would be rejected."""
        rejected = [row for row in self.rows if not row.accepted]
        rows = [(r.address or r.call, r.dimension or "", r.reason or "") for r in rejected]
        head = ("call", "dimension", "why it is rejected")
        return Sketch("CheckReport", head=head, rows=rows, note=self.summary)

    def table(self) -> str:
        """A line per call that would be rejected, the notes, and the summary."""
        rejected = [row for row in self.rows if not row.accepted]
        lines = [
            f"call {r.address or r.call}: {r.dimension or 'rejected'}: {r.reason}" for r in rejected
        ]
        return "\n".join(map(printable, [*lines, *self.notes, self.summary]))

    __str__ = table
