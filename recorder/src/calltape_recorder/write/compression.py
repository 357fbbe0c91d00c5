"""Compresses the complete files of a recording, a piece at a time, while no call waits.

In comes a sealed file. Out goes a compressed one in its place: it is written beside it under a name
that no reader takes, is made durable, gets its name, and then the sealed file is removed. Whenever
the process dies, a readable file is left: the sealed one, the compressed one, or both, which
readers take for one. If anything fails, the sealed file stays, and that is counted.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable

from calltape_recorder.bounds import (
    LAST_COMPRESSION_SECONDS,
    OWNER_ONLY,
    UNPACKED_BYTES,
    UNPACKED_TIMES,
)
from calltape_recorder.write.disk_file import set_mode
from calltape_recorder.write.tape_file import SUFFIXES, CompressedFile, TapeFile, compressor
from calltape_schema import TapeError

__all__ = ["Compression"]

_ENDING = ".tape"
_UNFINISHED = tuple(f"{_ENDING}{suffix}.tmp" for suffix in SUFFIXES.values())
_PIECE = 256 * 1024  # a call that comes meanwhile waits for so many bytes
_SYNC_BYTES = 8 * 1024 * 1024  # so that the last write to the disk is short, too
_TRIAL_BYTES = 8 * 1024 * 1024
_WORTHWHILE = 0.9  # what hardly shrinks is as easily read as it is


class _NotWorthIt(Exception):  # noqa: N818 - a decision, not an error
    """The file stays as it is, because it would not be better compressed."""


class _Gone(Exception):  # noqa: N818 - no error of this file
    """The file was removed: it was the oldest one, or somebody moved it away."""


class Compression:
    """Compresses files. The writer's thread alone uses it, but for the attributes.

    Args:
        form: ``zstd``, ``gz``, or None: then nothing is compressed.
        mode: the permissions of the files.
        complain: says once what went wrong.
        resized: is called with a file that is compressed now.

    Attributes:
        done: how many files were compressed.
        left: how many stay as they are, because they would hardly shrink or something failed.
    """

    def __init__(
        self,
        form: str | None,
        mode: int,
        complain: Callable[[str, BaseException], None],
        resized: Callable[[TapeFile], None],
    ) -> None:
        if form is not None:
            compressor(form)  # a host learns now that it has no such form
        self._form = form
        self._mode = mode
        self._complain = complain
        self._resized = resized
        self._waiting: deque[TapeFile] = deque()
        self._job: _Job | None = None
        self._has_tidied = False
        self.done = 0
        self.left = 0

    @property
    def nbytes(self) -> int:
        """The bytes of the file that is being made."""
        job = self._job
        return 0 if job is None else job.size

    def claim(self, path: str, *, overwrite: bool) -> None:
        """Sees to it that a new file can be compressed later: nothing has that name.

        Raises:
            TapeError: ``exists``, or ``io`` if an older file cannot be removed.
        """
        for suffix in SUFFIXES.values() if self._form else ():
            if not os.path.lexists(path + suffix):
                continue
            if not overwrite:
                raise TapeError("exists", "there is a file already", path=path + suffix)
            try:
                os.unlink(path + suffix)
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise TapeError("io", reason, path=path + suffix) from None

    def add(self, tape: TapeFile) -> None:
        """Compresses a file as soon as it is sealed and closed."""
        if self._form is not None:
            self._waiting.append(tape)

    def step(self, has_room: Callable[[int, TapeFile], bool]) -> bool:
        """Compresses a piece; False if nothing is to be done.

        Args:
            has_room: tells whether so many bytes more may be written for this file.
        """
        try:
            job = self._job = self._job or self._next()
            if job is None:
                return False
            if job.step(has_room):
                self._job = None
                self.done += 1
                self._resized(job.tape)
        except _Gone:
            self._leave()
        except _NotWorthIt:
            self.left += 1
            self._leave()
        except Exception as error:
            self.left += 1
            self._leave()
            self._complain("a file of the recording stays as it is, not compressed", error)
        return True

    def finish(self, has_room: Callable[[int, TapeFile], bool]) -> None:
        """Compresses what waits, for at most ten seconds. The rest stays as it is."""
        until = time.monotonic() + LAST_COMPRESSION_SECONDS
        while time.monotonic() < until:
            if not self.step(has_room):
                break
        rest = len(self._waiting) + (self._job is not None)
        if rest:
            self.close()
            self.left += rest
            about = f"{rest} files of the recording stay as they are, not compressed"
            self._complain(
                about, TimeoutError(f"there was no time within {LAST_COMPRESSION_SECONDS:g} s")
            )

    def close(self) -> None:
        """Removes what is half done."""
        self._waiting.clear()
        job, self._job = self._job, None
        if job is not None:
            job.discard()

    def abandon(self) -> None:
        """Lets go of all files in a forked child, because they are the parent's."""
        self._waiting.clear()
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def _leave(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.discard()

    def _next(self) -> _Job | None:
        while self._waiting and self._form is not None:
            tape = self._waiting[0]
            if not tape.is_closed:
                return None  # its end is still to be written
            self._waiting.popleft()
            if not tape.path.endswith(_ENDING):
                reason = f"only a file whose name ends with {_ENDING} is read when it is compressed"
                raise OSError(errno.EINVAL, reason)
            if not self._has_tidied:
                self._has_tidied = True
                _remove_unfinished(os.path.dirname(tape.path))
            if tape.end_start is not None and tape.is_there():
                return _Job(tape, self._form, self._mode)
            self.left += tape.is_there()  # a file without its end stays as it is
        return None


class _Job:
    """One file that is being compressed.

    Args:
        tape: a sealed and closed file.
        form: ``zstd`` or ``gz``.
        mode: the permissions of the compressed file.

    Attributes:
        tape: the file.

    Raises:
        OSError: it cannot be read, or the other one cannot be made.
    """

    def __init__(self, tape: TapeFile, form: str, mode: int) -> None:
        assert tape.end_start is not None
        self.tape = tape
        self._form = form
        self._body = tape.end_start  # bytes before the end
        self._path = tape.path + SUFFIXES[form]
        self._beside = f"{self._path}.tmp"
        self._compressor = compressor(form)
        self._at = 0  # in the sealed file
        self._tail: int | None = None
        self._synced = 0
        self.size = 0
        self._made = -1
        self._source = os.open(tape.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self._total = os.fstat(self._source).st_size
            with contextlib.suppress(FileNotFoundError):  # of a process that died
                os.unlink(self._beside)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._made = os.open(self._beside, flags, OWNER_ONLY)
            set_mode(self._made, mode)
            with contextlib.suppress(OSError):  # some file systems have no locks
                fcntl.flock(self._made, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            self.close()
            raise

    def step(self, has_room: Callable[[int, TapeFile], bool]) -> bool:
        """Compresses a piece; True if the compressed file has taken the place of the other.

        Raises:
            _Gone, _NotWorthIt: there is nothing to do any more.
            OSError: it failed.
        """
        if not self.tape.is_there():
            raise _Gone
        end = self._body if self._tail is None else self._total
        piece = os.pread(self._source, min(_PIECE, end - self._at), self._at)
        if not piece and self._at < end:
            raise OSError(errno.EIO, "the file is shorter now")
        self._at += len(piece)
        self._put(self._compressor.compress(piece), has_room)
        if self._at < end:
            if self._at >= _TRIAL_BYTES and self.size > _WORTHWHILE * self._at:
                raise _NotWorthIt
            return False
        self._put(self._compressor.flush(), has_room)
        if self._tail is None:
            self._tail, self._compressor = self.size, compressor(self._form)
            return False
        self._take_place(self._tail)
        return True

    def _put(self, data: bytes, has_room: Callable[[int, TapeFile], bool]) -> None:
        if data and not has_room(len(data), self.tape):
            raise OSError(errno.ENOSPC, "there is no room for both files within the bounds")
        with memoryview(data) as rest:
            done = 0
            while done < len(data):
                done += os.write(self._made, rest[done:])
        self.size += len(data)
        if self.size - self._synced >= _SYNC_BYTES:
            self._synced = self.size
            os.fsync(self._made)

    def _take_place(self, tail: int) -> None:
        is_bomb = self._total > max(UNPACKED_BYTES, UNPACKED_TIMES * self.size)
        if is_bomb or self.size >= self._total:
            raise _NotWorthIt
        os.fsync(self._made)
        if os.path.lexists(self._path):
            raise FileExistsError(errno.EEXIST, "there is a file of this name already")
        os.rename(self._beside, self._path)
        self._beside = self._path  # what is removed if the rest fails
        _sync_folder(self._path)
        status = os.fstat(self._made)
        if not self.tape.remove():
            raise OSError(errno.EACCES, "the file cannot be removed")
        identity = status.st_dev, status.st_ino
        made = CompressedFile(self._form, self._path, self.size, identity, tail)
        self.tape.became_compressed(made)
        self.close()

    def discard(self) -> None:
        """Removes the unfinished file."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self._beside)

    def close(self) -> None:
        """Closes both files."""
        for file in (self._source, self._made):
            if file >= 0:
                with contextlib.suppress(OSError):
                    os.close(file)
        self._source = self._made = -1


def _sync_folder(path: str) -> None:
    """Makes a new name durable, where the system can."""
    with contextlib.suppress(OSError):
        folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _remove_unfinished(folder: str) -> None:
    """Removes what processes that died left half compressed. A process that lives has a lock on its
    file; without locks on this file system, all are left alone."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder or "."):
            if name.endswith(_UNFINISHED):
                with contextlib.suppress(OSError):
                    _remove_if_unlocked(os.path.join(folder, name))


def _remove_if_unlocked(path: str) -> None:
    file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file).st_uid == os.geteuid():
            os.unlink(path)
    finally:
        os.close(file)
