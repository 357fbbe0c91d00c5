"""The files of a tape as recordings.

In come files. Out go those of each recording, its coverage, and the numbers of the files that are
missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from calltape_schema.bounds import MAX_COUNT
from calltape_schema.drop_reasons import DropReason, Reason
from calltape_schema.end import Coverage, FileNumbers, InterimCounts, joined_runs
from calltape_schema.records import Manifest

__all__ = [
    "CountedFile",
    "coverage_of",
    "coverage_without_end",
    "deleted_files",
    "goes_on",
    "missing_numbers",
    "places_of",
    "recordings_of",
    "sound_coverage",
]

_MAX_MISSING = 1000
_REASONS_OF_DELETED = DropReason.DELETED, DropReason.EXPIRED

F = TypeVar("F", bound="CountedFile")


class CountedFile(Protocol):
    """What is counted of a file."""

    @property
    def manifest(self) -> Manifest: ...
    @property
    def recording(self) -> bytes: ...
    @property
    def is_ahead(self) -> bool: ...
    @property
    def part(self) -> int: ...
    @property
    def coverage(self) -> Coverage: ...
    @property
    def extent(self) -> tuple[int, int] | None: ...
    @property
    def left_out(self) -> int: ...
    @property
    def continues(self) -> bool: ...
    @property
    def next_call(self) -> int: ...
    @property
    def closed_ns(self) -> int | None: ...
    @property
    def deleted(self) -> FileNumbers: ...
    def __len__(self) -> int: ...


def coverage_of(segments: Sequence[CountedFile]) -> Coverage:
    """How many calls were seen, kept, and dropped by reason, in all files together. The limits of
    one file do not hold for this sum."""
    return _summed(map(_coverage, recordings_of(segments)))


def _summed(parts: Iterable[Coverage]) -> Coverage:
    dropped: Counter[Reason] = Counter()
    seen = kept = 0
    until: list[int | None] = []
    for found in parts:
        seen += found.seen
        kept += found.kept
        dropped.update(found.dropped)
        if found.at_least:
            until.append(found.counted_ns)
    return _coverage_from(seen, kept, dropped, bool(until), _earliest(until))


def _earliest(until: Sequence[int | None]) -> int | None:
    """Until when all of these are counted; None if nobody knows of one."""
    known = [moment for moment in until if moment is not None]
    return min(known) if known and len(known) == len(until) else None


def _coverage(parts: Sequence[CountedFile]) -> Coverage:
    """The coverage of one recording. If a file has no end, what its recorder counted so far and
    the numbers of the calls tell how many were seen at least."""
    places, deleted = places_of(parts), _deleted_by(parts)
    # Other files count the calls of a file that was about to be deleted.
    left = [_coverage_of_place(alike) for alike in places if _is_in(alike[0].part, deleted)]
    own = [_coverage_of_place(alike) for alike in places if not _is_in(alike[0].part, deleted)]
    if own and (goes_on(parts) or own[-1].at_least) and own[-1].counted_ns is None:
        until = _last_told(places)
        own[-1] = own[-1].model_copy(update={"at_least": True, "counted_ns": until})
    found = _summed(own)
    ahead = sum(len(part) for part in parts if part.is_ahead)
    kept = found.kept + ahead + sum(one.kept for one in left)
    dropped = Counter(found.dropped)
    _take_back(dropped, sum(one.kept for one in left))
    seen = kept + dropped.total()
    at_least, until = bool(found.at_least), found.counted_ns
    if ahead and not at_least:
        at_least, until = True, None
    end = 1 + max((part.extent or (-1, -1))[1] for part in parts)
    if missing_numbers(parts):
        if not at_least and seen < end:  # the files that are not here saw calls too
            at_least, until = True, None
    elif dropped[DropReason.NOT_SEALED] or any(part.next_call > seen for part in parts):
        # A number that is missing in one file may be in another file.
        known = seen - dropped.pop(DropReason.NOT_SEALED, 0)
        seen = max(known, end, *(part.next_call for part in parts))
        dropped[DropReason.ELSEWHERE if goes_on(parts) else DropReason.NOT_SEALED] += seen - known
    return _coverage_from(seen, kept, +dropped, at_least, until)


def _last_told(places: Sequence[Sequence[CountedFile]]) -> int | None:
    """Until when a recording that goes on is counted, if the last of its files has no call and no
    counts: until the file before it was closed, or from the beginning on; None if nobody knows."""
    for alike in reversed(places):
        if all(file.closed_ns is not None for file in alike):
            return (
                _earliest([f.closed_ns for f in alike]) if all(f.continues for f in alike) else None
            )
        if alike[0].coverage.counted_ns is not None:
            return alike[0].coverage.counted_ns
    first = places[0][0]
    return first.manifest.created_ns if first.part == 0 else None


def _take_back(dropped: Counter[Reason], calls: int) -> None:
    """Takes calls that are still there out of those that were counted as deleted."""
    for reason in _REASONS_OF_DELETED:
        taken = min(calls, dropped[reason])
        dropped[reason] -= taken
        calls -= taken


def goes_on(parts: Sequence[CountedFile]) -> bool:
    """Whether a recording goes on after the last of its files that are here: its recorder still
    runs or was killed, or later files are elsewhere."""
    places = places_of(parts)
    return bool(places) and all(file.continues for file in places[-1])


def _coverage_of_place(alike: Sequence[CountedFile]) -> Coverage:
    """The coverage of the files that have the same number in their recording: nearly always one
    file, or several that were extracted from it."""
    # A file that knows how many calls there were tells it for all.
    at_least = all(bool(file.coverage.at_least) for file in alike)
    if len(alike) == 1:
        (file,) = alike
        found, less = file.coverage, file.left_out
        return _coverage_from(
            found.seen - less, found.kept - less, found.dropped, at_least, found.counted_ns
        )
    fullest = max((file.coverage for file in alike), key=lambda coverage: coverage.seen)
    kept = sum(file.coverage.kept - file.left_out for file in alike)
    seen = max(fullest.seen, kept)
    if kept + sum(fullest.dropped.values()) == seen:
        return _coverage_from(seen, kept, fullest.dropped, at_least, fullest.counted_ns)
    rest: dict[Reason, int] = {DropReason.ELSEWHERE: seen - kept} if seen > kept else {}
    return _coverage_from(seen, kept, rest, at_least, fullest.counted_ns)


def _coverage_from(
    seen: int, kept: int, dropped: Mapping[Reason, int], at_least: bool, until: int | None
) -> Coverage:
    return Coverage.model_construct(
        seen=seen, kept=kept, dropped=dict(dropped), at_least=at_least or None,
        counted_ns=until if at_least else None,
    )  # fmt: skip


def recordings_of(segments: Iterable[F]) -> list[list[F]]:
    """The files of each recording: those with one tape id."""
    found: dict[bytes, list[F]] = {}
    for segment in segments:
        found.setdefault(segment.recording, []).append(segment)
    return list(found.values())


def places_of(parts: Iterable[F]) -> list[list[F]]:
    """The files of one recording, one list for each file number, without write-ahead files."""
    found: dict[int, list[F]] = {}
    for part in parts:
        if not part.is_ahead:
            found.setdefault(part.part, []).append(part)
    return [found[number] for number in sorted(found)]


def missing_numbers(segments: Sequence[CountedFile]) -> dict[bytes, tuple[int, ...]]:
    """The numbers of the files that are missing before the last one of a recording, and were not
    deleted by the recorder, at most 1,000 per recording. A recording without missing files is not
    in the dict."""
    gaps = {
        parts[0].recording: tuple(islice(_gaps(parts), _MAX_MISSING))
        for parts in recordings_of(segments)
    }
    return {tape: found for tape, found in gaps.items() if found}


def _gaps(parts: Sequence[CountedFile]) -> Iterator[int]:
    there = {part.part for part in parts if not part.is_ahead}
    runs = [(number, number) for number in there] + list(_deleted_by(parts))
    expected, last_here = 0, max(there, default=-1)
    for first, last in sorted(runs):
        yield from range(expected, min(first, last_here))
        expected = max(expected, last + 1)


def deleted_files(segments: Sequence[CountedFile]) -> dict[bytes, FileNumbers]:
    """The numbers of the files that the recorder deleted, as runs, by recording."""
    found: dict[bytes, FileNumbers] = {}
    for parts in recordings_of(segments):
        there = sorted({part.part for part in parts})
        runs = [run for run in _deleted_by(parts) for run in _without(run, there)]
        if runs:
            found[parts[0].recording] = tuple(runs)
    return found


def _without(run: tuple[int, int], numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The parts of a run between some numbers, which ascend."""
    first, last = run
    for number in numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]:
        if first < number:
            yield first, number - 1
        first = number + 1
    if first <= last:
        yield first, last


