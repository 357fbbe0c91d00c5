"""The records and tensors of the calls of one file, at the positions that a scan found.

In come positions. Out go records and bytes, compared with their checksums; what is damaged is noted
once for each call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from calltape_analyzer.pytree.memory_limit import check_memory, memory_limit_of
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED, EncodedInputs
from calltape_analyzer.reading.scan import GATHERED, NO_BLOB, Scan
from calltape_analyzer.reading.tape_bytes import TapeBytes
from calltape_analyzer.reading.tape_file import Window
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, record_name
from calltape_schema.gathered import LARGEST_GATHERED, LENGTH_BYTES, payload_of
from calltape_schema.packing import seal_envelope, unpack_plain
from calltape_schema.records import CallRecord, decode_call

__all__ = ["DAMAGED", "StoredCalls"]

T = TypeVar("T")

_PART = 1024 * 1024

# What is known about a call's tensors.
_UNKNOWN, _WHOLE, DAMAGED = 0, 1, 2


class StoredCalls(ABC):
    """The calls that are stored in one file.

    Attributes:
        path: of the file, as people may see it.
        damage: gets what is wrong with single calls.
    """

    path: str
    damage: Damage
    _file: TapeBytes
    _checked: bytearray  # per call what is known about its tensors
    _ahead: tuple[int, bytes] | None  # place and bytes of the record of a write-ahead file

    @property
    @abstractmethod
    def _scan(self) -> Scan:
        """Where the calls are."""

    @property
    @abstractmethod
    def order(self) -> array[int]:
        """The positions of the calls in the list, in the order of their numbers."""

    @property
    @abstractmethod
    def disk_bytes(self) -> int:
        """How many of the bytes of the file are surely there."""

    @property
    def damaged(self) -> int:
        """How many of its calls are known to be damaged, although their records are whole."""
        return self._checked.count(DAMAGED)

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
        if self._checked[position] != DAMAGED:
            self._checked[position] = DAMAGED
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
