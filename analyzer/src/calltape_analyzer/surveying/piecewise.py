"""One large file without a summary, scanned in pieces by several processes, and put together.

The file is what one walk from its first byte to its last finds. So each piece must have begun where
the one before it ended. If one did not, or two have a call of the same number, or the file is
sealed, the file is scanned as a whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice, pairwise
from operator import eq, lt
from typing import NamedTuple

from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.file_piece import PlannedPiece
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.torn_tail import coverage_without_trailer
from calltape_analyzer.surveying.bounds import digest_of
from calltape_analyzer.surveying.file_facts import FileFacts, head_of
from calltape_analyzer.surveying.file_survey import (
    FileSurvey,
    Listed,
    digest_of_calls,
    listed,
    scanned_facts,
    scanned_inputs,
)
from calltape_analyzer.surveying.inputs_table import InputsTable
from calltape_analyzer.surveying.surveyed_row import SurveyedRow

__all__ = ["PieceSurvey", "survey_of_piece", "united"]


class PieceSurvey(NamedTuple):
    """What was found in a piece.

    Attributes:
        begin, end: the offsets of its first member, and of the first one after it.
        numbers, places: of its calls, in the order of the file: their numbers, and the offsets of
            their records; 64-bit ints of this machine.
        facts: as of a file that has these calls only.
        head, rows, limit, damage: as of a file.
    """

    begin: int
    end: int
    numbers: bytes
    places: bytes
    facts: FileFacts
    head: bytes
    rows: tuple[SurveyedRow, ...]
    limit: bytes | None
    damage: tuple[Listed, ...]


def survey_of_piece(path: str, piece: PlannedPiece) -> PieceSurvey:
    """Scans a piece of a file.

    Raises:
        TapeError: the file cannot be read.
    """
    segment = Segment(path, Damage(), scan=None)
    try:
        begin = segment.scan_piece(piece)
        found = segment.found
        table = scanned_inputs(segment)
        facts = scanned_facts(segment, table)
        damage = tuple(listed(error, path) for error in segment.damage.list())
        return PieceSurvey(
            begin, found.end, found.numbers.tobytes(), found.records.tobytes(), facts,
            head_of(segment.manifest), tuple(table), table.limit, damage,
        )  # fmt: skip
    finally:
        segment.close()


def united(pieces: Sequence[PieceSurvey], table: InputsTable) -> FileSurvey | None:
    """The file of these pieces. None if it has to be scanned as a whole.

    Args:
        pieces: in order.
        table: the inputs of all of them.
    """
    if any(one.end != other.begin for one, other in pairwise(pieces)):
        return None
    if any(one.facts.sealed for one in pieces) or len({one.head for one in pieces}) > 1:
        return None
    numbers = array("Q")
    for piece in pieces:
        numbers.frombytes(piece.numbers)
    ordered: Sequence[int] = numbers
    if not all(map(lt, numbers, islice(numbers, 1, None))):
        ordered = sorted(numbers)
        if any(map(eq, ordered, islice(ordered, 1, None))):
            return None
    damage = tuple(one for piece in pieces for one in piece.damage)
    first = pieces[0]
    facts = _facts(
        pieces,
        ordered,
        digest_of_calls(numbers.tobytes(), b"".join(p.places for p in pieces), None),
    )
    facts = facts._replace(
        head=digest_of(first.head),
        damaged=len(damage),
        coverage=coverage_without_trailer(numbers, _first_call(facts)),
    )
    return FileSurvey(facts, first.head, tuple(table), table.limit, None, damage)


def _first_call(facts: FileFacts) -> int:
    return 0 if facts.segment is None else facts.segment.first_call


def _facts(pieces: Sequence[PieceSurvey], numbers: Sequence[int], digest: bytes) -> FileFacts:
    every = [piece.facts for piece in pieces]
    # Of the pieces with the first and the last call: those are looked at in a whole file.
    first = [one for one in every if numbers and one.first_call == numbers[0]]
    last = [one for one in every if numbers and one.last_call == numbers[-1]]
    times = [t for one in (*first, *last) for t in (one.first_ns, one.last_ns) if t is not None]
    return every[0]._replace(
        key=every[0].key._replace(digest=digest),
        calls=len(numbers),
        first_call=numbers[0] if numbers else None,
        last_call=numbers[-1] if numbers else None,
        first_ns=min(times, default=None),
        last_ns=max(times, default=None),
        raised=sum(one.raised for one in every),
        tensor_bytes=sum(one.tensor_bytes for one in every),
        unfinished=max(one.unfinished for one in every),
        is_ahead=False,
    )
