"""The files of a tape as recordings.

In come files. Out go those of each recording, its coverage, and the numbers of the files that are
missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol, TypeVar

from calltape_schema.bounds import MAX_COUNT
from calltape_schema.end import Coverage
from calltape_schema.records import Manifest

__all__ = [
    "LEFT_OUT",
    "UNSEALED",
    "CountedFile",
    "coverage_of",
    "coverage_without_end",
    "missing_numbers",
    "places_of",
    "recordings_of",
    "sound_coverage",
]

UNSEALED = "unknown (the tape is not sealed)"
"""The reason of missing calls if no end says what became of them."""

LEFT_OUT = "not extracted"
"""The reason of calls that are left out of a new tape because they were not wanted."""

_MAX_MISSING = 1000

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
    def __len__(self) -> int: ...


def coverage_of(segments: Sequence[CountedFile]) -> Coverage:
    """How many calls were seen, kept, and dropped by reason, in all files together. The limits of
    one file do not hold for this sum."""
    return _summed(map(_coverage, recordings_of(segments)))


def _summed(parts: Iterable[Coverage]) -> Coverage:
    dropped: Counter[str] = Counter()
    seen = kept = 0
    at_least = False
    for found in parts:
        seen += found.seen
        kept += found.kept
        dropped.update(found.dropped)
        at_least |= bool(found.at_least)
    return _coverage_from(seen, kept, dropped, at_least)


def _coverage(parts: Sequence[CountedFile]) -> Coverage:
    """The coverage of one recording. If a file has no end, the numbers of the calls tell how
    many were seen at least."""
    ahead = (_coverage_from(len(p), len(p), {}, True) for p in parts if p.is_ahead)
    found = _summed([*map(_coverage_of_place, places_of(parts)), *ahead])
    seen, dropped, at_least = found.seen, Counter(found.dropped), found.at_least
    end = 1 + max((part.extent or (-1, -1))[1] for part in parts)
    if missing_numbers(parts):
        at_least = at_least or seen < end  # the files that are not here saw calls too
    elif dropped[UNSEALED]:
        # A number that is missing in one file may be in another file.
        known = seen - dropped.pop(UNSEALED)
        seen = max(known, end)
        dropped[UNSEALED] = seen - known
    return _coverage_from(seen, found.kept, +dropped, at_least)


def _coverage_of_place(alike: Sequence[CountedFile]) -> Coverage:
    """The coverage of the files that have the same number in their recording: nearly always one
    file, or several that were extracted from it."""
    # A file that knows how many calls there were tells it for all.
    at_least = all(file.coverage.at_least for file in alike)
    if len(alike) == 1:
        (file,) = alike
        found, less = file.coverage, file.left_out
        return _coverage_from(found.seen - less, found.kept - less, found.dropped, at_least)
    fullest = max((file.coverage for file in alike), key=lambda coverage: coverage.seen)
    kept = sum(file.coverage.kept - file.left_out for file in alike)
    seen = max(fullest.seen, kept)
    if kept + sum(fullest.dropped.values()) == seen:
        return _coverage_from(seen, kept, fullest.dropped, at_least)
    rest = {"unknown (not in these files)": seen - kept} if seen > kept else {}
    return _coverage_from(seen, kept, rest, at_least)


def _coverage_from(
    seen: int, kept: int, dropped: Mapping[str, int], at_least: bool | None
) -> Coverage:
    return Coverage.model_construct(
        seen=seen, kept=kept, dropped=dict(dropped), at_least=at_least or None
    )


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
    """The numbers of the files that are missing before the last one of a recording, at most 1,000
    per recording. A recording without missing files is not in the dict."""
    numbers: dict[bytes, set[int]] = {}
    for segment in segments:
        if not segment.is_ahead:
            numbers.setdefault(segment.recording, set()).add(segment.part)
    gaps = {tape: tuple(islice(_gaps(found), _MAX_MISSING)) for tape, found in numbers.items()}
    return {tape: found for tape, found in gaps.items() if found}


def _gaps(numbers: set[int]) -> Iterator[int]:
    expected = 0
    for number in sorted(numbers):
        yield from range(expected, number)
        expected = number + 1


def coverage_without_end(numbers: Sequence[int], first_call: int) -> Coverage:
    """The coverage of a file without an end. The numbers of its calls tell how many calls were seen
    at least: no number comes after the last one.

    Args:
        numbers: of the calls in the file.
        first_call: the number that the file began with.
    """
    found = len(numbers)
    seen = min(max(found, max(numbers, default=-1) + 1 - first_call), MAX_COUNT)
    dropped = {UNSEALED: seen - found} if seen > found else {}
    return Coverage(seen=seen, kept=found, dropped=dropped, at_least=True)


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
        dropped["unknown (the end contradicts itself)"] = seen - told
    return coverage.model_copy(update={"seen": seen, "dropped": dropped})
