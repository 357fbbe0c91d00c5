"""One tape file: what it says of itself, and which calls it has.

In comes a path. Out go the manifest, the end, and the calls at their positions; what is damaged is
added to a list. The bytes are understood by :class:`calltape_schema.reader.TapeReader` alone.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from calltape_analyzer.errors import UsageError
from calltape_analyzer.progress import steps
from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.damage import Damage, is_damage
from calltape_analyzer.reading.file_descriptors import DescriptorError
from calltape_analyzer.reading.tape_file import TapeBytes, TapeFile, is_ahead
from calltape_analyzer.reading.urls import is_url, local_path
from calltape_schema.blob import Stored, build_header, joined, stored_as
from calltape_schema.bounds import MAX_COUNT
from calltape_schema.end import Coverage, End
from calltape_schema.errors import Kind, TapeError
from calltape_schema.groups import CALL_BYTES
from calltape_schema.inputs_table import InputsTable
from calltape_schema.packing import crc32, pack
from calltape_schema.reader import Extent, Holder, TapeReader, TensorPlace
from calltape_schema.records import BlobFacts, CallRecord, Manifest, Source, Tree, encode_manifest
from calltape_schema.scan import Scan
from calltape_schema.tar import END_MEMBER, Member, group_name
from calltape_schema.tree import Leaf

__all__ = [
    "LEFT_OUT",
    "UNDER_WAY",
    "UNDER_WAY_WORDS",
    "UNSEALED",
    "InputsOfCalls",
    "Segment",
    "no_single_call",
]

T = TypeVar("T")

UNDER_WAY = "under way"
"""The reason why a call that was written ahead has no outputs."""
UNDER_WAY_WORDS = "under way when the process died"
UNSEALED = "unknown (the tape is not sealed)"
"""The reason of missing calls if no end says what became of them."""

LEFT_OUT = "not extracted"
"""The reason of calls that are left out of a new tape because they were not wanted."""

_TRIES = 5
_PART = 1024 * 1024

# Flags of a call: its blob was compared with the checksum, and is whole or not; its damage is told.
_WHOLE, _BROKEN, _TOLD = 1, 2, 4


class InputsOfCalls(NamedTuple):
    """Equal inputs of calls of one file.

    Attributes:
        inputs: as in their records, with the ranges of all these calls.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: the lowest and the highest of their numbers.
    """

    inputs: Tree
    raised: bool
    calls: int
    first: int
    last: int


class Segment:
    """One open tape file.

    A sealed file with a table of counted inputs is not scanned until somebody asks for a single
    call. Calls are told apart by their position: where the scan found them.

    Attributes:
        path: as people may see it: without what is secret in a URL.
        location: what opens the file again.
        manifest: of the file.
        size: in bytes, when it was opened.
        damage: gets what is wrong with single calls.
        left_out: how many of its calls are in another file too, and count there.
        copies: the locations of files that have calls of this one too, and were closed.

    Args:
        path: of a file, or a URL.
        damage: gets what is wrong with single calls.
        scan: whether the file is scanned now, and its table compared with the records. None for a
            file that is not scanned before somebody asks for a call, with a table or without; then
            :meth:`scan` raises what is wrong with it.

    Raises:
        TapeError: ``not_found``, ``io``, ``not_a_tape``, ``version``, ``damaged`` or ``invalid``
            (the last two if it is the manifest that is wrong).
    """

    def __init__(self, path: str, damage: Damage, *, scan: bool | None = False) -> None:
        self.damage = damage
        self.left_out = 0
        self.copies: list[str] = []
        self._found: Scan | None = None
        self._rows: list[InputsOfCalls] | None = None
        self._ranges: dict[int, dict[int, tuple[int, int]]] | None = None
        self._order: array[int] | None = None
        self._table: InputsTable | None = None
        self._end: End | None = None
        self._checked = bytearray()
        self._whole: Container[int] = ()  # calls whose blobs were found whole last
        self._summed = -1, 0  # the call whose tensors were summed up last, and their bytes
        self._ahead: tuple[int, bytes] | None = None
        self._lock = threading.RLock()
        self._file = _opened_file(path)
        self.path, self.location = self._file.path, self._file.location
        try:
            self._reader = TapeReader(self._file)
            self.manifest: Manifest = self._reader.manifest
            self._read_end()
            if scan or (scan is not None and self._table is None):
                self.scan()
        except TapeError as error:
            self.close()
            raise error.at(path=self.path) from None
        except BaseException:
            self.close()
            raise
        self.size = self._file.size

    def _read_end(self) -> None:
        """Takes what the end says, if it has a table of the inputs."""
        end = self._reader.end
        if end is None or is_ahead(self.path):
            return
        if not end.elsewhere and end.coverage.kept * CALL_BYTES > self._file.size:
            return  # it claims more calls than the file can have; the scan reports it
        with contextlib.suppress(TapeError):  # the scan reports it
            self._table = end.table()
        if end.elsewhere and self._table is None:
            self._table = InputsTable()  # there is nothing else
        if self._table is not None:
            self._end = end
            self._file.expect_unchanged(self._reader.start, is_sealed=True)

    @property
    def unscanned_end(self) -> End | None:
        """What the end of the file says of its calls, while that is all that is known of them; None
        once the file was scanned, or a part of its calls was chosen."""
        return self._end if self._found is None and self._order is None else None

    @property
    def elsewhere(self) -> bool:
        """Whether this is a survey: its calls are on other tapes."""
        return self._end is not None and bool(self._end.elsewhere)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The recordings of its calls."""
        steps = self.manifest.history or ()
        if self.elsewhere and steps and steps[-1].sources:
            return tuple(steps[-1].sources)
        return (Source(tape=self.manifest.tape, parts=((self.part, self.part),)),)

    @cached_property
    def recordings(self) -> dict[bytes, int]:
        """Their ids, with what was added to the numbers of their calls."""
        return {source.tape: source.first for source in self.sources}

    def ref(self, number: int) -> CallRef:
        """The call of a number: of a survey, the call of the recording that it counts."""
        if not self.elsewhere:
            return CallRef(self.manifest.tape, number)
        before = [(first, tape) for tape, first in self.recordings.items() if first <= number]
        first, tape = max(before, default=(0, self.manifest.tape))
        return CallRef(tape, number - first)

    @property
    def is_scanned(self) -> bool:
        """Whether the file was scanned, so that each of its calls is known."""
        return self._found is not None

    @property
    def end(self) -> End | None:
        """What the end of the file says of all calls; None if it is not sealed."""
        if self._found is None and self._end:
            return self._end
        self.scan()
        return self._reader.end

    @property
    def table(self) -> InputsTable | None:
        """What the end says of the inputs of all calls that were seen, kept or not; None if it does
        not."""
        self.end  # noqa: B018 - a scan may show that it is forged
        return self._table

    # --- which calls there are ---------------------------------------------------------------

    def scan(self) -> None:
        """Finds every call of the file, if that was not done yet. What its end says is compared
        with the calls; a difference is damage."""
        if self.elsewhere:
            raise no_single_call()
        with self._lock:
            if self._found is None:
                self._scan_now()

    def _scan_now(self) -> None:
        before = self.manifest
        if self._end is not None and not self._file.refresh():
            raise self._file.changed("its end was read before")
        found = self._scanned()
        if encode_manifest(self.manifest) != encode_manifest(before):  # a NaN equals itself there
            raise self._file.changed("it is another tape")
        self._checked = bytearray(len(found))
        if is_ahead(self.path) and len(found):
            self._ahead = self._raw_group(found)
        if self._order is None:
            self._order = found.order
        self._table = found.table
        self._found = found  # last, because other threads ask for it

    def _scanned(self) -> Scan:
        """What is in the file. If the file changed during the walk, the walk is repeated: what
        looked like damage was another call."""
        for tries in range(_TRIES, -1, -1):
            try:
                self._reader = TapeReader(self._file)
                self.manifest = self._reader.manifest
                found = self._reader.scan(_watched)
                is_sealed = self._reader.end is not None
                self._file.expect_unchanged(self._reader.start, is_sealed=is_sealed)
            except TapeError as error:
                if not is_damage(error) or not tries or not self._has_changed():
                    raise
                self._expect_no_end()
            else:
                if not found.damage or not tries or not self._has_changed():
                    for wrong in found.damage:
                        self.damage.add(wrong.at(path=self.path))
                    self.damage.add_more(found.more_damage)
                    return found
                self._expect_no_end()
        raise AssertionError

    def _expect_no_end(self) -> None:
        """A file that had its end may not change any more."""
        if self._end is not None:
            raise self._file.changed("its end was read before")

    def _has_changed(self) -> bool:
        # Of a write-ahead file, size and time do not tell: another call may have as many bytes,
        # and be written within a tick of the clock.
        return not self._file.refresh() or is_ahead(self.path)

    def _raw_group(self, found: Scan) -> tuple[int, bytes]:
        offset = found.offsets[0]
        return offset, self._file.read_at(offset, min(self._file.size - offset, _PART))

    @property
    def _scan(self) -> Scan:
        found = self._found
        if found is None:
            self.scan()
            found = self._found
            assert found is not None
        return found

    @property
    def unfinished(self) -> int:
        """How many bytes at the end belong to a call that was being written."""
        return 0 if self._found is None and self._end else self._scan.unfinished

    @property
    def order(self) -> array[int]:
        """The positions of the calls, in the order of their numbers. In the file, they stand in the
        order in which they were written, and threads may end in another order. Whoever sets it
        leaves calls out."""
        if self._order is None:
            self.scan()
        assert self._order is not None
        return self._order

    @order.setter
    def order(self, positions: array[int]) -> None:
        self._order = positions
        self._ranges = None

    def __len__(self) -> int:
        return len(self.order) if self.unscanned_end is None else self.unscanned_end.coverage.kept

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest number of the calls in its list, of which there are some."""
        if self.unscanned_end is not None and self.extent is not None:
            return self.extent
        if self.elsewhere:
            return 0, MAX_COUNT
        return self.number(self.order[0]), self.number(self.order[-1])

    @property
    def extent(self) -> tuple[int, int] | None:
        """The lowest and the highest number of its calls, those that were left out too; None
        without calls."""
        end = self._end
        if self._found is None and end is not None:
            low, high = end.first_call, end.last_call
            return None if low is None or high is None else (low, high)
        numbers = self._scan.numbers
        return (min(numbers), max(numbers)) if numbers else None

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """When the first call began and the last one ended, Unix time in nanoseconds; without an
        end, the first and the last one by number. None if nobody knows."""
        found = self.unscanned_end
        if found is not None:
            first, last = found.first_ns, found.last_ns
            return None if first is None or last is None else (first, last)
        times: list[int] = []
        for position in {self.order[0], self.order[-1]} if len(self) else ():
            with contextlib.suppress(TapeError):  # a look at the call tells
                record = self.record(position)
                times += [record.time_ns, record.time_ns + (record.duration_ns or 0)]
        return (min(times), max(times)) if times else None

    @property
    def disk_bytes(self) -> int:
        """How many of its bytes are stored on a disk; of a file on a web server, how many came."""
        return self._file.disk_bytes

    @property
    def tensor_bytes(self) -> int:
        """The sizes of all blobs together, as its end or a scan found them."""
        return self._scan.tensor_bytes if self.end is None else self.end.tensor_bytes

    @property
    def closed(self) -> bool:
        return self._file.is_closed

    def close(self) -> None:
        self._file.close()

    @property
    def coverage(self) -> Coverage:
        """How many calls were seen, kept and dropped: by the end, or without one by the numbers of
        the calls that were found."""
        if self.end is not None:
            return _sound(self.end.coverage)
        if self.is_ahead:
            return Coverage(seen=len(self), kept=len(self), at_least=True)
        segment = self.manifest.segment
        return coverage_without_end(
            self._scan.numbers, 0 if segment is None else segment.first_call
        )

    @property
    def is_ahead(self) -> bool:
        """Whether this is a write-ahead file: its only call was under way, or it has no call and
        the name of such a file."""
        return self._is_ahead

    @cached_property
    def _is_ahead(self) -> bool:
        if self.end is not None or len(self._scan) > 1:
            return False
        if not len(self._scan):
            return is_ahead(self.path)
        try:
            return self.record(0).outputs_missing == UNDER_WAY
        except DescriptorError:
            raise
        except TapeError:
            return False  # the error is raised again when the call is read

    @property
    def recording(self) -> bytes:
        """The id that the files of its recording share."""
        return self.manifest.tape

    @property
    def part(self) -> int:
        """The number of this file among the files of its recording."""
        return 0 if self.manifest.segment is None else self.manifest.segment.number

    def leave_out(self, numbers: Container[int]) -> None:
        """Removes calls from the list, because they are in another file too."""
        order, all_numbers = self.order, self._scan.numbers
        self.order = array("Q", (p for p in order if all_numbers[p] not in numbers))
        self.left_out += len(order) - len(self.order)

    def drop_damaged(self) -> None:
        """Removes the calls that are known to be damaged from the list."""
        if self.is_scanned:
            self.order = array("Q", (p for p in self.order if not self._checked[p] & _TOLD))

    # --- inputs of many calls ----------------------------------------------------------------

    def summed_inputs(self) -> list[InputsOfCalls] | None:
        """The distinct inputs of its calls by the table of its end, in the order of their first
        calls; None if the file was scanned, or if the table does not tell them all apart. If it
        cannot be read, that is damage."""
        if self.unscanned_end is None:
            return None
        if self._rows is None:
            try:
                assert self._table is not None
                self._rows = self._surveyed() if self.elsewhere else _rows_of(self._table)
            except TapeError as error:
                broken = _stale(str(error.reason), error.kind).at(path=self.path, member=END_MEMBER)
                if self.elsewhere:
                    self.damage.add(broken)
                    self._rows = []
                    return self._rows
                self.scan()
                if self._table is not None:  # else the scan tells
                    self.damage.add(broken)
                    self._table = None
            if self._rows is None:
                self.scan()
        return self._rows

    def _surveyed(self) -> list[InputsOfCalls]:
        """The inputs of a survey. Calls of which only the kind is known are told."""
        assert self._table is not None
        others = sum(one.kept for one in (*self._table.kinds.values(), self._table.other))
        if others:
            reason = (
                f"the inputs of {others:,} calls are left out: there are too many different ones"
            )
            advice = "survey fewer tapes at once"
            self.damage.add(TapeError("limit", reason, path=self.path, advice=advice))
        found: list[InputsOfCalls] = []
        for row in self._table.rows.values():
            raised = min(row.raised, row.kept)
            for calls, has_raised in ((row.kept - raised, False), (raised, True)):
                if calls:
                    tree = _inputs(row.tree())
                    found.append(InputsOfCalls(tree, has_raised, calls, row.first, row.last))
        return sorted(found, key=lambda one: (one.first, one.raised))

    def inputs_number(self, position: int) -> int:
        """A number that is equal for calls of equal inputs that both raised, or both did not. No
        record is decoded for this."""
        return self._scan.inputs[position] << 1 | self._scan.raised(position)

    def ranges_at(self, position: int) -> tuple[tuple[int, int, int], ...]:
        """Leaf, smallest and largest element of all calls in its list that returned and whose
        inputs equal those of a call. Records that have ranges are decoded for it, once."""
        found = self._all_ranges().get(self.inputs_number(position), {})
        return tuple((leaf, low, high) for leaf, (low, high) in sorted(found.items()))

    def check_table(self) -> None:
        """Compares the ranges in the table of the end with those of the records, if all of these
        are whole."""
        if self._table is not None and not self.damaged:
            self._all_ranges()

    def _all_ranges(self) -> dict[int, dict[int, tuple[int, int]]]:
        if self._ranges is None:
            self._ranges = {}
            for at in self.order:
                if self._scan.has_ranges(at) and not self._scan.raised(at):
                    spans = self._ranges.setdefault(self.inputs_number(at), {})
                    for leaf, low, high in self._ranges_of(at):
                        known = spans.get(leaf, (low, high))
                        spans[leaf] = min(low, known[0]), max(high, known[1])
            if len(self._order or ()) == len(self._scan):
                self._compare_ranges(self._ranges)
        return self._ranges

    def _compare_ranges(self, found: dict[int, dict[int, tuple[int, int]]]) -> None:
        """Compares the ranges of all calls with those of the table."""
        if self._table is None or self._scan.damage or self.damaged:
            return
        told: dict[int, dict[int, tuple[int, int]]] = {}
        for number, spans in found.items():
            own = told.setdefault(number >> 1, {})
            for leaf, (low, high) in spans.items():
                known = own.get(leaf, (low, high))
                own[leaf] = min(low, known[0]), max(high, known[1])
        if any(row.ranges != told.get(key, {}) for key, row in self._table.rows.items()):
            reason = "it has other ranges of integers than the records"
            self.damage.add(_stale(reason).at(path=self.path, member=END_MEMBER))
            self._table = None

    def _ranges_of(self, position: int) -> list[tuple[int, int, int]]:
        offset, there = self._scan.place(position)
        return self._reader.group(offset).ranges_of(there)

    def by_inputs(self) -> Iterator[tuple[int, int, int]]:
        """For each of the distinct inputs the positions of the first and of the last call that have
        them, and how many calls do. The file is scanned for this, and no record is decoded."""
        order = self.order
        numbers = list(map(self.inputs_number, order))
        counts = Counter(numbers)
        last = dict(zip(numbers, order, strict=True))
        for position, number in zip(order, numbers, strict=True):
            if not counts:
                return
            if number in counts:
                yield position, last[number], counts.pop(number)

    # --- single calls ------------------------------------------------------------------------

    @property
    def damaged(self) -> int:
        """How many of its calls are known to be damaged, although their records are whole."""
        return sum([flags >= _TOLD for flags in self._checked])

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all its calls, in the order of the file."""
        return self._scan.numbers

    def number(self, position: int) -> int:
        return self._scan.numbers[position]

    def _same(self, data: T) -> T:
        """Gives back data that were read just now. Raises if a write-ahead file has another call
        by now: its record is written last, and no two records are equal."""
        if self._ahead is not None:
            offset, group = self._ahead
            if self._file.read_at(offset, len(group)) != group:
                raise self._file.changed("its call ended")
        return data

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of the file, from ``offset`` on."""
        return self._same(self._file.read_at(offset, size))

    def record(self, position: int) -> CallRecord:
        """The record of a call, decoded anew."""
        return self._same(self._reader.record_at(position))

    def document(self, position: int) -> dict[str, Any]:
        """The record of a call as plain data, which was compared with its checksum and not with the
        format. Its trees have the encoded structure and leaves."""
        return self._same(self._reader.document(position))

    def content(self, position: int) -> bytes:
        """All that a call says, as bytes: equal for equal calls of any files. Tensors that earlier
        calls have for it are read for this.

        Raises:
            TapeError: the call is damaged.
        """
        document = self.document(position)
        if not document.pop("at", None):
            return self.stated(position)
        facts = self.blob_facts(position, self.record(position))
        return self._packed(position, document, None if facts is None else facts.model_dump())

    def stated(self, position: int) -> bytes:
        """All that a call says by records and checksums alone, as bytes. Equal calls of files in
        which the same calls have the tensors of others say the same, whether these are whole or
        not.

        Raises:
            TapeError: the record is damaged, or that of a call that has tensors for it.
        """
        document = self.document(position)
        if document.get("at"):
            record = self.record(position)
            blobs = [one.blob for one in self._holders(record, record.elsewhere).values()]
            facts = [None if one is None else [one.size, one.crc32] for one in blobs]
            document["at"] = [document["at"], facts]
        return self._packed(position, document, document.get("blob"))

    def _packed(self, position: int, document: dict[str, Any], blob: Any) -> bytes:
        document.pop("blob", None)
        if blob is not None:
            document["blob"] = {name: blob.get(name) for name in ("size", "crc32")}
        # A copy has the fields in another order, and none that is nil.
        said: list[Any] = [self.number(position)]
        for name in sorted(document):
            said += [name, document[name]] if document[name] is not None else []
        return b"".join(map(pack, said))  # one by one: they may nest as deep as msgpack allows

    def is_same(self, position: int, other: Segment, there: int) -> bool:
        """Whether a call of another file is this one.

        Raises:
            TapeError: one of them is damaged, so that nothing tells.
        """
        if self.stated(position) == other.stated(there):
            return True
        return self.content(position) == other.content(there)

    def blob_facts(
        self, position: int, record: CallRecord, kept: Collection[str] = ()
    ) -> BlobFacts | None:
        """The facts of the blob that :meth:`blob_parts` gives; None without tensors."""
        if len(kept) == len(record.elsewhere):
            return record.blob
        size = checksum = 0
        for part in self.blob_parts(position, record, kept):
            size, checksum = size + len(part), crc32(part, checksum)
        return BlobFacts(size=size, crc32=checksum, back=0)

    def blob(self, record: CallRecord | Holder) -> Member:
        """The member with the tensors of a call.

        Raises:
            TapeError: ``damaged``, ``no_value``.
        """
        return self._same(self._reader.blob_member(record))

    def blob_parts(
        self, position: int, record: CallRecord, kept: Collection[str] = ()
    ) -> Iterator[bytes]:
        """The content of a blob of a call: its own one, or a new one if earlier calls have some of
        its tensors. ``kept`` are the keys of which they have them still. The parts have at most 1
        MiB, or are a tensor that several calls have parts of. A blob of holes takes no room in the
        file, and would take as much as it claims in a copy: it is refused."""
        places: list[TensorPlace] = []
        if len(kept) == len(record.elsewhere):
            if record.blob is None:
                return
            found = self.blob(record)
            places.append(TensorPlace((Extent(found.start, found.size),), 1))
        else:
            entries: dict[str, Stored] = {}
            for key, (form, leaf) in _stored_leaves(record).items():
                if key not in kept:
                    entries[key] = form
                    places.append(self.place(position, record, leaf))
                elif record.elsewhere[key][2] is not None:
                    entries[key], extent = self._same(self._reader.tail(record, key))
                    places.append(TensorPlace((extent,), 1))
            yield build_header(entries)
        if self._file.has_holes:
            what = f"a copy of the tensors of call {record.call}"
            size = sum(place.size for place in places)
            check_memory(memory_limit_of(self.disk_bytes), [((size,), 1)], what)
        for place in places:
            if len(place.parts) > 1:
                yield bytes(self.bytes_of(place))
                continue
            for begin, size, _ in place.parts:
                for offset in range(0, size, _PART):
                    yield self.read(begin + offset, min(_PART, size - offset))

    def bytes_of(self, place: TensorPlace) -> bytearray:
        """The bytes of a tensor in new memory."""
        parts = [self._copy(part) for part in place.parts]
        return self._same(parts[0] if len(parts) == 1 else joined(parts, place.rows))

    def _copy(self, part: Extent) -> bytearray:
        offset, size, known = part
        return self._file.copy(offset, size) if known is None else bytearray(known)

    def place(self, position: int, record: CallRecord, leaf: Leaf) -> TensorPlace:
        """Where the bytes of a leaf are, after a look at the checksum of the blob that has them.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        if leaf.key in record.elsewhere:
            self._check_holders(position, record, [leaf.key])
        self._check_sum(position, record)
        return self._same(self._reader.place(record, leaf))

    def check_values(self, position: int, record: CallRecord) -> None:
        """Compares the blob of a call with its checksum, and those of the earlier calls that have
        tensors for it.

        Raises:
            TapeError: ``damaged``, ``invalid``.
        """
        self.check_blob(position, record)
        self._check_holders(position, record, record.elsewhere)
        self._check_sum(position, record)

    def _check_sum(self, position: int, record: CallRecord) -> None:
        """Raises if all tensors of a call together take far more memory than the file has bytes: a
        thousand leaves may have the bytes of one."""
        if record.blob is None and not record.at:
            return
        summed, nbytes = self._summed
        if summed != position:
            nbytes = _shared_bytes(record)
            self._summed = position, nbytes
        # A grant holds where it was given only, so the sum is compared each time.
        stored = self._file.disk_bytes if self._file.has_holes else self._file.size
        what = f"the tensors of call {record.call}"
        check_memory(memory_limit_of(stored), [((nbytes,), 1)], what)

    def _holders(self, record: CallRecord, keys: Iterable[str]) -> dict[int, Holder]:
        """By number the calls whose blobs have the tensors of a call for these keys."""
        return {
            holder.call: holder
            for key in keys
            for holder, _ in self._reader.holders(record, key).parts
        }

    def _check_holders(self, position: int, record: CallRecord, keys: Iterable[str]) -> None:
        """Compares the blobs of the calls that have tensors for these keys with their checksums."""
        number = 0
        try:
            found = self._holders(record, keys)
            for number in found:
                if number not in self._whole:
                    at = self._scan.position(number)
                    assert at is not None
                    self.check_blob(at, found[number])
            self._whole = found.keys()  # other tensors of the call are mostly of the same calls
        except TapeError as error:
            if not is_damage(error):
                raise
            why = error.reason.removeprefix(f"call {number}: ")
            has = f"call {record.call} has tensors of call "
            reason = why if why.startswith(has) else f"{has}{number}: {why}"
            damage = self.located(TapeError(error.kind, reason), position)
            self.report(damage, position)
            raise damage from None

    def check_blob(self, position: int, record: CallRecord | Holder) -> None:
        """Compares a call's blob with its checksum. The bytes are read the first time only.

        Raises:
            TapeError: ``damaged``, each time.
        """
        if self._checked[position] & _WHOLE or record.blob is None:
            return
        found = self.blob(record)
        if not self._checked[position] & _BROKEN:
            if self._same(self._file.crc32(found.start, found.size)) == record.blob.crc32:
                self._checked[position] |= _WHOLE
                return
            self._checked[position] |= _BROKEN
            self.report(self._damaged_blob(record.call, found), position)
        raise self._damaged_blob(record.call, found)

    def report_blob(self, position: int, record: CallRecord) -> TapeError:
        """Notes that a call's blob does not match its checksum, and gives the error."""
        found = self.blob(record)
        self._checked[position] |= _BROKEN
        self.report(self._damaged_blob(record.call, found), position)
        return self._damaged_blob(record.call, found)

    def located(self, error: TapeError, position: int) -> TapeError:
        """The error, with the file, the member and the offset of the group of the call."""
        offset, at = self._scan.place(position)
        first = self._scan.numbers[position - at]
        return error.at(path=self.path, member=group_name(first), offset=offset)

    def report(self, error: TapeError, position: int) -> None:
        """Adds the damage of a call to the list, once per call."""
        if not self._checked[position] & _TOLD:
            self._checked[position] |= _TOLD
            self.damage.add(error)

    def _damaged_blob(self, number: int, found: Member) -> TapeError:
        return TapeError(
            "damaged",
            f"call {number}: the checksum of its tensors does not match their bytes",
            path=self.path, member=found.name, offset=found.offset,
        )  # fmt: skip


