"""What the end of a new tape says of all calls, besides the coverage: counted inputs, times.

In come the files that were read. Out go the inputs of calls that none of them has.
"""

from __future__ import annotations

from collections.abc import Sequence

from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable

__all__ = ["closing_time", "counts_stay", "unkept_of"]


def unkept_of(segments: Sequence[Segment]) -> InputsTable:
    """The counted inputs of calls that were seen and are not in the files. They are of no use if
    calls were chosen: nobody knows which of them would have been."""
    found = InputsTable()
    for segment in segments:
        table = segment.table
        if table is not None and not segment.left_out:
            found.merge(table.others())
    return found


def counts_stay(segments: Sequence[Segment]) -> bool:
    """Whether a copy of all calls, with :func:`unkept_of` these files, counts the same inputs. It
    counts less if calls are lost, or if calls that were kept are counted by kind."""
    for segment in segments:
        table = segment.table
        if table is None or segment.damaged or segment.left_out:
            return False
        if sum(row.kept for row in table.rows.values()) != len(segment.numbers):
            return False
        if any(row.seen != row.kept for row in table.rows.values()):
            return False
    return True


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
