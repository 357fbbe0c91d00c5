"""Members that hold the records of many small calls.

A member of its own takes at least two blocks for a record of a hundred bytes. So records of calls
without tensor bytes stand one after another in a group. Most of what a record says an earlier one
said too, so an entry may be packed: deflated, with an earlier record of the group as dictionary.

In come records, and out go the entries of a group; or in comes the content of a group, and out go
the places of its entries, and their records.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator

from calltape_schema.checksum import crc32
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack, unpack_plain

__all__ = [
    "GROUP_BYTES",
    "LARGEST_GATHERED",
    "LENGTH_BYTES",
    "MAX_GROUP_BYTES",
    "MAX_TIMES",
    "entry",
    "group_name",
    "is_group",
    "packed_entry",
    "payload_bytes",
    "payload_of",
    "places",
]

_LENGTH = struct.Struct("<I")

LENGTH_BYTES = _LENGTH.size
"""How many bytes stand before a record in a group."""
GROUP_BYTES = 64 * 1024
"""The content of a group that a writer makes has at most so many bytes."""
MAX_GROUP_BYTES = 1024 * 1024
"""The content of a group that a reader takes has at most so many bytes."""
LARGEST_GATHERED = 32 * 1024
"""The payload of a record in a group has at most so many bytes."""
MAX_TIMES = 128
"""The payloads of all entries of a group have at most so many times the bytes of the group."""

_WINDOW = -15  # a window of 32 KiB, and neither header nor checksum: the entry has one
_LEVEL, _MEMORY = 1, 4  # a higher level makes records a tenth smaller

_NAME = re.compile(r"calls/([0-9]{8}|[1-9][0-9]{8,18})\.records")


def group_name(call: int) -> str:
    """The name of a group whose first entry is the record of this call."""
    return f"calls/{call:08d}.records"


def is_group(name: str) -> bool:
    """Whether a member of this name is a group."""
    match = _NAME.fullmatch(name)
    return match is not None and int(match[1]) < 2**63


def entry(record: bytes) -> bytes:
    """The entry of a record: its length in 4 bytes, and the record."""
    return _LENGTH.pack(len(record)) + record


def packed_entry(payload: bytes, other: bytes, distance: int) -> bytes:
    """The entry of a record as its difference to an earlier one.

    Args:
        payload: of the record.
        other: the payload of an earlier entry, which is not packed.
        distance: how many bytes before this entry that one begins.
    """
    deflater = zlib.compressobj(
        _LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, other
    )
    packed = deflater.compress(payload) + deflater.flush()
    return entry(pack([crc32(payload), packed, distance, len(payload)]))


def payload_bytes(content: bytes) -> int:
    """How many bytes the payload of an entry has, by what the entry says.

    Raises:
        TapeError: ``damaged``.
    """
    _, packed, reference = _opened(content)
    return len(packed) if reference is None else reference[1]


def payload_of(content: bytes, at: int, read: Callable[[int], bytes]) -> bytes:
    """The payload of the record of an entry.

    Args:
        content: of the entry, without its length.
        at: the offset of the entry.
        read: gives the content of the entry at an offset before this one.

    Raises:
        TapeError: ``damaged``.
    """
    checksum, payload, reference = _opened(content)
    if reference is not None:
        distance, size = reference
        payload = _inflated(payload, read(at - distance), size)
    if crc32(payload) != checksum:
        raise TapeError("damaged", "the checksum of the record does not match its bytes")
    return payload


def _inflated(packed: bytes, other: bytes, size: int) -> bytes:
    _, dictionary, reference = _opened(other)
    if reference is not None or len(dictionary) > LARGEST_GATHERED:
        raise TapeError("damaged", "an entry refers to one that it cannot refer to")
    try:
        inflater = zlib.decompressobj(_WINDOW, dictionary)
        found = inflater.decompress(packed, size)
        more = inflater.decompress(inflater.unconsumed_tail, 1)
    except zlib.error:
        raise TapeError("damaged", "an entry cannot be inflated") from None
    if len(found) != size or more or not inflater.eof or inflater.unused_data:
        raise TapeError("damaged", "an entry has more or fewer bytes than it says")
    return found


def _opened(content: bytes) -> tuple[int, bytes, tuple[int, int] | None]:
    """The checksum and the bytes of an entry. If these are packed, how many bytes before this one
    the entry is that unpacks them, and how many bytes they are then."""
    found = unpack_plain(content)
    if (
        type(found) is not tuple or len(found) < 2
        or type(found[0]) is not int or type(found[1]) is not bytes
    ):  # fmt: skip
        raise TapeError("damaged", "not an envelope [crc32, payload]")
    if len(found) < 4:
        return found[0], found[1], None
    distance, size = found[2:4]
    if type(distance) is not int or type(size) is not int or distance < 1 or size < 1:
        raise TapeError("damaged", "an entry refers to no other entry")
    if size > LARGEST_GATHERED:
        raise TapeError("limit", f"an entry has {size} bytes (at most {LARGEST_GATHERED})")
    return found[0], found[1], (distance, size)


def places(content: bytes) -> Iterator[tuple[int, int]]:
    """For each entry of a group the offset of its record in the content, and the length that the
    entry says. The last of them may reach beyond the content. A length of 0 ends the entries."""
    at = 0
    while at + LENGTH_BYTES <= len(content):
        (size,) = _LENGTH.unpack_from(content, at)
        at += LENGTH_BYTES
        if not size:
            return
        yield at, size
        at += size
