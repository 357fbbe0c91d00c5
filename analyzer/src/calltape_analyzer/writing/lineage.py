"""What a new tape says of where it came from.

In come the files that it is made of, and what was done to them. Out goes its manifest: that of the
first file, with one more step in its history.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.plain_data import json_text
from calltape_analyzer.reading.recordings import recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_schema import __version__
from calltape_schema.bounds import MAX_OPTIONS, MAX_SOURCES, MAX_STEPS
from calltape_schema.records import (
    MINOR,
    Manifest,
    Redacted,
    Source,
    Step,
    redacted_of_all,
    redacted_of_steps,
)
from calltape_schema.records import Segment as SegmentFacts

__all__ = ["derived"]

_MAX_FILES = 16
_MAX_TEXT = 1000


def derived(
    segments: Sequence[Segment],
    verb: str,
    options: Mapping[str, Any] | None = None,
    *,
    tape: bytes | None = None,
    firsts: Mapping[bytes, int] | None = None,
    left_out: Mapping[bytes, int] | None = None,
    origin: bytes | None = None,
) -> Manifest:
    """The manifest of a tape that is made of others.

    Args:
        segments: the files that are read, in order (``tape.segments``).
        verb: what is done: ``filter``, ``redact``, ...
        options: what was asked for: names, and texts or plain data.
        tape: the id of the new tape; by default that of the first file.
        firsts: for each recording (by its id) what is added to the numbers of its calls.
        left_out: for each recording how many of its calls are not wanted.
        origin: the id of the only recording that is wanted, of those that were merged before.

    Raises:
        UsageError: the tape was changed too often, or is made of too many recordings.
    """
    recordings = recordings_of(segments)
    first = segments[0].manifest
    tape = first.tape if tape is None else tape
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
    step = Step(
        verb=verb,
        tool="calltape",
        version=__version__,
        tape=tape,
        options=tuple((k[:_MAX_TEXT], _shown(v)) for k, v in list((options or {}).items()))[
            :MAX_OPTIONS
        ],
        sources=tuple(_source(parts, firsts or {}, left_out or {}, origin) for parts in recordings),
    )
    return first.model_copy(
        update={
            "minor": max(MINOR, first.minor),
            "tape": tape,
            "segment": _place(recordings[0]) if len(recordings) == 1 else None,
            "history": (*steps, step),
        }
    )


def _source(
    parts: Sequence[Segment],
    firsts: Mapping[bytes, int],
    left_out: Mapping[bytes, int],
    origin: bytes | None,
) -> Source:
    tape = parts[0].manifest.tape
    names = [_text(os.path.basename(part.path)) for part in parts]
    return Source(
        tape=tape,
        files=tuple(names[:_MAX_FILES]),
        other_files=max(len(names) - _MAX_FILES, 0),
        calls=sum(len(part.numbers) - part.left_out for part in parts),
        left_out=left_out.get(tape),
        first=firsts.get(tape, 0),
        redacted=redacted_of_all(_redacted(part.manifest, origin) for part in parts),
    )


def _redacted(manifest: Manifest, origin: bytes | None) -> Redacted | None:
    """How much of a tape was redacted, or of one of the recordings that it was merged from."""
    steps = manifest.history or ()
    found = redacted_of_steps(steps)
    if found != "part" or origin is None:
        return found
    for source in (source for step in reversed(steps) for source in step.sources):
        if source.tape == origin:
            return source.redacted
    return found


def _place(parts: Sequence[Segment]) -> SegmentFacts | None:
    """Which file of its recording the new one stands for: the first of those that it is made of."""
    found = [part.manifest.segment for part in parts if not part.is_ahead]
    known = [place for place in found if place is not None]
    if not known or len(known) < len(found):
        return None
    return min(known, key=lambda place: place.number)


def _shown(value: Any) -> str:
    return _text(value if isinstance(value, str) else json_text(value))


def _text(value: str) -> str:
    """A text that a manifest may have: short, and valid UTF-8."""
    plain = value.encode("utf-8", "backslashreplace").decode()
    return plain if len(plain) <= _MAX_TEXT else f"{plain[:_MAX_TEXT]}…"
