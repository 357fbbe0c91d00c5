"""Calls that stand in several files: where one copy is damaged, another may be whole.

In comes a call of a tape. Out go the same calls of other files of its recording.
"""

from __future__ import annotations

import bisect
import contextlib
from array import array
from collections.abc import Iterator

from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.tape import Tape
from calltape_schema.errors import TapeError

__all__ = ["SpareCalls"]


class SpareCalls:
    """The calls of a tape that count in one file, as other files have them. Files that were closed
    as copies are opened again when they are needed, until :meth:`close`."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._opened: dict[str, Segment | None] = {}
        self._sorted: dict[Segment, array[int]] = {}

    def close(self) -> None:
        """Closes what was opened."""
        for segment in self._opened.values():
            if segment is not None:
                segment.close()

    def of(self, call: Call) -> Iterator[Call]:
        """The calls of other files with the same record. It has the checksum of the values, so that
        they are the same too, or damaged."""
        for segment in self._others(call):
            position = self._position(segment, call.number)
            if position is None:
                continue
            spare, is_it = Call(segment, position, call.index, self._tape.class_index), False
            with contextlib.suppress(TapeError):  # then nothing tells
                is_it = call.is_same(spare)
            if is_it:
                yield spare

    def _position(self, segment: Segment, number: int) -> int | None:
        """Where a file has the call of a number, also if that call counts in another file: the list
        of its calls lacks it then. A scan takes a number once."""
        numbers = segment.numbers
        if segment not in self._sorted:
            by_number = sorted(range(len(numbers)), key=numbers.__getitem__)
            self._sorted[segment] = array("Q", by_number)
        order = self._sorted[segment]
        at = bisect.bisect_left(order, number, key=numbers.__getitem__)
        return order[at] if at < len(order) and numbers[order[at]] == number else None

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
            self._opened[location] = None  # it was read before, and may be gone
            with contextlib.suppress(TapeError):
                found = Segment(location, Damage())
                try:
                    found.scan()
                except TapeError:
                    found.close()
                    raise
                self._opened[location] = found
        return self._opened[location]
