"""Sections: bytes with a checksum, which may be compressed.

Makes an array ``[codec, size, crc32, data]`` from bytes, or the other way round. The table and the
documents of a group, the index of an end and its table of inputs are sections (FORMAT.md §3). The
checksum is of the bytes as they are stored, so that nothing damaged is inflated.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable
from typing import Any, NamedTuple

from calltape_schema.bounds import CHECKED_BYTES
from calltape_schema.errors import TapeError
from calltape_schema.packing import crc32, is_array, little_endian

STORED, ZLIB = 0, 1
"""Codecs. Other numbers are of later versions."""


class Checksums(NamedTuple):
    """The checksums of a blob.

    Attributes:
        whole: the CRC-32 of its content.
        steps: those of its first 1, 2, 3, ... MiB, each of four bytes.
    """

    whole: int
    steps: bytes = b""


NO_CHECKSUMS = Checksums(0)


def steps_of(size: int) -> int:
    """How many steps a blob of this size has."""
    return max(-(-size // CHECKED_BYTES) - 1, 0)


def checksums_of(parts: Iterable[Any]) -> Checksums:
    """The checksums of the bytes of these parts, one after another. A CRC-32 continues that of the
    bytes before, so all of them take one pass."""
    checksum, left, steps = 0, CHECKED_BYTES, array("I")
    for part in parts:
        if len(part) <= left:
            checksum, left = crc32(part, checksum), left - len(part)
            continue
        with memoryview(part) as view:
            at = 0
            while at < len(view):
                if not left:
                    steps.append(checksum)
                    left = CHECKED_BYTES
                with view[at : at + left] as piece:
                    checksum = crc32(piece, checksum)
                    at, left = at + len(piece), left - len(piece)
    return Checksums(checksum, little_endian(steps).tobytes() if steps else b"")


class Section(NamedTuple):
    """A section of a tape.

    Attributes:
        codec: the algorithm that compressed the data.
        size: the size of the content, before compression.
        crc32: the checksum of ``data``.
        data: the stored bytes.
    """

    codec: int
    size: int
    crc32: int
    data: bytes

    @classmethod
    def of(cls, data: bytes, level: int = 0, most_times: int | None = None) -> Section:
        """A section of these bytes.

        Args:
            data: the bytes.
            level: of zlib; 0 to store them as they are.
            most_times: the bytes are stored uncompressed if they would become smaller by more than
                this factor, because no reader would inflate them; or if they would not become
                smaller.
        """
        if level:
            packed = zlib.compress(data, level)
            is_bomb = most_times is not None and len(data) > len(packed) * most_times
            if len(packed) < len(data) and not is_bomb:
                return cls(ZLIB, len(data), crc32(packed), packed)
        return cls(STORED, len(data), crc32(data), data)

    def content(self, most: int, what: str) -> bytes:
        """The content of the section, of at most ``most`` bytes. Errors call it ``what``.

        Raises:
            TapeError: ``damaged``, ``limit``, or ``unsupported`` for a codec of a later version.
        """
        if self.codec not in (STORED, ZLIB):
            reason = f"{what}: compressed with codec {self.codec}"
            raise TapeError("unsupported", reason)
        if self.size > most:
            raise TapeError("limit", f"{what}: {self.size} bytes (at most {most})")
        if self.codec == ZLIB:
            return inflated(self.data, self.size, what)
        if len(self.data) != self.size:
            raise TapeError("damaged", f"{what}: not {self.size} bytes")
        return self.data


_PARTS = len(Section._fields)


def section_of(value: Any, what: str) -> Section:
    """A section from its decoded array, whose checksum holds. Errors call it ``what``.

    Raises:
        TapeError: ``damaged``.
    """
    if is_array(value) and len(value) >= _PARTS:
        codec, size, checksum, data = value[:_PARTS]
        is_form = type(codec) is type(size) is type(checksum) is int and type(data) is bytes
        if is_form and codec >= 0 and size >= 0:
            if crc32(data) != checksum:
                raise TapeError("damaged", f"the checksum of {what} does not match its bytes")
            return Section(codec, size, checksum, data)
    raise TapeError("damaged", f"{what} is not a section [codec, size, crc32, data]")


def inflated(data: bytes, size: int, what: str) -> bytes:
    """The bytes that were deflated in the format of zlib. Never more than ``size`` are inflated."""
    inflater = zlib.decompressobj()
    try:
        content = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise TapeError("damaged", f"{what} cannot be inflated: {error}") from None
    if len(content) != size or not inflater.eof or inflater.unused_data:
        raise TapeError("damaged", f"{what}: not {size} bytes")
    return content
