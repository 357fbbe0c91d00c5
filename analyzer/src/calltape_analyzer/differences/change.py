"""One difference between the traffic on two tapes, as data and as a line of text."""

from __future__ import annotations

from calltape_analyzer.plain_data import PlainData, Text
from calltape_analyzer.text import counted

__all__ = ["Change"]


class Change(PlainData):
    """One thing that one tape shows and the other does not.

    Attributes:
        kind: ``target`` (another model or signature), ``argument``, ``structure`` (calls that need
            a program of their own), ``kind`` (a tensor in place of an int, ...), ``dtype``,
            ``rank``, ``layout`` (of a tensor: sparse instead of strided), ``constant`` (a value
            that selects a program), ``dimension`` (it was constant), ``size`` (outside the range
            seen), ``int``, ``symbol`` (dimensions that were always equal), ``relation`` (a sum or
            multiple that always held), ``range`` (elements of an integer tensor), ``error`` (calls
            that raised).
        where: the argument, the tensors or the dimensions.
        text: the change in words.
        first_call: the number of the first call that shows it; None if no call does.
        calls: how many calls show it.
        path: the file of the first call, if the tape is several files.
        address: the address of the first call, if the tape is of several recordings.
    """

    kind: str
    where: Text
    text: Text
    first_call: int | None = None
    calls: int = 0
    path: Text | None = None
    address: str | None = None

    def __str__(self) -> str:
        said = f"{self.kind}: {self.where}: {self.text}"
        if self.first_call is None:
            return said
        first = "call" if self.calls == 1 else "first call"
        at = f" of {self.path}" if self.path else ""
        return (
            f"{said} ({counted(self.calls, 'call')}, {first} {self.address or self.first_call}{at})"
        )
