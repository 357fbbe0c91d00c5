"""One tape file: where its calls are, and their bytes.

In comes a path. Out go the manifest, the trailer, the positions of the calls and their contents;
what is damaged is added to a list.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.reading.damage import Damage, is_damage
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED, EncodedInputs
from calltape_analyzer.reading.file_descriptors import DescriptorError
from calltape_analyzer.reading.scan import NO_BLOB, Scan, content_of
from calltape_analyzer.reading.tape_file import TapeFile, Window, is_ahead
from calltape_analyzer.reading.torn_tail import coverage_without_trailer
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, MANIFEST, Member, members, record_name
from calltape_schema.records import CallRecord, Coverage, Manifest, decode_call, decode_manifest

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

    Args:
        path: as the caller gave it; errors show it like this.
        damage: gets what is wrong with single calls.

    Raises:
        TapeError: ``not_found``, ``io``, ``not_a_tape``, ``version``, ``damaged`` or ``invalid``
            (the last two if it is the manifest that is wrong).
    """

    def __init__(self, path: str, damage: Damage) -> None:
        self.path = path
        self.damage = damage
        self._file = TapeFile(path)
        try:
            self.manifest, scan = self._scanned()
        except TapeError as error:
            self.close()
            raise error.at(path=path) from None
        except BaseException:
            self.close()
            raise
        self.size = self._file.size
        self.disk_bytes = self._file.disk_bytes
        self.trailer = scan.trailer
        self.unfinished = scan.unfinished
        self._numbers = scan.numbers
        self._records = scan.records
        self._record_sizes = scan.record_sizes
        self._blobs = scan.blobs
        self._inputs = scan.inputs
        self.distinct_inputs: list[EncodedInputs] = scan.distinct_inputs.entries
        self._checked = bytearray(len(self._numbers))
        self._ahead: tuple[int, bytes] | None = None
        if is_ahead(path) and len(self._numbers):
            self._ahead = self._records[0], self._file.read(self._records[0], self._record_sizes[0])
        self.order = self._sorted()
        self.left_out = 0

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
            else:
                if not found or not tries or not self._has_changed():
                    self.damage.add_all(found)
                    return manifest, scan
        raise AssertionError

    def _has_changed(self) -> bool:
        # Of a write-ahead file, size and time do not tell: another call may have as many bytes,
        # and be written within a tick of the clock.
        return not self._file.refresh() or is_ahead(self.path)

    def _sorted(self) -> array[int]:
        """The positions of the calls in the order of their numbers. In the file, they stand in the
        order in which they were written, and threads may end in another order."""
        positions = array("Q", range(len(self._numbers)))
        if sorted(self._numbers) == self._numbers.tolist():
            return positions
        return array("Q", sorted(positions, key=self._numbers.__getitem__))

    def __len__(self) -> int:
        return len(self.order)

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
        return coverage_without_trailer(self._numbers, first)

    @cached_property
    def is_ahead(self) -> bool:
        """Whether this is a write-ahead file: its only call was under way, or it has no call and
        the name of such a file."""
        if self.trailer is not None or len(self._numbers) > 1:
            return False
        if not len(self._numbers):
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
        before = len(self.order)
        self.order = array("Q", (p for p in self.order if self._numbers[p] not in numbers))
        self.left_out += before - len(self.order)

    @property
    def damaged(self) -> int:
        """How many of its calls are known to be damaged, although their records are whole."""
        return self._checked.count(_DAMAGED)

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all its calls, in the order of the file."""
        return self._numbers

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
        return self._numbers[position]

    def record(self, position: int) -> CallRecord:
        """The record of a call, decoded anew."""
        found = decode_call(self.content(position))
        if found.call != self._numbers[position]:
            raise self._file.changed("another call is there")
        return found

    def content(self, position: int) -> bytes:
        """The record of a call as it stands in the file."""
        return self.read(self._records[position], self._record_sizes[position])

    def contents(self) -> Iterator[bytes]:
        """The records of all its calls, in the order of the file."""
        return map(Window(self._file).read, self._records, self._record_sizes)

    def blob_parts(self, position: int, size: int) -> Iterator[bytes]:
        """The first ``size`` bytes of a call's blob, in parts of at most 1 MiB. A blob of holes
        takes no room in the file, and would take as much as it claims in a copy: it is refused."""
        what = f"a copy of the tensors of call {self._numbers[position]}"
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
        number = self._inputs[position]
        return None if number == NOT_NUMBERED else number

    def inputs(self) -> Iterator[tuple[bytes, bytes, Sequence[Any], int]]:
        """``structure``, ``leaves`` and ``scalars`` of the inputs, and how many calls had them.
        Equal inputs come once, if they have a number."""
        counts = Counter(map(self._inputs.__getitem__, self.order))
        alone = counts.pop(NOT_NUMBERED, 0)
        for number, calls in counts.items():
            structure, leaves, scalars, _ = self.distinct_inputs[number]
            yield structure, leaves, scalars, calls
        for position in self.order if alone else ():
            if self._inputs[position] == NOT_NUMBERED:
                inputs = self.record(position).inputs
                yield inputs.structure, inputs.leaves, inputs.scalars, 1

    def by_inputs(self) -> Iterator[tuple[int, int]]:
        """For each of the distinct inputs the first call that has them, as its place in ``order``,
        and how many calls have them. A call whose inputs have no number comes by itself."""
        counts = Counter(map(self._inputs.__getitem__, self.order))
        alone = counts.pop(NOT_NUMBERED, 0)
        for place, position in enumerate(self.order):
            if not counts and not alone:
                return
            number = self._inputs[position]
            if number == NOT_NUMBERED:
                alone -= 1
                yield place, 1
            elif number in counts:
                yield place, counts.pop(number)

    def blob(self, position: int) -> int | None:
        """The offset of the content of a call's blob, or None."""
        header = self._blobs[position]
        return None if header == NO_BLOB else header + BLOCK

    def located(self, error: TapeError, position: int) -> TapeError:
        """The error, with the file, the member and the offset of the call."""
        name = record_name(self._numbers[position])
        return error.at(path=self.path, member=name, offset=self._records[position] - BLOCK)

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
        return self._same(self._file.crc32(self._blobs[position] + BLOCK, size))

    def report(self, error: TapeError, position: int) -> None:
        """Adds the damage of a call to the list, once per call."""
        if self._checked[position] != _DAMAGED:
            self._checked[position] = _DAMAGED
            self.damage.add(error)

    def _damaged_blob(self, position: int) -> TapeError:
        number = self._numbers[position]
        return TapeError(
            "damaged",
            f"call {number}: the checksum of its tensors does not match their bytes",
            path=self.path,
            member=f"calls/{number:08d}.safetensors",
            offset=self._blobs[position],
        )

    def drop_damaged(self) -> None:
        """Removes the calls that are known to be damaged from the list."""
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
