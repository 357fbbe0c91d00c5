"""The tar members of a tape: their headers, and how a reader finds the next one after damage.

Makes headers from names and sizes, or members from bytes. Headers follow POSIX.1-1988 *ustar* (the
``pax`` page of POSIX describes it), so that any ``tar`` lists and extracts a tape. Sizes of 8 GiB
and more are in base 256, which GNU tar, libarchive and Python's tarfile understand.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from calltape_schema.errors import TapeError

BLOCK = 512
ZEROS_AT_END = bytes(2 * BLOCK)
"""The bytes after the last member of a sealed tape."""

MANIFEST = "tape.msgpack"
END_MEMBER = "end.msgpack"
COUNTS_MEMBER = "counts.msgpack"

_MAX_OCTAL_SIZE = 8**11 - 1

# Fields of ustar: name; mode and owner; size; time; checksum; the rest, which begins with the type.
_FIELDS = struct.Struct("100s24s12s12s8s356s")
_MAGIC = slice(101, 106)  # in the rest
_MAGIC_AT = 257


class Member(NamedTuple):
    """A member as its header describes it: ``offset`` is that of the header, ``start`` that of the
    content, in bytes."""

    name: str
    offset: int
    size: int

    @property
    def start(self) -> int:
        return self.offset + BLOCK

    @property
    def end(self) -> int:
        """The offset of the next header."""
        return self.offset + BLOCK + self.size + padding(self.size)


def padding(size: int) -> int:
    """How many zero bytes fill the last block of a member."""
    return -size % BLOCK


blob_name: Callable[[int], str] = "blobs/{:08d}.safetensors".format
"""The name of the tensors of a call."""
COMPRESSED = ".zlib"
"""Follows this name if they are compressed: no other tool opens such a member as it is."""

group_name: Callable[[int], str] = "records/{:08d}.msgpack".format
"""The name of a group of records of which this is the first call."""

# At most 19 digits, as a 63-bit count has. Each number has one spelling: "000000001" would be a
# second member for call 1. A scan asks for each of millions of members: no function is around it.
is_group: Callable[[str], object] = re.compile(
    r"records/([0-9]{8}|[1-9][0-9]{8,18})\.msgpack"
).fullmatch
"""Something if a member of this name is a group of records, else None."""


# All of a header but name, size and checksum is constant: mode 0644, no owner, time 0, type regular
# file. Times are in the records; with a constant here, equal tapes have equal bytes.
_OWNER = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_REST = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
_CONSTANT_SUM = sum(_OWNER) + sum(_TIME) + 8 * ord(" ") + sum(_REST)


def member_header(name: str, size: int) -> bytes:
    """The header (512 bytes) of a member of ``size`` bytes. ``name`` is ASCII, below 100 bytes."""
    encoded = name.encode("ascii")
    if not 0 < len(encoded) < 100:
        raise ValueError(f"a member name of {len(encoded)} bytes")
    field = b"%011o\0" % size if size <= _MAX_OCTAL_SIZE else b"\x80" + size.to_bytes(11, "big")
    checksum = b"%06o\0 " % (_CONSTANT_SUM + sum(encoded) + sum(field))
    return _FIELDS.pack(encoded, _OWNER, field, _TIME, checksum, _REST)


# Both functions remember their results: the members of a tape have few sizes and checksums.
@lru_cache(4096)
def _parse_size(field: bytes) -> tuple[int, int] | None:
    """The size in a field, and the sum of the field's bytes."""
    size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _parse_octal(field)
    return (size, sum(field)) if size is not None and size < 2**63 else None


@lru_cache(4096)
def _parse_octal(field: bytes) -> int | None:
    digits = field.rstrip(b"\0 ")
    try:
        # isdigit: int() would accept a sign, an underscore or a prefix too
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:  # an 8 or a 9
        return None


