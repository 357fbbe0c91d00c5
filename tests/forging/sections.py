"""Members and sections of tapes that tests forge."""

from __future__ import annotations

import struct
import zlib

from calltape_schema.sections import ZLIB, Section
from calltape_schema.tar import member_header, padding

__all__ = [
    "deflated", "forged", "member", "placed", "table_entries", "table_entry", "with_checksum",
]  # fmt: skip


def member(name: str, content: bytes) -> bytes:
    """A member of a tape: its header, its content, and what fills the last block."""
    return member_header(name, len(content)) + content + bytes(padding(len(content)))


def with_checksum(header: bytes) -> bytes:
    """A header that was changed, with the checksum of what it is now."""
    blank = header[:148] + b" " * 8 + header[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


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


def table_entry(number: int, signature: int, time: int, begin: int, flags: int) -> bytes:
    """The entry of a call in the table of its group (FORMAT.md §5)."""
    return struct.pack("<QQII", number, time, begin, flags) + signature.to_bytes(16, "little")


def table_entries(table: bytes) -> list[tuple[int, int, int, int, int]]:
    """The entries of a table, as :func:`table_entry` takes them."""
    return [
        (number, int.from_bytes(signature, "little"), time, begin, flags)
        for number, time, begin, flags, signature in struct.iter_unpack("<QQII16s", table)
    ]
