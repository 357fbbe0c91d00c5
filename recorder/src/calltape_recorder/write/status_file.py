"""The status file of a recording: written by its background thread, for health checks."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from calltape_recorder.write.permissions import OWNER_ONLY, set_mode
from calltape_schema.status import SUFFIX

__all__ = ["StatusFile"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StatusFile:
    """The file beside a tape. Only one thread may use it at a time.

    Args:
        stem: the path of the recording's first file without ``.tape``. The name of the status has
            the first digits of the recording's id as well: so no recorder writes the file of
            another one.
        tape: the id of the recording.
        mode: the permissions of the file.

    Attributes:
        path: where the file is, once it was written.
    """

    def __init__(self, stem: str, tape: bytes, mode: int) -> None:
        self.path = f"{stem}.{tape.hex()[:8]}{SUFFIX}"
        self._mode = mode
        self._identity: tuple[int, int, int] | None = None

    def write(self, content: bytes) -> None:
        """Puts the content in the place of the last one, which all contents have the length of.

        Raises:
            OSError: it could not be written.
        """
        new = f"{self.path}.new"  # one name, so that a process that was killed leaves one file
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)
            file = os.open(new, _NEW, OWNER_ONLY)
            try:
                set_mode(file, self._mode)
                _write_all(file, content)
                found = os.fstat(file)
            finally:
                os.close(file)
            os.replace(new, self.path)
            self._identity = _identity(found)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new)
            # A full disk has no room for a second file, but takes other bytes in this one. Whoever
            # reads it now may find a part of each, and reads it again.
            if not self._write_in_place(content):
                raise

    def remove(self) -> None:
        """Removes the file, if it is still this recorder's."""
        with contextlib.suppress(OSError):
            if self._identity is not None and _identity(os.lstat(self.path)) == self._identity:
                os.unlink(self.path)

    def _write_in_place(self, content: bytes) -> bool:
        try:
            file = os.open(self.path, _OLD)
            try:
                if _identity(os.fstat(file)) != self._identity:
                    return False
                return os.pwrite(file, content, 0) == len(content)
            finally:
                os.close(file)
        except OSError:
            return False


def _write_all(file: int, content: bytes) -> None:
    while content:
        written = os.write(file, content)
        if not written:
            raise OSError(errno.EIO, "the file takes no more bytes")
        content = content[written:]


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    # A file system gives the number of a removed file to the next one, which may be a link.
    return stat.S_IFMT(status.st_mode), status.st_dev, status.st_ino
