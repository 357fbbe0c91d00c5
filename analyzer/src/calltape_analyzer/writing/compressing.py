"""Compresses a new tape if its name asks for it: ``.tape.gz`` and ``.tape.zst``.

In comes a name. Out goes what opens a compressed stream to a file.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import IO, Any

from calltape_analyzer.reading.compressed import is_compressed, zstd_module
from calltape_schema.errors import TapeError

__all__ = ["Compressor", "compressor_of"]

Compressor = Callable[[IO[bytes]], Any]


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
            "its name asks for Zstandard, which this Python cannot write",
            path=path,
            advice="install calltape-analyzer[zstd], or name it .tape or .tape.gz",
        )
    return lambda file: module.ZstdFile(file, "w")
