"""What the end of a new tape says of the calls that it has, and of those that it lacks.

In come the files that were read, and how many calls were written. Out go a coverage that is true
for the new tape (what it lacks is counted, and if nobody knows how many calls there were, it says
so), the counted inputs of calls that no file has, and when the recording ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from calltape_analyzer.reading.recordings import CountedFile, coverage_of
from calltape_analyzer.reading.segment import Segment
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.drop_reasons import DropReason, Reason
from calltape_schema.end import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable

__all__ = [
    "calls_in", "closing_time", "coverage_for", "coverage_of_numbers",
    "unkept_of",
]  # fmt: skip

_MAX_REASONS = 1000


def coverage_for(
    segments: Sequence[CountedFile], kept: int, unwanted: int, later: int = 0
) -> Coverage:
    """How many calls were seen, and what became of those that the new tape lacks.

    Args:
        segments: the files that were read.
        kept: how many calls were written.
        unwanted: how many were left out because nobody asked for them.
        later: how many others only a later version can read.

    Raises:
        TapeError: ``limit`` if the files claim more calls than can be counted.
    """
    before = coverage_of(segments)
    dropped = Counter(before.dropped)
    dropped[DropReason.WAS_NOT_SEALED] += dropped.pop(DropReason.NOT_SEALED, 0)
    dropped[DropReason.NOT_EXTRACTED] += unwanted
    lost = max(before.kept - kept - unwanted, 0)
    dropped[DropReason.LATER] += min(later, lost)
    dropped[DropReason.DAMAGED] += max(lost - later, 0)
    return _coverage(kept, +dropped, before.at_least, before.counted_ns)


def coverage_of_numbers(
    end: int, kept: int, missing: DropReason, *, at_least: bool | None = None
) -> Coverage:
    """The coverage of a tape of which the numbers of its calls tell how many calls were seen.

    Args:
        end: the first number behind all that were seen.
        kept: how many calls there are.
        missing: why numbers are missing.
        at_least: whether nobody knows how many calls there were.

    Raises:
        TapeError: ``limit`` if there are more calls than can be counted.
    """
    return _coverage(kept, {missing: end - kept} if end > kept else {}, at_least)


def _coverage(
    kept: int, dropped: Mapping[Reason, int], at_least: bool | None, counted_ns: int | None = None
) -> Coverage:
    """What an end can say."""
    folded = _folded(dropped)
    seen = kept + sum(folded.values())
    if seen > MAX_COUNT:
        raise TapeError("limit", f"the tapes claim to have seen {seen} calls")
    return Coverage(seen=seen, kept=kept, dropped=folded, at_least=at_least, counted_ns=counted_ns)


def calls_in(segments: Iterable[Segment]) -> int:
    """How many sound calls are in files, whichever of them are wanted."""
    return sum(len(one.numbers) - one.left_out - one.damaged for one in segments)


def _folded(dropped: Mapping[Reason, int]) -> dict[Reason, int]:
    """Reasons that an end can hold: the last ones together, if there are too many."""
    if len(dropped) <= _MAX_REASONS:
        return dict(dropped)
    most = sorted(dropped.items(), key=lambda item: -item[1])
    found = dict(islice(most, _MAX_REASONS - 1))
    found[DropReason.OTHER] = sum(calls for _, calls in most[_MAX_REASONS - 1 :])
    return found


def unkept_of(segments: Sequence[Segment]) -> InputsTable:
    """The counted inputs of calls that were seen and are not in the files. They are of no use if
    calls were chosen: nobody knows which of them would have been."""
    found = InputsTable()
    for segment in segments:
        table = segment.table
        if table is not None and not segment.left_out:
            found.merge(table.others())
    return found


def closing_time(segments: Sequence[Segment]) -> int:
    """When the recordings ended, Unix time in nanoseconds: as the ends say, or else when the
    last call of each file began."""
    return max((_closed(segment) for segment in segments), default=0)


def _closed(segment: Segment) -> int:
    if segment.end is not None:
        return segment.end.closed_ns
    for position in reversed(segment.order):
        try:
            return segment.record(position).time_ns
        except TapeError:
            continue
    return segment.manifest.created_ns