def _deleted_by(parts: Sequence[CountedFile]) -> FileNumbers:
    """What the files of a recording say of others that were deleted."""
    return joined_runs(run for part in parts for run in part.deleted)


def _is_in(number: int, runs: FileNumbers) -> bool:
    at = bisect_right(runs, (number, MAX_COUNT)) - 1
    return at >= 0 and number <= runs[at][1]


def coverage_without_end(
    numbers: Sequence[int], first_call: int, counts: InterimCounts | None = None,
    last_ns: int | None = None,
) -> Coverage:  # fmt: skip
    """The coverage of a file without an end. Its recorder counted calls from time to time, and the
    numbers of its calls tell how many calls were seen at least: no number comes after the last one.

    Args:
        numbers: of the calls in the file.
        first_call: the number that the file began with.
        counts: what the recorder counted.
        last_ns: when the last one of these calls began.
    """
    found = len(numbers)
    known: Counter[Reason] = Counter()
    seen, until = max(found, max(numbers, default=-1) + 1 - first_call), last_ns
    if counts is not None and found + sum(counts.coverage.dropped.values()) <= MAX_COUNT:
        known.update(counts.coverage.dropped)
        seen = max(seen, counts.coverage.seen, counts.next_call - first_call)
        until = max(last_ns or 0, counts.coverage.counted_ns or 0) or None
    told = found + known.total()
    seen = min(max(seen, told), MAX_COUNT)
    known[DropReason.NOT_SEALED] += seen - told
    return Coverage(seen=seen, kept=found, dropped=+known, at_least=True, counted_ns=until)


def sound_coverage(coverage: Coverage) -> Coverage:
    """The coverage of an end, with a sum that holds. If the end contradicts itself (which is
    damage), the larger number counts as seen, as far as it can be counted."""
    told = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen == told:
        return coverage
    seen = min(max(coverage.seen, told), MAX_COUNT)
    dropped = dict(coverage.dropped) if told <= seen else {}
    told = coverage.kept + sum(dropped.values())
    if seen > told:
        dropped[DropReason.CONTRADICTED] = seen - told
    return coverage.model_copy(update={"seen": seen, "dropped": dropped})
