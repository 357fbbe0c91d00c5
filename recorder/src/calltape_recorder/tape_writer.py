"""The tape file: created exclusively, appended member by member, sealed with a trailer."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from calltape_schema import TapeError
from calltape_schema.framing import BLOCK, END, MANIFEST, TRAILER, member_header, padding
from calltape_schema.records import (
    Coverage,
    Dump,
    Manifest,
    Trailer,
    encode_manifest,
    encode_trailer,
)
from calltape_schema.traffic import Traffic

__all__ = ["Late", "TapeWriter", "member"]

_MAX_PARTS = 512  # POSIX promises 16, Linux and macOS take 1024
_ZEROS = bytes(BLOCK)
_ENTRY = struct.Struct("<QQ")

# Looked up through the module, so that tests can make the disk fail.
pwritev = os.pwritev


class Late:
    """A part of a known length whose bytes are made while the parts before it are written."""

    def __init__(self, size: int, make: Callable[[], bytes]) -> None:
        self._size = size
        self.make = make  # waits for them

    def __len__(self) -> int:
        return self._size


def member(name: str, content: Sequence[Any], size: int) -> list[Any]:
    """Header, content and padding of one member, as parts for one write."""
    parts = [member_header(name, size), *content]
    fill = padding(size)
    if fill:
        parts.append(_ZEROS[:fill])
    return parts


class TapeWriter:
    """One tape file that only this process, and in it only one thread at a time, writes.

    Raises:
        TapeError: at construction, ``exists`` or ``io``.
    """

    def __init__(self, path: str, overwrite: bool) -> None:
        self.path = path
        self.end = 0  # of the last whole member
        self._dirty = False  # bytes of a failed append may lie behind ``end``
        self._index = bytearray()
        self._begin = 0  # end of the manifest
        try:
            os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
            if overwrite and os.path.lexists(path):
                os.unlink(path)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            self._file = os.open(path, flags, 0o644)
            self._identity = _identity(os.fstat(self._file))
        except FileExistsError:
            raise TapeError("exists", "there is a file already", path=path) from None
        except OSError as error:
            raise TapeError("io", error.strerror or type(error).__name__, path=path) from None

    def begin(self, manifest: Manifest) -> None:
        """Writes the manifest, the first member."""
        content = encode_manifest(manifest)
        self._append(member(MANIFEST, [content], len(content)))
        self._begin = self.end

    @property
    def calls(self) -> int:
        """How many it has."""
        return len(self._index) // _ENTRY.size

    def rewind(self) -> None:
        """Takes all calls out again.

        Raises:
            OSError: the file cannot be cut.
        """
        os.ftruncate(self._file, self._begin)
        self.end = self._begin
        self._index.clear()

    def is_there(self) -> bool:
        """Whether the path still leads to the file."""
        try:
            return _identity(os.stat(self.path)) == self._identity
        except OSError:
            return False

    def append(self, calls: Sequence[tuple[int, Sequence[Any], int]]) -> None:
        """Appends whole calls: per call its number, its parts, and their size in bytes.

        Raises:
            OSError: nothing of these calls counts as written; the file ends with the last good
                member, or will be cut there before the next append.
        """
        start = self.end
        self._append([part for _, parts, _ in calls for part in parts])
        for number, _, size in calls:
            self._index += _ENTRY.pack(number, start)
            start += size

    def seal(
        self, tape: bytes, coverage: Coverage, traffic: Traffic, dumps: tuple[Dump, ...]
    ) -> None:
        """Writes the trailer; the tape is complete."""
        trailer = Trailer(
            tape=tape, closed_ns=time.time_ns(), coverage=coverage, index=bytes(self._index),
            traffic=traffic, dumps=dumps,
        )  # fmt: skip
        content = encode_trailer(trailer)
        self._append([*member(TRAILER, [content], len(content)), END])

    def close(self) -> None:
        """Closes the file; it may be called twice."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._index = bytearray()

    def remove(self) -> None:
        """Removes the file, if the path still leads to it."""
        with contextlib.suppress(OSError):
            if _identity(os.lstat(self.path)) == self._identity:
                os.unlink(self.path)

    def _append(self, parts: list[Any]) -> None:
        if self._file < 0:
            raise OSError(errno.EBADF, "the tape is closed")
        if self._dirty:
            os.ftruncate(self._file, self.end)
        self._dirty = True
        end = self._write(parts, self.end)
        self._dirty = False
        self.end = end

    def _write(self, parts: list[Any], offset: int) -> int:
        try:
            for some in _at_once(parts):
                offset = self._write_some(some, offset)
        except OSError:
            # Best effort: a disk that refuses to cut as well is cut before the next append.
            try:
                os.ftruncate(self._file, self.end)
                self._dirty = False
            except OSError:
                pass
            raise
        return offset

    def _write_some(self, parts: list[Any], offset: int) -> int:
        # At an explicit offset: a forked child shares the file's position.
        written = pwritev(self._file, parts, offset)
        offset += written
        for index, part in enumerate(parts):
            if written < len(part):
                if not written and not index:
                    raise OSError(errno.EIO, "the file takes no more bytes")
                rest = [memoryview(part)[written:], *parts[index + 1 :]]
                return self._write_some(rest, offset)
            written -= len(part)
        return offset


def _at_once(parts: list[Any]) -> Iterator[list[Any]]:
    """Cuts parts into what one system call takes, and before each late one."""
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


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
