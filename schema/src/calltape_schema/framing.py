"""Tar members: how a tape is cut into pieces, and found again after damage.

Headers follow POSIX.1-1988 *ustar* (the ``pax`` page of POSIX describes it), so that any ``tar``
lists and extracts a tape. Sizes of 8 GiB and more use the base-256 form that GNU tar, libarchive
and Python's tarfile understand.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

from calltape_schema.errors import TapeError

__all__ = [
    "BLOCK",
    "END",
    "MANIFEST",
    "TRAILER",
    "Member",
    "blob_call_number",
    "blob_name",
    "call_member",
    "call_number",
    "member_header",
    "members",
    "padding",
    "record_beside",
    "record_name",
]

BLOCK = 512
END = bytes(2 * BLOCK)
"""What follows the last member of a sealed tape."""

MANIFEST = "tape.msgpack"
TRAILER = "trailer.msgpack"

_BLOB_SUFFIX = ".safetensors"
_RECORD_SUFFIX = ".msgpack"
_MAX_OCTAL_SIZE = 8**11 - 1

# ustar fields: name, mode and owner, size, time, checksum, and the rest from the type on.
_FIELDS = struct.Struct("100s24s12s12s8s356s")
_MAGIC = slice(101, 106)  # in the rest
_MAGIC_AT = 257


class Member(NamedTuple):
    """A member as its header describes it: ``offset`` of the header, ``start`` of the content."""

    name: str
    offset: int
    size: int

    @property
    def start(self) -> int:
        return self.offset + BLOCK

    @property
    def end(self) -> int:
        """Offset of the next header."""
        return self.offset + BLOCK + self.size + padding(self.size)


def padding(size: int) -> int:
    """Zero bytes that fill the last block of a member."""
    return -size % BLOCK


def blob_name(call: int) -> str:
    return f"calls/{call:08d}{_BLOB_SUFFIX}"


def record_name(call: int) -> str:
    return f"calls/{call:08d}{_RECORD_SUFFIX}"


# At most 19 digits: what a 63-bit count can be. One spelling per number: "000000001" would be a
# second member for call 1.
_CALL_NAME = re.compile(r"calls/([0-9]{8}|[1-9][0-9]{8,18})\.(?:(msgpack)|safetensors)")


def record_beside(blob_name: str) -> str:
    """The name of the record that a blob belongs to."""
    return blob_name.removesuffix(_BLOB_SUFFIX) + _RECORD_SUFFIX


def call_member(name: str) -> tuple[int, bool] | None:
    """The call that a member belongs to, and whether it is the record and not the blob; None for
    members that belong to none."""
    match = _CALL_NAME.fullmatch(name)
    return None if match is None else (int(match[1]), match.lastindex == 2)


def call_number(name: str) -> int | None:
    """The call that a record belongs to; None for other members."""
    number, is_record = call_member(name) or (None, True)
    return number if is_record else None


def blob_call_number(name: str) -> int | None:
    """The call that a blob belongs to; None for other members."""
    number, is_record = call_member(name) or (None, False)
    return None if is_record else number


# Everything but name, size and checksum is the same in every header: mode 0644, no owner, time 0
# (the records hold the time; a constant keeps equal tapes equal), type regular file.
_OWNER = b"0000644\0" + b"0000000\0" * 2
_TIME = b"00000000000\0"
_REST = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
_CONSTANT_SUM = sum(_OWNER) + sum(_TIME) + 8 * ord(" ") + sum(_REST)


def member_header(name: str, size: int) -> bytes:
    """The 512 bytes before a member of ``size`` bytes. ``name`` is ASCII, under 100 bytes."""
    encoded = name.encode("ascii")
    if not 0 < len(encoded) < 100:
        raise ValueError(f"a member name of {len(encoded)} bytes")
    field = b"%011o\0" % size if size <= _MAX_OCTAL_SIZE else b"\x80" + size.to_bytes(11, "big")
    checksum = b"%06o\0 " % (_CONSTANT_SUM + sum(encoded) + sum(field))
    return _FIELDS.pack(encoded, _OWNER, field, _TIME, checksum, _REST)


# Both are remembered, because the members of a tape share a few sizes and checksums.
@lru_cache(4096)
def _parse_size(field: bytes) -> tuple[int, int] | None:
    """The size that a field states, and the sum of its bytes."""
    size = int.from_bytes(field[1:], "big") if field[0] == 0x80 else _parse_octal(field)
    return (size, sum(field)) if size is not None and size < 2**63 else None


@lru_cache(4096)
def _parse_octal(field: bytes) -> int | None:
    digits = field.rstrip(b"\0 ")
    try:
        # isdigit: int() would take a sign, an underscore or a prefix as well
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:  # an 8 or a 9
        return None


def _parse_header(header: bytes, offset: int) -> Member | None:
    """The member that a block describes, or None for a block that is no header; without a name
    where it is not a regular file.

    The checksum must hold: a size that is wrong by one digit would hop over whole calls that are
    not damaged.
    """
    if len(header) < BLOCK:
        return None
    name, owner, field, time, checksum, rest = _FIELDS.unpack(header)
    size = _parse_size(field)
    if size is None:
        return None
    name = name.rstrip(b"\0")
    if rest == _REST and owner == _OWNER and time == _TIME:
        # What every writer of this format writes: only name and size are left to add up, a tenth
        # of the 512 bytes that would be most of the time of a hop.
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
) -> Iterator[Member]:
    """Hops over the members of a tape of ``length`` bytes, from header to header, and yields those
    that are regular files.

    Where a header does not make sense, it tells ``on_damage`` and resynchronises at the next block
    that is a header with a valid checksum; a zero block ends the walk only where nothing but zero
    blocks follow. A last member that is cut short is damage as well. ``read(offset, size)`` returns
    up to ``size`` bytes. ``next_data(offset)`` may tell where the next byte is that is stored at
    all: a file of 4 KiB can claim terabytes of holes, which are zeros.
    """
    offset = start
    while offset < length:
        member = _parse_header(read(offset, BLOCK), offset)
        if member is not None:
            after = offset + BLOCK + member.size
            # A file that ends within the padding still holds the whole content.
            if after <= length:
                if member.name:
                    yield member
                offset = after + -after % BLOCK
                continue
        following = _resynchronise(read, length, offset + BLOCK, next_data)
        if (
            member is None
            and following is None
            and not _holds_data(read, offset, length, next_data)
        ):
            return
        what = "a member cut short" if member is not None else "not a member header"
        skipped = (following if following is not None else length) - offset
        on_damage(
            TapeError(
                "damaged",
                f"{what}, {skipped} bytes skipped",
                member=member.name if member is not None else None,
                offset=offset,
            )
        )
        if following is None:
            return
        offset = following


_WINDOW = 1024 * BLOCK


def _resynchronise(
    read: Callable[[int, int], bytes],
    length: int,
    offset: int,
    next_data: Callable[[int], int],
) -> int | None:
    """The next block that is a header beyond doubt."""
    # The next header is usually near, and a file may hold nothing but bad headers: start small.
    size = 8 * BLOCK
    while (offset := _block_of(next_data(offset))) < length:
        window = read(offset, size)
        found = window.find(b"ustar", _MAGIC_AT)
        while found >= 0:
            block, remainder = divmod(found - _MAGIC_AT, BLOCK)
            at = block * BLOCK
            if remainder == 0 and _parse_header(window[at : at + BLOCK], offset + at):
                return offset + at
            # At most one look per block, whatever the data between says.
            found = window.find(b"ustar", at + BLOCK + _MAGIC_AT)
        if len(window) < BLOCK:
            return None
        offset += len(window) - len(window) % BLOCK
        size = min(2 * size, _WINDOW)
    return None


def _block_of(offset: int) -> int:
    return offset - offset % BLOCK


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
