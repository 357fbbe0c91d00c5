"""The files of a tape as recordings.

Takes files; returns those of each recording, its coverage, and the numbers of the files that are
missing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
    return _sum_of(map(_coverage, recordings_of(segments)))


def _sum_of(parts: Iterable[Coverage]) -> Coverage:
    dropped: Counter[Reason] = Counter()
    seen = kept = 0
    until: list[int | None] = []
    for coverage in parts:
        seen += coverage.seen
        kept += coverage.kept
        dropped.update(coverage.dropped)
        if coverage.at_least:
            until.append(coverage.counted_ns)
    # If nobody knows of one until when it was counted, nobody knows of all.
    moments = [moment for moment in until if moment is not None]
    earliest = min(moments) if moments and len(moments) == len(until) else None
    return _coverage_from(seen, kept, dropped, bool(until), earliest)


def _coverage(parts: Sequence[CountedFile]) -> Coverage:
    """The coverage of one recording. If a file has no end, what its recorder counted so far and
    the numbers of the calls tell how many were seen at least."""
    places = places_of(parts)
    deleted = joined_runs(run for part in parts for run in part.deleted)
    # Other files count the calls of a file that was about to be deleted.
    deleted_parts = [_coverage_of_place(c) for c in places if _is_in_runs(c[0].part, deleted)]
    present_parts = [
        _coverage_of_place(copies) for copies in places if not _is_in_runs(copies[0].part, deleted)
    ]
    if (
        present_parts
        and (goes_on(parts) or present_parts[-1].at_least)
        and present_parts[-1].counted_ns is None
    ):
        until = _counted_until(places)
        present_parts[-1] = present_parts[-1].model_copy(
            update={"at_least": True, "counted_ns": until}
        )
    total = _sum_of(present_parts)
    ahead = sum(len(part) for part in parts if part.is_ahead)
    kept = total.kept + ahead + sum(part.kept for part in deleted_parts)
    dropped = Counter(total.dropped)
    still_there = sum(part.kept for part in deleted_parts)
    for reason in _REASONS_OF_DELETED:  # calls that are still there count as deleted too
        moved = min(still_there, dropped[reason])
        dropped[reason] -= moved
        still_there -= moved
    seen = kept + dropped.total()
    at_least, until = bool(total.at_least), total.counted_ns
    if ahead and not at_least:
        at_least, until = True, None
    end = 1 + max((part.extent or (-1, -1))[1] for part in parts)
    if missing_numbers(parts):
        if not at_least and seen < end:  # the files that are not here saw calls too
            at_least, until = True, None
    elif dropped[DropReason.NOT_SEALED] or any(part.next_call > seen for part in parts):
        # A number that is missing in one file may be in another file.
        sealed_calls = seen - dropped.pop(DropReason.NOT_SEALED, 0)
        seen = max(sealed_calls, end, *(part.next_call for part in parts))
        dropped[DropReason.ELSEWHERE if goes_on(parts) else DropReason.NOT_SEALED] += (
            seen - sealed_calls
        )
    return _coverage_from(seen, kept, +dropped, at_least, until)


def _counted_until(places: Sequence[Sequence[CountedFile]]) -> int | None:
    """Until when a recording that goes on is counted, if its last file has neither calls nor
    counts: until the file before it was closed, or since the beginning; None if unknown."""
    for copies in reversed(places):
        closed = [file.closed_ns for file in copies if file.closed_ns is not None]
        if len(closed) == len(copies):
            return min(closed) if all(file.continues for file in copies) else None
        if copies[0].coverage.counted_ns is not None:
            return copies[0].coverage.counted_ns
    first = places[0][0]
    return first.manifest.created_ns if first.part == 0 else None


def goes_on(parts: Sequence[CountedFile]) -> bool:
    """Whether a recording goes on after the last of its files that are here: its recorder still
    runs or was killed, or later files are elsewhere."""
    places = places_of(parts)
    return bool(places) and all(file.continues for file in places[-1])


def _coverage_of_place(copies: Sequence[CountedFile]) -> Coverage:
    """The coverage of the files that have the same number in their recording: nearly always one
    file, or several that were extracted from it."""
    # A file that knows how many calls there were tells it for all.
    at_least = all(bool(file.coverage.at_least) for file in copies)
    if len(copies) == 1:
        (file,) = copies
        file_coverage, less = file.coverage, file.left_out
        return _coverage_from(
            file_coverage.seen - less,
            file_coverage.kept - less,
            file_coverage.dropped,
            at_least,
            file_coverage.counted_ns,
        )
    fullest = max((file.coverage for file in copies), key=lambda coverage: coverage.seen)
    kept = sum(file.coverage.kept - file.left_out for file in copies)
    seen = max(fullest.seen, kept)
    if kept + sum(fullest.dropped.values()) == seen:
        return _coverage_from(seen, kept, fullest.dropped, at_least, fullest.counted_ns)
    dropped: dict[Reason, int] = {DropReason.ELSEWHERE: seen - kept} if seen > kept else {}
    return _coverage_from(seen, kept, dropped, at_least, fullest.counted_ns)


def _coverage_from(
    seen: int, kept: int, dropped: Mapping[Reason, int], at_least: bool, until: int | None
) -> Coverage:
    return Coverage.model_construct(
        seen=seen, kept=kept, dropped=dict(dropped), at_least=at_least or None,
        counted_ns=until if at_least else None,
    )  # fmt: skip


def recordings_of(segments: Iterable[F]) -> list[list[F]]:
    """The files of each recording: those with one tape id."""
    parts_of: dict[bytes, list[F]] = {}
    for segment in segments:
        parts_of.setdefault(segment.recording, []).append(segment)
    return list(parts_of.values())


def places_of(parts: Iterable[F]) -> list[list[F]]:
    """The files of one recording, one list for each file number, without write-ahead files."""
    files_at: dict[int, list[F]] = {}
    for part in parts:
        if not part.is_ahead:
            files_at.setdefault(part.part, []).append(part)
    return [files_at[number] for number in sorted(files_at)]


def missing_numbers(segments: Sequence[CountedFile]) -> dict[bytes, tuple[int, ...]]:
    """The numbers of the files that are missing before the last one of a recording, and were not
    deleted by the recorder, at most 1,000 per recording. A recording without missing files is not
    in the dict."""
    missing: dict[bytes, tuple[int, ...]] = {}
    for parts in recordings_of(segments):
        there = {part.part for part in parts if not part.is_ahead}
        deleted = joined_runs(run for part in parts for run in part.deleted)
        expected, last_here, gaps = 0, max(there, default=-1), list[int]()
        for first, last in sorted([*((number, number) for number in there), *deleted]):
            gap = range(expected, min(first, last_here))
            gaps += gap[: _MAX_MISSING - len(gaps)]
            expected = max(expected, last + 1)
        if gaps:
            missing[parts[0].recording] = tuple(gaps)
    return missing


def deleted_files(segments: Sequence[CountedFile]) -> dict[bytes, FileNumbers]:
    """The numbers of the files that the recorder deleted, as runs, by recording."""
    deleted: dict[bytes, FileNumbers] = {}
    for parts in recordings_of(segments):
        there = sorted({part.part for part in parts})
        runs: list[tuple[int, int]] = []
        for first, last in joined_runs(run for part in parts for run in part.deleted):
            # The parts of the run between files that are here.
            for number in there[bisect_left(there, first) : bisect_right(there, last)]:
                if first < number:
                    runs.append((first, number - 1))
                first = number + 1
            if first <= last:
                runs.append((first, last))
        if runs:
            deleted[parts[0].recording] = tuple(runs)
    return deleted


def _is_in_runs(number: int, runs: FileNumbers) -> bool:
    run_number = bisect_right(runs, (number, MAX_COUNT)) - 1
    return run_number >= 0 and number <= runs[run_number][1]


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
    count = len(numbers)
    dropped: Counter[Reason] = Counter()
    seen, until = max(count, max(numbers, default=-1) + 1 - first_call), last_ns
    if counts is not None and count + sum(counts.coverage.dropped.values()) <= MAX_COUNT:
        dropped.update(counts.coverage.dropped)
        seen = max(seen, counts.coverage.seen, counts.next_call - first_call)
        until = max(last_ns or 0, counts.coverage.counted_ns or 0) or None
    counted = count + dropped.total()
    seen = min(max(seen, counted), MAX_COUNT)
    dropped[DropReason.NOT_SEALED] += seen - counted
    return Coverage(seen=seen, kept=count, dropped=+dropped, at_least=True, counted_ns=until)


def sound_coverage(coverage: Coverage) -> Coverage:
    """The coverage of an end, with a sum that holds. If the end contradicts itself (which is
    damage), the larger number counts as seen, as far as it can be counted."""
    counted = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen == counted:
        return coverage
    seen = min(max(coverage.seen, counted), MAX_COUNT)
    dropped = dict(coverage.dropped) if counted <= seen else {}
    counted = coverage.kept + sum(dropped.values())
    if seen > counted:
        dropped[DropReason.CONTRADICTED] = seen - counted
    return coverage.model_copy(update={"seen": seen, "dropped": dropped})
