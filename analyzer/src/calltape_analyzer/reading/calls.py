"""The calls of a tape as one sequence over its segments.

In come segments. Out go calls, found by position, by reference or by their distinct inputs.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from calltape_analyzer.errors import NoCallError
from calltape_analyzer.limits import Worth, metered
from calltape_analyzer.progress import steps
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef, SeenInputs
from calltape_analyzer.reading.damage import is_damage
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import counted
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.errors import TapeError
from calltape_schema.records import Tree
from calltape_schema.remedies import Remedy

__all__ = ["Calls", "SeenInputs"]


class Calls(Sequence[Call]):
    """The calls of a tape: an immutable sequence that makes each :class:`Call` when it is asked
    for. Iterating skips the calls whose records break the format; the tape's ``damage`` names
    them."""

    def __init__(self, segments: Sequence[Segment], classes: ClassIndex) -> None:
        self._classes = classes
        self._recordings = {tape for segment in segments for tape in segment.recordings}
        self._segments = [segment for segment in segments if len(segment)]
        self._count()

    def _count(self) -> None:
        self._lengths = list(map(len, self._segments))
        self._ends = list(accumulate(self._lengths))
        self._is_known = all(segment.unscanned_end is None for segment in self._segments)
        # Of each recording the lowest and the highest number in each of its files.
        self._extents: dict[bytes, list[tuple[int, int, int]]] | None = None

    def _recount(self) -> None:
        """Counts anew if files were scanned since: damage may have shown, and then there are fewer
        calls than the ends of the files said. Others may read these files too."""
        if self._is_known:
            return
        if self._lengths != list(map(len, self._segments)):
            self._segments = [segment for segment in self._segments if len(segment)]
        self._count()

    def scan(self) -> None:
        """Reads the records of all files of which only the ends were read. From here on, there are
        as many calls as are said."""
        if not self._is_known:
            self._scan(self._segments)

    def _scan(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            if segment.unscanned_end is not None:
                segment.scan()
        self._recount()

    def __len__(self) -> int:
        self._recount()
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[Call]:
        return self._metered(self.every())

    def every(self) -> Iterator[Call]:
        """The calls, also those whose records break the format: a look at the record raises."""
        self.scan()
        return iter(steps(self._each(self._placed()), "calls", len(self)))

    @property
    def _worth(self) -> Worth | None:
        return next((segment.worth for segment in self._segments), None)

    def _metered(self, calls: Iterator[Call]) -> Iterator[Call]:
        worths = [segment.worth for segment in self._segments]
        return metered(filter(_is_sound, calls), worths)

    @overload
    def __getitem__(self, index: int) -> Call: ...

    @overload
    def __getitem__(self, index: slice) -> list[Call]: ...

    def __getitem__(self, index: int | slice) -> Call | list[Call]:
        self.scan()
        if isinstance(index, slice):
            return [self._at(position) for position in range(*index.indices(len(self)))]
        position = index.__index__()
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise NoCallError(f"call {index} of a tape of {counted(len(self), 'call')}")
        return self._at(position)

    def by_inputs(self) -> Iterator[SeenInputs]:
        """The distinct inputs, with how many calls have them; per file in the order of the first
        call that does, with the ranges of all these calls. Most records are not decoded, and of a
        file with a table none is read. Calls that raised are counted apart from calls that did not,
        and have no ranges. Equal inputs come once per file.
        """
        for segment in list(self._segments):
            yield from segment.seen_inputs()

    @property
    def are_single(self) -> bool:
        """Whether each call can be looked at. Of a survey, only calls with equal inputs are there,
        together."""
        return not any(segment.elsewhere for segment in self._segments)

    def inputs_seen(self) -> Iterator[tuple[Tree, int, CallRef]]:
        """The inputs of each call that returned, the number 1, and the call. If no single call is
        at hand, equal inputs come together, with the ranges of all calls that have them, the number
        of these, and the first one.
        """
        if not self.are_single:
            for seen in self.by_inputs():
                if not seen.raised:
                    yield seen.inputs, seen.calls, seen.first
            return
        for call in self:
            if call.record.error is None:
                yield call.record.inputs, 1, call.ref

    def by_recording(self) -> list[Iterator[Call]]:
        """The calls of each recording, in the order of their numbers; every call comes once, but
        for those that are skipped as by iterating."""
        self.scan()
        found: dict[bytes, list[tuple[int, Segment]]] = {}
        for start, segment in self._placed():
            found.setdefault(segment.manifest.tape, []).append((start, segment))
        return [self._metered(self._each(placed)) for placed in found.values()]

    def _placed(self) -> list[tuple[int, Segment]]:
        """Each file with the index of its first call."""
        starts = (end - length for end, length in zip(self._ends, self._lengths, strict=True))
        return list(zip(starts, self._segments, strict=True))

    def _each(self, placed: Iterable[tuple[int, Segment]]) -> Iterator[Call]:
        for start, segment in placed:
            for index, position in enumerate(segment.order, start):
                yield Call(segment, position, index, self._classes)

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
        self._recount()
        self._scan([self._segments[which] for which in self._may_have(ref)])
        for which in self._may_have(ref):
            segment = self._segments[which]
            at = bisect.bisect_left(segment.order, ref.number, key=segment.number)
            if at < len(segment) and segment.number(segment.order[at]) == ref.number:
                return self._at(self._ends[which] - self._lengths[which] + at)
        # The end of a file may have named it.
        self._scan([segment for segment in self._segments if ref.tape in segment.recordings])
        raise TapeError("usage", f"call {ref.number} is not on this tape")

    def inputs_at(self, ref: CallRef) -> Tree:
        """The inputs of a call. Those of the first call with them are in the table of its file,
        if it has one; else the record is read.

        Raises:
            TapeError: as :meth:`at`, and as :attr:`Call.record`; ``damaged`` if two inputs in the
                table begin with this call.
        """
        for which in self._may_have(ref):
            segment = self._segments[which]
            every = segment.summed_inputs() or ()
            found = [seen.inputs for seen in every if seen.first == ref]
            if len(found) > 1:
                reason = f"call {ref.number} begins two different inputs in the table at the end"
                advice = Remedy("open_tape(..., scan=True)", "--scan").after(
                    "read the records instead: "
                )
                raise TapeError("damaged", reason, path=segment.path, advice=advice)
            if found:
                return found[0]
        return self.at(ref).record.inputs

    def path(self, ref: CallRef) -> str:
        """The file that a call which is here is in."""
        files = self._may_have(ref)
        return self._segments[files[0]].path if len(files) == 1 else self.at(ref).path

    def _may_have(self, ref: CallRef) -> list[int]:
        """The files that can have a call, by number and in order: those that begin before it and
        reach as far."""
        known = self._extents
        if known is None:
            known = {}
            for which, segment in enumerate(self._segments):
                low, high = segment.extent or (0, MAX_COUNT)
                for tape, first in segment.recordings.items():
                    extent = (0 if first else low, high, which)
                    known.setdefault(tape, []).append(extent)
            self._extents = known
        extents = known.get(ref.tape, ())
        return [which for low, high, which in extents if low <= ref.number <= high]

    def _at(self, index: int) -> Call:
        which = bisect.bisect_right(self._ends, index)
        segment = self._segments[which]
        before = self._ends[which] - self._lengths[which]
        if index - before >= len(segment.order):  # damaged calls were left out meanwhile
            raise NoCallError(f"call {index} is corrupted, or follows a corrupted call")
        return Call(segment, segment.order[index - before], index, self._classes)


def _is_sound(call: Call) -> bool:
    """Whether the record of a call can be read. If not, that stands in the tape's damage."""
    try:
        return call.record is not None
    except TapeError as error:
        if not is_damage(error):
            raise
        return False
