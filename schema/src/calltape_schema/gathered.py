"""Members that hold the records of many small calls.

A member of its own takes at least two blocks for a record of a hundred bytes. So records of calls
without tensor bytes stand one after another in a group. Many of them end alike, because their
inputs do: such an entry says which earlier entry of the group has the rest of its record.

In come records, and out go the entries of a group; or in comes the content of a group, and out go
the places of its entries, and their records.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from calltape_schema.errors import TapeError
from calltape_schema.packing import pack, unpack_plain

__all__ = [
    "GROUP_BYTES",
    "LARGEST_GATHERED",
    "LENGTH_BYTES",
    "MAX_GROUP_BYTES",
    "Repeat",
    "entry",
    "group_name",
    "is_group",
    "payload_of",
    "places",
    "repeating_entry",
]

_LENGTH = struct.Struct("<I")

LENGTH_BYTES = _LENGTH.size
"""How many bytes stand before a record in a group."""
GROUP_BYTES = 64 * 1024
"""The content of a group that a writer makes has at most so many bytes."""
MAX_GROUP_BYTES = 1024 * 1024
"""The content of a group that a reader takes has at most so many bytes."""
LARGEST_GATHERED = 4096
"""A writer puts records of at most so many bytes into groups. A larger one gains little. No reader
lets an entry refer to a larger one."""

_NAME = re.compile(r"calls/(?:[0-9]{8}|[1-9][0-9]{8,18})\.records")


def group_name(call: int) -> str:
    """The name of a group whose first entry is the record of this call."""
    return f"calls/{call:08d}.records"


def is_group(name: str) -> bool:
    """Whether a member of this name is a group."""
    return _NAME.fullmatch(name) is not None


class Repeat(NamedTuple):
    """A record in two parts.

    Attributes:
        crc32: of its whole payload.
        head: the first part of the payload, which differs from call to call.
        rest: the last part, which is equal in many records.
    """

    crc32: int
    head: bytes
    rest: bytes


def entry(record: bytes) -> bytes:
    """The entry of a record: its length in 4 bytes, and the record."""
    return _LENGTH.pack(len(record)) + record


def repeating_entry(repeat: Repeat, distance: int) -> bytes:
    """The entry of a record whose payload ends like that of an earlier entry, which begins
    ``distance`` bytes before this one."""
    return entry(pack([repeat.crc32, repeat.head, distance, len(repeat.rest)]))


def payload_of(content: bytes, at: int, read: Callable[[int], bytes]) -> bytes:
    """The payload of the record of an entry.

    Args:
        content: of the entry, without its length.
        at: the offset of the entry.
        read: gives the content of the entry at an offset before this one.

    Raises:
        TapeError: ``damaged``.
    """
    checksum, head, reference = _opened(content)
    payload = head
    if reference is not None:
        payload += _end_of(read(at - reference[0]), reference[1])
    if zlib.crc32(payload) != checksum:
        raise TapeError("damaged", "the checksum of the record does not match its bytes")
    return payload


def _end_of(content: bytes, size: int) -> bytes:
    _, payload, reference = _opened(content)
    if reference is not None or len(content) > LARGEST_GATHERED or size > len(payload):
        raise TapeError("damaged", "an entry refers to one that it cannot refer to")
    return payload[-size:]


def _opened(content: bytes) -> tuple[int, bytes, tuple[int, int] | None]:
    """The checksum and the bytes of an entry, and if the rest of its payload is that of another
    entry, how many bytes before this one that is, and how many of its last bytes they are."""
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