def parse_header(header: bytes, offset: int) -> Member | None:
    """The member that a block describes; None if the block is no header. The name is empty if the
    member is not a regular file.

    The checksum must match: with one wrong digit in the size, a reader would skip whole calls that
    are not damaged.
    """
    if len(header) < BLOCK:
        return None
    name, owner, field, time, checksum, rest = _FIELDS.unpack(header)
    size = _parse_size(field)
    if size is None:
        return None
    name = name.rstrip(b"\0")
    if rest == _REST and owner == _OWNER and time == _TIME:
        # The constant part, as every writer of this format writes it: only name and size have to be
        # added up. The sum over all 512 bytes would take most of the time of a walk.
        total = _CONSTANT_SUM + sum(name) + size[1]
    elif rest[_MAGIC] == b"ustar":
        if rest[:1] not in (b"0", b"\0"):
            name = b""  # a link, a directory, a header of another tar dialect
        total = sum(header) - sum(checksum) + 8 * ord(" ")
    else:
        return None
    if _parse_octal(checksum) != total or not name.isascii() or 0 in name:
        return None
    return Member(name.decode("ascii"), offset, size[0])


def members(
    read: Callable[[int, int], bytes],
    length: int,
    on_damage: Callable[[TapeError], None],
    start: int = 0,
    next_data: Callable[[int], int] = int,
    last: int | None = None,
) -> Iterator[Member]:
    """Walks over a tape from header to header, and yields the members that are regular files.

    If a block should be a header and is none, that is damage, and the walk goes on at the next
    block that is a header with a valid checksum. A member that is cut short at the end is damage
    too. A zero block ends the walk if only zeros follow.

    Args:
        read: ``read(offset, size)`` returns up to ``size`` bytes.
        length: of the tape, in bytes.
        on_damage: called with each damage, at last perhaps with a :class:`TornError`.
        start: the offset of the first header.
        next_data: ``next_data(offset)`` may return the offset of the next byte that is stored: a
            file of 4 KiB can claim terabytes of holes, which are zeros.
        last: the offset of the header of the last member, if it is known: none reaches into it.
    """
    offset = start
    while offset < length:
        member = parse_header(read(offset, BLOCK), offset)
        if member is not None:
            after = offset + BLOCK + member.size
            # A file that ends within the padding still holds the whole content.
            if after <= length and (last is None or after <= last or offset >= last):
                if member.name:
                    yield member
                offset = after + -after % BLOCK
                continue
        following = following_header(read, length, offset + BLOCK, next_data)
        if (
            member is None
            and following is None
            and not _holds_data(read, offset, length, next_data)
        ):
            return
        end = length if following is None else following
        on_damage(_skipped(member, offset, end, is_last=following is None))
        offset = end


class TornError(TapeError):
    """The file ends like one whose writer was interrupted: within a member of calls, or within a
    header. On a tape without an end this is no damage."""


def _skipped(member: Member | None, offset: int, end: int, *, is_last: bool) -> TapeError:
    """The damage of the bytes between these offsets. ``member`` is None if the first block is no
    header."""
    what, name, is_torn = "no member begins here", None, end - offset < BLOCK
    if member is not None:
        what, name, is_torn = "a member is cut short", member.name, member.name != END_MEMBER
    error = TornError if is_last and is_torn else TapeError
    return error("damaged", f"{what}, {end - offset} bytes skipped", member=name, offset=offset)


_WINDOW = 1024 * BLOCK


def following_header(
    read: Callable[[int, int], bytes],
    length: int,
    offset: int,
    next_data: Callable[[int], int] = int,
) -> int | None:
    """The offset of the first block, from ``offset`` on, that is a header; None if there is none.
    Arguments are as those of :func:`members`."""
    # The next header is usually near, and a file may consist of bad headers: begin with little.
    size = 8 * BLOCK
    while (offset := next_data(offset) // BLOCK * BLOCK) < length:
        window = read(offset, size)
        magic_at = window.find(b"ustar", _MAGIC_AT)
        while magic_at >= 0:
            block, remainder = divmod(magic_at - _MAGIC_AT, BLOCK)
            at = block * BLOCK
            if remainder == 0 and parse_header(window[at : at + BLOCK], offset + at):
                return offset + at
            # Each block is tried at most once, whatever the bytes between are.
            magic_at = window.find(b"ustar", at + BLOCK + _MAGIC_AT)
        if len(window) < BLOCK:
            return None
        offset += len(window) - len(window) % BLOCK
        size = min(2 * size, _WINDOW)
    return None


_ZEROS = bytes(_WINDOW)


def _holds_data(
    read: Callable[[int, int], bytes], offset: int, length: int, next_data: Callable[[int], int]
) -> bool:
    while (offset := next_data(offset)) < length:
        window = read(offset, _WINDOW)
        if not window:
            return False
        if not _ZEROS.startswith(window):
            return True
        offset += len(window)
    return False
