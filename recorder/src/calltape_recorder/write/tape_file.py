"""A tape file of a recording: what is written to it, and what becomes of it on the disk."""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from calltape_recorder.bounds import OWNER_ONLY
from calltape_recorder.write.disk_file import DiskFile
from calltape_schema import TapeError
from calltape_schema.end import Coverage, Dump, End, decode_end
from calltape_schema.groups import Append
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import Manifest
from calltape_schema.tar import BLOCK, parse_header
from calltape_schema.writer import TapeWriter

__all__ = ["SUFFIXES", "CompressedFile", "Compressor", "TapeFile", "compressor"]

# The two forms in which a complete tape may be compressed, and where its end is then.
#
# In come bytes, out go compressed ones. The end is in a frame of its own at the end, so that it
# is read without the rest.

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
    """A compressor for one frame of this form, ``zstd`` or ``gz``.

    Raises:
        TapeError: ``usage`` if this Python cannot write the form.
    """
    if form == "gz":
        return zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP)
    module = _zstd()
    parameters = module.CompressionParameter
    options = {parameters.compression_level: _ZSTD_LEVEL, parameters.checksum_flag: 1}
    return module.ZstdCompressor(options=options)  # type: ignore[no-any-return]


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


class TapeFile(DiskFile):
    """A tape file. Only this process writes it, and only one thread at a time.

    Args:
        path, overwrite, mode: as of :class:`DiskFile`.

    Attributes:
        evidence: how many of its calls were like none before.
        end_start: where its end begins, in bytes; None before it is sealed.
        size: of the file, in bytes.
        calls: how many calls it has.

    Raises:
        TapeError: at construction, ``exists`` or ``io``.
    """

    def __init__(self, path: str, overwrite: bool, mode: int = OWNER_ONLY) -> None:
        super().__init__(path, overwrite, mode)
        self.evidence = 0
        self.end_start: int | None = None
        self.size = self.calls = 0
        self._writer: TapeWriter | None = None  # until it is closed
        self._compressed: CompressedFile | None = None

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

    def seal(
        self, coverage: Coverage, dumps: tuple[Dump, ...], fits: Callable[[int], bool],
        *, continues: bool,
    ) -> None:  # fmt: skip
        """Writes the end. Then the tape is complete.

        Raises:
            OSError: it is not written.
        """
        writer = self._open
        begin = writer.end
        writer.seal(coverage, dumps=dumps, continues=continues, fits=fits)
        self.size, self.end_start = writer.end, begin

    def rewind(self) -> None:
        """Removes all calls from the file.

        Raises:
            OSError: the file cannot be cut.
        """
        writer = self._open
        writer.rewind()
        self.size, self.calls = writer.end, writer.calls

    def became_compressed(self, other: CompressedFile) -> None:
        """Notes that a compressed file has taken the place of this one, which was sealed."""
        self._compressed = other
        self.became(other.path, other.identity)
        self.size = other.size

    def read_end(self) -> End | None:
        """The written end; None if there is none, or if the file is gone or damaged."""
        start, packed = self.end_start, self._compressed
        if start is None:
            return None
        try:
            if packed is None:
                tail = self.read_from(start)
            else:
                tail = packed.unpacked(self.read_from(packed.tail))
            found = parse_header(tail[:BLOCK], start)
            return None if found is None else decode_end(tail[BLOCK : BLOCK + found.size])
        except (OSError, TapeError):
            return None

    def close(self) -> None:
        """Closes the file; it may be called twice."""
        super().close()
        self._writer = None
