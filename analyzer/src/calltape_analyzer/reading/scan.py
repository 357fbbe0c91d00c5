"""The walk over one tape file, which finds its calls.

In come the members of the file, header after header. Out go the positions of the records and blobs
of its calls, the trailer, and the damage. The walk reads every record, because a call exists only
if its record does, and no tensor bytes. It keeps 44 bytes per call: decoding a record again costs
less than millions of small objects that the garbage collector visits.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable

from calltape_analyzer.progress import steps
from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED, DistinctInputs
from calltape_analyzer.reading.file_descriptors import DescriptorError
from calltape_analyzer.reading.inputs_ranges import InputsRanges
from calltape_analyzer.reading.tape_bytes import TapeBytes
from calltape_analyzer.reading.tape_file import Window
from calltape_analyzer.reading.torn_tail import TornTail
from calltape_schema.endings import Trailer, decode_trailer
from calltape_schema.errors import TapeError
from calltape_schema.framing import (
    BLOCK,
    TRAILER,
    Member,
    call_member,
    members,
    record_beside,
    record_name,
)
from calltape_schema.gathered import (
    LENGTH_BYTES,
    MAX_GROUP_BYTES,
    MAX_TIMES,
    is_group,
    payload_bytes,
    payload_of,
    places,
)
from calltape_schema.packing import MAX_DOCUMENT_BYTES
from calltape_schema.skimming import RangesBytes, Skimmer

__all__ = ["GATHERED", "NO_BLOB", "Scan", "content_of"]

NO_BLOB = 2**64 - 1
GATHERED = 2**64 - 2
"""In place of a blob's offset: the call has no blob, and its record is in a group."""

_MAX_RECORD_BYTES = MAX_DOCUMENT_BYTES + BLOCK


def content_of(read: Callable[[int, int], bytes], member: Member) -> bytes:
    """The content of a msgpack member.

    Raises:
        TapeError: ``limit`` if it is too long, and whatever ``read(offset, size)`` raises.
    """
    _, offset, size = member
    if size > _MAX_RECORD_BYTES:
        raise _too_long(size)
    return read(offset + BLOCK, size)


def _too_long(size: int) -> TapeError:
    return TapeError("limit", f"a member has {size} bytes (at most {_MAX_RECORD_BYTES})")


def _of_another_tape() -> TapeError:
    return TapeError("damaged", "its record belongs to another tape")


def _twice() -> TapeError:
    return TapeError("damaged", "another call before it has the same number")


