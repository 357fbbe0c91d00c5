"""One tape file: where its calls are, and their bytes.

In comes a path. Out go the manifest, the trailer, the positions of the calls and their contents;
what is damaged is added to a list.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.reading.damage import Damage, is_damage
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED, EncodedInputs
from calltape_analyzer.reading.file_descriptors import DescriptorError
from calltape_analyzer.reading.file_piece import PlannedPiece, begin_of
from calltape_analyzer.reading.opened_file import opened_file
from calltape_analyzer.reading.scan import GATHERED, NO_BLOB, Scan, content_of
from calltape_analyzer.reading.summary_rows import InputsOfCalls, differences, rows_of, stale
from calltape_analyzer.reading.tape_end import summary_of
from calltape_analyzer.reading.tape_file import Window, is_ahead
from calltape_analyzer.reading.torn_tail import coverage_without_trailer
from calltape_schema.endings import Coverage, Ending
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, MANIFEST, SUMMARY, Member, members, record_name
from calltape_schema.gathered import LARGEST_GATHERED, LENGTH_BYTES, payload_of
from calltape_schema.packing import seal_envelope, unpack_plain
from calltape_schema.records import (
    CallRecord,
    Manifest,
    decode_call,
    decode_manifest,
    encode_manifest,
)
from calltape_schema.summary import Summary

__all__ = ["UNDER_WAY", "UNDER_WAY_WORDS", "Segment"]

UNDER_WAY = "under way"
"""The reason why a call that was written ahead has no outputs."""
UNDER_WAY_WORDS = "under way when the process died"

T = TypeVar("T")

_TRIES = 5
_UNREADABLE = (
    "without its manifest nothing in this file can be read; copy it again from where it came"
)
_PART = 1024 * 1024

# What is known about a call's tensors.
_UNKNOWN, _WHOLE, _DAMAGED = 0, 1, 2


class Segment:
    """One open tape file.

    A sealed file with a summary is not scanned until somebody asks for a single call.

    Attributes:
        path: as people may see it: without what is secret in a URL.
        location: what opens the file again.

    Args:
        path: of a file, or a URL.
        damage: gets what is wrong with single calls.
        scan: whether the file is scanned now, and its summary compared with the records. None for
            a file that is not scanned before somebody asks for a call, with a summary or without;
            then :meth:`scan` raises what is wrong with it.

    Raises:
        TapeError: ``not_found``, ``io``, ``not_a_tape``, ``version``, ``damaged`` or ``invalid``
            (the last two if it is the manifest that is wrong).
    """

    def __init__(self, path: str, damage: Damage, *, scan: bool | None = False) -> None:
        self.damage = damage
        self.left_out = 0
        self._found: Scan | None = None
        self._rows: list[InputsOfCalls] | None = None
        self._order: array[int] | None = None
        self._summary: Summary | None = None
        self._checked = bytearray()
        self._ahead: tuple[int, bytes] | None = None
        self._lock = threading.RLock()
        self._file = opened_file(path)
        self.path, self.location = self._file.path, self._file.location
        try:
            first, self.manifest = self._read_manifest()
            self._summary = self._read_summary(first.end)
            if scan or (scan is not None and self._summary is None):
                self.scan()
        except TapeError as error:
            self.close()
            raise error.at(path=self.path) from None
        except BaseException:
            self.close()
            raise
        self.size = self._file.size

    def _read_summary(self, head: int) -> Summary | None:
        if is_ahead(self.path):
            return None
        found = summary_of(self._file, self.manifest.tape, self._report_summary)
        if found is not None:
            self._file.expect_unchanged(head, is_sealed=True)
        return found

    def _report_summary(self, error: TapeError) -> None:
        self.damage.add(stale(str(error.reason)).at(path=self.path, member=SUMMARY))

    @property
    def summary(self) -> Summary | None:
        """What the end of the file says of its calls, while that is all that is known of them; None
        once the file was scanned, or a part of its calls was chosen."""
        return self._summary if self._found is None and self._order is None else None

    @property
    def is_scanned(self) -> bool:
        """Whether the file was scanned, so that each of its calls is known."""
        return self._found is not None

    def scan(self) -> None:
        """Finds every call of the file, if that was not done yet. What its summary says is compared
        with the records; a difference is damage."""
        with self._lock:
            if self._found is None:
                self._scan_now()

    def _scan_now(self) -> None:
        before = self.manifest
        if self._summary is not None and not self._file.refresh():
            raise self._file.changed("its end was read before")
        self.manifest, found = self._scanned()
        if encode_manifest(self.manifest) != encode_manifest(before):  # a NaN equals itself there
            raise self._file.changed("it is another tape")
        self._checked = bytearray(len(found.numbers))
        if is_ahead(self.path) and len(found.numbers):
            place = found.records[0]
            self._ahead = place, self._file.read(place, found.record_sizes[0])
        if self._order is None:
            self._order = self._sorted(found.numbers)
        if self._summary is not None:
            for error in differences(self._summary, found):
                self.damage.add(error.at(path=self.path, member=SUMMARY))
        self._found = found  # last, because other threads ask for it

    def scan_piece(self, piece: PlannedPiece) -> int:
        """Finds the calls of a piece of the file; they are the only ones of this object then.

        Returns:
            The offset at which the piece began.

        Raises:
            TapeError: ``io``; ``damaged`` if the file changed since the pieces were planned.
        """
        self._file.size = piece.size
        first, manifest = self._read_manifest()
        begin = first.end if piece.start is None else begin_of(self._file, piece.start)
        found = Scan(self._file, manifest.tape, self.damage)
        found.run(begin, piece.stop, is_piece=True)
        self._checked = bytearray(len(found.numbers))
        self._order = self._sorted(found.numbers)
        self._found = found
        return begin

    @property
    def found(self) -> Scan:
        """What the scan of the file, or of a piece of it, found."""
        return self._scan

    @property
    def _scan(self) -> Scan:
        found = self._found
        if found is None:
            self.scan()
            found = self._found
            assert found is not None
        return found

    @property
    def trailer(self) -> Ending | None:
        """What the end of the file says of all calls; None if it is not sealed."""
        return self._summary if self._found is None and self._summary else self._scan.trailer

    @property
    def unfinished(self) -> int:
        """How many bytes at the end belong to a call that was being written."""
        return 0 if self._found is None and self._summary else self._scan.unfinished

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

    def _scanned(self) -> tuple[Manifest, Scan]:
        """What is in the file. If the file changed during the walk, the walk is repeated: what
        looked like damage was another call."""
        for tries in range(_TRIES, -1, -1):
            found = Damage()
            try:
                first, manifest = self._read_manifest()
                scan = Scan(self._file, manifest.tape, found)
                scan.run(first.end)
                self._file.expect_unchanged(first.end, is_sealed=scan.trailer is not None)
            except TapeError as error:
                if not is_damage(error) or not tries or not self._has_changed():
                    raise
                self._expect_no_summary()
            else:
                if not found or not tries or not self._has_changed():
                    self.damage.add_all(found)
                    return manifest, scan
                self._expect_no_summary()
        raise AssertionError

    def _expect_no_summary(self) -> None:
        """A file that had its end may not change any more."""
        if self._summary is not None:
            raise self._file.changed("its end was read before")

    def _has_changed(self) -> bool:
        # Of a write-ahead file, size and time do not tell: another call may have as many bytes,
        # and be written within a tick of the clock.
        return not self._file.refresh() or is_ahead(self.path)

    @staticmethod
    def _sorted(numbers: array[int]) -> array[int]:
        """The positions of the calls by their numbers."""
        positions = array("Q", range(len(numbers)))
        if sorted(numbers) == numbers.tolist():
            return positions
        return array("Q", sorted(positions, key=numbers.__getitem__))

    def __len__(self) -> int:
        return len(self.order) if self.summary is None else self.summary.coverage.kept

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest number of the calls in its list, of which there are some."""
        if self.summary is not None and self.extent is not None:
            return self.extent
        return self.number(self.order[0]), self.number(self.order[-1])

    @property
    def extent(self) -> tuple[int, int] | None:
        """The lowest and the highest number of its calls, those that were left out too; None
        without calls."""
        summary = self._summary
        if self._found is None and summary is not None:
            low, high = summary.first_call, summary.last_call
            return None if low is None or high is None else (low, high)
        numbers = self._scan.numbers
        return (min(numbers), max(numbers)) if numbers else None

    @property
    def disk_bytes(self) -> int:
        """How many of its bytes are stored on a disk; of a file on a web server, how many came."""
        return self._file.disk_bytes

    @property
    def closed(self) -> bool:
        return self._file.is_closed

    def close(self) -> None:
        self._file.close()

    @property
    def coverage(self) -> Coverage:
        """How many calls were seen, kept and dropped: by the trailer, or without one by the
        numbers of the calls that were found."""
        if self.trailer is not None:
            return _sound(self.trailer.coverage)
        if self.is_ahead:
            return Coverage(seen=len(self), kept=len(self))
        segment = self.manifest.segment
        first = 0 if segment is None else segment.first_call
        return coverage_without_trailer(self._scan.numbers, first)

    @cached_property
    def is_ahead(self) -> bool:
        """Whether this is a write-ahead file: its only call was under way, or it has no call and
        the name of such a file."""
        if self.trailer is not None or len(self._scan.numbers) > 1:
            return False
        if not len(self._scan.numbers):
            return is_ahead(self.path)
        try:
            return self.record(0).outputs_missing == UNDER_WAY
        except DescriptorError:
            raise
        except TapeError:
            return False  # the error is raised again when the call is read

    @property
    def part(self) -> int:
        """The number of this file among the files of its recording."""
        return 0 if self.manifest.segment is None else self.manifest.segment.number

    def leave_out(self, numbers: Container[int]) -> None:
        """Removes calls from the list, because they are in another file too."""
        order, all_numbers = self.order, self._scan.numbers
        self.order = array("Q", (p for p in order if all_numbers[p] not in numbers))
        self.left_out += len(order) - len(self.order)

    @property
    def damaged(self) -> int:
        """How many of its calls are known to be damaged, although their records are whole."""
        return self._checked.count(_DAMAGED)

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all its calls, in the order of the file."""
        return self._scan.numbers

    @property
    def distinct_inputs(self) -> list[EncodedInputs]:
        """The inputs that have a number, by number."""
        return self._scan.distinct_inputs.entries

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of the file, from ``offset`` on."""
        return self._same(self._file.read(offset, size))

    def copy(self, offset: int, size: int) -> bytearray:
        """``size`` bytes of the file in new memory, copied once."""
        return self._same(self._file.copy(offset, size))

    def _same(self, data: T) -> T:
        """Gives back data that were read just now. Raises if a write-ahead file has another call
        by now: its record is written last, and no two records are equal."""
        if self._ahead is not None:
            offset, record = self._ahead
            if self._file.read(offset, len(record)) != record:
                raise self._file.changed("its call ended")
        return data

    def number(self, position: int) -> int:
        return self._scan.numbers[position]

    def record(self, position: int) -> CallRecord:
        """The record of a call, decoded anew."""
        found = decode_call(self.content(position))
        if found.call != self._scan.numbers[position]:
            raise self._file.changed("another call is there")
        return found

    def content(self, position: int) -> bytes:
        """The record of a call, in its envelope."""
        return self._content(position, self.read)

    def contents(self) -> Iterator[bytes]:
        """The records of all its calls, in the order of the file."""
        read = Window(self._file).read
        return (self._content(position, read) for position in range(len(self._scan.numbers)))

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Position and record of each call in its list, without the envelope. The checksums were
        compared when the file was scanned.

        Raises:
            TapeError: ``damaged`` if the file changed since.
        """
        read = Window(self._file).read
        for position in self.order:
            if self._scan.blobs[position] == GATHERED:
                yield position, self._gathered(position, read)
                continue
            envelope = unpack_plain(self._content(position, read))
            if type(envelope) is not tuple or len(envelope) != 2 or type(envelope[1]) is not bytes:
                raise self._file.changed("another call is there")
            yield position, envelope[1]

    def _content(self, position: int, read: Callable[[int, int], bytes]) -> bytes:
        if self._scan.blobs[position] == GATHERED:
            return seal_envelope(self._gathered(position, read))
        return read(self._scan.records[position], self._scan.record_sizes[position])

    def _gathered(self, position: int, read: Callable[[int, int], bytes]) -> bytes:
        """The payload of a record in a group."""
        start = self._scan.records[position]
        content = read(start, self._scan.record_sizes[position])

        def entry_at(offset: int) -> bytes:
            size = int.from_bytes(read(offset, LENGTH_BYTES), "little")
            return read(offset + LENGTH_BYTES, min(size, LARGEST_GATHERED + BLOCK))

        return payload_of(content, start - LENGTH_BYTES, entry_at)

    def blob_parts(self, position: int, size: int) -> Iterator[bytes]:
        """The first ``size`` bytes of a call's blob, in parts of at most 1 MiB. A blob of holes
        takes no room in the file, and would take as much as it claims in a copy: it is refused."""
        what = f"a copy of the tensors of call {self._scan.numbers[position]}"
        if self._file.has_holes:
            check_memory(memory_limit_of(self.disk_bytes), [((size,), 1)], what)
        start = self.blob(position)
        for offset in range(0, size if start is not None else 0, _PART):
            assert start is not None
            yield self.read(start + offset, min(_PART, size - offset))

    def report_blob(self, position: int) -> TapeError:
        """Notes that a call's blob does not match its checksum, and gives the error."""
        self.report(self._damaged_blob(position), position)
        return self._damaged_blob(position)

    def inputs_number(self, position: int) -> int | None:
        """The position of a call's inputs in ``distinct_inputs``. Its record is not decoded for
        this. None if the tape has too many distinct inputs: then only the record tells.

        Structure and leaves are not decoded yet, and may break the format. If they do, all calls
        of this number do.
        """
        number = self._scan.inputs[position]
        return None if number == NOT_NUMBERED else number

    def summed_inputs(self) -> list[InputsOfCalls] | None:
        """The distinct inputs of its calls by its summary, in the order of their first calls; None
        if it has none, if it was scanned, or if its summary cannot be read, which is damage."""
        summary = self.summary
        if summary is None or summary.inputs is None:
            return None
        if self._rows is None:
            try:
                self._rows = rows_of(summary)
            except TapeError as error:
                self._report_summary(error)
                self._summary = None
                self.scan()
        return self._rows

    def inputs(self) -> Iterator[tuple[bytes, bytes, Sequence[Any], int]]:
        """``structure``, ``leaves`` and ``scalars`` of the inputs, and how many calls had them.
        Equal inputs come once, if they have a number."""
        summed = self.summed_inputs()
        if summed is not None:
            for row in summed:
                yield row.inputs.structure, row.inputs.leaves, row.inputs.scalars, row.calls
            return
        for position, _, calls in self.by_inputs():
            number = self._scan.inputs[position]
            if number != NOT_NUMBERED:
                structure, leaves, scalars, _ = self.distinct_inputs[number]
                yield structure, leaves, scalars, calls
            else:
                inputs = self.record(position).inputs
                yield inputs.structure, inputs.leaves, inputs.scalars, 1

    def by_inputs(self) -> Iterator[tuple[int, int, int]]:
        """For each of the distinct inputs the positions of the first and of the last call that have
        them, and how many calls do. A call whose inputs have no number comes by itself. The file is
        scanned for this."""
        order = self.order
        numbers = list(map(self._scan.inputs.__getitem__, order))
        counts = Counter(numbers)
        last = dict(zip(numbers, order, strict=True))
        alone = counts.pop(NOT_NUMBERED, 0)
        for position, number in zip(order, numbers, strict=True):
            if not counts and not alone:
                return
            if number == NOT_NUMBERED:
                alone -= 1
                yield position, position, 1
            elif number in counts:
                yield position, last[number], counts.pop(number)

    def blob(self, position: int) -> int | None:
        """The offset of the content of a call's blob, or None."""
        header = self._scan.blobs[position]
        return None if header in (NO_BLOB, GATHERED) else header + BLOCK

    def located(self, error: TapeError, position: int) -> TapeError:
        """The error, with the file, the member and the offset of the call. The offset of a record
        in a group is that of its entry."""
        offset = self._scan.records[position]
        if self._scan.blobs[position] == GATHERED:
            return error.at(path=self.path, offset=offset - LENGTH_BYTES)
        name = record_name(self._scan.numbers[position])
        return error.at(path=self.path, member=name, offset=offset - BLOCK)

    def check_blob(self, position: int, record: CallRecord) -> None:
        """Compares a call's blob with its checksum. The bytes are read the first time only.

        Raises:
            TapeError: ``damaged``, each time.
        """
        if self._checked[position] == _WHOLE or record.blob is None:
            return
        if self._checked[position] == _UNKNOWN:
            if self._crc32(position, record.blob.size) == record.blob.crc32:
                self._checked[position] = _WHOLE
                return
            self.report(self._damaged_blob(position), position)
        raise self._damaged_blob(position)

    def _crc32(self, position: int, size: int) -> int:
        return self._same(self._file.crc32(self._scan.blobs[position] + BLOCK, size))

    def report(self, error: TapeError, position: int) -> None:
        """Adds the damage of a call to the list, once per call."""
        if self._checked[position] != _DAMAGED:
            self._checked[position] = _DAMAGED
            self.damage.add(error)

    def _damaged_blob(self, position: int) -> TapeError:
        number = self._scan.numbers[position]
        return TapeError(
            "damaged",
            f"call {number}: the checksum of its tensors does not match their bytes",
            path=self.path,
            member=f"calls/{number:08d}.safetensors",
            offset=self._scan.blobs[position],
        )

    def drop_damaged(self) -> None:
        """Removes the calls that are known to be damaged from the list."""
        if self.is_scanned:
            self.order = array("Q", (p for p in self.order if self._checked[p] != _DAMAGED))

    def _read_manifest(self) -> tuple[Member, Manifest]:
        stray: list[TapeError] = []
        file = self._file
        found = members(file.read, file.size, stray.append, next_data=file.next_data)
        first = next(found, None)
        if first is None or first.offset or first.name != MANIFEST:
            if self._file.read(0, len(MANIFEST)) == MANIFEST.encode():
                ends = first is None
                reason = "the file ends within its manifest" if ends else "its header is damaged"
                raise TapeError("damaged", reason, member=MANIFEST, offset=0, advice=_UNREADABLE)
            raise TapeError("not_a_tape", "the file does not start with a tape's manifest")
        try:
            return first, decode_manifest(content_of(self._file.read, first))
        except TapeError as error:
            if error.kind == "damaged":
                error.advice = _UNREADABLE
            raise error.at(member=MANIFEST, offset=0) from None


def _sound(coverage: Coverage) -> Coverage:
    """The coverage of a trailer, with a sum that holds. If the trailer contradicts itself (which
    is damage), the larger number counts as seen."""
    told = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen == told:
        return coverage
    seen = max(coverage.seen, told)
    dropped = dict(coverage.dropped)
    if seen > told:
        dropped["unknown (the trailer contradicts itself)"] = seen - told
    return Coverage.model_construct(seen=seen, kept=coverage.kept, dropped=dropped)
