"""Files of strangers that are no tapes (docs/decisions/reading-untrusted-tapes.md).

Only regular files are read, and no more of them than is allowed. Of exported models, a ``.pt2`` is
code and is loaded only if it is trusted; an ``.onnx`` is data, and reads no files outside of its
folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any

from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.limits import memory_limit_of
from calltape_schema.remedies import Remedy

__all__ = [
    "EXPECTED_FILES",
    "as_tape_errors",
    "check_trusted",
    "digest_of",
    "is_pt2",
    "load_exported_program",
    "load_onnx_proto",
    "read_json",
    "read_regular",
    "reject_data_outside",
    "require_trust",
]  # fmt: skip

_CHUNK = 1024 * 1024
_ADVICE = "do not trust this file"
_MARKS, _VALUE_BYTES = (b",", b":", b"[", b"{"), 96
"""What a JSON text has at least one of for each value, and the memory that a value takes."""
_NO_FILE = "it is not a regular file, but a link, pipe or device"


@contextmanager
def open_regular(path: Path, *, follow: bool = False) -> Iterator[IO[bytes]]:
    """A regular file, open for reading. A pipe, which would block, is rejected, and so is a link:
    of a folder that a stranger made it may lead anywhere.

    Args:
        path: of the file.
        follow: whether a link is followed, because somebody named it.

    Raises:
        TapeError: ``not_found``, ``damaged`` if it is something else, or ``io``.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    try:
        # Asked before opening: to open a device may do something.
        if not stat.S_ISREG(os.stat(path, follow_symlinks=follow).st_mode):
            raise TapeError("damaged", _NO_FILE, path=str(path))
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise TapeError("not_found", f"there is no {path.name} here", path=str(path)) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENOTDIR):
            raise TapeError("damaged", _NO_FILE, path=str(path)) from None
        raise TapeError("io", f"cannot read it: {error.strerror}", path=str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TapeError("damaged", _NO_FILE, path=str(path))
    with open(descriptor, "rb") as file:
        yield file


def read_regular(path: Path, limit: int | None = None, *, follow: bool = False) -> bytes:
    """The bytes of a regular file: at most ``limit``; by default as many as may be made of what it
    takes on the disk, where a hole takes nothing.

    Raises:
        TapeError: as :func:`open_regular`, and ``limit`` if it has more than ``limit`` bytes.
    """
    with open_regular(path, follow=follow) as file:
        status = os.fstat(file.fileno())
        if limit is None:
            stored = getattr(status, "st_blocks", status.st_size) * 512
            limit = memory_limit_of(min(stored, status.st_size))
        # Not limit + 1: as much memory is taken before anything is read.
        data = file.read(min(limit, status.st_size) + 1)
    if len(data) > limit:
        reason = f"it is larger than {limit:,} bytes"
        raise TapeError("limit", reason, path=str(path), advice=_ADVICE)
    return data


def read_json(path: Path, limit: int) -> Any:
    """What the JSON of a regular file says. Its values are counted before they are made.

    Raises:
        TapeError: as :func:`read_regular`; ``limit`` if its values would take too much memory;
            ``invalid`` if it is no JSON.
    """
    data = read_regular(path, limit)
    values, most = sum(map(data.count, _MARKS)), memory_limit_of(len(data)) // _VALUE_BYTES
    if values > most:
        reason = f"its JSON has about {values:,} values; at most {most:,} are read"
        raise TapeError("limit", reason, path=str(path), advice=_ADVICE)
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TapeError("invalid", f"it is not valid JSON: {error}", path=str(path)) from None


@contextmanager
def as_tape_errors(path: str | os.PathLike[str], what: str) -> Iterator[None]:
    """Makes a TapeError of whatever a library raises that reads a file of a stranger.

    Args:
        path: of the file or folder.
        what: it is: ``the call``.

    Raises:
        TapeError: ``invalid``, or the one that was raised, with the path.
    """
    try:
        yield
    except TapeError as error:
        raise error.at(path=os.fspath(path)) from None
    except Exception as error:  # libraries raise errors of any type
        reason = f"{what} cannot be read: {type(error).__name__}: {str(error)[:200]}"
        raise TapeError("invalid", reason, path=os.fspath(path)) from None


def digest_of(path: Path) -> tuple[int, str]:
    """Size in bytes and SHA-256 of a regular file.

    Raises:
        TapeError: as :func:`open_regular`.
    """
    digest, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return size, digest.hexdigest()


EXPECTED_FILES = "pass an intact .onnx or .pt2 file, or a directory that calltape export saved"


def is_pt2(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a program of ``torch.export``, by its name."""
    return os.fspath(path).lower().endswith(".pt2")


def check_trusted(trusted: bool) -> None:
    """Raises UsageError for anything but True and False: ``"no"`` is true to Python."""
    if trusted is not True and trusted is not False:
        raise UsageError(f"trusted={trusted!r:.100}", advice="pass trusted=True or trusted=False")


def require_trust(path: str | os.PathLike[str], trusted: bool) -> None:
    """Rejects a ``.pt2`` that is not trusted.

    Raises:
        UsageError: it is not trusted; says why that is needed.
    """
    check_trusted(trusted)
    if not trusted:
        raise UsageError(
            "a .pt2 is code: torch evaluates the expressions in it, and unpickles what it holds, "
            "while loading it",
            path=os.fspath(path),
            advice=Remedy(
                "pass trusted=True; check of a directory that calltape export saved does not need "
                "it",
                "pass --trust; --dry-run with a directory that calltape export saved does not need "
                "it",
            ).after("if you would run code of its author, "),
        )


def load_exported_program(path: str | os.PathLike[str], *, trusted: bool) -> Any:
    """The ``torch.export.ExportedProgram`` of a ``.pt2``. This runs code that is in it.

    Raises:
        UsageError: it is not trusted.
        TapeError: ``invalid`` if torch cannot load it.
    """
    require_trust(path, trusted)
    import torch

    try:
        return torch.export.load(os.fspath(path))
    except Exception as error:  # torch raises errors of any type
        reason = f"torch cannot load it: {type(error).__name__}: {str(error)[:200]}"
        raise TapeError("invalid", reason, path=os.fspath(path), advice=EXPECTED_FILES) from None


def load_onnx_proto(model: str | os.PathLike[str] | bytes) -> Any:
    """The ``onnx.ModelProto`` of a file or of bytes, without its external data.

    Raises:
        TapeError: ``invalid`` if onnx cannot load it, or its data are outside of its folder.
    """
    import onnx

    path = None if isinstance(model, bytes) else os.fspath(model)
    if path is not None and os.path.exists(path) and not os.path.isfile(path):
        raise TapeError(
            "invalid", "it is not a file", path=path, advice=EXPECTED_FILES
        )  # a pipe would wait
    try:
        if isinstance(model, bytes):
            proto = onnx.load_model_from_string(model)
        else:
            proto = onnx.load(model, load_external_data=False)
    except Exception as error:  # protobuf raises errors of its own
        reason = f"onnx cannot load it: {type(error).__name__}: {str(error)[:200]}"
        raise TapeError("invalid", reason, path=path, advice=EXPECTED_FILES) from None
    reject_data_outside(proto, path)
    return proto


def reject_data_outside(proto: Any, path: str | None) -> None:
    """Rejects a model whose data are files outside of its folder: the ``location`` of external data
    is a path that its author chose.

    Args:
        proto: an ``onnx.ModelProto``.
        path: its file; None for a model in memory, which has no folder.

    Raises:
        TapeError: ``invalid``; names the location.
    """
    for location in sorted(set(_locations(proto))):
        if path is None:
            reason = f"a model in memory wants data from a file ({location[:100]!r})"
            raise TapeError("invalid", reason, advice="pass the path of its file")
        if not _is_beside(location, Path(path).parent):
            reason = f"its data are outside of its folder ({location[:100]!r})"
            advice = "do not trust this file; a model's data lie beside it"
            raise TapeError("invalid", reason, path=path, advice=advice)


def _is_beside(location: str, folder: Path) -> bool:
    parts = PurePosixPath(location).parts
    if not parts or ".." in parts or "\0" in location or "\\" in location:
        return False
    if PurePosixPath(location).is_absolute() or PureWindowsPath(location).drive:
        return False
    try:
        home = folder.resolve()
        target = (home / location).resolve()  # with links followed
        is_beside = target.is_relative_to(home)
        with suppress(FileNotFoundError, NotADirectoryError):  # there may be nothing to read
            is_beside = is_beside and stat.S_ISREG(target.stat().st_mode)
        return is_beside
    except (OSError, RuntimeError):  # the links are a circle (an OSError since Python 3.13)
        return False


def _locations(message: Any) -> Iterator[str]:
    """The locations of all tensors below a protobuf message: of initializers, sparse or not, of
    attributes, of subgraphs, of functions, of training graphs."""
    waiting = [message]
    while waiting:
        message_part = waiting.pop()
        if message_part.DESCRIPTOR.name == "TensorProto":
            yield from (e.value for e in message_part.external_data if e.key == "location")
            continue
        for field, value in message_part.ListFields():
            if field.message_type is None:
                continue
            # A repeated field is a container, which has no descriptor of a message.
            waiting += [value] if hasattr(value, "DESCRIPTOR") else value
