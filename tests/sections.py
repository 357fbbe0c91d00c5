"""Sections of tapes that tests forge."""

from __future__ import annotations

import struct
import zlib

from calltape_schema.sections import ZLIB, Section

__all__ = ["deflated", "forged", "placed"]


def deflated(data: bytes, level: int = 6) -> Section:
    """A section that is compressed, however small it is."""
    return forged(zlib.compress(data, level), len(data))


def forged(stored: bytes, size: int, codec: int = ZLIB) -> Section:
    """A section that says this of its bytes; its checksum holds."""
    return Section(codec, size, zlib.crc32(stored), stored)


def placed(content: bytes, offset: int) -> bytes:
    """The content of a group that has no place yet, or of anything else, for a member whose header
    is at this offset."""
    head = b"\xc4\x08"
    return content.replace(head + bytes(8), head + struct.pack("<Q", offset), 1)
