"""Pieces of one large file, which several processes scan.

In comes the size of a file. Out go pieces, and where in each the first member begins: at the first
block that is the header of one. The bytes of a tensor may look like a header, so whoever puts the
pieces together compares where each one ended with where the next one began.
"""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.reading.tape_bytes import TapeBytes
from calltape_analyzer.reading.tape_file import Window
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, call_member, members

__all__ = ["PlannedPiece", "begin_of", "planned"]


class PlannedPiece(NamedTuple):
    """A piece of a file.

    Attributes:
        start: where it may begin, in bytes; None for the first piece, which begins after the
            manifest.
        stop: where the next one may begin; None for the last piece.
        size: of the file when the pieces were planned. What was appended since is in no piece.
    """

    start: int | None
    stop: int | None
    size: int


def planned(size: int, piece_bytes: int, processors: int = 1) -> list[PlannedPiece]:
    """The pieces of a file, all of about the same size.

    Args:
        size: of the file, in bytes.
        piece_bytes: of a piece, at most, give or take a block.
        processors: each of so many gets as many pieces as the others, so that all end together.
    """
    count = -(-size // (piece_bytes * processors)) * processors
    count = max(min(count, size // BLOCK), 1)
    cuts = [size * i // count // BLOCK * BLOCK for i in range(1, count)]
    return [
        PlannedPiece(start, stop, size)
        for start, stop in zip([None, *cuts], [*cuts, None], strict=True)
    ]


def begin_of(file: TapeBytes, start: int) -> int:
    """The offset of the first member at or after an offset, but of the second one if the first is
    a record: the piece before has it. The size of the file if there is none."""

    def ignore(error: TapeError) -> None:
        """The piece before meets this damage too, and reports it."""

    for member in members(Window(file).read, file.size, ignore, start, file.next_data):
        call = call_member(member.name)
        return member.end if call is not None and call[1] else member.offset
    return file.size