def no_single_call() -> UsageError:
    """The error of who asks a survey for a call."""
    reason = "a survey has counts and sizes, and no single call or value"
    return UsageError(reason, advice="open the tapes themselves for this")


def _opened_file(path: str) -> TapeBytes:
    """The bytes of a tape, decompressed if somebody compressed it.

    Raises:
        TapeError: ``not_found``, ``io`` or ``not_a_tape``; ``damaged``, ``limit`` or ``usage`` for
            a compressed file that cannot be read; ``usage`` for a URL without the extra ``remote``.
    """
    if not is_url(path):
        return TapeFile(local_path(path))
    # A process that reads local files never imports what URLs need.
    from calltape_analyzer.reading.remote_file import opened_url

    return opened_url(path)


def _shared_bytes(record: CallRecord) -> int:
    """How many bytes the tensors of a call are, leaf by leaf; 0 if each leaf has bytes of its own
    in the blob of the call, which is no larger than the file."""
    leaves = [
        leaf
        for tree in (record.inputs, record.outputs)
        for leaf in (tree.facts() if tree is not None else ())
        if leaf.key is not None
    ]
    if not record.at and len({leaf.key for leaf in leaves}) == len(leaves):
        return 0
    return sum(form.nbytes for leaf in leaves if (form := stored_as(leaf)) is not None)


