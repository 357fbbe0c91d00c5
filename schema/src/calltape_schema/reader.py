"""Reads a tape: its manifest, its end, its calls, and what is damaged.

A reader has two starts. From the end of a sealed tape it learns what the model was called with, in
two reads. From the front it walks over all members, which finds every call of any tape. It decodes
tables only; a record is decoded when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

from calltape_schema import blob
from calltape_schema.bounds import MAX_MEMBER_BYTES, TAIL_BYTES
from calltape_schema.checksum import crc32
from calltape_schema.end import End, IndexEntry, decode_end, end_offset
from calltape_schema.errors import TapeError
from calltape_schema.groups import (
    HAS_RANGES,
    RAISED,
    Group,
    GroupedRecord,
    group_of,
)
from calltape_schema.inputs_table import InputsTable, Row
from calltape_schema.leaves import Leaf
from calltape_schema.recent import Recent
from calltape_schema.records import Manifest, decode_manifest
from calltape_schema.scanning import Scan, Walk, Watch, content_of, of_another_tape
from calltape_schema.storage import Source
from calltape_schema.tar import (
    BLOCK,
    END_MEMBER,
    MANIFEST,
    Member,
    blob_number,
    is_group,
    parse_header,
)

__all__ = ["Scan", "TapeReader", "TensorPlace"]

_HEAD_BYTES, _BLOB_HEAD_BYTES = 16 * 1024, 4 * 1024
_STEP = 1024 * 1024
_ENTRY_COST = 300  # a tensor of a blob, as Python objects

_recent = Recent()  # of all readers of a process: each of a thousand files would keep its own
_readers = count()


class TensorPlace(NamedTuple):
    """Where the bytes of a tensor are.

    Attributes:
        call: the number of the call whose blob has them.
        offset: in the file, in bytes.
        entry: what the blob says of the tensor.
    """

    call: int
    offset: int
    entry: blob.Entry


class TapeReader:
    """One tape. It does not close the source.

    Attributes:
        source: of its bytes.
        manifest: of the tape.
        end: what the end of a sealed tape says; None if the tape is not sealed, or if its end
            cannot be read. Nothing of it was compared with the records.

    Raises:
        TapeError: ``io``, ``not_a_tape``, ``version``, ``damaged`` or ``invalid``.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.manifest, self.start = _manifest_of(source)
        self.end = self._end()
        self._name = next(_readers)
        self._whole: dict[int, bool] = {}
        self._scan: Scan | None = None
        self._index: list[IndexEntry] | None = None

    def _end(self) -> End | None:
        source = self.source
        start = max(source.size - TAIL_BYTES, 0)
        tail = source.read_at(start, TAIL_BYTES)
        offset = end_offset(tail, source.size)
        if offset is None or offset < self.start:
            return None
        if offset < start:
            tail = source.read_at(offset, start - offset) + tail
            start = offset
        data = tail[offset - start :]
        found = parse_header(data[:BLOCK], offset)
        if found is None or found.name != END_MEMBER or found.size > len(data):
            return None
        try:
            end = decode_end(data[BLOCK : BLOCK + found.size])
        except TapeError:
            return None  # the walk reports it
        return end if end.tape == self.manifest.tape else None

    def scan(self, watch: Watch = lambda found, size: found) -> Scan:
        """Walks over the tape, once. No tensor bytes are read.

        Args:
            watch: sees the members as the walk comes to them.
        """
        if self._scan is None:
            self._scan = Walk(self.source, self.manifest.tape, self.end).run(self.start, watch)
        return self._scan

    def group(self, offset: int) -> Group:
        """The group whose header is at this offset.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        key = self._name, "group", offset
        found: Group | None = _recent.get(key)
        if found is None:
            found = self._read_group(offset)
            _recent.keep(key, found, found.cost)
        return found

    def _read_group(self, offset: int) -> Group:
        found = parse_header(self.source.read_at(offset, BLOCK), offset)
        if found is None or not is_group(found.name):
            raise TapeError("damaged", "no group of records begins here", offset=offset)
        group = group_of(content_of(self.source.read_at, found))
        if group.tape != self.manifest.tape:
            raise of_another_tape()
        return group

    def record(self, number: int) -> GroupedRecord:
        """The record of a call.

        Raises:
            TapeError: ``usage`` if there is no such call; ``damaged``, ``invalid`` or ``limit``.
        """
        offset, at = self._found(number)
        try:
            return self.group(offset).record(at)
        except TapeError as error:
            raise error.at(offset=offset) from None

    def records(self) -> Iterator[GroupedRecord]:
        """The records of all calls, in file order. What is wrong with one is added to the damage of
        the scan."""
        scan = self.scan()
        for at in range(len(scan)):
            try:
                yield self.group_record(at)
            except TapeError as error:
                offset = scan.offsets[scan.groups[at]]
                error.reason = f"call {scan.numbers[at]} is skipped: {error.reason}"
                scan.report(error.at(offset=offset))

    def group_record(self, at: int) -> GroupedRecord:
        """The record of a call, by its position in the scan.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        offset, place = self.scan().place(at)
        return self.group(offset).record(place)

    def document(self, at: int) -> dict[str, Any]:
        """The document of a record, by its position in the scan: it is as the checksum says, and
        was not compared with the format.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        offset, place = self.scan().place(at)
        return self.group(offset).whole_document(place)

    def inputs(self) -> InputsTable:
        """The counted inputs of all calls on the tape, by the tables of its groups. One record is
        decoded for the inputs of many calls, and each that has ranges.

        Raises:
            TapeError: a record that was decoded is broken.
        """
        scan = self.scan()
        rows: dict[int, Row] = {}
        for at, (number, key, place) in enumerate(
            zip(scan.numbers, scan.inputs, scan.places, strict=True)
        ):
            row = rows.get(key)
            if row is None:
                offset, there = scan.place(at)
                parts = self.group(offset).inputs_of(there)
                row = rows[key] = Row(*parts, number, number)
            row.count(number, kept=True, raised=bool(place >> 32 & RAISED))
            if place >> 32 & HAS_RANGES:
                offset, there = scan.place(at)
                row.widen(self.group(offset).ranges_of(there))
        table = InputsTable()
        for key, row in rows.items():
            table.add_row(key, row)
        return table

    def place(self, record: GroupedRecord, leaf: Leaf) -> TensorPlace:
        """Where the bytes of a leaf are: in the blob of its call, or of the one that ``at`` names.

        Raises:
            TapeError: ``no_value`` if they are not on the tape; ``damaged``, ``invalid`` or
                ``limit``.
        """
        if leaf.key is None:
            raise TapeError("no_value", f"the value is not on the tape: {leaf.missing}")
        key, holder = leaf.key, record
        reference = record.reference(key)
        if reference is not None:
            number, key = reference
            if number >= record.call:
                reason = f"call {record.call} refers to call {number}, which is no earlier one"
                raise TapeError("invalid", reason)
            try:
                holder = self.holder(number)
            except TapeError as error:
                error.reason = f"call {record.call} refers to call {number}: {error.reason}"
                raise
        entries, start = self._blob(holder)
        entry = entries.get(key)
        if entry is None:
            raise TapeError("invalid", f"the blob of call {holder.call} has no tensor {key[:80]!r}")
        wanted = blob.stored_as(leaf)
        if wanted is None or (entry.dtype, entry.shape) != (wanted.dtype, wanted.shape):
            reason = f"tensor {key[:80]!r} of call {holder.call} is not as its leaf says"
            raise TapeError("invalid", reason)
        return TensorPlace(holder.call, start + entry.begin, entry)

    def holder(self, number: int) -> GroupedRecord:
        """The record of a call that has tensors for other ones. It is asked for with each of them,
        and decoded once.

        Raises:
            TapeError: as :meth:`record`.
        """
        key = self._name, "record", number
        found: GroupedRecord | None = _recent.get(key)
        if found is None:
            found = self.record(number)
            tensors = len(found.inputs.leaves) + len(found.outputs.leaves if found.outputs else b"")
            _recent.keep(key, found, 8 * tensors)
        return found

    def tensor(self, record: GroupedRecord, leaf: Leaf) -> bytes:
        """The bytes of a leaf. The checksum of their blob is compared, the first time.

        Raises:
            TapeError: as :meth:`place`.
        """
        place = self.place(record, leaf)
        self.check_blob(record if place.call == record.call else self.holder(place.call))
        size = place.entry.end - place.entry.begin
        data = self.source.read_at(place.offset, size)
        if len(data) != size:
            raise TapeError("damaged", "the file is shorter now")
        return data

    def check_blob(self, record: GroupedRecord) -> None:
        """Compares the blob of a call with its checksum. Its bytes are read the first time only.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        is_whole = self._whole.get(record.call)
        if is_whole is None:
            found = self.blob_member(record)
            total = 0
            for offset in range(found.start, found.start + found.size, _STEP):
                size = min(_STEP, found.start + found.size - offset)
                total = crc32(self.source.read_at(offset, size), total)
            assert record.blob is not None
            is_whole = self._whole[record.call] = total == record.blob.crc32
        if not is_whole:
            reason = f"the tensors of call {record.call} do not match their checksum"
            raise TapeError("damaged", reason)

    def blob_member(self, record: GroupedRecord) -> Member:
        """The member with the tensors of a call.

        Raises:
            TapeError: ``damaged`` if it is not where the record says; ``no_value`` without a blob.
        """
        stored = record.blob
        if stored is None:
            raise TapeError("no_value", f"call {record.call} has no blob")
        group, _ = self._found(record.call)
        offset = group - stored.back
        found = None
        if self.start <= offset < group:
            found = parse_header(self.source.read_at(offset, BLOCK), offset)
        if (
            found is None
            or blob_number(found.name) != record.call
            or found.size != stored.size
            or found.end > group
        ):
            raise TapeError("damaged", f"the tensors of call {record.call} are not there")
        return found

    def _blob(self, record: GroupedRecord) -> tuple[dict[str, blob.Entry], int]:
        """The tensors of a call's blob, and where their bytes begin in the file."""
        key = self._name, "blob", record.call
        found: tuple[dict[str, blob.Entry], int] | None = _recent.get(key)
        if found is None:
            found = self._read_blob(self.blob_member(record))
            _recent.keep(key, found, _ENTRY_COST * len(found[0]))
        return found

    def _read_blob(self, found: Member) -> tuple[dict[str, blob.Entry], int]:
        head = self.source.read_at(found.start, min(_BLOB_HEAD_BYTES, found.size))
        size = blob.header_size(head, found.size)
        if size > len(head):
            head += self.source.read_at(found.start + len(head), size - len(head))
        return blob.parse_header(head[:size], found.size), found.start + size

    def _found(self, number: int) -> tuple[int, int]:
        """The offset of the group of a call, and its position there. Without a scan, the index of a
        sealed tape tells."""
        index = self._indexed()
        if index is not None:
            for entry in index:
                if entry.low <= number <= entry.high:
                    numbers = self.group(entry.offset).numbers
                    if number in numbers:
                        return entry.offset, numbers.index(number)
        else:
            scan = self.scan()
            at = scan.position(number)
            if at is not None:
                return scan.place(at)
        raise TapeError("usage", f"there is no call {number}")

    def _indexed(self) -> list[IndexEntry] | None:
        """The index of a sealed tape; None if the scan tells where calls are."""
        if self._scan is None and self.end is not None and self._index is None:
            try:
                self._index = self.end.groups()
            except TapeError:
                self.scan()
        return self._index if self._scan is None else None


def _manifest_of(source: Source) -> tuple[Manifest, int]:
    """The manifest, and where the next member begins."""
    head = source.read_at(0, _HEAD_BYTES)
    found = parse_header(head[:BLOCK], 0)
    is_cut = len(head) < BLOCK and head.startswith(MANIFEST.encode())
    if not is_cut and (found is None or found.name != MANIFEST):
        raise TapeError("not_a_tape", "the first member is no manifest of a tape")
    if found is None or found.start + found.size > source.size:
        raise TapeError("damaged", "the manifest is cut short", member=MANIFEST, offset=0)
    if found.start + found.size > len(head) and found.size <= MAX_MEMBER_BYTES:
        head += source.read_at(len(head), found.start + found.size - len(head))
    try:
        content = content_of(lambda offset, size: head[offset : offset + size], found)
        return decode_manifest(content), found.end
    except TapeError as error:
        raise error.at(member=MANIFEST, offset=0) from None
