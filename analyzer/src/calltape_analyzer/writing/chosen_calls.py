"""Some calls of a tape as a tape of their own.

In come calls of one or several recordings. Out goes a sealed tape that says in its history what was
left out.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from calltape_analyzer.errors import TapeError
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.writing.coverage import coverage_for
from calltape_analyzer.writing.lineage import derived
from calltape_analyzer.writing.tape_writer import TapeWriter

__all__ = ["write_chosen"]


def write_chosen(
    segments: Sequence[Segment],
    calls: Sequence[Call],
    path: str | os.PathLike[str],
    verb: str,
    options: Mapping[str, Any] | None = None,
) -> int:
    """Writes calls to a new tape. Calls of one recording keep their numbers; those of a further one
    are counted on, and the history of the new tape says from where.

    Args:
        segments: the files of the tape.
        calls: calls of it, in order, at least one.
        path: of the new file, which must not exist yet.
        verb, options: what the history says was done.

    Returns:
        How many of the calls are damaged, and not on the new tape.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    firsts = _firsts(segments)
    kept = Counter(call.ref.tape for call in calls)
    total: Counter[bytes] = Counter()
    for segment in segments:
        total[segment.manifest.tape] += len(segment)
    left_out = {tape: total[tape] - kept[tape] for tape in total}
    manifest = derived(segments, verb, options, firsts=firsts, left_out=left_out)
    damaged = 0
    with TapeWriter(path, manifest, inputs=[segment.path for segment in segments]) as writer:
        for call in calls:
            try:
                writer.copy(call, number=firsts[call.ref.tape] + call.number)
            except TapeError as error:
                if error.kind not in ("damaged", "invalid"):
                    raise
                damaged += 1
        unwanted = sum(map(len, segments)) - len(calls)
        writer.seal(coverage_for(segments, writer.calls, unwanted))
    return damaged


def _firsts(segments: Sequence[Segment]) -> dict[bytes, int]:
    """For each recording what is added to the numbers of its calls, so that none has two calls."""
    firsts: dict[bytes, int] = {}
    ends: dict[bytes, int] = {}
    for segment in segments:
        tape = segment.manifest.tape
        last = max((segment.number(place) for place in segment.order), default=-1)
        ends[tape] = max(ends.get(tape, 0), last + 1)
    begin = 0
    for tape, end in ends.items():
        firsts[tape] = begin
        begin += end
    return firsts
