"""The traffic counters of a tape's trailers, if they agree with its calls.

Counters count all calls, also the calls on the tape. So they must cover these: at least as many
calls of each kind, and their sizes. They must also add up: in each file by themselves
(:mod:`calltape_analyzer.observing.counter_arithmetic`), and over files with the number of calls
seen. A trailer that contradicts this is damage, and its counters are not used. Nobody can check
what it says of calls that are not on the tape, beyond that there is room for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from calltape_analyzer.observing.counter_arithmetic import contradiction_in, may_add_counters
from calltape_analyzer.observing.traffic_counters import (
    CountedGroup,
    CountedKind,
    TrafficCounters,
    Values,
)
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.recordings import missing_numbers, places_of, recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError
from calltape_schema.framing import TRAILER
from calltape_schema.leaves import Leaf, decode_leaves

__all__ = ["CountersOfFile", "counted_drops", "counters_of_file", "trusted_counters"]


CountedInputs: TypeAlias = tuple[bytes, bytes, Sequence[Any], int]
"""``structure``, ``leaves`` and ``scalars`` of inputs, and how many calls had them."""


class _FileCounters(NamedTuple):
    """The counters of one file."""

    segment: Segment
    counters: TrafficCounters


class CountersOfFile(NamedTuple):
    """The counters of one file, and how they fit the calls that are in it.

    Attributes:
        counters: as the trailer has them; None if it has none, or such as contradict themselves or
            the calls.
        short: by kind, how many calls of the file are not counted in it. They may be counted in the
            file before.
        spare: by kind, how many calls are counted in the file and are not in it; and by None, how
            many of further kinds.
    """

    counters: TrafficCounters | None
    short: Mapping[CountedKind, int]
    spare: Mapping[CountedKind | None, int]


def counters_of_file(
    segment: Segment, inputs: Iterable[CountedInputs], damage: Damage
) -> CountersOfFile:
    """The counters of one file of a recording whose other files are not at hand.

    Args:
        segment: the file.
        inputs: the distinct inputs of its calls.
        damage: gets what is wrong with the counters.
    """
    files, _ = _read_counters([segment], damage)
    if not files:
        return CountersOfFile(None, {}, {})
    counters, tallies = files[0].counters, _tallies_of(inputs)
    spare: dict[CountedKind | None, int] = {None: counters.other_calls}
    for kind, group in counters.groups.items():
        spare[kind] = group.calls - (tallies[kind].calls if kind in tallies else 0)
    spare = {kind: calls for kind, calls in spare.items() if calls > 0}
    # It may have the counters of files that were deleted, and so of more calls than it has seen.
    fit = (segment.part and may_add_counters(segment)) or _fit_the_calls_seen(
        [segment], counters.calls
    )
    if fit and _cover(counters, tallies):
        return CountersOfFile(counters, {}, spare)
    short = {kind: _uncovered(tally, counters.groups.get(kind)) for kind, tally in tallies.items()}
    short = {kind: calls for kind, calls in short.items() if calls}
    if segment.part and short and fit:
        return CountersOfFile(counters, short, spare)
    if not _may_be_counted_elsewhere([segment], files):
        damage.add(_contradicted(segment))
    return CountersOfFile(None, {}, {})


def _contradicted(segment: Segment) -> TapeError:
    reason = "the counters contradict the calls on the tape, and are not used"
    return TapeError("damaged", reason, path=segment.path, member=TRAILER)


def trusted_counters(segments: Sequence[Segment], damage: Damage) -> TrafficCounters:
    """The counters of all files that the calls do not contradict. The others are missing. That is
    damage if it has no innocent reason, and so is a group that breaks the format."""
    return TrafficCounters.sum_of(_of_recording(parts, damage) for parts in recordings_of(segments))


def _of_recording(parts: Sequence[Segment], damage: Damage) -> TrafficCounters:
    files, missing = _read_counters(parts, damage)
    doubtful = [one for one in files if not _agree_with_calls([one])]
    if doubtful and not (len(files) > 1 and _agree_with_calls(files)):
        # A call is counted when it begins, and may be written to the next file. So counts that one
        # file lacks are in the files before it, if all of them are here.
        if not _may_be_counted_elsewhere(parts, files):
            for segment, _ in doubtful:
                damage.add(_contradicted(segment))
        missing += [one.segment for one in doubtful]
        left_out = {id(segment) for segment in missing}
        files = [one for one in files if id(one.segment) not in left_out]
    found = TrafficCounters(missing=frozenset(segment.path for segment in missing))
    return TrafficCounters.sum_of([found, *(one.counters for one in files)])


def _read_counters(
    parts: Sequence[Segment], damage: Damage
) -> tuple[list[_FileCounters], list[Segment]]:
    """The files with usable counters, and the files without."""
    files: list[_FileCounters] = []
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
            counters, errors = TrafficCounters.of(traffic)
            for error in errors:
                damage.add(error.at(path=segment.path, member=TRAILER))
            wrong = contradiction_in(segment, traffic, counters)
            if wrong is not None:
                reason = f"the counters contradict themselves, and are not used: {wrong}"
                damage.add(TapeError("damaged", reason, path=segment.path, member=TRAILER))
                missing.append(segment)
                continue
            files.append(_FileCounters(segment, counters))
    return files, missing


def _may_be_counted_elsewhere(parts: Sequence[Segment], files: Sequence[_FileCounters]) -> bool:
    """Whether calls on the tape may be counted in a file that is not here, or has no counters."""
    last = max(segment.part for segment, _ in files)
    before = [part for part in parts if part.part <= last and not part.is_ahead]
    return bool(missing_numbers(before)) or len({p.part for p in before}) > len(files)


def _agree_with_calls(files: Sequence[_FileCounters]) -> bool:
    segments = [one.segment for one in files]
    counters = TrafficCounters.sum_of(one.counters for one in files)
    inputs = (found for segment in segments for found in segment.inputs())
    return _agree(segments, counters, _tallies_of(inputs))


def _agree(
    segments: Sequence[Segment], counters: TrafficCounters, tallies: Mapping[CountedKind, _Tally]
) -> bool:
    return _fit_the_calls_seen(segments, counters.calls) and _cover(counters, tallies)


def _cover(counters: TrafficCounters, tallies: Mapping[CountedKind, _Tally]) -> bool:
    """Whether the calls on the tape can be among those that were counted."""
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
    "expired", "file_removed",
})  # fmt: skip
"""Reasons for which a call was dropped after it was counted. For every other reason it may have
been dropped before."""


def _fit_the_calls_seen(segments: Sequence[Segment], counted: int) -> bool:
    """Whether the number of counted calls fits the number of calls seen. A call is
    counted before it is kept, or dropped for one of the reasons above; at the end of a recording
    all of these are counted."""
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
    counted_at_least = sum(
        coverage.kept + counted_drops(coverage.dropped) for coverage in coverages
    )
    if counted < counted_at_least:
        return False
    return not ends or max((s.extent or (-1, -1))[1] for s in segments) < seen


def counted_drops(dropped: Mapping[str, int]) -> int:
    """How many of these calls were counted before they were dropped, by reason."""
    return sum(calls for reason, calls in dropped.items() if reason in _COUNTED)


@dataclass
class _Tally:
    """Calls of one kind that are on the tape.

    Attributes:
        is_plain: whether counters and records have the same kind for such calls; for nested tensors
            and other classes they may differ.
        calls: how many there are.
        axes: of each axis of each leaf, how many calls had which size.
        ints: of each int, by number among the scalars, how many calls had which value.
    """

    is_plain: bool
    calls: int = 0
    axes: list[Counter[int]] = field(default_factory=list)
    ints: dict[int, Counter[int]] = field(default_factory=dict)

    def add(self, sizes: Sequence[int], scalars: Sequence[Any], calls: int) -> None:
        """Counts calls with the same inputs."""
        self.calls += calls
        if not self.axes:
            self.axes = [Counter() for _ in sizes]
        for axis, size in zip(self.axes, sizes, strict=True):
            axis[size] += calls
        for place, value in enumerate(scalars):
            if type(value) is int and -(2**63) <= value < 2**63:
                self.ints.setdefault(place, Counter())[value] += calls


def _tallies_of(inputs: Iterable[CountedInputs]) -> dict[CountedKind, _Tally]:
    found: dict[CountedKind, _Tally] = {}
    for structure, leaves, scalars, calls in inputs:
        try:
            is_small = len(structure) + len(leaves) <= _SMALL_BYTES
            sizes_of = _remembered if is_small else _sizes_of
            kind, sizes, is_plain = sizes_of(structure, leaves)
        except TapeError:
            continue  # reading the call reports it
        if kind not in found:
            found[kind] = _Tally(is_plain)
        found[kind].add(sizes, scalars, calls)
    return found


def _sizes_of(structure: bytes, leaves: bytes) -> tuple[CountedKind, tuple[int, ...], bool]:
    """The kind of inputs, the size of every axis, and whether they are plain."""
    facts = decode_leaves(leaves)
    ranks = tuple(len(leaf.shape) for leaf in facts)
    kind = CountedKind(structure, tuple(leaf.dtype for leaf in facts), ranks)
    sizes = tuple(size for leaf in facts for size in leaf.shape)
    return kind, sizes, all(map(_is_plain, facts))


# Files of one model have inputs in common. 4,096 of 4 KiB take 16 MiB.
_remembered = lru_cache(4096)(_sizes_of)
_SMALL_BYTES = 4096


def _is_plain(leaf: Leaf) -> bool:
    is_dense = leaf.layout == "strided" and leaf.missing in (None, "policy")
    return is_dense and leaf.subclass is None


def _uncovered(tally: _Tally, group: CountedGroup | None) -> int:
    """How many of these calls were not counted, at least."""
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
    """Whether the values that are not on the tape fit the calls that are not on the tape.

    Args:
        values: the counted values.
        counts: how many calls on the tape had which value.
        hidden: how many calls are not on the tape.
    """
    on_tape = sum(max(calls - values.sizes.get(value, 0), 0) for value, calls in counts.items())
    # Each bound is the size of some call: on the tape, in the list, or another one.
    bounds = {values.min, values.max} - values.sizes.keys() - counts.keys()
    counted = sum(values.sizes.values()) + values.other_calls
    return len(bounds) <= values.other_calls - on_tape and counted <= sum(counts.values()) + hidden
