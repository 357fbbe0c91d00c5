"""A tape file that one process writes, protected against what happens to it meanwhile.

The application may close descriptors that it does not know, a person may move or remove the file,
and a forked process shares the descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from calltape_recorder.bounds import MAX_PARTS_OF_WRITE, OWNER_ONLY
from calltape_schema import TapeError
from calltape_schema.end import Coverage, Dump, End, FileNumbers, decode_end
from calltape_schema.groups import Append
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import Manifest
from calltape_schema.tar import BLOCK, parse_header
from calltape_schema.writer import TapeWriter


def make_folders(path: str, mode: int = OWNER_ONLY) -> None:
    """Makes the missing directories of a path, for files of this mode. Others keep their mode.

    Raises:
        OSError: as :func:`os.makedirs`.
    """
    missing = [at for at in (Path(path), *Path(path).parents) if not os.path.isdir(at)]
    search = mode | 0o700 | (mode & 0o444) >> 2
    for folder in reversed(missing):
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:  # another process made it, or it is a file
            if not os.path.isdir(folder):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from None
            continue
        with contextlib.suppress(OSError):
            os.chmod(folder, search)


_NO_FILE = (-1, -1)

# It is looked up in this module, so that tests can make the disk fail.
pwritev = os.pwritev


class Accounts(NamedTuple):
    """What the end of a file says about the calls that it accounts for.

    Attributes:
        coverage: what became of them.
        dumps: the dumps of a flight recorder.
        next_call: how many calls of the recording were seen, including those still under way.
        closed_ns: when the accounts were taken, as Unix time in nanoseconds.
    """

    coverage: Coverage
    dumps: tuple[Dump, ...]
    next_call: int
    closed_ns: int


class TapeFile:
    """A new tape file on the disk. Only one thread at a time may use it. Its
    :class:`~calltape_schema.writer.TapeWriter` writes to it as a
    :class:`calltape_schema.storage.Sink`.

    Args:
        path: of the file. Missing directories are made.
        overwrite: whether to replace an existing file.
        mode: the permissions of the file.

    Attributes:
        path: of the file.
        size: of the file, in bytes.
        calls: how many calls it has.
        counts_bytes: how many of its bytes are counts of an unsealed tape.
        novel_calls: how many of its calls were unlike all earlier ones.

    Raises:
        TapeError: ``exists`` or ``io``.
    """

    def __init__(self, path: str, overwrite: bool, mode: int = OWNER_ONLY) -> None:
        self.path = path
        self.size = self.calls = self.counts_bytes = self.novel_calls = 0
        self._end_start: int | None = None  # where its end begins, once it is sealed
        self._writer: TapeWriter | None = None  # until it is closed
        self._head = b""  # what the file begins with, once it is written
        try:
            make_folders(os.path.dirname(path), mode)
            if overwrite and os.path.lexists(path):
                os.unlink(path)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
            # The umask does not count: it is a setting of the machine, not a decision about this
            # file. Some file systems have no permissions (vfat), and some systems have no fchmod.
            with contextlib.suppress(OSError, AttributeError):
                os.fchmod(self._file, mode)
            self._identity = _identity(os.fstat(self._file))
        except FileExistsError:
            raise TapeError("exists", "there is a file already", path=path) from None
        except OSError as error:
            raise TapeError("io", error.strerror or type(error).__name__, path=path) from None

    def begin(self, manifest: Manifest) -> None:
        """Writes the manifest, the first member.

        Raises:
            OSError: it cannot be written.
        """
        self._writer = TapeWriter(self, manifest)
        self.size = self._writer.end

    @property
    def table(self) -> InputsTable:
        """The counted inputs, until it is closed."""
        table = self._open.table
        assert table is not None
        return table

    @property
    def groups(self) -> int:
        """How many groups its index will have."""
        return 0 if self._writer is None else self._writer.groups

    @property
    def _open(self) -> TapeWriter:
        if self._writer is None:
            raise OSError("the tape is closed")
        return self._writer

    def commit(self, append: Append) -> None:
        """Appends whole calls.

        Raises:
            OSError: none of these calls counts as written.
        """
        writer = self._open
        writer.commit(append)
        self.size, self.calls = writer.end, writer.calls

    def count(self, accounts: Accounts, deleted: FileNumbers, fits: Callable[[int], bool]) -> bool:
        """Writes what was counted so far, see
        :meth:`~calltape_schema.writer.TapeWriter.count`.

        Raises:
            OSError: it is not written.
        """
        writer = self._open
        before = writer.end
        until = {"at_least": True, "counted_ns": accounts.closed_ns}
        coverage = accounts.coverage.model_copy(update=until)
        is_written = writer.count(coverage, accounts.next_call, deleted or None, fits)
        self.size = writer.end
        self.counts_bytes += self.size - before
        return is_written

    def seal(
        self, accounts: Accounts, fits: Callable[[int], bool], *, continues: bool,
        deleted: FileNumbers,
    ) -> None:  # fmt: skip
        """Writes the end. Then the tape is complete.

        Raises:
            OSError: it is not written.
        """
        writer = self._open
        begin = writer.end
        writer.seal(
            accounts.coverage, dumps=accounts.dumps, closed_ns=accounts.closed_ns,
            continues=continues, next_call=accounts.next_call, deleted=deleted, fits=fits,
        )  # fmt: skip
        self.size, self._end_start = writer.end, begin

    def rewind(self) -> None:
        """Removes all calls from the file.

        Raises:
            OSError: the file cannot be cut.
        """
        writer = self._open
        writer.rewind()
        self.size, self.calls = writer.end, writer.calls

    def read_end(self) -> End | None:
        """The end that was written; None without one, or if the file is gone or corrupted."""
        start = self._end_start
        if start is None:
            return None
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
            with os.fdopen(file, "rb") as stream:
                if _identity(os.fstat(file)) != self._identity:
                    return None
                stream.seek(start)
                tail = stream.read()
            member = parse_header(tail[:BLOCK], start)
            return None if member is None else decode_end(tail[BLOCK : BLOCK + member.size])
        except (OSError, TapeError):
            return None

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        """Writes all of these bytes there.

        Raises:
            OSError: some of them may be written.
        """
        left, at = list(parts), offset
        while left:
            self._check(at)
            # The offset is explicit, because a forked child shares the file's position.
            written = pwritev(self._file, left[:MAX_PARTS_OF_WRITE], at)
            if not written:
                raise OSError(errno.EIO, "the file takes no more bytes")
            at += written
            whole = 0
            while whole < len(left) and written >= len(left[whole]):
                written -= len(left[whole])
                whole += 1
            del left[:whole]
            if written:
                left[0] = memoryview(left[0])[written:]
        if not offset:
            self._head = b"".join(parts)

    def cut(self, size: int) -> None:
        """Removes what follows the first ``size`` bytes.

        Raises:
            OSError: it is still there.
        """
        self._check(size)
        os.ftruncate(self._file, size)

    def is_there(self) -> bool:
        """Whether the path still leads to this file, as far as the disk says. It does not if the
        file was moved and replaced by a link."""
        try:
            return _identity(os.lstat(self.path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # the disk does not answer: the file may be there
            return True

    def is_whole(self) -> bool:
        """Whether everything that was written to it is still there, as far as the disk says: it was
        not truncated."""
        try:
            self._check(self.size)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return True

    def close(self) -> None:
        """Closes the file; it may be called twice."""
        if self._file >= 0:
            if self._status() is not None:
                os.close(self._file)
            self._file = -1
            self._head = b""  # there may be thousands of closed files
        self._writer = None

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

    def _status(self) -> os.stat_result | None:
        """The status of the descriptor, if it still belongs to this file. An application may close
        descriptors that it does not know, and then the next file that it opens gets this
        descriptor, or even the inode."""
        try:
            status = os.fstat(self._file)
            head = os.pread(self._file, len(self._head), 0)
        except OSError:
            return None
        is_same = _identity(status) == self._identity and head == self._head
        return status if is_same else None

    def _check(self, least: int) -> None:
        """Opens the file again if the application closed it. It must have at least ``least``
        bytes."""
        if self._file < 0:
            raise OSError(errno.EBADF, "the tape is closed")
        known = self._status()
        if known is not None:
            if known.st_size < least:  # readers stop at a hole
                raise FileNotFoundError(errno.ENOENT, "somebody cut the file")
            return
        try:
            file = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
            try:
                head = os.pread(file, len(self._head), 0)
                status = os.fstat(file)
                if not head or head != self._head or status.st_size < least:
                    raise FileNotFoundError(errno.ENOENT, "the path leads to another file")
            except BaseException:
                os.close(file)
                raise
        except FileNotFoundError:
            self._identity = _NO_FILE
            raise
        self._file, self._identity = file, _identity(status)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


# Names of new files. Another process may still take one that was free.


def next_file(
    path_of: Callable[[int], str], number: int, overwrite: bool, mode: int
) -> tuple[TapeFile, int]:
    """A new file at the first path that is free, from this number on; and its number.

    Raises:
        TapeError: ``io``.
    """
    while True:
        try:
            return TapeFile(path_of(number), overwrite, mode), number
        except TapeError as error:
            if error.kind != "exists":
                raise
            number += 1


def free_path(stem: str) -> str:
    """``<stem>.tape``. A number is added if any file of a recording of that name exists. Its first
    file may be gone while others exist: segments, or the inputs of the last call before a crash."""
    folder, name = os.path.split(stem)
    try:
        existing = os.listdir(folder or ".")
    except OSError:
        existing = []
    candidate, number = name, 1
    while True:
        file = re.compile(re.escape(candidate) + r"(-\d{5,}|\.ahead-\d+)?\.tape(\.zst|\.gz)?")
        path = os.path.join(folder, f"{candidate}.tape")
        if not os.path.lexists(path) and not any(map(file.fullmatch, existing)):
            return path
        number += 1
        candidate = f"{name}.{number}"
