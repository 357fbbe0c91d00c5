"""The manifest, call numbers and coverage of a tape that is made from others.

The manifest is that of the first file, with one more step in its history. Calls of one recording
keep its id and their numbers. Several recordings get a new id, and the numbers of each follow those
of the one before, so that each call can be traced back.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.plain_data import json_text
from calltape_analyzer.reading.recordings import CountedFile, coverage_of, recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_schema import __version__
from calltape_schema.bounds import MAX_COUNT, MAX_OPTIONS, MAX_SOURCES, MAX_STEPS
from calltape_schema.drop_reasons import DropReason, Reason
from calltape_schema.end import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.fields import now_ns
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import (
    MINOR,
    VERSION,
    Manifest,
    Policy,
    Producer,
    Source,
    Step,
    Target,
    redacted_of_all,
    redacted_of_steps,
)

__all__ = [
    "Numbering",
    "closing_time",
    "count_intact",
    "coverage_for",
    "coverage_of_numbers",
    "derived_manifest",
    "new_manifest",
    "numbering_of",
    "unkept_of",
]

_MAX_REASONS = 1000
_MAX_FILES = 16
_MAX_TEXT = 1000
_MAX_NUMBER = 2**63 - 1


def coverage_for(
    segments: Sequence[CountedFile], kept: int, unwanted: int, later: int = 0
) -> Coverage:
    """How many calls were seen, and why the new tape lacks some of them.

    Args:
        segments: the files that were read.
        kept: how many calls were written.
        unwanted: how many calls were not selected.
        later: how many of the others only a later version can read.

    Raises:
        TapeError: ``limit`` if the files claim more calls than can be counted.
    """
    before = coverage_of(segments)
    dropped = Counter(before.dropped)
    dropped[DropReason.WAS_NOT_SEALED] += dropped.pop(DropReason.NOT_SEALED, 0)
    dropped[DropReason.NOT_EXTRACTED] += unwanted
    lost = max(before.kept - kept - unwanted, 0)
    dropped[DropReason.LATER] += min(later, lost)
    dropped[DropReason.DAMAGED] += max(lost - later, 0)
    return _coverage(kept, +dropped, before.at_least, before.counted_ns)


def coverage_of_numbers(
    end: int, kept: int, missing: DropReason, *, at_least: bool | None = None
) -> Coverage:
    """The coverage of a tape if the highest call number tells how many calls were seen.

    Args:
        end: the number after the highest one.
        kept: how many calls the tape has.
        missing: why numbers are missing.
        at_least: whether there may have been more calls.

    Raises:
        TapeError: ``limit`` if there are more calls than can be counted.
    """
    return _coverage(kept, {missing: end - kept} if end > kept else {}, at_least)


def _coverage(
    kept: int, dropped: Mapping[Reason, int], at_least: bool | None, counted_ns: int | None = None
) -> Coverage:
    folded = dict(dropped)
    if len(dropped) > _MAX_REASONS:  # the format allows no more
        most = sorted(dropped.items(), key=lambda item: -item[1])
        folded = dict(most[: _MAX_REASONS - 1])
        folded[DropReason.OTHER] = sum(calls for _, calls in most[_MAX_REASONS - 1 :])
    seen = kept + sum(folded.values())
    if seen > MAX_COUNT:
        raise TapeError("limit", f"the tapes claim to have seen {seen} calls")
    return Coverage(seen=seen, kept=kept, dropped=folded, at_least=at_least, counted_ns=counted_ns)


def count_intact(segments: Iterable[Segment]) -> int:
    """How many intact calls the files have."""
    return sum(len(segment.numbers) - segment.left_out - segment.damaged for segment in segments)


def unkept_of(segments: Sequence[Segment]) -> InputsTable:
    """The counted inputs of calls that were seen but not kept. A selection of calls has none,
    because it is unknown which of them it would have included."""
    unkept = InputsTable()
    for segment in segments:
        table = segment.table
        if table is not None and not segment.left_out:
            unkept.merge(table.others())
    return unkept


def closing_time(segments: Sequence[Segment]) -> int:
    """When the recordings ended, in Unix nanoseconds. For a file without an end, the time when its
    last call began."""
    latest = 0
    for segment in segments:
        closed = segment.manifest.created_ns if segment.end is None else segment.end.closed_ns
        for position in reversed(segment.order) if segment.end is None else ():
            with suppress(TapeError):
                closed = segment.record(position).time_ns
                break
        latest = max(latest, closed)
    return latest


@dataclass(frozen=True)
class Numbering:
    """The id of a new tape, and the numbers of its calls.

    Attributes:
        tape: the id.
        firsts: the offset of call numbers by the id of the recording.
    """

    tape: bytes
    firsts: dict[bytes, int] = field(default_factory=dict)

    def number_of(self, tape: bytes, number: int) -> int:
        """The new number of a call of a recording."""
        return self.firsts.get(tape, 0) + number

    @property
    def changes(self) -> bool:
        """Whether any call gets a new id or number."""
        return any(tape != self.tape or first for tape, first in self.firsts.items())


def numbering_of(segments: Sequence[Segment]) -> Numbering:
    """The numbering of a tape that is made of these files.

    Raises:
        UsageError: the numbers would be too high.
    """
    recordings = recordings_of(segments)
    ids = [parts[0].manifest.tape for parts in recordings]
    if len(ids) == 1:
        return Numbering(ids[0], {ids[0]: 0})
    firsts: dict[bytes, int] = {}
    end = 0
    for tape, parts in zip(ids, recordings, strict=True):
        firsts[tape] = end
        highest = max((max(part.numbers, default=-1) for part in parts), default=-1)
        end += max(coverage_of(parts).seen, highest + 1)
        if end > _MAX_NUMBER:
            raise UsageError("the calls have numbers that are too high to be added up")
    # A hash, so that merging the same recordings again gives the same tape.
    merged = hashlib.blake2b(b"calltape merge" + b"".join(ids), digest_size=16).digest()
    return Numbering(merged, firsts)


def new_manifest(target: Target | None = None, policy: Policy | None = None) -> Manifest:
    """The manifest of a synthetic tape."""
    return Manifest(
        format="calltape",
        version=VERSION,
        minor=MINOR,
        tape=secrets.token_bytes(16),
        created_ns=now_ns(),
        producer=Producer(calltape=__version__, python=platform.python_version()),
        target=target,
        policy=policy or Policy(),
    )


def derived_manifest(
    segments: Sequence[Segment],
    verb: str,
    options: Mapping[str, Any] | None = None,
    *,
    numbering: Numbering | None = None,
    left_out: Mapping[bytes, int] | None = None,
) -> Manifest:
    """The manifest of a tape that is made from others.

    Args:
        segments: the files that are read, in order (``tape.segments``).
        verb: the verb of the new step in the history: ``filter``, ``redact``, ...
        options: its options, as texts or plain data.
        numbering: the numbering of the new tape; by default, that of all calls of these files.
        left_out: by recording, how many calls are left out.

    Raises:
        UsageError: the history would have too many steps or recordings.
    """
    recordings = recordings_of(segments)
    first = segments[0].manifest
    numbering = numbering or numbering_of(segments)
    steps = list(dict.fromkeys(step for s in segments for step in s.manifest.history or ()))
    if len(steps) >= MAX_STEPS:
        raise UsageError(
            f"the tape was changed {len(steps)} times, and can tell of no more",
            advice="begin with an earlier tape",
        )
    if len(recordings) > MAX_SOURCES:
        raise UsageError(
            f"these are {len(recordings)} recordings (at most {MAX_SOURCES} make one tape)",
            advice="take some of them first, and then the results",
        )
    # The new file takes the place of the first file of its recording.
    places = [part.manifest.segment for part in recordings[0] if not part.is_ahead]
    places_known = [place for place in places if place is not None]
    has_place = places_known and len(places_known) == len(places) and not numbering.changes
    step = Step(
        verb=verb,
        tool="calltape",
        version=__version__,
        tape=numbering.tape,
        options=tuple(
            (name[:_MAX_TEXT], _text(value if isinstance(value, str) else json_text(value)))
            for name, value in list((options or {}).items())[:MAX_OPTIONS]
        ),
        sources=tuple(_source(parts, numbering, left_out or {}) for parts in recordings),
    )
    return first.model_copy(
        update={
            "minor": max(MINOR, first.minor),
            "tape": numbering.tape,
            "segment": min(places_known, key=lambda place: place.number) if has_place else None,
            "history": (*steps, step),
        }
    )


def _source(
    parts: Sequence[Segment],
    numbering: Numbering,
    left_out: Mapping[bytes, int],
) -> Source:
    tape = parts[0].manifest.tape
    names = [_text(os.path.basename(part.path)) for part in parts]
    return Source(
        tape=tape,
        files=tuple(names[:_MAX_FILES]),
        other_files=max(len(names) - _MAX_FILES, 0),
        calls=sum(len(part.numbers) - part.left_out for part in parts),
        left_out=left_out.get(tape),
        first=numbering.number_of(tape, 0),
        redacted=redacted_of_all(redacted_of_steps(part.manifest.history or ()) for part in parts),
    )


def _text(value: str) -> str:
    """A text that is short enough for a manifest, in valid UTF-8."""
    plain = value.encode("utf-8", "backslashreplace").decode()
    return plain if len(plain) <= _MAX_TEXT else f"{plain[:_MAX_TEXT]}…"
