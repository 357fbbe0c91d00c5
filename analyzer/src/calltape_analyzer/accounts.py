"""The counters of a tape's trailers, as far as its calls bear them out.

Counters count all calls, those on the tape among them, so they have to cover these: as many calls
of each kind, and sizes that contain theirs. They have to add up, too: in each file by themselves
(:mod:`calltape_analyzer.arithmetic`), and over files with the calls seen. A trailer that says
otherwise is damage, and nothing that it counted is used. What it says of calls that are not on the
tape nobody can refute, as long as it leaves room for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calltape_analyzer.arithmetic import contradiction_in
from calltape_analyzer.damage import Damage
from calltape_analyzer.recordings import missing_numbers, places_of, recordings_of
from calltape_analyzer.segment import Segment
from calltape_analyzer.traffic_counters import CountedGroup, Counters, Kind, Values
from calltape_schema.errors import TapeError
from calltape_schema.framing import TRAILER
from calltape_schema.leaves import Leaf, decode_leaves

__all__ = ["counters_of"]


class _Told(NamedTuple):
    """What one file says of the traffic."""

    segment: Segment
    counters: Counters


def counters_of(segments: Sequence[Segment], damage: Damage) -> Counters:
    """The counters of all files that the calls do not contradict. The others are missing; where
    there is no innocent reason for it, and for a group that breaks the format, that is damage."""
    return Counters.sum_of(_of_recording(parts, damage) for parts in recordings_of(segments))


def _of_recording(parts: Sequence[Segment], damage: Damage) -> Counters:
    told, missing = _told(parts, damage)
    doubtful = [one for one in told if not _are_borne_out([one])]
    if doubtful and not (len(told) > 1 and _are_borne_out(told)):
        # A call is counted when it begins, and may be written to the next file: what is not in one
        # file is in those before it, if they are all here.
        if not _may_be_counted_elsewhere(parts, told):
            for segment, _ in doubtful:
                reason = "the counters contradict the calls on the tape, and are not used"
                damage.add(TapeError("damaged", reason, path=segment.path, member=TRAILER))
        missing += [one.segment for one in doubtful]
        left_out = {id(segment) for segment in missing}
        told = [one for one in told if id(one.segment) not in left_out]
    found = Counters(missing=frozenset(segment.path for segment in missing))
    return Counters.sum_of([found, *(one.counters for one in told)])


def _told(parts: Sequence[Segment], damage: Damage) -> tuple[list[_Told], list[Segment]]:
    """What the files say, and those that say nothing, or nothing that counts."""
    told: list[_Told] = []
    missing: list[Segment] = []
    for alike in places_of(parts):
        first = None
        for segment in alike:
            traffic = segment.trailer.traffic if segment.trailer is not None else None
            if traffic is None or segment.left_out:
                missing.append(segment)
                continue
            if first is not None:
                reason = f"it has counters of the same calls as {first.path}: they are not used"
                damage.add(TapeError("damaged", reason, path=segment.path, member=TRAILER))
                missing.append(segment)
                continue
            first = segment
            counters, errors = Counters.of(traffic)
            for error in errors:
                damage.add(error.at(path=segment.path, member=TRAILER))
            wrong = contradiction_in(segment, traffic, counters)
            if wrong is not None:
                reason = f"the counters contradict themselves, and are not used: {wrong}"
                damage.add(TapeError("damaged", reason, path=segment.path, member=TRAILER))
                missing.append(segment)
                continue
            told.append(_Told(segment, counters))
    return told, missing


def _may_be_counted_elsewhere(parts: Sequence[Segment], told: Sequence[_Told]) -> bool:
    """Whether calls on the tape may be counted in a file that is not here, or has no counters."""
    last = max(segment.part for segment, _ in told)
    before = [part for part in parts if part.part <= last and not part.is_ahead]
    return bool(missing_numbers(before)) or len({p.part for p in before}) > len(told)


def _are_borne_out(told: Sequence[_Told]) -> bool:
    segments = [one.segment for one in told]
    counters = Counters.sum_of(one.counters for one in told)
    if not _fit_the_calls_seen(segments, counters.calls):
        return False
    tallies = _tallies_of(segments)
    uncovered = sum(_uncovered(tally, counters.groups.get(kind)) for kind, tally in tallies.items())
    if uncovered or counters.other_calls:
        return uncovered <= counters.other_calls
    return all(
        _has_room(values, counts, group.calls - tally.calls)
        for kind, tally in tallies.items()
        if (group := counters.groups.get(kind)) is not None
        for values, counts in _columns(tally, group)
    )


_COUNTED = frozenset({
    "policy", "flight_recorder", "queue_full", "max_disk_bytes", "disk_full", "io", "deleted",
    "file_removed",
})  # fmt: skip
"""Why calls are not on the tape that were counted all the same. Of every other reason a call may
have been dropped before it was looked at."""


def _fit_the_calls_seen(segments: Sequence[Segment], counted: int) -> bool:
    """Whether as many calls were counted as were seen: none is accounted for before it is counted,
    and at the end of a recording all are."""
    coverages = [segment.coverage for segment in segments]
    seen = sum(coverage.seen for coverage in coverages)
    last = max(segments, key=lambda segment: segment.part)
    assert last.trailer is not None
    ends = not last.trailer.continues
    if ends and counted > seen:
        return False
    numbers = sorted(segment.part for segment in segments)
    if numbers != list(range(len(numbers))):
        return True  # calls may have been counted in files that are not here
    looked_at = sum(coverage.kept + _looked_at(coverage.dropped) for coverage in coverages)
    if counted < looked_at:
        return False
    return not ends or max(max(s.numbers, default=-1) for s in segments) < seen


def _looked_at(dropped: Mapping[str, int]) -> int:
    return sum(calls for reason, calls in dropped.items() if reason in _COUNTED)


@dataclass
class _Tally:
    """Calls of one kind that are on the tape: how many had which value, of each axis of each leaf
    and then of each int.

    Attributes:
        is_plain: whether the recorder and the record tell their kind alike; of nested tensors and
            other classes they need not.
    """

    is_plain: bool
    calls: int = 0
    axes: list[Counter[int]] = field(default_factory=list)
    ints: dict[int, Counter[int]] = field(default_factory=dict)

    def add(self, facts: Sequence[Leaf], scalars: Sequence[Any], calls: int) -> None:
        """Counts calls that are alike."""
        self.calls += calls
        sizes = [size for leaf in facts for size in leaf.shape]
        if not self.axes:
            self.axes = [Counter() for _ in sizes]
        for axis, size in zip(self.axes, sizes, strict=True):
            axis[size] += calls
        for place, value in enumerate(scalars):
            if type(value) is int and -(2**63) <= value < 2**63:
                self.ints.setdefault(place, Counter())[value] += calls


def _tallies_of(segments: Iterable[Segment]) -> dict[Kind, _Tally]:
    found: dict[Kind, _Tally] = {}
    for segment in segments:
        for structure, leaves, scalars, calls in segment.inputs():
            try:
                facts = decode_leaves(leaves)
            except TapeError:
                continue  # whoever reads the call is told
            ranks = tuple(len(leaf.shape) for leaf in facts)
            kind = Kind(structure, tuple(leaf.dtype for leaf in facts), ranks)
            if kind not in found:
                found[kind] = _Tally(all(map(_is_plain, facts)))
            found[kind].add(facts, scalars, calls)
    return found


def _is_plain(leaf: Leaf) -> bool:
    is_dense = leaf.layout == "strided" and leaf.missing in (None, "policy")
    return is_dense and leaf.subclass is None


def _uncovered(tally: _Tally, group: CountedGroup | None) -> int:
    """How many of these calls are not among those that were counted, at least."""
    if group is None:
        return tally.calls if tally.is_plain else 0
    short = [tally.calls - group.calls, 0]
    short += [_beyond(values, counts) for values, counts in _columns(tally, group)]
    return max(short)


def _columns(tally: _Tally, group: CountedGroup) -> Iterator[tuple[Values, Counter[int]]]:
    yield from zip((axis for leaf in group.leaves for axis in leaf), tally.axes, strict=True)
    for place, values in enumerate(group.scalars):
        if values is not None:
            yield values, tally.ints.get(place, Counter())


def _beyond(values: Values, counts: Counter[int]) -> int:
    outside = short = 0
    for value, calls in counts.items():
        if not values.min <= value <= values.max:
            outside += calls
        else:
            short += max(calls - values.sizes.get(value, 0), 0)
    return outside + max(short - values.other_calls, 0)


def _has_room(values: Values, counts: Counter[int], hidden: int) -> bool:
    """Whether what was counted beyond the calls on the tape fits the calls that are not there.

    Args:
        values: what was counted.
        counts: of the calls on the tape.
        hidden: how many further calls there are.
    """
    on_tape = sum(max(calls - values.sizes.get(value, 0), 0) for value, calls in counts.items())
    # Each bound is a size that some call had: one on the tape, one that is listed, or another.
    bounds = {values.min, values.max} - values.sizes.keys() - counts.keys()
    told = sum(values.sizes.values()) + values.other_calls
    return len(bounds) <= values.other_calls - on_tape and told <= sum(counts.values()) + hidden