class Scan:
    """What a walk over one file found. The arrays have one element per call, in file order.

    Attributes:
        numbers: the numbers of the calls.
        firsts: the offsets of each call's first member, or of its group.
        records: the offsets of the records' contents.
        record_sizes: the sizes of these contents, in bytes.
        blobs: the offsets of the blobs' headers; :data:`NO_BLOB` or :data:`GATHERED` for a call
            without a blob.
        inputs: the numbers of the inputs in ``distinct_inputs``.
        ranges: of integer tensors, of all these calls together, by the number of the inputs; not
            those of calls whose inputs have no number.
        tensor_bytes: the size of all blobs.
        unfinished: how many bytes at the end belong to a call that was being written.
        end: where the walk ended: at the size of the file, or at the header of the next member.
    """

    def __init__(self, file: TapeBytes, tape: bytes, damage: Damage) -> None:
        self.trailer: Trailer | None = None
        self.unfinished = self.tensor_bytes = 0
        self.end = file.size
        self.distinct_inputs = DistinctInputs()
        self.ranges = InputsRanges()
        self.numbers = array("Q")
        self.firsts = array("Q")
        self.records = array("Q")
        self.record_sizes = array("Q")
        self.blobs = array("Q")
        self.inputs = array("I")
        self._read = Window(file).read
        self._next_data = file.next_data
        self._size = file.size
        self._path = file.path
        self._tape = tape
        self._damage = damage
        self._skim = Skimmer(self.distinct_inputs.number_of)
        # A blob whose record is expected next: the record's name, the call's number, the blob.
        self._pending: tuple[str, int, Member] | None = None
        self._highest = -1
        self._known: set[int] | None = None  # the numbers, as soon as one is not the highest so far
        self._lost: set[int] = set()
        self._torn_entry: tuple[TapeError, int] | None = None  # and how many bytes it has
        self._tail = TornTail(self._add)

    def run(self, start: int, stop: int | None = None, *, is_piece: bool = False) -> None:
        """Walks from the offset of a header to the end of the file.

        Args:
            start: the offset.
            stop: if given, the walk ends before the first member that begins there or later. A
                record that begins there, alone or after its blob, still belongs to this walk
                (:func:`calltape_analyzer.reading.file_piece.begin_of` leaves it out of the next).
            is_piece: whether the file has calls that this walk does not see: then the calls are
                not compared with the index of a sealed tape.
        """
        tail = self._tail
        is_last = False
        found = members(self._read, self._size, tail.hold, start, self._next_data)
        end = self._size if stop is None else stop
        for member in steps(found, "bytes", end, lambda member: member.offset):
            if tail.held is not None:
                tail.release()
            if self._torn_entry is not None:
                self._release_entry()
            if stop is not None and member.offset >= stop:
                call = call_member(member.name)
                if is_last or call is None or not call[1]:
                    self._drop_pending()
                    self.end = member.offset
                    return
                is_last = True
            self._add_member(member)
        if self.trailer is None:
            self._end_unsealed()
        else:
            self._drop_pending()
            self._release_entry()
            self._tail.release()
            if not is_piece:
                self._end_sealed(self.trailer)

    @property
    def ascends(self) -> bool:
        """Whether the calls are in the order of their numbers, as nearly always."""
        return self._known is None

    def _add(self, error: TapeError) -> None:
        self._damage.add(error.at(path=self._path))

    def _lose(self, number: int, error: TapeError, member: Member) -> None:
        self._lost.add(number)
        error.reason = f"call {number} is skipped: {error.reason}"
        self._add(error.at(member=member.name, offset=member.offset))

    def _add_member(self, member: Member) -> None:
        pending, blob = self._pending, None
        if pending is not None and member.name == pending[0]:
            # Nearly every record comes right after its blob, whose name gave the number.
            _, number, blob = pending
            self._pending = None
        else:
            call = call_member(member.name)
            if call is None:
                self._add_other(member)
                return
            number, is_record = call
            if pending is not None:
                self._drop_pending()
            if not is_record:
                self._pending = record_beside(member.name), number, member
                return
        try:
            self._commit(member, number, blob)
        except DescriptorError:
            raise
        except TapeError as error:
            self._lose(number, error, member)

    def _drop_pending(self) -> None:
        if self._pending is not None:
            _, number, member = self._pending
            self._pending = None
            self._lose(number, TapeError("damaged", "its record is missing"), member)

    def _commit(self, member: Member, number: int, blob: Member | None) -> None:
        _, offset, size = member
        if size > _MAX_RECORD_BYTES:
            raise _too_long(size)
        tape, call, blob_size, inputs, ranges = self._skim(self._read(offset + BLOCK, size))
        if tape != self._tape:
            raise _of_another_tape()
        if call != number:
            raise TapeError("damaged", f"its record says that it is call {call}")
        if number <= self._highest and self._has(number):
            raise _twice()
        if blob_size is None:
            self._add_call(number, offset, offset + BLOCK, size, NO_BLOB, inputs, ranges)
        elif blob is None or blob.size != blob_size:
            found = "has no blob" if blob is None else f"has a blob of {blob.size} bytes"
            reason = f"its record says that its blob has {blob_size} bytes, but the tape {found}"
            raise TapeError("damaged", reason)
        else:
            self.tensor_bytes += blob_size
            self._add_call(number, blob.offset, offset + BLOCK, size, blob.offset, inputs, ranges)

    def _has(self, number: int) -> bool:
        """Whether a call of this number was added. Nearly always numbers ascend, and nobody asks:
        a set of all numbers takes longer than a walk over their headers should."""
        if self._known is None:
            self._known = set(self.numbers)
        return number in self._known

    def _add_call(
        self, number: int, first: int, record: int, size: int, blob: int,
        inputs: int, ranges: RangesBytes,
    ) -> None:  # fmt: skip
        if number > self._highest:
            self._highest = number
        if self._known is not None:
            self._known.add(number)
        self.numbers.append(number)
        self.firsts.append(first)
        self.records.append(record)
        self.record_sizes.append(size)
        self.blobs.append(blob)
        self.inputs.append(inputs)
        if ranges and inputs != NOT_NUMBERED:
            self.ranges.add(inputs, ranges)

    def _add_other(self, member: Member) -> None:
        """Adds a group of records, or the trailer. A newer format may have other members."""
        if member.name == TRAILER:
            self._add_trailer(member)
        elif is_group(member.name):
            self._drop_pending()
            try:
                self._add_group(member)
            except DescriptorError:
                raise
            except TapeError as error:
                self._add(error.at(member=member.name, offset=member.offset))

    def _add_group(self, member: Member) -> None:
        if member.size > MAX_GROUP_BYTES:
            reason = f"a group of records has {member.size} bytes (at most {MAX_GROUP_BYTES})"
            raise TapeError("limit", reason)
        content, end = self._read(member.start, member.size), 0
        entries: dict[int, bytes] = {}
        room = MAX_TIMES * member.size
        used = len(content.rstrip(b"\0"))
        for start, size in places(content):
            end = start + size
            try:
                if end > len(content):
                    raise TapeError("damaged", "an entry of a group is longer than the group")
                entries[start - LENGTH_BYTES] = content[start:end]
                room -= payload_bytes(content[start:end])
                if room < 0:
                    raise TapeError("limit", "the records of a group are too large together")
                self._commit_entry(member, start, size, entries)
            except DescriptorError:
                raise
            except TapeError as error:
                is_last = used <= end <= len(content)
                self._add_bad_entry(error, member, start, end, is_last=is_last)
        if content.count(0, end) != max(len(content) - end, 0):
            reason = f"{len(content) - end} bytes of a group of records are no entries"
            raise TapeError("damaged", reason)

    def _commit_entry(
        self, member: Member, start: int, size: int, entries: dict[int, bytes]
    ) -> None:
        at = start - LENGTH_BYTES
        payload = payload_of(entries[at], at, lambda other: entries.get(other, b""))
        tape, number, blob_size, inputs, ranges = self._skim.payload(payload)
        if tape != self._tape:
            raise _of_another_tape()
        if blob_size is not None:
            self._lost.add(number)
            raise TapeError("damaged", f"call {number} is skipped: a record in a group has a blob")
        if number <= self._highest and self._has(number):
            raise TapeError("damaged", f"call {number} is skipped: {_twice().reason}")
        self._add_call(number, member.offset, member.start + start, size, GATHERED, inputs, ranges)

    def _add_bad_entry(
        self, error: TapeError, member: Member, start: int, end: int, *, is_last: bool
    ) -> None:
        """Adds the damage of an entry. If it is the last thing on the tape, its writer may have
        been interrupted."""
        error.at(member=member.name, offset=member.start + start - LENGTH_BYTES)
        if is_last:
            self._torn_entry = error, end - start + LENGTH_BYTES
        else:
            self._add(error)

    def _release_entry(self) -> None:
        """Reports the entry that is held, if any: something follows it, so it is not torn."""
        if self._torn_entry is not None:
            self._add(self._torn_entry[0])
            self._torn_entry = None

    def _add_trailer(self, member: Member) -> None:
        self._drop_pending()
        try:
            trailer = decode_trailer(content_of(self._read, member))
            if trailer.tape != self._tape:
                raise TapeError("damaged", "the trailer belongs to another tape")
        except DescriptorError:
            raise
        except TapeError as error:
            self._add(error.at(member=member.name, offset=member.offset))
        else:
            self.trailer = trailer

    def _end_unsealed(self) -> None:
        blob = None if self._pending is None else self._pending[2]
        unfinished = self._tail.unfinished_bytes(self._size, blob)
        if unfinished is None:
            self._drop_pending()
            self._release_entry()
        else:
            self.unfinished = unfinished
            if self._torn_entry is not None:
                self.unfinished += self._torn_entry[1]

    def _end_sealed(self, trailer: Trailer) -> None:
        """Compares the calls with the index of a sealed tape, which says where each call is."""
        coverage = trailer.coverage
        told = coverage.kept + sum(coverage.dropped.values())
        if coverage.seen != told:
            reason = (
                f"the trailer says that {coverage.seen} calls were seen, but accounts for {told}"
            )
            self._add(TapeError("damaged", reason, member=TRAILER))
        index = array("Q", trailer.index)
        if sys.byteorder == "big":
            index.byteswap()
        if index[::2] != self.numbers or index[1::2] != self.firsts:
            self._compare(dict(zip(index[::2], index[1::2], strict=True)))

    def _compare(self, index: dict[int, int]) -> None:
        """Compares the calls with an index, which may have them in another order."""
        found = dict(zip(self.numbers, self.firsts, strict=True))
        if index == found:
            return
        for number, offset in index.items():
            if number not in found and number not in self._lost:
                reason = f"call {number} is lost: by the tape's index, it was here"
                self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        if any(index.get(number) != offset for number, offset in found.items()):
            self._remove_strangers(index)

    def _remove_strangers(self, index: dict[int, int]) -> None:
        """Removes calls that the walk found and the index does not have: bytes inside damaged
        tensors that look like members."""
        kept = []
        for position, (number, offset) in enumerate(zip(self.numbers, self.firsts, strict=True)):
            if index.get(number) == offset:
                kept.append(position)
                continue
            reason = f"call {number} is skipped: the tape's index does not have it here"
            self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        for column in (
            self.numbers, self.firsts, self.records, self.record_sizes, self.blobs, self.inputs,
        ):  # fmt: skip
            column[:] = array(column.typecode, (column[position] for position in kept))
