"""Writes a tape file: creates it exclusively, appends members, and seals it with a trailer."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from calltape_recorder.write.compressed_file import CompressedFile
from calltape_recorder.write.encoded_call import EncodedCall, member
from calltape_recorder.write.permissions import OWNER_ONLY, make_folders, set_mode
from calltape_recorder.write.placement import Placement, Position, Write, placed
from calltape_schema import TapeError
from calltape_schema.endings import Coverage, Dump, Trailer, decode_trailer, encode_trailer
from calltape_schema.framing import (
    BLOCK,
    END,
    MANIFEST,
    SUMMARY,
    TRAILER,
)
from calltape_schema.locator import Locator, with_locator
from calltape_schema.records import Manifest, encode_manifest
from calltape_schema.summary import LEAST_CALLS, encode_summary
from calltape_schema.summing import SummaryBuilder
from calltape_schema.traffic import Traffic

__all__ = [
    "SUMMARY_FRAME_BYTES",
    "TRAILER_FRAME_BYTES",
    "Late",
    "TapeWriter",
    "growth_of_new",
    "manifest_bytes",
]

TRAILER_FRAME_BYTES = 4 * BLOCK
"""At most so many bytes stand around the content of a trailer."""

SUMMARY_FRAME_BYTES = 3 * BLOCK
"""At most so many bytes stand around the content of a summary, with those that say where it is."""

_MAX_PARTS = 512  # POSIX promises 16, Linux and macOS take 1024
_ENTRY = struct.Struct("<QQ")

# It is looked up in this module, so that tests can make the disk fail.
pwritev = os.pwritev


class Late:
    """A part of a known length whose bytes are made while the parts before it are written."""

    def __init__(self, size: int, make: Callable[[], bytes]) -> None:
        self._size = size
        self.make = make  # it waits until they are made

    def __len__(self) -> int:
        return self._size


def manifest_bytes(manifest: Manifest) -> int:
    """Length of a tape that has no calls yet."""
    content = encode_manifest(manifest)
    return sum(map(len, member(MANIFEST, [content], len(content))))


def growth_of_new(calls: Sequence[EncodedCall]) -> int:
    """How many bytes these calls take in a tape that has no calls yet."""
    return placed(Position.at(0), calls, gathers=True).position.end


class TapeWriter:
    """A tape file. Only this process writes it, and only one thread at a time.

    Args:
        path: the path of the file. Missing directories are made.
        overwrite: whether to replace an existing file.
        mode: the permissions of the file.
        gathers: whether small records share members, and the file gets a summary. A file of one
            call needs neither.

    Raises:
        TapeError: at construction, ``exists`` or ``io``.
    """

    def __init__(
        self, path: str, overwrite: bool, mode: int = OWNER_ONLY, *, gathers: bool = True
    ) -> None:
        self.path = path
        self.evidence = 0
        self._gathers = gathers
        self._sums = SummaryBuilder() if gathers else None
        self._position = Position.at(0)
        self._plan: tuple[Sequence[EncodedCall], Position, Placement] | None = None
        self._dirty = False  # bytes of a failed append may lie behind the position
        self._index = bytearray()
        self._head = b""  # the manifest as the file has it
        self._trailer: tuple[int, int] | None = None  # offset and length of its content
        self._compressed: CompressedFile | None = None
        try:
            make_folders(os.path.dirname(path), mode)
            if overwrite and os.path.lexists(path):
                os.unlink(path)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            self._file = os.open(path, flags, OWNER_ONLY)
            set_mode(self._file, mode)
            self._identity = _identity(os.fstat(self._file))
        except FileExistsError:
            raise TapeError("exists", "there is a file already", path=path) from None
        except OSError as error:
            raise TapeError("io", error.strerror or type(error).__name__, path=path) from None

    def begin(self, manifest: Manifest) -> None:
        """Writes the manifest, the first member."""
        content = encode_manifest(manifest)
        parts = member(MANIFEST, [content], len(content))
        self._append_parts(parts)
        self._head = b"".join(parts)

    @property
    def end(self) -> int:
        """The end of the last whole member, in bytes."""
        return self._position.end

    @property
    def calls(self) -> int:
        """How many calls the file has."""
        return len(self._index) // _ENTRY.size

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is written to the file."""
        return self._file < 0

    @property
    def trailer_start(self) -> int | None:
        """Where the trailer begins, in bytes; None before it is written."""
        return None if self._trailer is None else self._trailer[0] - BLOCK

    def became(self, other: CompressedFile) -> None:
        """Notes that a compressed file has taken the place of this one, which was sealed."""
        self._compressed = other
        self.path, self._identity = other.path, other.identity
        self._position = Position.at(other.size)

    def rewind(self) -> None:
        """Removes all calls from the file.

        Raises:
            OSError: the file cannot be cut.
        """
        self._check()
        os.ftruncate(self._file, len(self._head))
        self._dirty = False
        self._position = Position.at(len(self._head))
        self._index.clear()
        if self._sums is not None:
            self._sums.clear()

    def is_there(self) -> bool:
        """Whether the path still leads to the file, as far as the disk tells."""
        try:
            return _identity(os.stat(self.path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the disk does not answer: the file may be there
            return True

    def growth(self, calls: Sequence[EncodedCall]) -> int:
        """How many bytes the file grows by if these calls are appended."""
        return self._placed(calls).position.end - self.end

    def append(self, calls: Sequence[EncodedCall]) -> None:
        """Appends whole calls.

        Raises:
            OSError: none of these calls counts as written. The file ends with the last whole call,
                or is cut there before the next append.
        """
        placement, self._plan = self._placed(calls), None
        self._append(placement.writes, placement.position)
        for call, offset in zip(calls, placement.offsets, strict=True):
            self._index += _ENTRY.pack(call.number, offset)
        if self._sums is not None:
            self._sum_up(calls, self._sums)

    def _placed(self, calls: Sequence[EncodedCall]) -> Placement:
        """Where these calls go. Who asks how much the file grows, appends them next."""
        plan = self._plan
        if plan is None or plan[0] is not calls or plan[1] is not self._position:
            placement = placed(self._position, calls, gathers=self._gathers)
            plan = self._plan = calls, self._position, placement
        return plan[2]

    def _sum_up(self, calls: Sequence[EncodedCall], sums: SummaryBuilder) -> None:
        """Counts calls for the summary. The calls are in the file, whatever happens here."""
        try:
            for call in calls:
                sums.add(call.facts)
        except Exception:
            self._sums = None  # the file is read without a summary

    def trailer(
        self, tape: bytes, coverage: Coverage, traffic: Traffic, dumps: tuple[Dump, ...],
        *, continues: bool,
    ) -> bytes:  # fmt: skip
        """The content of the trailer. ``continues`` tells that the next calls go to another file.

        Raises:
            TapeError: ``limit``.
            pydantic.ValidationError: the accounts break the format.
        """
        return encode_trailer(
            Trailer(
                tape=tape, closed_ns=time.time_ns(), coverage=coverage, index=bytes(self._index),
                traffic=traffic, dumps=dumps, continues=continues or None,
            )
        )  # fmt: skip

    def summary(self, trailer: bytes) -> bytes | None:
        """The content of the summary for this trailer; None if the file has few calls, or if it
        cannot be made."""
        if self._sums is None or self.calls < LEAST_CALLS:
            return None
        try:
            made = self._sums.summary(decode_trailer(trailer))
            return None if made is None else encode_summary(made)
        except Exception:  # the file is read without a summary
            return None

    def seal(self, trailer: bytes, summary: bytes | None = None) -> None:
        """Writes the summary, if there is one, and the trailer. Then the tape is complete.

        Raises:
            OSError: neither is written.
        """
        parts: list[Any] = []
        start = self.end
        if summary is not None:
            parts = member(SUMMARY, [summary], len(summary))
            start += sum(map(len, parts))
            trailer = with_locator(trailer, Locator(trailer=start, summary=self.end))
        self._append_parts([*parts, *member(TRAILER, [trailer], len(trailer)), END])
        self._trailer = start + BLOCK, len(trailer)

    def read_trailer(self) -> bytes | None:
        """The content of the written trailer; None if there is none, or if the file is gone."""
        if self._trailer is None:
            return None
        start, size = self._trailer
        packed = self._compressed
        flags = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
        try:
            file = os.open(self.path, flags)
            try:
                if _identity(os.fstat(file)) != self._identity:
                    return None
                if packed is None:
                    return os.pread(file, size, start)
                frame = os.pread(file, packed.size - packed.tail, packed.tail)
                return packed.unpacked(frame)[BLOCK : BLOCK + size]
            finally:
                os.close(file)
        except OSError:
            return None

    def close(self) -> None:
        """Closes the file; it may be called twice."""
        if self._file >= 0:
            if self._is_open():
                os.close(self._file)
            self._file = -1
            self._index = bytearray()
            self._sums = None

    def remove(self) -> bool:
        """Removes the file, if the path still leads to it; False if it is still there."""
        try:
            if _identity(os.lstat(self.path)) == self._identity:
                os.unlink(self.path)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError:
            return False
        return True

    def _is_open(self) -> bool:
        """Whether the descriptor is still this file's. A host may close descriptors that it does
        not know, and then the next file that it opens has this descriptor, or even the inode."""
        try:
            is_same = _identity(os.fstat(self._file)) == self._identity
            return is_same and os.pread(self._file, len(self._head), 0) == self._head
        except OSError:
            return False

    def _check(self) -> None:
        """Opens the file again if the host closed it."""
        if self._file < 0:
            raise OSError(errno.EBADF, "the tape is closed")
        if self._is_open():
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
            try:
                head = os.pread(file, len(self._head), 0)
                status = os.fstat(file)
                if not head or head != self._head or status.st_size < self.end:
                    raise FileNotFoundError(errno.ENOENT, "the path leads to another file")
            except BaseException:
                os.close(file)
                raise
        except FileNotFoundError:
            self._identity = _NO_FILE
            raise
        self._file, self._identity = file, _identity(status)

    def _cut(self) -> None:
        """Cuts the file after the last whole call. What a group still has room for is a hole
        again."""
        self._check()
        os.ftruncate(self._file, self._position.entry)
        if self._position.end > self._position.entry:
            os.ftruncate(self._file, self._position.end)

    def _append_parts(self, parts: list[Any]) -> None:
        """Appends members that are no calls."""
        end = self.end
        self._append([Write(end, parts, end)], Position.at(end + sum(map(len, parts))))

    def _append(self, writes: Sequence[Write], after: Position) -> None:
        if self._dirty:
            self._cut()
        self._dirty = True
        try:
            for write in writes:
                self._write(write)
        except OSError:
            # If the disk refuses to cut as well, the file is cut before the next append.
            with contextlib.suppress(OSError):
                self._cut()
                self._dirty = False
            raise
        self._dirty = False
        self._position = after

    def _write(self, write: Write) -> None:
        if write.end > self.end:
            self._check()
            os.ftruncate(self._file, write.end)
        offset = write.offset
        for some in _at_once(write.parts):
            offset = self._write_some(some, offset)

    def _write_some(self, parts: list[Any], offset: int) -> int:
        while parts:
            self._check()  # time has passed, above all if a checksum was waited for
            # The offset is explicit, because a forked child shares the file's position.
            written = pwritev(self._file, parts, offset)
            offset += written
            parts = _after(parts, written)
            if parts and not written:
                raise OSError(errno.EIO, "the file takes no more bytes")
        return offset


def _after(parts: list[Any], written: int) -> list[Any]:
    """What is left of these parts, after their first ``written`` bytes."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [memoryview(part)[written:], *parts[index + 1 :]]
        written -= len(part)
    return []


def _at_once(parts: list[Any]) -> Iterator[list[Any]]:
    """Groups the parts for system calls: a group is not too long, and begins at each late part."""
    some: list[Any] = []
    for part in parts:
        if type(part) is Late:
            if some:
                yield some
                some = []
            part = part.make()
        elif len(some) == _MAX_PARTS:
            yield some
            some = []
        some.append(part)
    yield some


_NO_FILE = (-1, -1)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
