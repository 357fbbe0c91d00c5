"""Writes a sealed tape, call by call.

In come calls of other tapes, or records with the values of their tensors. Out goes one file. Memory
holds a group of records, a window of one blob, 16 bytes per call and the distinct inputs (up to
65,536), however large the tape is.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from typing_extensions import Self

from calltape_analyzer.errors import UsageError
from calltape_analyzer.reading.call import Call
from calltape_analyzer.writing.encoded_records import blob_of, encoded, renumbered
from calltape_analyzer.writing.gathered_records import Group
from calltape_analyzer.writing.output_file import OutputFile
from calltape_analyzer.writing.stored_values import stored_bytes, stored_form
from calltape_schema.blob import Stored, build_header
from calltape_schema.checksum import crc32
from calltape_schema.endings import Coverage, Dump, Trailer, encode_trailer
from calltape_schema.errors import TapeError
from calltape_schema.framing import (
    END,
    MANIFEST,
    SUMMARY,
    TRAILER,
    blob_name,
    member_header,
    padding,
    record_name,
)
from calltape_schema.locator import Locator, with_locator
from calltape_schema.records import BlobFacts, CallRecord, Manifest, encode_manifest
from calltape_schema.summary import LEAST_CALLS, encode_summary
from calltape_schema.summing import CallFacts, SummaryBuilder, facts_of
from calltape_schema.traffic import Traffic

__all__ = ["LEFT_OUT", "TapeWriter"]

LEFT_OUT = "not extracted"
"""The reason of calls that are left out of a new tape because they were not wanted."""

# The index stands in one member, whose size is limited.
_MOST_CALLS = 4_000_000


class TapeWriter:
    """A new tape. It gets its name when the ``with`` block ends after :meth:`seal`; if the block
    ends before, there is no file.

    ::

        with TapeWriter("small.tape", tape.manifest, inputs=tape.paths) as writer:
            for call in tape.calls[:10]:
                writer.copy(call)
            writer.seal()

    Args:
        path: of the new file. One whose name ends with ``.tape.gz`` or ``.tape.zst`` is compressed.
        manifest: its first member. Its id is that of all calls on the tape.
        overwrite: whether a file that is there already is replaced.
        inputs: the files that are read meanwhile; none of them is ever replaced.
        mode: the permissions of the file.

    Attributes:
        calls: how many calls were written.

    Raises:
        UsageError: the path is one of the inputs.
        TapeError: ``exists`` or ``io``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        manifest: Manifest,
        *,
        overwrite: bool = False,
        inputs: Iterable[str] = (),
        mode: int = 0o600,
    ) -> None:
        self.calls = 0
        self._tape = manifest.tape
        self._file = OutputFile(path, overwrite=overwrite, inputs=inputs, mode=mode, is_tape=True)
        self._index = array("Q")
        self._group = Group()  # small records that wait for their member
        self._sums = SummaryBuilder()
        self._last = -1  # the highest number
        self._last_ns = manifest.created_ns
        self._known: set[int] | None = None
        self._is_sealed = False
        try:
            self._member(MANIFEST, encode_manifest(manifest))
        except BaseException:
            self._file.discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None and self._is_sealed:
            self._file.finish()
        else:
            self._file.discard()

    def copy(self, call: Call, *, number: int | None = None) -> None:
        """Writes a recorded call as it is. Its tensors are compared with their checksum, and never
        all in memory.

        Args:
            call: the call.
            number: its number on the new tape; by default the one that it has.

        Raises:
            UsageError: there is a call of this number already.
            TapeError: ``damaged`` or ``invalid`` for a damaged call, of which nothing is written
                then; ``io``, ``limit``.
        """
        number = call.number if number is None else number
        content = call.raw_record()
        blob = blob_of(content)
        if (call.ref.tape, call.number) != (self._tape, number):
            content = renumbered(content, self._tape, number)
        self._expect_new(number)
        if blob is None:
            self._commit(number, None, content, facts_of(content))
            return
        self._write_group()
        start = self._file.end
        self._file.append([member_header(blob_name(number), blob.size)])
        if not self._copied(call, blob):
            self._file.cut(start)
            raise call.blob_damage()
        self._file.append([bytes(padding(blob.size))])
        self._commit(number, start, content, facts_of(content))

    def write(self, record: CallRecord, values: Mapping[str, Any] | None = None) -> None:
        """Writes a call that is given by its record.

        Args:
            record: everything but the values of tensors. Its ``call`` is the number on the new
                tape; ``tape`` and ``blob`` are replaced by those of the new tape.
            values: for the ``key`` of each leaf its value: a tensor or an array of the leaf's dtype
                and shape, or bytes as FORMAT.md has them.

        Raises:
            UsageError: there is a call of this number already; a key has no value, or one that does
                not fit.
            TapeError: ``invalid`` or ``limit`` if the record breaks the format, ``io``.
        """
        trees = [record.inputs] if record.outputs is None else [record.inputs, record.outputs]
        parts: dict[str, tuple[Stored, Any]] = {}
        for tree in trees:
            tree.spec()
            for leaf in tree.facts():
                if leaf.key is None:
                    continue
                if values is None or leaf.key not in values:
                    raise UsageError(f"the leaf {leaf.key} has no value")
                form, known = stored_form(leaf), parts.get(leaf.key)
                if known is None:
                    parts[leaf.key] = form, stored_bytes(leaf, values[leaf.key])
                elif known[0] != form:
                    raise UsageError(f"two leaves of different form have the key {leaf.key}")
        self._expect_new(record.call)
        start, facts, blob = None, None, list[Any]()
        if parts:
            header = build_header({key: stored for key, (stored, _) in parts.items()})
            blob = [header, *(data for _, data in parts.values())]
            facts = BlobFacts(size=sum(map(len, blob)), crc32=_checksum(blob))
        content = encoded(record, self._tape, facts)
        if facts is not None:
            self._write_group()
            start = self._file.end
            self._file.append([member_header(blob_name(record.call), facts.size), *blob])
            self._file.append([bytes(padding(facts.size))])
        self._last_ns = max(self._last_ns, record.time_ns)
        self._commit(record.call, start, content, facts_of(content))

    def seal(
        self,
        coverage: Coverage | None = None,
        *,
        traffic: Traffic | None = None,
        dumps: Sequence[Dump] = (),
        closed_ns: int | None = None,
    ) -> None:
        """Writes the trailer. No call may follow.

        Args:
            coverage: how many calls were seen, kept and dropped. By default, the numbers of the
                calls tell, and numbers that are missing were not wanted.
            traffic: counters of all calls that were seen; None if they are not known for the calls
                of this tape.
            dumps: of a flight recorder.
            closed_ns: when the recording ended, Unix time in nanoseconds.

        Raises:
            UsageError: the coverage has another number of calls.
            TapeError: ``io``, ``limit``.
        """
        if coverage is None:
            missing = self._last + 1 - self.calls
            dropped = {LEFT_OUT: missing} if missing else {}
            coverage = Coverage(seen=self._last + 1, kept=self.calls, dropped=dropped)
        if coverage.kept != self.calls:
            raise UsageError(f"coverage of {coverage.kept} calls for a tape of {self.calls}")
        if sys.byteorder != "little":
            self._index.byteswap()
        trailer = Trailer(
            tape=self._tape,
            closed_ns=self._last_ns if closed_ns is None else closed_ns,
            coverage=coverage,
            index=self._index.tobytes(),
            traffic=traffic,
            dumps=tuple(dumps),
        )
        self._write_group()
        content, start = encode_trailer(trailer), self._file.end
        summary = self._sums.summary(trailer) if self.calls >= LEAST_CALLS else None
        if summary is not None:
            self._member(SUMMARY, encode_summary(summary))
            locator = Locator(trailer=self._file.end, summary=start)
            content = with_locator(content, locator)
        self._member(TRAILER, content)
        self._file.append([END])
        self._is_sealed = True

    def _copied(self, call: Call, blob: BlobFacts) -> bool:
        """Copies a blob. Returns whether it is whole."""
        found, size = 0, 0
        for part in call.raw_blob(blob.size):
            found = crc32(part, found)
            size += len(part)
            self._file.append([part])
        return (size, found) == (blob.size, blob.crc32)

    def _expect_new(self, number: int) -> None:
        if self._is_sealed:
            raise UsageError("the tape is sealed, and takes no more calls")
        if self.calls >= _MOST_CALLS:
            reason = f"one tape holds at most {_MOST_CALLS} calls"
            raise TapeError("limit", reason, advice="write several tapes, and open them together")
        if number > self._last:
            return
        if self._known is None:  # calls nearly always come in the order of their numbers
            self._known = set(self._index[::2])
        if number in self._known:
            raise UsageError(f"there is a call {number} on the new tape already")

    def _commit(self, number: int, start: int | None, content: bytes, facts: CallFacts) -> None:
        """Writes a record.

        Args:
            number: of the call.
            start: where its blob begins; None for a call without a blob.
            content: the record.
            facts: for the summary.
        """
        if start is None:
            start = self._gather(number, content, facts.structure)
        else:
            try:
                self._member(record_name(number), content)
            except BaseException:
                self._file.cut(start)
                raise
        self._sums.add(facts)
        self._index.extend((number, start))
        self._last = max(self._last, number)
        if self._known is not None:
            self._known.add(number)
        self.calls += 1

    def _gather(self, number: int, content: bytes, structure: bytes) -> int:
        """Keeps a record for the group that will stand at the end of the file, and gives the offset
        of that group. A large record gets a member of its own."""
        if self._group.add(number, content, structure):
            return self._file.end
        self._write_group()
        start = self._file.end
        if not self._group.add(number, content, structure):
            self._member(record_name(number), content)
        return start

    def _write_group(self) -> None:
        """Writes the records that wait."""
        if self._group:
            self._member(*self._group.member())
            self._group = Group()

    def _member(self, name: str, content: bytes) -> None:
        header = member_header(name, len(content))
        self._file.append([header, content, bytes(padding(len(content)))])


def _checksum(parts: Iterable[Any]) -> int:
    found = 0
    for part in parts:
        found = crc32(part, found)
    return found
