"""One tape file: where its calls are, what of it is damaged, and its bytes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

from calltape_analyzer.allowance import check_room, room_of
from calltape_analyzer.damage import Damage, is_damage
from calltape_analyzer.descriptors import DescriptorError
from calltape_analyzer.input_keys import NOT_INTERNED, InputsKey
from calltape_analyzer.scan import NO_BLOB, Scan, content_of
from calltape_analyzer.tape_file import TapeFile, Window, is_ahead
from calltape_schema.errors import TapeError
from calltape_schema.framing import BLOCK, MANIFEST, Member, members, record_name
from calltape_schema.records import CallRecord, Coverage, Manifest, decode_call, decode_manifest

__all__ = ["UNDER_WAY", "UNDER_WAY_WORDS", "UNSEALED", "Damage", "InputsKey", "Segment"]

UNDER_WAY = "under way"
"""Why the outputs of a call are missing that was written ahead."""
UNDER_WAY_WORDS = "under way when the process died"

T = TypeVar("T")

_TRIES = 5

UNSEALED = "unknown (the tape is not sealed)"
"""Why calls are missing of which no trailer says what became of them."""

# What is known of a call's tensors.
_UNKNOWN, _WHOLE, _DAMAGED = 0, 1, 2


class Segment:
    """One open tape file.

    Args:
        path: as the caller gave it; errors name it so.
        damage: collects what is wrong with single calls.

    Raises:
        TapeError: ``not_found``, ``io``, ``not_a_tape``, ``version``, ``damaged`` or ``invalid``
            (the last two for its manifest).
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
        self._keys = scan.keys
        self.keys: list[InputsKey] = scan.input_keys.keys
        self._checked = bytearray(len(self._numbers))
        self._ahead: tuple[int, bytes] | None = None
        if is_ahead(path) and len(self._numbers):
            self._ahead = self._records[0], self._file.read(self._records[0], self._record_sizes[0])
        self.order = self._sorted()
        self.left_out = 0

    def _scanned(self) -> tuple[Manifest, Scan]:
        """What is in the file. One that changed under the walk is walked again: what looked like
        damage was another call."""
        for tries in range(_TRIES, -1, -1):
            found = Damage()
            try:
                first, manifest = self._read_manifest()
                scan = Scan(self._file, manifest.tape, found)
                scan.run(first.end)
                self._file.settle(first.end, is_sealed=scan.trailer is not None)
            except TapeError as error:
                if not is_damage(error) or not tries or not self._has_changed():
                    raise
            else:
                if not found or not tries or not self._has_changed():
                    self.damage.take(found)
                    return manifest, scan
        raise AssertionError

    def _has_changed(self) -> bool:
        # Another call may have as many bytes, and be written within a tick of the clock.
        return not self._file.look() or is_ahead(self.path)

    def _sorted(self) -> array[int]:
        """Positions of the calls in the order of their numbers: threads may have finished
        writing in another."""
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
        """From the trailer; without one, the numbers of the calls that were found tell how many
        were seen at least."""
        if self.trailer is not None:
            return _sound(self.trailer.coverage)
        found = len(self._numbers)
        if self.is_ahead:
            return Coverage(seen=len(self), kept=len(self))
        segment = self.manifest.segment
        first = 0 if segment is None else segment.first_call
        # The last number there is has none after it.
        seen = min(max(found, max(self._numbers, default=-1) + 1 - first), 2**63 - 1)
        gaps = {UNSEALED: seen - found} if seen > found else {}
        return Coverage(seen=seen, kept=found, dropped=gaps)

    @cached_property
    def is_ahead(self) -> bool:
        """Whether this is a file of write-ahead: of nothing but a call that was under way, or
        empty, by its name."""
        if self.trailer is not None or len(self._numbers) > 1:
            return False
        if not len(self._numbers):
            return is_ahead(self.path)
        try:
            return self.record(0).outputs_missing == UNDER_WAY
        except DescriptorError:
            raise
        except TapeError:
            return False  # whoever reads the call is told

    @property
    def part(self) -> int:
        """Its number among the files of its recording."""
        return 0 if self.manifest.segment is None else self.manifest.segment.number

    def leave_out(self, numbers: Container[int]) -> None:
        """Takes calls off the list that are in another file."""
        before = len(self.order)
        self.order = array("Q", (p for p in self.order if self._numbers[p] not in numbers))
        self.left_out += before - len(self.order)

    @property
    def numbers(self) -> Sequence[int]:
        """Of all its calls, in the order of the file."""
        return self._numbers

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of the file."""
        return self._same(self._file.read(offset, size))

    def copy(self, offset: int, size: int) -> bytearray:
        """``size`` bytes of the file in memory of their own, copied once."""
        return self._same(self._file.copy(offset, size))

    def _same(self, data: T) -> T:
        """The data, which were read just now, if the call of a write-ahead file still is the one
        that was found: its record is written last, and no two are alike."""
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

    def raw(self, position: int) -> tuple[bytes, bytes | None]:
        """The contents of a call's members: its record, and its blob where it has one."""
        record = self.record(position)
        start = self.blob(position)
        content = self.content(position)
        if record.blob is None or start is None:
            return content, None
        room = room_of(self.disk_bytes)
        check_room(room, [((record.blob.size,), 1)], f"the tensors of call {record.call}")
        return content, self.read(start, record.blob.size)

    def key_of(self, position: int) -> int | None:
        """Index among ``keys`` of what a call's inputs look like, without decoding its record.
        None where the tape has too many kinds to keep: then the record tells.

        A key's structure and leaves are not decoded, so they may yet turn out to break the format;
        calls of the same key do so alike.
        """
        key = self._keys[position]
        return None if key == NOT_INTERNED else key

    def inputs(self) -> Iterator[tuple[bytes, bytes, Sequence[Any], int]]:
        """What its calls were given: ``structure``, ``leaves`` and ``scalars`` of the inputs, and
        how many calls that is. Calls that are alike come once, as far as that is known."""
        counts = Counter(map(self._keys.__getitem__, self.order))
        alone = counts.pop(NOT_INTERNED, 0)
        for key, calls in counts.items():
            structure, leaves, scalars, _ = self.keys[key]
            yield structure, leaves, scalars, calls
        for position in self.order if alone else ():
            if self._keys[position] == NOT_INTERNED:
                inputs = self.record(position).inputs
                yield inputs.structure, inputs.leaves, inputs.scalars, 1

    def by_key(self) -> Iterator[tuple[int, int]]:
        """The calls, those of one key only once: place in ``order`` of the first such call, and how
        many calls have its key. Calls without a key stand alone."""
        counts = Counter(map(self._keys.__getitem__, self.order))
        alone = counts.pop(NOT_INTERNED, 0)
        for place, position in enumerate(self.order):
            if not counts and not alone:
                return
            key = self._keys[position]
            if key == NOT_INTERNED:
                alone -= 1
                yield place, 1
            elif key in counts:
                yield place, counts.pop(key)

    def blob(self, position: int) -> int | None:
        """Where the content of a call's blob starts."""
        header = self._blobs[position]
        return None if header == NO_BLOB else header + BLOCK

    def located(self, error: TapeError, position: int) -> TapeError:
        """The error with file, member and offset of a call filled in."""
        name = record_name(self._numbers[position])
        return error.at(path=self.path, member=name, offset=self._records[position] - BLOCK)

    def check_blob(self, position: int, record: CallRecord) -> None:
        """Compares a call's blob with its checksum, the first time it is asked.

        Raises:
            TapeError: ``damaged``, every time it is asked.
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
        """Adds damage of a call once, however often it is met."""
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
        """Takes the calls that are known to be damaged off the list."""
        self.order = array("Q", (p for p in self.order if self._checked[p] != _DAMAGED))

    def _read_manifest(self) -> tuple[Member, Manifest]:
        stray: list[TapeError] = []
        file = self._file
        found = members(file.read, file.size, stray.append, next_data=file.next_data)
        first = next(found, None)
        if first is None or first.offset or first.name != MANIFEST:
            if self._file.read(0, len(MANIFEST)) == MANIFEST.encode():
                raise TapeError(
                    "damaged", "the file ends within its manifest", member=MANIFEST, offset=0
                )
            raise TapeError("not_a_tape", "the file does not start with a tape's manifest")
        try:
            return first, decode_manifest(content_of(self._file.read, first))
        except TapeError as error:
            raise error.at(member=MANIFEST, offset=0) from None


def _sound(coverage: Coverage) -> Coverage:
    """A trailer's, whose sum holds: of one that contradicts itself (which is damage) the larger
    number of calls counts as seen."""
    told = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen == told:
        return coverage
    seen = max(coverage.seen, told)
    dropped = dict(coverage.dropped)
    if seen > told:
        dropped["unknown (the trailer contradicts itself)"] = seen - told
    return Coverage.model_construct(seen=seen, kept=coverage.kept, dropped=dropped)
