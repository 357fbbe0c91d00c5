"""A file on the disk that one process writes, and that stays the same file whatever the host does.

In come parts and offsets. The host may close descriptors that it does not know, a person may move
or remove the file, and a fork shares the descriptor.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from calltape_recorder.write.permissions import OWNER_ONLY, make_folders, set_mode
from calltape_schema import TapeError

__all__ = ["DiskFile"]

_MAX_PARTS = 512  # POSIX promises 16, Linux and macOS take 1024
_NO_FILE = (-1, -1)

# It is looked up in this module, so that tests can make the disk fail.
pwritev = os.pwritev


class DiskFile:
    """A new file. It takes what :class:`calltape_schema.storage.Sink` takes.

    Args:
        path: of the file. Missing directories are made.
        overwrite: whether to replace an existing file.
        mode: the permissions of the file.

    Attributes:
        path: of the file.
        identity: device and inode.

    Raises:
        TapeError: ``exists`` or ``io``.
    """

    def __init__(self, path: str, overwrite: bool, mode: int) -> None:
        self.path = path
        self._head = b""  # what the file begins with, once it is written
        try:
            make_folders(os.path.dirname(path), mode)
            if overwrite and os.path.lexists(path):
                os.unlink(path)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
            self._file = os.open(path, flags, OWNER_ONLY)
            set_mode(self._file, mode)
            self.identity = _identity(os.fstat(self._file))
        except FileExistsError:
            raise TapeError("exists", "there is a file already", path=path) from None
        except OSError as error:
            raise TapeError("io", error.strerror or type(error).__name__, path=path) from None

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is written to the file."""
        return self._file < 0

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        """Writes all of these bytes there.

        Raises:
            OSError: some of them may be written.
        """
        left, at = list(parts), offset
        while left:
            self._check(at)
            # The offset is explicit, because a forked child shares the file's position.
            written = pwritev(self._file, left[:_MAX_PARTS], at)
            if not written:
                raise OSError(errno.EIO, "the file takes no more bytes")
            at += written
            left = _after(left, written)
        if not offset:
            self._head = b"".join(parts)

    def cut(self, size: int) -> None:
        """Removes what stands after the first ``size`` bytes.

        Raises:
            OSError: it is still there.
        """
        self._check(size)
        os.ftruncate(self._file, size)

    def is_there(self) -> bool:
        """Whether the path still leads to the file, as far as the disk tells."""
        try:
            return _identity(os.stat(self.path)) == self.identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the disk does not answer: the file may be there
            return True

    def became(self, path: str, identity: tuple[int, int]) -> None:
        """Notes that another file has taken the place of this one, which was closed."""
        self.path, self.identity = path, identity

    def read_from(self, offset: int) -> bytes:
        """The bytes of the file from an offset on.

        Raises:
            OSError: it is gone, or another file has its place.
        """
        file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(file, "rb") as stream:
            if _identity(os.fstat(file)) != self.identity:
                raise FileNotFoundError(errno.ENOENT, "the path leads to another file")
            stream.seek(offset)
            return stream.read()

    def close(self) -> None:
        """Closes the file; it may be called twice."""
        if self._file >= 0:
            if self._is_open():
                os.close(self._file)
            self._file = -1
            self._head = b""  # there may be thousands of closed files

    def remove(self) -> bool:
        """Removes the file, if the path still leads to it; False if it is still there."""
        try:
            if _identity(os.lstat(self.path)) == self.identity:
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
            is_same = _identity(os.fstat(self._file)) == self.identity
            return is_same and os.pread(self._file, len(self._head), 0) == self._head
        except OSError:
            return False

    def _check(self, least: int) -> None:
        """Opens the file again if the host closed it. It must have at least so many bytes."""
        if self._file < 0:
            raise OSError(errno.EBADF, "the tape is closed")
        if self._is_open():
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0))
            try:
                head = os.pread(file, len(self._head), 0)
                status = os.fstat(file)
                if not head or head != self._head or status.st_size < least:
                    raise FileNotFoundError(errno.ENOENT, "the path leads to another file")
            except BaseException:
                os.close(file)
                raise
        except FileNotFoundError:
            self.identity = _NO_FILE
            raise
        self._file, self.identity = file, _identity(status)


def _after(parts: list[Any], written: int) -> list[Any]:
    """What is left of these parts, after their first ``written`` bytes."""
    for index, part in enumerate(parts):
        if written < len(part):
            return [memoryview(part)[written:], *parts[index + 1 :]]
        written -= len(part)
    return []


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
