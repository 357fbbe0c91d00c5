"""Calls that stand in several files: where one copy is damaged, another may be whole.

In comes a call of a tape. Out go the same calls of other files of its recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType

from typing_extensions import Self

from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError

__all__ = ["SpareCalls"]


class SpareCalls:
    """The calls of a tape that count in one file, as other files have them. Files that were closed
    as copies are opened again when they are needed, until the ``with`` block ends."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._opened: dict[str, Segment | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for segment in self._opened.values():
            if segment is not None:
                segment.close()

    def of(self, call: Call) -> Iterator[Call]:
        """The calls of other files with the same record, byte for byte. It has the checksum of the
        values, so that they are the same too, or damaged."""
        content = call.raw_record()
        for segment in self._others(call):
            for position, number in enumerate(segment.numbers):
                if number == call.number and segment.content(position) == content:
                    yield Call(segment, position, call.index, self._tape.class_index)

    def _others(self, call: Call) -> Iterator[Segment]:
        """The other files of its recording."""
        for segment in self._tape.segments:
            if segment.manifest.tape != call.ref.tape:
                continue
            if segment.path != call.path:
                yield segment
            for location in segment.copies:
                copied = self._copy(location)
                if copied is not None:
                    yield copied

    def _copy(self, location: str) -> Segment | None:
        if location not in self._opened:
            try:
                self._opened[location] = Segment(location, Damage(), scan=True)
            except TapeError:
                self._opened[location] = None  # it was read before, and is gone
        return self._opened[location]
