"""The files of a tape as recordings: their parts, and what their trailers say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice

from calltape_analyzer.damage import Damage
from calltape_analyzer.segment import Segment
from calltape_analyzer.traffic_counters import Counters
from calltape_schema.framing import TRAILER
from calltape_schema.records import Coverage, Dump

__all__ = ["counters_of", "coverage_of", "dumps_of", "missing_numbers"]

_MAX_MISSING = 1000


def coverage_of(segments: Sequence[Segment]) -> Coverage:
    """Calls seen, kept, and dropped by reason, in all files: a sum, which no limit of one file
    holds for."""
    dropped: Counter[str] = Counter()
    seen = kept = 0
    for segment in segments:
        seen += segment.coverage.seen
        kept += segment.coverage.kept
        dropped.update(segment.coverage.dropped)
    return Coverage.model_construct(seen=seen, kept=kept, dropped=dict(dropped))


def counters_of(segments: Sequence[Segment], damage: Damage) -> Counters:
    """The counters of all files; a group that breaks the format is damage."""
    found = Counters()
    for segment in segments:
        if segment.is_ahead:
            continue  # its call is counted where it belongs
        traffic = segment.trailer.traffic if segment.trailer is not None else None
        if traffic is None:
            found = found.merge(Counters(missing=frozenset((segment.path,))))
            continue
        counted, errors = Counters.of(traffic)
        found = found.merge(counted)
        for error in errors:
            damage.add(error.at(path=segment.path, member=TRAILER))
    return found


def dumps_of(segments: Sequence[Segment]) -> tuple[Dump, ...]:
    """The dumps of flight recorders, in the order of time."""
    every = [dump for s in segments if s.trailer is not None for dump in s.trailer.dumps]
    return tuple(sorted(every, key=lambda dump: dump.time_ns))


def missing_numbers(segments: Sequence[Segment]) -> dict[bytes, tuple[int, ...]]:
    """Per recording that lacks any, the numbers of files before its last one that are not here: at
    most 1,000 of them."""
    numbers: dict[bytes, set[int]] = {}
    for segment in segments:
        if not segment.is_ahead:
            numbers.setdefault(segment.manifest.tape, set()).add(segment.part)
    gaps = {tape: tuple(islice(_gaps(found), _MAX_MISSING)) for tape, found in numbers.items()}
    return {tape: found for tape, found in gaps.items() if found}


def _gaps(numbers: set[int]) -> Iterator[int]:
    expected = 0
    for number in sorted(numbers):
        yield from range(expected, number)
        expected = number + 1
