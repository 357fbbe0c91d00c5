"""The locator: the last bytes of a trailer, which say where the summary of a sealed tape begins.

A tape is read from its front, but a reader of the summary begins at the end: there are the two zero
blocks, the padding of the trailer, and before it the locator.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, END, SUMMARY, TRAILER, Member, parse_header

__all__ = ["LOCATOR_BYTES", "Locator", "locator_of", "summary_member", "with_locator"]

_FORM = struct.Struct("<QQ8s")
_MAGIC = b"calltape"
_ENVELOPE, _ENVELOPE_OF_THREE = b"\x92", b"\x93"
_BIN = b"\xc4" + bytes([_FORM.size])
LOCATOR_BYTES = len(_BIN) + _FORM.size


class Locator(NamedTuple):
    """The offsets of the headers of the trailer and of the summary before it."""

    trailer: int
    summary: int


def with_locator(trailer: bytes, locator: Locator) -> bytes:
    """The content of a trailer with a locator as the third element of its envelope.

    Raises:
        TapeError: ``invalid`` if the content is no envelope of two.
    """
    if trailer[:1] != _ENVELOPE:
        raise TapeError("invalid", "not an envelope [crc32, payload]")
    return b"".join((_ENVELOPE_OF_THREE, trailer[1:], _BIN, _FORM.pack(*locator, _MAGIC)))


def locator_of(tail: bytes) -> Locator | None:
    """The locator in the last bytes of a tape; None if there is none.

    Args:
        tail: at least 2 KiB, unless the tape is shorter.
    """
    content = tail.rstrip(b"\0")
    zeros = len(tail) - len(content)
    if not len(END) <= zeros < len(END) + BLOCK or not content.endswith(_MAGIC):
        return None
    if content[-LOCATOR_BYTES : -_FORM.size] != _BIN:
        return None
    trailer, summary, _ = _FORM.unpack(content[-_FORM.size :])
    return Locator(trailer, summary)


def summary_member(locator: Locator, headers: tuple[bytes, bytes], size: int) -> Member | None:
    """The member of the summary; None if the tape does not end as the locator says.

    Args:
        locator: of the tape.
        headers: the blocks at the offsets of the trailer and of the summary.
        size: of the tape, in bytes.
    """
    trailer = parse_header(headers[0], locator.trailer)
    summary = parse_header(headers[1], locator.summary)
    if trailer is None or summary is None:
        return None
    is_at_the_end = trailer.name == TRAILER and trailer.end + len(END) == size
    is_before = summary.name == SUMMARY and summary.end == trailer.offset
    return summary if is_at_the_end and is_before else None
