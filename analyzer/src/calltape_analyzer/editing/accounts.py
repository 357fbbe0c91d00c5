"""What the trailer of a new tape says of all calls, besides the coverage: traffic counters, times.

In come the counters of the tape that was read, and the coverage of the new one. Out go counters
that are true for the new tape: they stay only where no call was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

from calltape_analyzer.observing.traffic_counters import CountedGroup, TrafficCounters, Values
from calltape_analyzer.observing.trusted_counters import counted_drops
from calltape_analyzer.reading.segment import Segment
from calltape_schema.endings import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.traffic import MAX_GROUPS, MAX_SIZES, Axis, Group, Traffic

__all__ = ["closing_time", "traffic_for"]


def traffic_for(
    counters: TrafficCounters, coverage: Coverage, highest: int, *, is_later: bool = False
) -> Traffic | None:
    """The counters of a new tape that has all calls of the old ones; None if a file has none, or if
    they would contradict the new tape.

    Args:
        counters: of all files that were read.
        coverage: of the new tape.
        highest: the highest number of a call there.
        is_later: whether it stands for a later file of a recording: then calls were seen, and may
            have been counted, in a file before it.
    """
    least = coverage.kept + counted_drops(coverage.dropped)
    if counters.missing or counters.calls > coverage.seen:
        return None
    if not is_later and (counters.calls < least or highest >= coverage.seen):
        return None
    most = sorted(counters.groups.values(), key=lambda group: -group.calls)
    other = counters.other_calls + sum(group.calls for group in most[MAX_GROUPS:])
    return Traffic(groups=tuple(map(_group, most[:MAX_GROUPS])), other_calls=other)


def _group(group: CountedGroup) -> Group:
    every = [values for leaf in group.leaves for values in leaf]
    every += [values for values in group.scalars if values is not None]
    # Where sizes of one file were cut and those of another were not, the sum has neither all sizes
    # nor as many as it may have. Then the group has none.
    is_cut = any(one.other_calls and len(one.sizes) != MAX_SIZES for one in every)
    return Group(
        structure=group.kind.structure,
        calls=group.calls,
        dtypes=group.kind.dtypes,
        leaves=tuple(tuple(_axis(one, is_cut) for one in leaf) for leaf in group.leaves),
        scalars=tuple(None if one is None else _axis(one, is_cut) for one in group.scalars),
    )


def _axis(values: Values, is_cut: bool) -> Axis:
    if not is_cut:
        sizes = tuple(values.sizes.items())
        return Axis(min=values.min, max=values.max, sizes=sizes, other_calls=values.other_calls)
    others = values.other_calls + sum(values.sizes.values())
    return Axis(min=values.min, max=values.max, other_calls=others)


def closing_time(segments: Sequence[Segment]) -> int:
    """When the recordings ended, Unix time in nanoseconds: as the trailers say, or else when the
    last call of each file began."""
    return max((_closed(segment) for segment in segments), default=0)


def _closed(segment: Segment) -> int:
    if segment.trailer is not None:
        return segment.trailer.closed_ns
    for position in reversed(segment.order):
        try:
            return segment.record(position).time_ns
        except TapeError:
            continue
    return segment.manifest.created_ns
