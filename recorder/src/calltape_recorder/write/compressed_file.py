"""The two forms in which a complete tape may be compressed, and where its end is then.

In come bytes, out go compressed ones. The end is in a frame of its own at the end, so that it
is read without the rest.
"""

from __future__ import annotations

import importlib
import zlib
from typing import Any, NamedTuple, Protocol

from calltape_schema import TapeError

__all__ = ["SUFFIXES", "CompressedFile", "Compressor", "check_form", "compressor"]

SUFFIXES = {"zstd": ".zst", "gz": ".gz"}
"""What is added to the name of a file, by form."""

_GZIP = 16 + zlib.MAX_WBITS  # zlib writes, and reads, the frame of gzip
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 3


class Compressor(Protocol):
    """Compresses one frame."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class CompressedFile(NamedTuple):
    """A compressed file that took the place of a tape.

    Attributes:
        form: ``zstd`` or ``gz``.
        path: of the file.
        size: of the file, in bytes.
        identity: device and inode.
        tail: the offset of the frame that has the end.
    """

    form: str
    path: str
    size: int
    identity: tuple[int, int]
    tail: int

    def unpacked(self, frame: bytes) -> bytes:
        """The bytes of the frame of the end.

        Raises:
            OSError: they are damaged.
        """
        try:
            if self.form == "gz":
                return zlib.decompress(frame, _GZIP)
            return bytes(_zstd().decompress(frame))
        except Exception as error:
            raise OSError(str(error)) from None


def compressor(form: str) -> Compressor:
    """A compressor for one frame of this form, ``zstd`` or ``gz``."""
    if form == "gz":
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    module = _zstd()
    parameters = module.CompressionParameter
    options = {parameters.compression_level: _ZSTD_LEVEL, parameters.checksum_flag: 1}
    return module.ZstdCompressor(options=options)  # type: ignore[no-any-return]


def check_form(form: Any) -> None:
    """Raises TapeError (``usage``) if this is no form, or one that this Python cannot write."""
    if form is not None and form not in SUFFIXES:
        advice = "pass 'zstd', 'gz' or None"
        raise TapeError("usage", f"compress={form!r:.100}", advice=advice)
    if form == "zstd":
        _zstd()


def _zstd() -> Any:
    """Zstandard, of Python itself from 3.14 on."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise TapeError(
        "usage", "compress='zstd' needs Zstandard, which this Python does not have",
        advice="install calltape-recorder[zstd], or pass compress='gz'",
    )  # fmt: skip
