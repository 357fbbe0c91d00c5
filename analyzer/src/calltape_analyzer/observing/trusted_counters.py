"""What the ends of files say of all calls, kept or not.

In come the files of a tape. Out go counts per kind of inputs. A table of inputs was compared with
the calls of its file when that was scanned, and with the number of calls seen when it was read.
What it says of calls that are not on the tape, nobody can check.
"""

from __future__ import annotations

from collections.abc import Sequence

from calltape_analyzer.observing.traffic_counters import CountedTables, TrafficCounters
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.recordings import goes_on, places_of, recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_schema.drop_reasons import DropReason
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable
from calltape_schema.tar import END_MEMBER

__all__ = ["trusted_counters"]


def trusted_counters(segments: Sequence[Segment], damage: Damage) -> TrafficCounters:
    """The counters of all files that have some. Two files that are the same part of a recording
    count the same calls: that is damage, and only the first is used. If a file of a survey had no
    end, or only a part of the calls, the calls of the survey are at least so many; and so are those
    of a recording that goes on."""
    counted, missing = CountedTables(), set[str]()
    for parts in recordings_of(segments):
        for alike in places_of(parts):
            first = None
            for segment in alike:
                if segment.elsewhere:
                    _count(segment, counted, damage)
                    if segment.coverage.at_least or _is_part(segment):
                        missing.add(segment.path)
                elif segment.table is None or segment.left_out or _is_part(segment):
                    missing.add(segment.path)
                elif first is not None:
                    reason = f"it counts the same calls as {first.path}: this is not used"
                    damage.add(TapeError("damaged", reason, path=segment.path, member=END_MEMBER))
                    missing.add(segment.path)
                else:
                    first = segment
                    _count(segment, counted, damage)
        if goes_on(parts):
            missing.add(parts[-1].path)  # the files after it count more
    return counted.counters(missing)


def _count(segment: Segment, counted: CountedTables, damage: Damage) -> None:
    for error in counted.add(segment.table or InputsTable()):
        damage.add(error.at(path=segment.path, member=END_MEMBER))


def _is_part(segment: Segment) -> bool:
    """Whether a tool left calls out: then the table counts the others, and not what was seen."""
    end = segment.end
    return end is not None and DropReason.NOT_EXTRACTED in end.coverage.dropped
