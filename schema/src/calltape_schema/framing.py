"""Tar members: how a tape is cut into pieces, and found again after damage.

Headers follow POSIX.1-1988 *ustar* (the ``pax`` page of POSIX describes it), so that any ``tar``
lists and extracts a tape. Sizes of 8 GiB and more use the base-256 form that GNU tar, libarchive
and Python's tarfile understand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from calltape_schema.errors import TapeError

__all__ = [
    "BLOCK",
    "END",
    "MANIFEST",
    "TRAILER",
    "Member",
    "blob_name",
    "call_number",
    "member_header",
    "members",
    "padding",
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

# ustar field positions.
_NAME, _SIZE, _CHECKSUM, _TYPE, _MAGIC = slice(0, 100), slice(124, 136), slice(148, 156), 156, slice(257, 262)


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


def call_number(name: str, suffix: str = _RECORD_SUFFIX) -> int | None:
    """The call that a record (or, by suffix, a blob) belongs to; None for other members."""
    if name.startswith("calls/") and name.endswith(suffix):
        digits = name[len("calls/") : -len(suffix)]
        # At most 19 digits: what a 63-bit count can be.
        if 8 <= len(digits) <= 19 and digits.isascii() and digits.isdigit():
            return int(digits)
    return None


def blob_call_number(name: str) -> int | None:
    return call_number(name, _BLOB_SUFFIX)


# Everything but name, size and checksum is the same in every header: mode 0644, no owner, time 0
# (the records hold the time; a constant keeps equal tapes equal), type regular file.
_TEMPLATE = bytearray(BLOCK)
_TEMPLATE[100:108] = b"0000644\0"
_TEMPLATE[108:116] = _TEMPLATE[116:124] = b"0000000\0"
_TEMPLATE[136:148] = b"00000000000\0"
_TEMPLATE[_CHECKSUM] = b" " * 8
_TEMPLATE[_TYPE] = ord("0")
_TEMPLATE[257:265] = b"ustar\x0000"
_TEMPLATE_SUM = sum(_TEMPLATE)


def member_header(name: str, size: int) -> bytes:
    """The 512 bytes before a member of ``size`` bytes. ``name`` is ASCII, under 100 bytes."""
    encoded = name.encode("ascii")
    if size <= _MAX_OCTAL_SIZE:
        field = b"%011o\0" % size
    else:
        field = b"\x80" + size.to_bytes(11, "big")
    header = bytearray(_TEMPLATE)
    header[: len(encoded)] = encoded
    header[_SIZE] = field
    header[_CHECKSUM] = b"%06o\0 " % (_TEMPLATE_SUM + sum(encoded) + sum(field))
    return bytes(header)


def _parse_size(field: bytes) -> int | None:
    if field[0] == 0x80:
        size = int.from_bytes(field[1:], "big")
        return size if size < 2**63 else None
    digits = field.rstrip(b"\0 ").lstrip(b" ")
    try:
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:  # an 8 or a 9
        return None


def _parse_header(header: bytes, offset: int) -> Member | None:
    """The member that a block describes, or None for a block that is no header.

    The checksum is not summed here: adding up 512 bytes in Python costs more than the hop. A wrong
    name or size shows itself in what follows, and every content has a checksum of its own.
    """
    if len(header) < BLOCK or header[_MAGIC] != b"ustar":
        return None
    size = _parse_size(header[_SIZE])
    if size is None:
        return None
    try:
        name = header[_NAME].partition(b"\0")[0].decode("ascii")
    except UnicodeDecodeError:
        return None
    return Member(name, offset, size)


def _checksum_holds(header: bytes) -> bool:
    try:
        stated = int(header[_CHECKSUM].partition(b"\0")[0].strip() or b"x", 8)
    except ValueError:
        return False
    return stated == sum(header) - sum(header[_CHECKSUM]) + 8 * ord(" ")


def members(
    read: Callable[[int, int], bytes],
    length: int,
    on_damage: Callable[[TapeError], None],
    start: int = 0,
) -> Iterator[Member]:
    """Hops over the members of a tape of ``length`` bytes, from header to header.

    Where a header does not make sense, it tells ``on_damage`` and resynchronises at the next block
    that is a header with a valid checksum; a zero block ends the walk only where nothing but zero
    blocks follow. A last member that is cut short is damage as well. ``read(offset, size)`` returns
    up to ``size`` bytes.
    """
    offset = start
    while offset < length:
        header = read(offset, BLOCK)
        member = _parse_header(header, offset)
        if member is not None and member.end <= length:
            yield member
            offset = member.end
            continue
        if member is not None and member.start + member.size <= length:
            # Whole content, but the file ends within its padding.
            yield member
            return
        following = _resynchronise(read, length, offset + BLOCK)
        if member is None and following is None and not _holds_data(read, offset, length):
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


def _resynchronise(read: Callable[[int, int], bytes], length: int, offset: int) -> int | None:
    """The next block that is a header beyond doubt."""
    while offset < length:
        window = read(offset, _WINDOW)
        if not window:
            return None
        found = window.find(b"ustar")
        while found >= 0:
            block = found - _MAGIC.start
            if block >= 0 and block % BLOCK == 0:
                header = window[block : block + BLOCK]
                if _parse_header(header, offset + block) and _checksum_holds(header):
                    return offset + block
            found = window.find(b"ustar", found + 1)
        offset += len(window) - len(window) % BLOCK or BLOCK
    return None


def _holds_data(read: Callable[[int, int], bytes], offset: int, length: int) -> bool:
    while offset < length:
        window = read(offset, _WINDOW)
        if not window:
            return False
        if window.count(0) != len(window):
            return True
        offset += len(window)
    return False
