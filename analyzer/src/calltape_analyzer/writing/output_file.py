"""Files and folders that get their final name only when they are complete.

Bytes go to a temporary file next to the final one, so a process that is killed leaves no partial
file under the final name. Tapes are compressed if their name asks for it (``.tape.gz``,
``.tape.zst``).
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
    "move_into_place",
    "new_folder",
    "reject_inputs",
    "write_file",
]


_BUFFER = 1024 * 1024
_LOOKS_LIKE_URL = re.compile(r"[a-z][a-z0-9+.\-]+:/")  # one slash, as a path object has it
_ADVICE_ON_URLS = "calltape writes only local files: write it here, and copy it to the URL"
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


Compressor = Callable[[IO[bytes]], Any]
"""Opens a compressed stream that writes to a file."""


class Temporary:
    """A file or folder that is removed by :meth:`remove`, when its owner is garbage-collected, or
    when the process ends. Register it before it exists, so that no signal can leave it behind."""

    def __init__(self, owner: object, path: str) -> None:
        self._finalizer = weakref.finalize(owner, self.delete, path, os.getpid())

    def remove(self) -> None:
        """Removes it now, or later if a signal interrupts this."""
        registered = self._finalizer.peek()
        if registered is not None:
            _, unlink, arguments, _ = registered
            unlink(*arguments)
            self._finalizer.detach()

    def keep(self) -> None:
        """Cancels the removal."""
        self._finalizer.detach()

    @staticmethod
    def delete(path: str, process: int) -> None:
        if os.getpid() == process:  # a fork must not remove files of its parent
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(path)


class TemporaryFolder:
    """A new folder that only its owner may read. It is removed at the end of the ``with`` block, by
    :meth:`close`, when the object is garbage-collected, or when the process ends.

    Args:
        path: the path of the folder; by default, one in the system's temporary folder.

    Attributes:
        path: the path of the folder.

    Raises:
        OSError: the folder cannot be created.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or Path(tempfile.gettempdir(), f"calltape-{secrets.token_hex(8)}")
        self._temporary = Temporary(self, str(self.path))
        self.path.mkdir(mode=0o700)

    def close(self) -> None:
        """Removes the folder. Further calls do nothing."""
        self._temporary.remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()


class OutputFile:
    """A new file. As a context manager, it is finished at the end of the block, and discarded if
    the block raises.

    Args:
        path: the path of the final file.
        overwrite: whether to replace an existing file.
        inputs: paths of files that are read meanwhile, which are never replaced.
        mode: the permissions, regardless of the umask.
        is_tape: whether to compress the file if its name asks for it (``.tape.gz``).

    Attributes:
        path: the path of the final file.
        end: how many bytes were written.

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
        reject_inputs(self.path, inputs)
        if not overwrite and os.path.lexists(self.path):
            raise TapeError("exists", "it is there already", path=self.path)
        _reject_device(self.path)
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
        """Appends parts, which are bytes-like objects.

        Raises:
            TapeError: ``io``.
        """
        with _as_tape_errors(self.path):
            for part in parts:
                self._file.write(part)
                self.end += len(part)

    def append_file(self, path: str | os.PathLike[str]) -> None:
        """Appends the bytes of a file.

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
            TapeError: ``io``; ``exists`` if a file of this name appeared meanwhile; ``limit`` if
                compression would be so strong that readers reject the file.
        """
        try:
            with _as_tape_errors(self.path):
                if self._compressor is not None:
                    self._compress(self._compressor)
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                move_into_place(self._temporary_path, self.path, overwrite=self._overwrite)
                self._temporary.keep()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Removes the temporary file. Further calls do nothing."""
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.remove()

    def _open(self) -> None:
        """Creates a temporary file."""
        folder, name = os.path.split(self.path)
        self._temporary_path = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        self._temporary = Temporary(self, self._temporary_path)
        descriptor = os.open(self._temporary_path, _FLAGS, 0o600)
        with contextlib.suppress(OSError):  # some file systems have no permissions
            os.fchmod(descriptor, self._mode)
        self._file = open(descriptor, "wb", buffering=_BUFFER)  # noqa: SIM115

    def _compress(self, compressor: Compressor) -> None:
        """Replaces the temporary file by a compressed one. That is done at the end, because
        :meth:`cut` needs a plain file."""
        self._file.close()
        plain, temporary = self._temporary_path, self._temporary
        try:
            with open(plain, "rb") as source:
                self._open()
                with compressor(self._file) as target:
                    shutil.copyfileobj(source, target, _BUFFER)
        finally:
            temporary.remove()
        if self.end > most_unpacked(self._file.tell()):
            raise TapeError(
                "limit",
                "it would be compressed so much that a reader takes it for an attack",
                path=self.path,
                advice="name it .tape",
            )


