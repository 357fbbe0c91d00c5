"""What the end of a new tape says of the calls that it has, and of those that it lacks.

In come the files that were read, and how many calls were written. Out goes a coverage that is true
for the new tape: what it lacks is counted, and if nobody knows how many calls there were, it says
so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from calltape_analyzer.reading.recordings import CountedFile, coverage_of
from calltape_analyzer.reading.segment import UNSEALED, Segment
from calltape_analyzer.writing.tape_writer import LEFT_OUT
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.end import Coverage
from calltape_schema.errors import TapeError

__all__ = ["DAMAGED", "calls_in", "coverage_for", "coverage_of_numbers", "new_coverage"]

DAMAGED = "damaged"
"""The reason of calls that were on the tape, and could not be read."""

_NOT_GIVEN = "unknown (not in the files that the tape was made of)"
_UNSEALED = "unknown (the tape was not sealed)"
_MAX_REASONS = 1000


def coverage_for(segments: Sequence[CountedFile], kept: int, unwanted: int) -> Coverage:
    """How many calls were seen, and what became of those that the new tape lacks.

    Args:
        segments: the files that were read.
        kept: how many calls were written.
        unwanted: how many were left out because nobody asked for them.

    Raises:
        TapeError: ``limit`` if the files claim more calls than can be counted.
    """
    before = coverage_of(segments)
    dropped = Counter(before.dropped)
    dropped[_UNSEALED] += dropped.pop(UNSEALED, 0)
    dropped[LEFT_OUT] += unwanted
    dropped[DAMAGED] += max(before.kept - kept - unwanted, 0)
    return new_coverage(kept, +dropped, before.at_least)


def new_coverage(kept: int, dropped: Mapping[str, int], at_least: bool | None) -> Coverage:
    """What an end can say.

    Raises:
        TapeError: ``limit`` if there are more calls than can be counted.
    """
    folded = _folded(dropped)
    seen = kept + sum(folded.values())
    if seen > MAX_COUNT:
        raise TapeError("limit", f"the tapes claim to have seen {seen} calls")
    return Coverage(seen=seen, kept=kept, dropped=folded, at_least=at_least)


def calls_in(segments: Iterable[Segment]) -> int:
    """How many sound calls are in files, whichever of them are wanted."""
    return sum(len(one.numbers) - one.left_out - one.damaged for one in segments)


def _folded(dropped: Mapping[str, int]) -> dict[str, int]:
    """Reasons that an end can hold: the last ones together, if there are too many."""
    if len(dropped) <= _MAX_REASONS:
        return dict(dropped)
    most = sorted(dropped.items(), key=lambda item: -item[1])
    found = dict(islice(most, _MAX_REASONS - 1))
    found["other reasons"] = sum(calls for _, calls in most[_MAX_REASONS - 1 :])
    return found


def coverage_of_numbers(last: int, kept: int) -> Coverage:
    """The coverage of a tape that is made of files of another form. These have calls, and do not
    say how many calls there were.

    Args:
        last: the highest number of a call; -1 without calls.
        kept: how many calls there are.
    """
    missing = last + 1 - kept
    dropped = {_NOT_GIVEN: missing} if missing else {}
    return new_coverage(kept, dropped, True)