def _stored_leaves(record: CallRecord) -> dict[str, tuple[Stored, Leaf]]:
    """By key the leaves of a call that have values, and how a blob has them."""
    return {
        leaf.key: (form, leaf)
        for tree in (record.inputs, record.outputs)
        for leaf in (tree.facts() if tree is not None else ())
        if leaf.key is not None and (form := stored_as(leaf)) is not None
    }


def _rows_of(table: InputsTable) -> list[InputsOfCalls] | None:
    """The inputs of all kept calls, in the order of their first calls; None if some have no row, if
    calls of one row are not all on the tape, or if some of them raised and others did not.

    Raises:
        TapeError: a row breaks the format.
    """
    parts = (*table.kinds.values(), table.other)
    rows = [row for row in table.rows.values() if row.kept]
    if any(one.kept for one in parts) or any(
        row.kept != row.seen or row.raised not in (0, row.seen) for row in rows
    ):
        return None
    found = [
        InputsOfCalls(_inputs(row.tree()), bool(row.raised), row.kept, row.first, row.last)
        for row in rows
    ]
    return sorted(found, key=lambda row: row.first)


def _inputs(tree: Tree) -> Tree:
    if parts_of_inputs(tree.spec().root) is None:
        raise TapeError("invalid", "the inputs are not (args, kwargs)")
    return tree


