"""A file that gets its name when it is complete.

In come bytes, front to back. They go to a temporary file beside the final one. Out goes the whole
file under its name; a process that is killed before leaves nothing there.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.compressed import most_unpacked
from calltape_analyzer.writing.compressing import Compressor, compressor_of
from calltape_schema.errors import TapeError

__all__ = ["OutputFile", "copy_tape", "refuse_inputs", "settle", "write_file"]

_BUFFER = 1024 * 1024
_LOOKS_LIKE_URL = re.compile(r"[a-z][a-z0-9+.\-]+:/")  # of which a path has one slash
_ADVICE_OF_URL = "files are written here, not behind a URL: write it here, and copy it there"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


class OutputFile:
    """A new file.

    Args:
        path: of the final file.
        overwrite: whether a file that is there already is replaced.
        inputs: paths of files that are read meanwhile. None of them is ever replaced.
        mode: the permissions, whatever the umask is.
        is_tape: whether it is compressed at the end if its name asks for it (``.tape.gz``).

    Raises:
        UsageError: the path is one of the inputs.
        TapeError: ``exists`` or ``io``; ``usage`` if Zstandard is not installed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        inputs: Iterable[str] = (),
        mode: int = 0o600,
        is_tape: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self.end = 0
        self._mode = mode
        self._compressor = compressor_of(self.path) if is_tape else None
        self._overwrite = overwrite
        refuse_inputs(self.path, inputs)
        if not overwrite and os.path.lexists(self.path):
            raise TapeError("exists", "it is there already", path=self.path)
        _refuse_device(self.path)
        with self._told():
            self._open()

    def append(self, parts: Iterable[Any]) -> None:
        """Writes bytes, one part after the other.

        Raises:
            TapeError: ``io``.
        """
        with self._told():
            for part in parts:
                self._file.write(part)
                self.end += len(part)

    def cut(self, end: int) -> None:
        """Removes all bytes from an offset on.

        Raises:
            TapeError: ``io``.
        """
        with self._told():
            self._file.flush()
            self._file.truncate(end)
            self._file.seek(end)
        self.end = end

    def finish(self) -> None:
        """Gives the file its name, after its bytes have reached the disk.

        Raises:
            TapeError: ``io``; ``exists`` if another file took the name meanwhile; ``limit`` if it
                would be compressed so much that no reader takes it.
        """
        try:
            with self._told():
                if self._compressor is not None:
                    self._compress(self._compressor)
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                if self._overwrite:
                    os.replace(self._beside, self.path)
                else:
                    _move(self._beside, self.path)
                _sync_folder(os.path.dirname(self.path))
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the temporary file. It may be called at any time, and again."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            os.unlink(self._beside)

    def _open(self) -> None:
        """Makes a new temporary file."""
        folder, name = os.path.split(self.path)
        self._beside = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        descriptor = os.open(self._beside, _FLAGS, 0o600)
        with contextlib.suppress(OSError):  # some file systems have no permissions
            os.fchmod(descriptor, self._mode)
        self._file = open(descriptor, "wb", buffering=_BUFFER)  # noqa: SIM115

    def _compress(self, compressor: Compressor) -> None:
        """Puts a compressed temporary file in the place of the plain one: bytes can be cut off the
        plain one only."""
        self._file.close()
        plain = self._beside
        try:
            with open(plain, "rb") as source:
                self._open()
                with compressor(self._file) as target:
                    shutil.copyfileobj(source, target, _BUFFER)
        finally:
            os.unlink(plain)
        if self.end > most_unpacked(self._file.tell()):
            raise TapeError(
                "limit",
                "it would be compressed so much that a reader takes it for an attack",
                path=self.path,
                advice="name it .tape",
            )

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """Turns errors of the system into TapeError."""
        try:
            yield
        except FileExistsError:
            raise TapeError("exists", "it is there already", path=self.path) from None
        except OSError as error:
            reason = f"cannot write it: {error.strerror or type(error).__name__}"
            advice = _ADVICE_OF_URL if _LOOKS_LIKE_URL.match(self.path) else None
            raise TapeError("io", reason, path=self.path, advice=advice) from None


def write_file(path: str | os.PathLike[str], data: bytes, *, overwrite: bool = False) -> None:
    """Writes bytes as a file that only its owner may read.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    file = OutputFile(path, overwrite=overwrite)
    try:
        file.append([data])
        file.finish()
    except BaseException:
        file.discard()
        raise


def settle(source: str, target: str, *, overwrite: bool) -> None:
    """Gives a whole file its final name, in the same file system.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    _refuse_device(target)
    try:
        if overwrite:
            os.replace(source, target)
        else:
            _move(source, target)
        _sync_folder(os.path.dirname(target))
    except FileExistsError:
        raise TapeError("exists", "it is there already", path=target) from None
    except OSError as error:
        reason = f"cannot write it: {error.strerror or type(error).__name__}"
        raise TapeError("io", reason, path=target) from None


def copy_tape(
    source: str,
    target: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
) -> None:
    """Copies a tape, compressed if the new name asks for it.

    Args:
        source: the path of a plain tape.
        target, overwrite, inputs: as :class:`OutputFile` has them.

    Raises:
        UsageError, TapeError: as :class:`OutputFile` does.
    """
    out = OutputFile(target, overwrite=overwrite, inputs=inputs, is_tape=True)
    try:
        with open(source, "rb") as file:
            while part := file.read(_BUFFER):
                out.append([part])
        out.finish()
    except BaseException:
        out.discard()
        raise


def _refuse_device(path: str) -> None:
    """Raises TapeError for what a file would take the place of, though it is none: ``/dev/null``, a
    named pipe."""
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise TapeError(
                "io", "it is no regular file, and none takes its place", path=path,
                advice="name a new file for the result",
            )  # fmt: skip


def refuse_inputs(path: str, inputs: Iterable[str]) -> None:
    """Raises ``UsageError`` if a file that is to be written is one of those that are read."""
    try:
        own = os.stat(path)
    except OSError:
        return
    for one in inputs:
        with contextlib.suppress(OSError):
            if os.path.samestat(own, os.stat(one)):
                raise UsageError(
                    "it is one of the tapes that are read, and none is changed in place",
                    path=path,
                    advice="name another file for the result",
                )


def _move(source: str, target: str) -> None:
    """Renames a file, but never onto another one."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(target):
            raise FileExistsError(target) from None
        os.rename(source, target)
        return
    os.unlink(source)


def _sync_folder(folder: str) -> None:
    with contextlib.suppress(OSError):  # not every system can
        descriptor = os.open(folder or ".", os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
