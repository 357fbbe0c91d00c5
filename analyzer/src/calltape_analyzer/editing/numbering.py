"""The numbers that calls have on a tape that is made of others.

In come the files of a tape. Out go the id of the result, and for each call its number there. Calls
of one recording keep both. Those of several get a new id, and the numbers of each recording follow
those of the one before it, so that no two are equal and each can be traced back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.recordings import coverage_of, recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import some_of
from calltape_schema.records import Manifest, Step

__all__ = ["Numbering", "Origin", "numbering_of", "origin_of", "origins_of"]

_MAX_NUMBER = 2**63 - 1
_MAX_NAMED = 8


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


class Origin(NamedTuple):
    """A recording that a tape is made of. Call ``n`` of it is call ``first + n`` of the tape;
    ``end`` is the first number behind its calls, or None if no other recording follows."""

    tape: bytes
    first: int
    end: int | None

    def has(self, number: int) -> bool:
        """Whether a call of the tape is of this recording, by its number."""
        return self.first <= number and (self.end is None or number < self.end)


def origins_of(manifest: Manifest) -> list[Origin]:
    """The recordings that a tape is made of, as its history says; itself if it is not merged."""
    found = [Origin(manifest.tape, 0, None)]
    for step in reversed(manifest.history or ()):
        if len(step.sources) < 2:
            continue
        found = [
            part
            for origin in found
            for part in ([origin] if origin.tape != step.tape else list(_parts(origin, step)))
        ]
    return found


def _parts(origin: Origin, step: Step) -> Iterator[Origin]:
    firsts = [source.first for source in step.sources]
    ends = [origin.first + first for first in firsts[1:]] + [origin.end]
    for source, end in zip(step.sources, ends, strict=True):
        yield Origin(source.tape, origin.first + source.first, end)


def origin_of(manifest: Manifest, recording: str) -> Origin | None:
    """The recording, among those that a tape was merged from, whose id begins with these digits.

    Raises:
        UsageError: several do.
    """
    origins = [one for one in origins_of(manifest) if one.tape.hex().startswith(recording)]
    if len(origins) > 1:
        names = some_of([one.tape.hex()[:8] for one in origins], _MAX_NAMED)
        raise UsageError(f"several recordings begin with {recording}: {names}")
    return origins[0] if origins else None
