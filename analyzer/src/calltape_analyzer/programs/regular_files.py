"""Files of strangers that are no tapes: in comes a path, out go the bytes of a regular file, or a
TapeError for a link, a pipe and the like."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from calltape_analyzer.errors import TapeError
from calltape_analyzer.pytree.memory_limit import memory_limit_of

__all__ = ["digest_of", "open_regular", "read_json", "read_regular", "told_of"]

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
def told_of(path: str | os.PathLike[str], what: str) -> Iterator[None]:
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
