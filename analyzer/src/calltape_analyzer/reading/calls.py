"""The calls of a tape as one sequence over its segments.

In come segments. Out go calls, found by position, by reference or by their distinct inputs.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import overload

from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError

__all__ = ["Calls"]


class Calls(Sequence[Call]):
    """The calls of a tape: an immutable sequence that makes each :class:`Call` when it is asked
    for."""

    def __init__(self, segments: Sequence[Segment], classes: ClassIndex) -> None:
        self._classes = classes
        self._recordings = {segment.manifest.tape for segment in segments}
        self._segments = [segment for segment in segments if len(segment)]
        self._ends: list[int] = []
        end = 0
        for segment in self._segments:
            end += len(segment)
            self._ends.append(end)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        if isinstance(index, slice):
            return [self._at(position) for position in range(*index.indices(len(self)))]
        position = index.__index__()
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"call {index} of a tape of {len(self)} calls")
        return self._at(position)

    def by_inputs(self) -> Iterator[tuple[Call, int]]:
        """For each of the distinct inputs the first call that has them, and how many calls have
        them. The records of the other calls are not decoded. Calls that raised are counted apart
        from calls that did not. Equal inputs may come more than once: per file, and if there were
        too many to number."""
        for which, segment in enumerate(self._segments):
            before = self._ends[which] - len(segment)
            for place, count in segment.by_inputs():
                yield self._at(before + place), count

    def inputs_numbers(self) -> Iterator[tuple[int, int] | None]:
        """For each call a file and a number, which are equal for calls of equal inputs (if both
        raised, or both did not). None if only the call's record can tell."""
        for which, segment in enumerate(self._segments):
            for position in segment.order:
                number = segment.inputs_number(position)
                yield None if number is None else (which, number)

    def shown(self, ref: CallRef) -> str:
        """What people are told of a call: its number, or, of a tape of several recordings, its
        address."""
        return self.address_of(ref) or str(ref.number)

    def address_of(self, ref: CallRef) -> str | None:
        """The address of a call, if its number alone does not tell it: the tape is of several
        recordings."""
        return None if len(self._recordings) < 2 else str(ref)

    def at(self, ref: CallRef) -> Call:
        """The call that a reference refers to.

        Raises:
            TapeError: ``usage`` if the call is not here.
        """
        parts, highest = self._parts.get(ref.tape, ((), ()))
        # Only files that begin before the call can have it. From the last of them downwards, until
        # no further file reaches as far as the call.
        place = bisect.bisect_right(parts, ref.number, key=lambda part: part[0]) - 1
        found: list[int] = []
        while place >= 0 and highest[place] >= ref.number:
            which = parts[place][1]
            segment = self._segments[which]
            at = bisect.bisect_left(segment.order, ref.number, key=segment.number)
            if at < len(segment) and segment.number(segment.order[at]) == ref.number:
                found.append(self._ends[which] - len(segment) + at)
            place -= 1
        if found:
            return self._at(min(found))
        raise TapeError("usage", f"call {ref.number} is not on this tape")

    @cached_property
    def _parts(self) -> dict[bytes, tuple[list[tuple[int, int]], list[int]]]:
        """For each recording its files, as (first call number, place) in this order; and for each
        file the highest call number in it and in the files before it."""
        found: dict[bytes, list[tuple[int, int]]] = {}
        for which, segment in enumerate(self._segments):
            first = segment.number(segment.order[0])
            found.setdefault(segment.manifest.tape, []).append((first, which))
        made: dict[bytes, tuple[list[tuple[int, int]], list[int]]] = {}
        for tape, parts in found.items():
            parts.sort()
            segments = (self._segments[which] for _, which in parts)
            last = (segment.number(segment.order[-1]) for segment in segments)
            made[tape] = parts, list(accumulate(last, max))
        return made

    def _at(self, index: int) -> Call:
        which = bisect.bisect_right(self._ends, index)
        segment = self._segments[which]
        before = self._ends[which] - len(segment)
        return Call(segment, segment.order[index - before], index, self._classes)
