"""The end of a sealed tape, which says what all its calls were called with.

In comes a file. Out goes its summary, after three reads, however many calls there are. Nothing of
it was compared with the records yet.
"""

from __future__ import annotations

from collections.abc import Callable

from calltape_analyzer.reading.tape_bytes import TapeBytes
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK
from calltape_schema.locator import locator_of, summary_member
from calltape_schema.packing import MAX_DOCUMENT_BYTES
from calltape_schema.summary import Summary, decode_summary

__all__ = ["summary_of"]

_TAIL = 4 * BLOCK
_MOST_BYTES = MAX_DOCUMENT_BYTES + 4 * BLOCK


def summary_of(file: TapeBytes, tape: bytes, broken: Callable[[TapeError], None]) -> Summary | None:
    """The summary of a tape; None if it has none, or one that breaks the format: then the records
    tell.

    Args:
        file: of the tape.
        tape: its id.
        broken: is called with what is wrong with a summary that is there.

    Raises:
        TapeError: ``closed``, ``io``; ``damaged`` if the file changed since it was opened.
    """
    start = max(file.size - _TAIL, 0)
    found = locator_of(file.read(start, _TAIL))
    if found is None or not found.summary < found.trailer < file.size:
        return None
    if found.trailer - found.summary > _MOST_BYTES:
        return None
    data = file.read(found.summary, found.trailer + BLOCK - found.summary)
    member = summary_member(found, (data[-BLOCK:], data[:BLOCK]), file.size)
    if member is None:
        return None
    try:
        summary = decode_summary(data[BLOCK : BLOCK + member.size])
    except TapeError as error:
        broken(error)
        return None
    return summary if summary.tape == tape else None
