"""Reads a tape: its manifest, its end, its calls, and what is damaged.

A reader has two starts. From the end of a sealed tape it learns what the model was called with, in
two reads. From the front it walks over all members, which finds every call of any tape. It decodes
tables only; a record is decoded when somebody asks for it.
"""

from __future__ import annotations

import struct
import threading
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
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
    check_table,
    group_of,
    opened,
)
from calltape_schema.inputs_table import InputsTable, Row, u64s
from calltape_schema.leaves import Leaf
from calltape_schema.records import Manifest, decode_manifest
from calltape_schema.storage import Source, Window
from calltape_schema.tar import (
    BLOCK,
    END_MEMBER,
    MANIFEST,
    Member,
    blob_number,
    is_group,
    members,
    parse_header,
)

__all__ = ["Scan", "TapeReader", "TensorPlace"]

_HEAD_BYTES, _BLOB_HEAD_BYTES = 16 * 1024, 4 * 1024
_STEP = 1024 * 1024
_ONE = struct.Struct("<QQQ")  # the table of a group of one call
_MOST_GROUPS, _MOST_BLOBS = 8, 64

Report = Callable[[TapeError], None]


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


class Scan:
    """What a walk over a tape found. The arrays have an element per call, in file order.

    Attributes:
        numbers, inputs, places: as those of a :class:`~calltape_schema.groups.Group`.
        groups: per call the position of its group.
        offsets: per group where its member begins.
        end: the end of a sealed tape; None if it is not sealed.
        tensor_bytes: the size of all blobs.
        unfinished: how many bytes at the end belong to calls that were being written.
        damage: everything that was found wrong.
    """

    def __init__(self) -> None:
        self.numbers, self.inputs, self.places = array("Q"), array("Q"), array("Q")
        self.groups = array("I")
        self.offsets = array("Q")
        self.end: End | None = None
        self.tensor_bytes = self.unfinished = 0
        self.damage: list[TapeError] = []
        self._positions: dict[int, int] | None = None
        self._highest = -1
        self._known: set[int] | None = None  # the numbers, as soon as one is not the highest so far

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def ascends(self) -> bool:
        """Whether the calls are in the order of their numbers, as nearly always."""
        return self._known is None

    def raised(self, at: int) -> bool:
        """Whether a call raised."""
        return bool(self.places[at] >> 32 & RAISED)

    def has_ranges(self, at: int) -> bool:
        """Whether the inputs of a call have ranges."""
        return bool(self.places[at] >> 32 & HAS_RANGES)

    def add(self, table: bytes, found: Member) -> None:
        """Adds the calls of a group, whose table was checked.

        Raises:
            TapeError: ``damaged`` if one of them is there already: then none is added.
        """
        if len(table) == _ONE.size:  # nearly each group of a paced recording
            number, key, place = _ONE.unpack(table)
            if number <= self._highest:
                self._expect_new(array("Q", [number]))
            self._highest = max(self._highest, number)
            self.groups.append(len(self.offsets))
            self.numbers.append(number)
            self.inputs.append(key)
            self.places.append(place)
        else:
            columns = u64s(table)
            numbers = columns[::3]
            self._expect_new(numbers)
            self._highest = max(self._highest, numbers[-1])
            self.groups.extend([len(self.offsets)] * len(numbers))
            self.numbers += numbers
            self.inputs += columns[1::3]
            self.places += columns[2::3]
        self.offsets.append(found.offset)

    def position(self, number: int) -> int | None:
        """The position of a call; None if there is none of this number."""
        if self.ascends:
            at = bisect_left(self.numbers, number)
            return at if at < len(self) and self.numbers[at] == number else None
        if self._positions is None:
            self._positions = {number: at for at, number in enumerate(self.numbers)}
        return self._positions.get(number)

    def extent(self, group: int) -> tuple[int, int, int]:
        """How many calls a group has, the lowest and the highest of their numbers."""
        first = bisect_left(self.groups, group)
        numbers = self.numbers[first : bisect_left(self.groups, group + 1, first)]
        return len(numbers), min(numbers), max(numbers)

    def place(self, at: int) -> tuple[int, int]:
        """The offset of the group of a call, and the position of the call there."""
        group = self.groups[at]
        return self.offsets[group], at - bisect_left(self.groups, group)

    def remove(self, strangers: list[int]) -> None:
        """Removes the calls of these groups, and says so."""
        for group in strangers:
            calls = self.groups.count(group)
            reason = f"{calls} calls are skipped: the index of the tape does not have them here"
            self.damage.append(TapeError("damaged", reason, offset=self.offsets[group]))
        dropped = set(strangers)
        kept = [at for at, group in enumerate(self.groups) if group not in dropped]
        for column in (self.numbers, self.inputs, self.places, self.groups):
            column[:] = array(column.typecode, [column[at] for at in kept])

    def _expect_new(self, numbers: array[int]) -> None:
        before = self._highest
        for number in numbers:
            if number <= before:
                break
            before = number
        else:
            return
        # A set of all numbers takes longer than a walk: nearly always numbers ascend.
        if self._known is None:
            self._known = set(self.numbers)
        new = set(numbers)
        if len(new) != len(numbers) or not new.isdisjoint(self._known):
            raise TapeError("damaged", "a call of the group has the number of another one")
        self._known |= new
        self._highest = max(self._highest, *new)


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
        self._recent: OrderedDict[int, Group] = OrderedDict()
        self._entries: OrderedDict[int, tuple[dict[str, blob.Entry], int]] = OrderedDict()
        self._whole: dict[int, bool] = {}
        self._lock = threading.RLock()
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

    def scan(self) -> Scan:
        """Walks over the tape, once. No tensor bytes are read."""
        if self._scan is None:
            self._scan = _Walk(self).run()
        return self._scan

    def group(self, offset: int) -> Group:
        """The group whose header is at this offset.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        with self._lock:
            known = self._recent.get(offset)
            if known is None:
                known = self._recent[offset] = self._read_group(offset)
                if len(self._recent) > _MOST_GROUPS:
                    self._recent.popitem(last=False)
            self._recent.move_to_end(offset)
        return known

    def _read_group(self, offset: int) -> Group:
        found = parse_header(self.source.read_at(offset, BLOCK), offset)
        if found is None or not is_group(found.name):
            raise TapeError("damaged", "no group of records begins here", offset=offset)
        group = group_of(_content(self.source.read_at, found))
        if group.tape != self.manifest.tape:
            raise _of_another_tape()
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
                scan.damage.append(error.at(offset=offset))

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
            TapeError: ``no_value`` if they are not on the tape; ``damaged``, ``invalid``, ``limit``.
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
                holder = self.record(number)
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

    def tensor(self, record: GroupedRecord, leaf: Leaf) -> bytes:
        """The bytes of a leaf. The checksum of their blob is compared, the first time.

        Raises:
            TapeError: as :meth:`place`.
        """
        place = self.place(record, leaf)
        self.check_blob(record if place.call == record.call else self.record(place.call))
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
        with self._lock:
            known = self._entries.get(record.call)
            if known is None:
                known = self._entries[record.call] = self._read_blob(self.blob_member(record))
                if len(self._entries) > _MOST_BLOBS:
                    self._entries.popitem(last=False)
        return known

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
    if found is None or found.name != MANIFEST:
        raise TapeError("not_a_tape", "the first member is no manifest of a tape")
    if found.start + found.size > source.size:
        raise TapeError("damaged", "the manifest is cut short", member=MANIFEST, offset=0)
    if found.start + found.size > len(head) and found.size <= MAX_MEMBER_BYTES:
        head += source.read_at(len(head), found.start + found.size - len(head))
    try:
        content = _content(lambda offset, size: head[offset : offset + size], found)
        return decode_manifest(content), found.end
    except TapeError as error:
        raise error.at(member=MANIFEST, offset=0) from None


def _content(read: Callable[[int, int], bytes], found: Member) -> bytes:
    """The content of a msgpack member."""
    if found.size > MAX_MEMBER_BYTES:
        reason = f"a member has {found.size} bytes (at most {MAX_MEMBER_BYTES})"
        raise TapeError("limit", reason)
    content = read(found.offset + BLOCK, found.size)
    if len(content) != found.size:
        raise TapeError("damaged", "the file is shorter now")
    return content


def _of_another_tape() -> TapeError:
    return TapeError("damaged", "a group belongs to another tape")


class _Walk:
    """Walks over the members of one tape."""

    def __init__(self, reader: TapeReader) -> None:
        self._reader = reader
        self._source = reader.source
        self._tape = reader.manifest.tape
        self._read = Window(reader.source).read
        self._scan = Scan()
        self._held: TapeError | None = None  # the last damage, until a member follows it
        self._blob: int | None = None  # where blobs begin that wait for their group

    def run(self) -> Scan:
        scan, source = self._scan, self._source
        start = self._reader.start
        for found in members(self._read, source.size, self._hold, start, source.next_data):
            self._release()
            if found.name[:6] == "blobs/":
                scan.tensor_bytes += found.size
                if self._blob is None:
                    self._blob = found.offset
                continue
            try:
                self._add(found)
            except TapeError as error:
                scan.damage.append(error.at(member=found.name, offset=found.offset))
        if scan.end is None:
            self._end_unsealed()
        else:
            self._release()
            _compare(scan, scan.end)
        return scan

    def _add(self, found: Member) -> None:
        if is_group(found.name):
            self._blob = None
            tape, table, documents, size = opened(_content(self._read, found))
            if tape != self._tape:
                raise _of_another_tape()
            check_table(table, size or len(documents))
            self._scan.add(table, found)
        elif found.name == END_MEMBER:
            end = decode_end(_content(self._read, found))
            if end.tape != self._reader.manifest.tape:
                raise TapeError("damaged", "the end belongs to another tape")
            self._scan.end = end

    def _hold(self, error: TapeError) -> None:
        """Holds damage back until it is known whether a member follows: at the end of an unsealed
        tape, a member that is cut short is a call that was being written."""
        self._release()
        self._held = error

    def _release(self) -> None:
        if self._held is not None:
            self._scan.damage.append(self._held)
            self._held = None

    def _end_unsealed(self) -> None:
        size, held = self._source.size, self._held
        if held is not None and not _is_cut_short(held, size):
            self._release()
            held = None
        torn = size if held is None else held.offset or 0
        self._scan.unfinished = size - min(torn, size if self._blob is None else self._blob)


def _is_cut_short(error: TapeError, size: int) -> bool:
    """Whether the file ends like one whose writer was interrupted: within a member of calls, or
    within a header."""
    if error.member == END_MEMBER:
        return False
    return error.member is not None or size - (error.offset or 0) < BLOCK


def _compare(scan: Scan, end: End) -> None:
    """Compares the groups that were found with the index of a sealed tape. A group that is not in
    the index is no part of the tape, but bytes inside a damaged tensor."""
    coverage = end.coverage
    accounted = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen != accounted:
        reason = f"the end says that {coverage.seen} calls were seen, but accounts for {accounted}"
        scan.damage.append(TapeError("damaged", reason, member=END_MEMBER))
    try:
        index = {entry.offset: entry for entry in end.groups()}
    except TapeError as error:
        scan.damage.append(error.at(member=END_MEMBER))
        return
    found = set(scan.offsets)
    known = {error.offset for error in scan.damage}
    for offset, entry in index.items():
        if offset not in found and offset not in known:
            reason = f"{entry.named} are lost: by the index of the tape, they were here"
            scan.damage.append(TapeError("damaged", reason, offset=offset))
    for group, offset in enumerate(scan.offsets):
        told = index.get(offset)
        if told is not None and told[1:] != scan.extent(group):
            reason = f"by the index of the tape, {told.named} are here"
            scan.damage.append(TapeError("damaged", reason, offset=offset))
    strangers = [at for at, offset in enumerate(scan.offsets) if offset not in index]
    if strangers:
        scan.remove(strangers)
    if not scan.damage and not end.elsewhere:
        _compare_table(scan, end)


def _compare_table(scan: Scan, end: End) -> None:
    """Compares the calls that were found with the table of inputs."""
    try:
        table = end.table()
    except TapeError as error:
        scan.damage.append(error.at(member=END_MEMBER))
        return
    if table is None:
        return
    found = Counter(scan.inputs)
    is_true = all(row.kept == found.pop(key, 0) for key, row in table.rows.items())
    # The others are counted by kind, and each of them has no room among the rows.
    rest = sum([kind.kept for kind in table.kinds.values()]) + table.other.kept
    if not is_true or found.total() != rest:
        reason = "the table of inputs does not count the calls of the tape"
        scan.damage.append(TapeError("damaged", reason, member=END_MEMBER))