def _watched(found: Iterable[Member], size: int) -> Iterable[Member]:
    return steps(found, "bytes", size, lambda member: member.offset)


def _stale(reason: str, kind: Kind = "damaged") -> TapeError:
    """The damage of an end that is not that of the records."""
    return TapeError(
        kind, f"forged or stale table of inputs: {reason}",
        advice="the records are used; calltape recover writes a tape with a true one",
    )  # fmt: skip


def coverage_without_end(numbers: Sequence[int], first_call: int) -> Coverage:
    """The coverage of a file without an end. The numbers of its calls tell how many calls were seen
    at least: no number comes after the last one.

    Args:
        numbers: of the calls in the file.
        first_call: the number that the file began with.
    """
    found = len(numbers)
    seen = min(max(found, max(numbers, default=-1) + 1 - first_call), MAX_COUNT)
    dropped = {UNSEALED: seen - found} if seen > found else {}
    return Coverage(seen=seen, kept=found, dropped=dropped, at_least=True)


def _sound(coverage: Coverage) -> Coverage:
    """The coverage of an end, with a sum that holds. If the end contradicts itself (which is
    damage), the larger number counts as seen, as far as it can be counted."""
    told = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen == told:
        return coverage
    seen = min(max(coverage.seen, told), MAX_COUNT)
    dropped = dict(coverage.dropped) if told <= seen else {}
    told = coverage.kept + sum(dropped.values())
    if seen > told:
        dropped["unknown (the end contradicts itself)"] = seen - told
    return coverage.model_copy(update={"seen": seen, "dropped": dropped})
