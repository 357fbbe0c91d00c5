"""A file on the disk that one process writes, and that stays the same file whatever the host does.

In come parts and offsets. The host may close descriptors that it does not know, a person may move
or remove the file, and a fork shares the descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence
from typing import Any

from calltape_recorder.bounds import OWNER_ONLY
from calltape_schema import TapeError

__all__ = ["DiskFile", "foreign_hand", "make_folders", "set_mode"]

# Who may read the files of a recorder, and whose files the recorder trusts. The umask does not
# count: it is a setting of the machine, not a decision about this file.

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def set_mode(descriptor: int, mode: int) -> None:
    """Gives an open file these permissions, whatever the umask is."""
    # Some file systems have no permissions (vfat), and some systems have no fchmod.
    with contextlib.suppress(OSError, AttributeError):
        os.fchmod(descriptor, mode)


def make_folders(path: str, mode: int = OWNER_ONLY) -> None:
    """Makes the missing directories of a path, for files of this mode. Others keep their mode.

    Raises:
        OSError: as :func:`os.makedirs`.
    """
    missing: list[str] = []
    folder = path or "."
    while folder and not os.path.isdir(folder):
        missing.append(folder)
        above = os.path.dirname(folder.rstrip(os.sep))
        if above == folder:
            break
        folder = above
    search = mode | 0o700 | (mode & 0o444) >> 2
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # another process made it, or it is a file
            if not os.path.isdir(folder):
                raise
            continue
        with contextlib.suppress(OSError):
            os.chmod(folder, search)


def foreign_hand(path: str, found: os.stat_result) -> str | None:
    """Why somebody other than this user or root may have written a file; None if nobody may.

    Args:
        path: the path of the file.
        found: the status of the file, as it was opened.
    """
    if not hasattr(os, "geteuid"):
        return None
    real = os.path.realpath(path)
    reason = _written_by_others(found, "it")
    # Whoever may write to a directory above the file may put another file or directory in its
    # place, unless only owners may remove their entries (/tmp). If the path is a link, the same
    # holds for the directories that it leads to.
    here, there = os.path.dirname(os.path.abspath(path)), os.path.dirname(real)
    for folder in dict.fromkeys((*_up(here), *_up(there))):
        if reason is None:
            inside = os.stat(folder)
            if not inside.st_mode & stat.S_ISVTX or not _is_ours(inside):
                is_its = folder in (here, there)
                reason = _written_by_others(inside, "its directory" if is_its else folder)
    return reason


def _up(folder: str) -> list[str]:
    """A directory, and all directories above it."""
    found = [folder]
    while (above := os.path.dirname(found[-1])) != found[-1]:
        found.append(above)
    return found


def _written_by_others(found: os.stat_result, what: str) -> str | None:
    if not _is_ours(found):
        return f"{what} belongs to user {found.st_uid}, not to this one or root"
    if found.st_mode & _OTHERS_WRITE:
        return f"others may write {what} ({stat.filemode(found.st_mode)}): chmod go-w"
    return None


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)


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
