"""Sums that hold in the traffic counters of every honest recorder, whichever calls are on the tape.

A recorder counts a call once: in one group or among the others, and in the group once on every
axis. So the counts of each axis add up to the calls of the group, and its bounds are sizes of
counted calls. Each file is checked by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from calltape_analyzer.observing.layout import layout_of_value
from calltape_analyzer.observing.traffic_counters import CountedGroup, CountedKind, TrafficCounters
from calltape_analyzer.reading.segment import Segment
from calltape_schema.traffic import MAX_SIZES, Axis, Group, Traffic

__all__ = ["contradiction_in", "may_add_counters"]

_FIRST_THAT_CONTINUES = 2  # minor version: before it no trailer says that another file follows


def contradiction_in(segment: Segment, traffic: Traffic, counters: TrafficCounters) -> str | None:
    """How the counters of a file contradict themselves; None if they do not.

    Args:
        segment: the file.
        traffic: the counters in its trailer.
        counters: the same, without groups that break the format.
    """
    return next(_contradictions(segment, traffic, counters), None)


def _contradictions(segment: Segment, traffic: Traffic, counters: TrafficCounters) -> Iterator[str]:
    adds = may_add_counters(segment)
    kinds: set[CountedKind] = set()
    for group in traffic.groups:
        kind = CountedKind(group.structure, group.dtypes, tuple(map(len, group.leaves)))
        known = counters.groups.get(kind)
        if known is None:  # it breaks the format, which is reported elsewhere
            continue
        if kind in kinds:
            yield "calls of one kind are in two groups"
        kinds.add(kind)
        yield from _of_group(group, known, adds)
    trailer, manifest = segment.trailer, segment.manifest
    if trailer is None or trailer.continues or manifest.minor < _FIRST_THAT_CONTINUES or adds:
        return
    # A call that is counted in the last file began and ended in it.
    if counters.calls > segment.coverage.seen:
        yield f"{counters.calls} calls are counted, of {segment.coverage.seen} seen"


def may_add_counters(segment: Segment) -> bool:
    """Whether a file may also have the counters of another one that was deleted for lack of
    room."""
    policy = segment.manifest.policy
    if policy.when_full is None:  # it is not stored if only min_free_bytes is set
        return policy.min_free_bytes is not None
    return policy.when_full == "delete_oldest"


def _of_group(group: Group, known: CountedGroup, adds: bool) -> Iterator[str]:
    if not group.calls:
        yield "a group has no calls"
    # Layers have the same sizes: equal axes are checked once.
    axes = dict.fromkeys(axis for leaf in group.leaves for axis in leaf)
    ints = dict.fromkeys(axis for axis in group.scalars if axis is not None)
    for axis in axes:
        yield from _of_axis(axis)
        if _calls_of(axis) != group.calls:
            yield f"an axis counts {_calls_of(axis)} calls, of {group.calls}"
    for axis in ints:
        yield from _of_axis(axis)
        # An int may be too large to be counted.
        if not 0 < _calls_of(axis) <= group.calls:
            yield f"an int counts {_calls_of(axis)} calls, of {group.calls}"
    if not adds:
        yield from _of_lists([*axes, *ints])
    if ints:
        numbers = {path.number for path in layout_of_value(known.spec.root).ints}
        if any(axis is not None and n not in numbers for n, axis in enumerate(group.scalars)):
            yield "what is no int has values"


def _of_axis(axis: Axis) -> Iterator[str]:
    listed = [size for size, _ in axis.sizes]
    if any(one >= other for one, other in pairwise(listed)):
        yield "sizes are not ascending"
    if any(calls < 1 for _, calls in axis.sizes):
        yield "a size is listed that no call had"
    # Each bound is the size of some call: in the list, or another one.
    unlisted = {axis.min, axis.max} - set(listed)
    if len(unlisted) > axis.other_calls:
        yield f"{axis.min}..{axis.max} are not the bounds of the sizes"


def _of_lists(axes: list[Axis]) -> Iterator[str]:
    """A recorder lists sizes until the list is full. Without room for it, a group has no list."""
    if any(axis.sizes for axis in axes) and not all(axis.sizes for axis in axes):
        yield "sizes are listed of some axes only"
    if any(axis.other_calls and 0 < len(axis.sizes) < MAX_SIZES for axis in axes):
        yield "a list of sizes is not full, and not all"


def _calls_of(axis: Axis) -> int:
    return sum(calls for _, calls in axis.sizes) + axis.other_calls
