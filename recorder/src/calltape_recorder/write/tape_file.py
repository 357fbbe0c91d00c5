"""A tape file of a recording: what is written to it, and what becomes of it on the disk."""

from __future__ import annotations

from collections.abc import Callable

from calltape_recorder.bounds import OWNER_ONLY
from calltape_recorder.write.disk_file import DiskFile
from calltape_schema import TapeError
from calltape_schema.end import End, decode_end
from calltape_schema.endings import Coverage, Dump
from calltape_schema.groups import Append
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import Manifest
from calltape_schema.tar import BLOCK, parse_header
from calltape_schema.writer import TapeWriter

__all__ = ["TapeFile"]


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

    def read_end(self) -> End | None:
        """The written end; None if there is none, or if the file is gone or damaged."""
        start = self.end_start
        if start is None:
            return None
        try:
            tail = self.read_from(start)
            found = parse_header(tail[:BLOCK], start)
            return None if found is None else decode_end(tail[BLOCK : BLOCK + found.size])
        except (OSError, TapeError):
            return None

    def close(self) -> None:
        """Closes the file; it may be called twice."""
        super().close()
        self._writer = None
