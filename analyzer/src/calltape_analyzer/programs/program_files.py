"""The files in a folder of saved programs: read, and told apart from links and pipes."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from calltape_analyzer.errors import TapeError

__all__ = ["MANIFEST", "SHAPES", "digest_of", "open_regular", "read_regular"]

MANIFEST, SHAPES = "manifest.json", "shapes.json"
_CHUNK = 1024 * 1024


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """A regular file, open for reading. A link is refused, and so is a pipe, which would block.

    Raises:
        TapeError: ``not_found``, ``damaged`` if it is something else, or ``io``.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TapeError("not_found", f"there is no {path.name} here", path=str(path)) from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.ENOTDIR):
            raise TapeError("damaged", "it is no file", path=str(path)) from None
        raise TapeError("io", f"cannot read it: {error.strerror}", path=str(path)) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TapeError("damaged", "it is no file", path=str(path))
    with open(descriptor, "rb") as file:
        yield file


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file.

    Raises:
        TapeError: as :func:`open_regular`, and ``limit`` if it has more than ``limit`` bytes.
    """
    with open_regular(path) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise TapeError("limit", f"it is larger than {limit} bytes", path=str(path))
    return data


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
