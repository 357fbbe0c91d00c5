"""What came of making a tape."""

from __future__ import annotations

from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.text import counted, printable

__all__ = ["EditReport"]


class EditReport(PlainData):
    """What came of making a tape. ``str()`` of it is text for people.

    Attributes:
        path: the new file.
        tape: its id, in hexadecimal digits.
        calls: how many calls it has.
        left_out: how many calls were left out because they were not asked for.
        lost: what was on the tapes that were read and is not on the new one, although nobody left
            it out, in words. Empty if nothing was lost.
        bytes_read, bytes_written: sizes of the files.
        notes: what else is to be known.
    """

    path: Text
    tape: str
    calls: int
    left_out: int = 0
    lost: Texts = ()
    bytes_read: int = 0
    bytes_written: int = 0
    notes: Texts = ()

    def noting(self, *notes: str) -> EditReport:
        """The same, with more notes."""
        return self.model_copy(update={"notes": (*self.notes, *notes)})

    def __str__(self) -> str:
        size = f"{self.bytes_written:,} of {self.bytes_read:,} bytes"
        parts = [f"{printable(self.path)}: {counted(self.calls, 'call')}, {size}"]
        if self.left_out:
            parts.append(f"left out: {counted(self.left_out, 'call')}")
        parts += [f"lost: {printable(text)}" for text in self.lost]
        parts += [f"note: {printable(text)}" for text in self.notes]
        return "\n".join(parts)
