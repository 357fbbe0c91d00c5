"""What came of shipping."""

from __future__ import annotations

from calltape_analyzer.plain_data import PlainData, Text, Texts
from calltape_analyzer.text import counted, printable

__all__ = ["ShipReport"]


class ShipReport(PlainData):
    """What came of shipping. ``str()`` of it is text for people.

    Attributes:
        target: the URL, without user and query.
        shipped: how many files were copied, and compared with their copies.
        shipped_bytes: the sizes of these.
        there: how many were there already, with the same bytes.
        deleted: how many were removed here, after they had been found equal there.
        unsealed: how many files wait for their recorders to seal them, or to end.
        problems: why other files were not shipped. At most 1,000.
    """

    target: Text
    shipped: int = 0
    shipped_bytes: int = 0
    there: int = 0
    deleted: int = 0
    unsealed: int = 0
    problems: Texts = ()

    @property
    def ok(self) -> bool:
        """Whether no file has a problem. Files that wait are none."""
        return not self.problems

    def __str__(self) -> str:
        size = f"{self.shipped_bytes:,} bytes"
        parts = [f"{printable(self.target)}: shipped {counted(self.shipped, 'file')}, {size}"]
        if self.there:
            parts.append(f"were there already: {self.there}")
        if self.deleted:
            parts.append(f"deleted here: {self.deleted}")
        if self.unsealed:
            hint = "--unsealed ships those whose process died"
            parts.append(f"not sealed yet: {self.unsealed} ({hint})")
        parts += [f"not shipped: {printable(text)}" for text in self.problems]
        return "\n".join(parts)
