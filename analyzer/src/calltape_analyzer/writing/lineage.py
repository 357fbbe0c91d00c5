"""What a new tape says of where it came from.

Takes the files that it is made of, and what was done to them; returns the numbers that their calls
get, and its manifest: that of the first file, with one more step in its history. Calls of one
recording keep id and numbers. Those of several get a new id, and the numbers of each recording
follow those of the one before it, so that no two are equal and each can be traced back.

For the end of the new tape, it makes a coverage that is true for it (what it lacks is counted, and
if nobody knows how many calls there were, it says so), the counted inputs of calls that no file
has, and when the recording ended.
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
    "calls_in",
    "closing_time",
    "coverage_for",
    "coverage_of_numbers",
    "derived",
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
    """How many calls were seen, and what became of those that the new tape lacks.

    Args:
        segments: the files that were read.
        kept: how many calls were written.
        unwanted: how many were left out because nobody asked for them.
        later: how many others only a later version can read.

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
    """The coverage of a tape of which the numbers of its calls tell how many calls were seen.

    Args:
        end: the first number behind all that were seen.
        kept: how many calls there are.
        missing: why numbers are missing.
        at_least: whether nobody knows how many calls there were.

    Raises:
        TapeError: ``limit`` if there are more calls than can be counted.
    """
    return _coverage(kept, {missing: end - kept} if end > kept else {}, at_least)


def _coverage(
    kept: int, dropped: Mapping[Reason, int], at_least: bool | None, counted_ns: int | None = None
) -> Coverage:
    """What an end can say."""
    folded = dict(dropped)
    if len(dropped) > _MAX_REASONS:  # too many for an end: the last ones together
        most = sorted(dropped.items(), key=lambda item: -item[1])
        folded = dict(most[: _MAX_REASONS - 1])
        folded[DropReason.OTHER] = sum(calls for _, calls in most[_MAX_REASONS - 1 :])
    seen = kept + sum(folded.values())
    if seen > MAX_COUNT:
        raise TapeError("limit", f"the tapes claim to have seen {seen} calls")
    return Coverage(seen=seen, kept=kept, dropped=folded, at_least=at_least, counted_ns=counted_ns)


def calls_in(segments: Iterable[Segment]) -> int:
    """How many sound calls are in files, whichever of them are wanted."""
    return sum(len(one.numbers) - one.left_out - one.damaged for one in segments)


def unkept_of(segments: Sequence[Segment]) -> InputsTable:
    """The counted inputs of calls that were seen and are not in the files. They are of no use if
    calls were chosen: nobody knows which of them would have been."""
    found = InputsTable()
    for segment in segments:
        table = segment.table
        if table is not None and not segment.left_out:
            found.merge(table.others())
    return found


def closing_time(segments: Sequence[Segment]) -> int:
    """When the recordings ended, Unix time in nanoseconds: as the ends say, or else when the
    last call of each file began."""
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
    """Which id and numbers the calls of a new tape have.

    Attributes:
        tape: the id.
        firsts: for each recording (by its id) what is added to the numbers of its calls.
    """

    tape: bytes
    firsts: dict[bytes, int] = field(default_factory=dict)

    def number_of(self, tape: bytes, number: int) -> int:
        """The number that a call of a recording has now."""
        return self.firsts.get(tape, 0) + number

    @property
    def changes(self) -> bool:
        """Whether any call gets another id or number."""
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
    # The same recordings give the same tape.
    made = hashlib.blake2b(b"calltape merge" + b"".join(ids), digest_size=16).digest()
    return Numbering(made, firsts)


def new_manifest(target: Target | None = None, policy: Policy | None = None) -> Manifest:
    """The manifest of a tape that nobody recorded, and that is made of no other."""
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


def derived(
    segments: Sequence[Segment],
    verb: str,
    options: Mapping[str, Any] | None = None,
    *,
    numbering: Numbering | None = None,
    left_out: Mapping[bytes, int] | None = None,
) -> Manifest:
    """The manifest of a tape that is made of others.

    Args:
        segments: the files that are read, in order (``tape.segments``).
        verb: what is done: ``filter``, ``redact``, ...
        options: what was asked for: names, and texts or plain data.
        numbering: of the new tape; by default that of all calls of these files.
        left_out: for each recording how many of its calls are not wanted.

    Raises:
        UsageError: the tape was changed too often, or is made of too many recordings.
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
    # The file of its recording that the new one stands for: the first of those that it is made of.
    places = [part.manifest.segment for part in recordings[0] if not part.is_ahead]
    known = [place for place in places if place is not None]
    has_place = known and len(known) == len(places) and not numbering.changes
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
            "segment": min(known, key=lambda place: place.number) if has_place else None,
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
    """A text that a manifest may have: short, and valid UTF-8."""
    plain = value.encode("utf-8", "backslashreplace").decode()
    return plain if len(plain) <= _MAX_TEXT else f"{plain[:_MAX_TEXT]}…"
