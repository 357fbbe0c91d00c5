"""What came of making a tape small."""

from __future__ import annotations

from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.text import counted, printable

__all__ = ["MinimiseReport"]


class MinimiseReport(PlainData):
    """What came of making a tape small. ``str()`` of it is text for people.

    Attributes:
        path: the new file.
        reason: why both tapes fail. Numbers in it are ``#``.
        calls_before, calls: how many calls the tapes have.
        bytes_read, bytes_written: sizes of the files.
        steps: how many tapes were judged.
        answered: for how many more the answer was known from an earlier run.
        seconds: how long it took.
        log: the file that says what was tried.
        shown_by: the command that shows how the new tape fails; None if there is none, because
            commands do not load classes by name.
        redacted: whether the new tape is redacted.
        kept: the values that redaction would have removed, and that stayed because the tape does
            not fail for this reason without them.
        notes: what else is to be known.
    """

    path: Text
    reason: Text
    calls_before: int
    calls: int
    bytes_read: int
    bytes_written: int
    steps: int
    answered: int
    seconds: float
    log: Text
    shown_by: Text | None = None
    redacted: bool = False
    kept: Texts = ()
    notes: Texts = ()

    def __str__(self) -> str:
        size = f"{self.bytes_written:,} of {self.bytes_read:,} bytes"
        known = f", {self.answered} known from before" if self.answered else ""
        many = f"{self.calls} of {counted(self.calls_before, 'call')}"
        parts = [
            f"{printable(self.path)}: {many}, {size}",
            f"fails: {printable(self.reason)}",
            f"{counted(self.steps, 'step')}{known}, {self.seconds:.1f} s; {printable(self.log)} "
            "says what was tried",
        ]
        if self.redacted:
            few = "but for values that the failure needs" if self.kept else "and fails as before"
            parts.append(f"redacted, {few}")
        if self.shown_by is not None:
            parts.append(f"see it fail: {printable(self.shown_by)}")
        parts += [f"kept: {printable(text)}" for text in self.kept]
        parts += [f"note: {printable(text)}" for text in self.notes]
        return "\n".join(parts)