def compressor_of(path: str) -> Compressor | None:
    """The compressor for a tape of this name; None if it is not compressed.

    Raises:
        TapeError: ``usage`` if Zstandard is needed but not installed.
    """
    if not is_compressed(path):
        return None
    if path.endswith(".gz"):
        # Without name and time, so that equal tapes become equal files.
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
    """Writes bytes to a file that only its owner may read.

    Args:
        path, overwrite, inputs: as for :class:`OutputFile`.
        data: the bytes.

    Raises:
        UsageError, TapeError: as for :class:`OutputFile`.
    """
    with OutputFile(path, overwrite=overwrite, inputs=inputs) as file:
        file.append([data])


def move_into_place(source: str, target: str, *, overwrite: bool) -> None:
    """Renames a complete file or folder to its final name in the same file system.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    _reject_device(target)
    with _as_tape_errors(target):
        if overwrite:
            os.replace(source, target)
        else:
            try:  # unlike rename, link never replaces a file
                os.link(source, target)
            except FileExistsError:
                raise
            except OSError:  # a folder, or a file system without links
                if os.path.lexists(target):
                    raise FileExistsError(target) from None
                os.rename(source, target)
            else:
                os.unlink(source)
        with contextlib.suppress(OSError):  # not all systems can sync a folder
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
    """Copies a tape, and compresses it if the new name asks for it.

    Args:
        source: the path of an uncompressed tape.
        target, overwrite, inputs: as for :class:`OutputFile`.

    Raises:
        UsageError, TapeError: as for :class:`OutputFile`.
    """
    with OutputFile(target, overwrite=overwrite, inputs=inputs, is_tape=True) as out:
        out.append_file(source)


@contextlib.contextmanager
def new_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder that only its owner may read. It is renamed to ``path`` at the end of the block,
    and removed if the block raises.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    final = Path(path)
    if os.path.lexists(final):
        advice = "name another file or folder"
        raise TapeError("exists", "it is there already", path=str(final), advice=advice)
    hidden = final.with_name(f".{final.name}.{secrets.token_hex(8)}")
    with _as_tape_errors(str(final)), TemporaryFolder(hidden) as folder:
        yield folder
        move_into_place(str(folder), str(final), overwrite=False)


def create_file(path: Path) -> BinaryIO:
    """Creates a file that only its owner may read, and opens it for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


@contextlib.contextmanager
def _as_tape_errors(path: str, verb: str = "write") -> Iterator[None]:
    """Turns ``OSError`` into ``TapeError``."""
    try:
        yield
    except FileExistsError:
        raise TapeError("exists", "it is there already", path=path) from None
    except OSError as error:
        reason = f"cannot {verb} it: {error.strerror or type(error).__name__}"
        advice = _ADVICE_ON_URLS if _LOOKS_LIKE_URL.match(path) else None
        raise TapeError("io", reason, path=path, advice=advice) from None


def _reject_device(path: str) -> None:
    """Raises ``TapeError`` for a device or a named pipe, which a rename would replace."""
    with contextlib.suppress(OSError):
        mode = os.stat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise TapeError(
                "io", "it is not a regular file, and is not replaced", path=path,
                advice="name a new file for the result",
            )  # fmt: skip


def reject_inputs(path: str, inputs: Iterable[str]) -> None:
    """Raises ``UsageError`` if a file to write is one of the files that are read."""
    try:
        status = os.stat(path)
    except OSError:
        return
    for one in inputs:
        with contextlib.suppress(OSError):
            if os.path.samestat(status, os.stat(one)):
                raise UsageError(
                    "it is one of the tapes that are read, and none is changed in place",
                    path=path,
                    advice="name another file for the result",
                )
