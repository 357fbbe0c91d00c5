"""Files and folders that get their name when they are complete.

Takes bytes, front to back. They go to a temporary file beside the final one. Returns the whole file
under its name, compressed if a tape's name asks for it (``.tape.gz``, ``.tape.zst``); a process
that is killed before leaves nothing there.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import secrets
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from typing_extensions import Self

from calltape_analyzer.errors import UsageError, to_install
from calltape_analyzer.reading.compressed import is_compressed, most_unpacked, zstd_module
from calltape_schema.errors import TapeError

__all__ = [
    "OutputFile",
    "TemporaryFolder",
    "compressor_of",
    "copy_tape",
    "create_file",
    "new_folder",
    "refuse_inputs",
    "settle",
    "write_file",
]


def is_temporary(holder: object, path: str) -> weakref.finalize[Any, Any]:
    """Makes a file or folder be removed when its holder is gone, or with the process. It is called
    before the file is made."""
    return weakref.finalize(holder, _remove, path, os.getpid())


def remove(temporary: weakref.finalize[Any, Any]) -> None:
    """Removes it now. If a signal ends this, it is removed later."""
    found = temporary.peek()
    if found is not None:
        _, function, arguments, _ = found
        function(*arguments)
        temporary.detach()


class TemporaryFolder:
    """A new folder that only its owner may read. It is removed at the end of the block, by
    :meth:`close`, when the object is gone, or with the process.

    Args:
        path: of the folder; without it, one in the system's folder for temporary files.

    Attributes:
        path: of the folder.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.gettempdir(), f"calltape-{secrets.token_hex(8)}")
        self._temporary = is_temporary(self, str(self.path))
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Removes it. It may be called again."""
        remove(self._temporary)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove(path: str, process: int) -> None:
    """Removes what this process made: at its end, a fork would remove that of its parent."""
    if os.getpid() == process:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                os.unlink(path)


_BUFFER = 1024 * 1024
_LOOKS_LIKE_URL = re.compile(r"[a-z][a-z0-9+.\-]+:/")  # of which a path has one slash
_ADVICE_OF_URL = "calltape writes only local files: write it here, and copy it to the URL"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


Compressor = Callable[[IO[bytes]], Any]
"""Opens a compressed stream to a file."""


class OutputFile:
    """A new file. As a context manager it is finished at the end of the block, and discarded if the
    block raises.

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
        with _as_tape_errors(self.path):
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.discard()

    def append(self, parts: Iterable[Any]) -> None:
        """Writes bytes, one part after the other.

        Raises:
            TapeError: ``io``.
        """
        with _as_tape_errors(self.path):
            for part in parts:
                self._file.write(part)
                self.end += len(part)

    def append_file(self, path: str | os.PathLike[str]) -> None:
        """Writes the bytes of a file.

        Raises:
            TapeError: ``io`` for either file.
        """
        with _as_tape_errors(os.fspath(path), "read"), open(path, "rb") as file:
            while part := file.read(_BUFFER):
                self.append([part])

    def cut(self, end: int) -> None:
        """Removes all bytes from an offset on.

        Raises:
            TapeError: ``io``.
        """
        with _as_tape_errors(self.path):
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
            with _as_tape_errors(self.path):
                if self._compressor is not None:
                    self._compress(self._compressor)
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                settle(self._beside, self.path, overwrite=self._overwrite)
                self._temporary.detach()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the temporary file. It may be called at any time, and again."""
        with contextlib.suppress(OSError):
            self._file.close()
        remove(self._temporary)

    def _open(self) -> None:
        """Makes a new temporary file."""
        folder, name = os.path.split(self.path)
        self._beside = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        # A signal may end this before anybody has the object, and so could discard it.
        self._temporary = is_temporary(self, self._beside)
        descriptor = os.open(self._beside, _FLAGS, 0o600)
        with contextlib.suppress(OSError):  # some file systems have no permissions
            os.fchmod(descriptor, self._mode)
        self._file = open(descriptor, "wb", buffering=_BUFFER)  # noqa: SIM115

    def _compress(self, compressor: Compressor) -> None:
        """Puts a compressed temporary file in the place of the plain one: bytes can be cut off the
        plain one only."""
        self._file.close()
        plain, temporary = self._beside, self._temporary
        try:
            with open(plain, "rb") as source:
                self._open()
                with compressor(self._file) as target:
                    shutil.copyfileobj(source, target, _BUFFER)
        finally:
            remove(temporary)
        if self.end > most_unpacked(self._file.tell()):
            raise TapeError(
                "limit",
                "it would be compressed so much that a reader takes it for an attack",
                path=self.path,
                advice="name it .tape",
            )


def compressor_of(path: str) -> Compressor | None:
    """What compresses a tape of this name; None if the name does not ask for it.

    Raises:
        TapeError: ``usage``: Zstandard is not installed.
    """
    if not is_compressed(path):
        return None
    if path.endswith(".gz"):
        # No name and no time: equal tapes are equal files.
        return lambda file: gzip.GzipFile("", "wb", fileobj=file, mtime=0)
    module = zstd_module()
    if module is None:
        raise TapeError(
            "usage",
            "this Python has no Zstandard, for which the name of the tape asks",
            path=path,
            advice=f"{to_install('zstd')}; or choose a name that ends with .tape or .tape.gz",
        )
    return lambda file: module.ZstdFile(file, "w")


def write_file(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    overwrite: bool = False,
    inputs: Iterable[str] = (),
) -> None:
    """Writes bytes as a file that only its owner may read.

    Args:
        path, overwrite, inputs: as :class:`OutputFile` has them.
        data: the bytes.

    Raises:
        UsageError, TapeError: as :class:`OutputFile` does.
    """
    with OutputFile(path, overwrite=overwrite, inputs=inputs) as file:
        file.append([data])


def settle(source: str, target: str, *, overwrite: bool) -> None:
    """Gives a whole file or folder its final name, in the same file system.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    _refuse_device(target)
    with _as_tape_errors(target):
        if overwrite:
            os.replace(source, target)
        else:
            try:  # never onto another one
                os.link(source, target)
            except FileExistsError:
                raise
            except OSError:  # a folder, or a file system without links
                if os.path.lexists(target):
                    raise FileExistsError(target) from None
                os.rename(source, target)
            else:
                os.unlink(source)
        with contextlib.suppress(OSError):  # not every system can
            descriptor = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


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
    with OutputFile(target, overwrite=overwrite, inputs=inputs, is_tape=True) as out:
        out.append_file(source)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside ``path``, which gets this name at the end of the block; it is removed if
    the block fails. Only its owner may read it.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    final = Path(path)
    if os.path.lexists(final):
        advice = "name another file or folder"
        raise TapeError("exists", "it is there already", path=str(final), advice=advice)
    hidden = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    with _as_tape_errors(str(final)), TemporaryFolder(hidden) as beside:
        yield beside
        settle(str(beside), str(final), overwrite=False)


def create_file(path: Path) -> BinaryIO:
    """Makes a file that only its owner may read, whatever the umask is, and opens it for
    writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextlib.contextmanager
def _as_tape_errors(path: str, verb: str = "write") -> Iterator[None]:
    """Turns errors of the system into TapeError."""
    try:
        yield
    except FileExistsError:
        raise TapeError("exists", "it is there already", path=path) from None
    except OSError as error:
        reason = f"cannot {verb} it: {error.strerror or type(error).__name__}"
        advice = _ADVICE_OF_URL if _LOOKS_LIKE_URL.match(path) else None
        raise TapeError("io", reason, path=path, advice=advice) from None


def _refuse_device(path: str) -> None:
    """Raises TapeError for what a file would take the place of, though it is none: ``/dev/null``, a
    named pipe."""
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise TapeError(
                "io", "it is not a regular file, and is not replaced", path=path,
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
