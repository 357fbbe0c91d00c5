"""The walk over one tape file, which finds its calls.

In come the members of the file, header after header. Out go the positions of the records and blobs
of its calls, the trailer, and the damage. The walk reads every record, because a call exists only
if its record does, and no tensor bytes. It keeps 45 bytes per call: decoding a record again costs
less than millions of small objects that the garbage collector visits.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

from calltape_analyzer.reading.damage import Damage
from calltape_analyzer.reading.distinct_inputs import DistinctInputs
from calltape_analyzer.reading.file_descriptors import DescriptorError
from calltape_analyzer.reading.tape_file import TapeFile, Window
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
from calltape_schema.packing import MAX_DOCUMENT_BYTES
from calltape_schema.skimming import Skimmer

__all__ = ["NO_BLOB", "Scan", "content_of"]

NO_BLOB = 2**64 - 1

_MAX_RECORD_BYTES = MAX_DOCUMENT_BYTES + BLOCK


def content_of(read: Callable[[int, int], bytes], member: Member) -> bytes:
    """The content of a msgpack member.

    Raises:
        TapeError: ``limit`` if it is too long, and whatever ``read(offset, size)`` raises.
    """
    _, offset, size = member
    if size > _MAX_RECORD_BYTES:
        raise TapeError("limit", f"a member has {size} bytes (at most {_MAX_RECORD_BYTES})")
    return read(offset + BLOCK, size)


class Scan:
    """What a walk over one file found. The arrays have one element per call, in file order.

    Attributes:
        numbers: the numbers of the calls.
        records: the offsets of the records' contents.
        record_sizes: the sizes of these contents, in bytes.
        blobs: the offsets of the blobs' headers; :data:`NO_BLOB` for a call without a blob.
        inputs: the numbers of the inputs in ``distinct_inputs``.
        unfinished: how many bytes at the end belong to a call that was being written.
    """

    def __init__(self, file: TapeFile, tape: bytes, damage: Damage) -> None:
        self.trailer: Trailer | None = None
        self.unfinished = 0
        self.distinct_inputs = DistinctInputs()
        self.numbers = array("Q")
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
        self._offsets: dict[int, int] = {}
        self._lost: set[int] = set()
        self._tail = TornTail(self._add)

    def run(self, start: int) -> None:
        """Walks from the offset of a header to the end of the file."""
        tail = self._tail
        for member in members(self._read, self._size, tail.hold, start, self._next_data):
            if tail.held is not None:
                tail.release()
            self._add_member(member)
        if self.trailer is None:
            self._end_unsealed()
        else:
            self._end_sealed(self.trailer)

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
                if member.name == TRAILER:
                    self._add_trailer(member)
                return  # a newer format may have members of other names
            number, is_record = call
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
        tape, call, blob_size, inputs = self._skim(content_of(self._read, member))
        if tape != self._tape:
            raise TapeError("damaged", "its record belongs to another tape")
        if call != number:
            raise TapeError("damaged", f"its record says that it is call {call}")
        if number in self._offsets:
            raise TapeError("damaged", "another call before it has the same number")
        _, offset, size = member
        if blob_size is None:
            first, blob_offset = offset, NO_BLOB
        elif blob is None or blob.size != blob_size:
            found = "has no blob" if blob is None else f"has a blob of {blob.size} bytes"
            reason = f"its record says that its blob has {blob_size} bytes, but the tape {found}"
            raise TapeError("damaged", reason)
        else:
            first = blob_offset = blob.offset
        self._offsets[number] = first
        self.numbers.append(number)
        self.records.append(offset + BLOCK)
        self.record_sizes.append(size)
        self.blobs.append(blob_offset)
        self.inputs.append(inputs)

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
        else:
            self.unfinished = unfinished

    def _end_sealed(self, trailer: Trailer) -> None:
        """Compares the calls with the index of a sealed tape, which says where each call is."""
        self._drop_pending()
        self._tail.release()
        coverage = trailer.coverage
        told = coverage.kept + sum(coverage.dropped.values())
        if coverage.seen != told:
            reason = (
                f"the trailer says that {coverage.seen} calls were seen, but accounts for {told}"
            )
            self._add(TapeError("damaged", reason, member=TRAILER))
        index = dict(struct.iter_unpack("<QQ", trailer.index))
        if index == self._offsets:
            return
        for number, offset in index.items():
            if number not in self._offsets and number not in self._lost:
                reason = f"call {number} is lost: by the tape's index, it was here"
                self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        if any(index.get(number) != offset for number, offset in self._offsets.items()):
            self._remove_strangers(index)

    def _remove_strangers(self, index: dict[int, int]) -> None:
        """Removes calls that the walk found and the index does not have: bytes inside damaged
        tensors that look like members."""
        kept = []
        for position, (number, offset) in enumerate(self._offsets.items()):
            if index.get(number) == offset:
                kept.append(position)
                continue
            reason = f"call {number} is skipped: the tape's index does not have it here"
            self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        for column in (self.numbers, self.records, self.record_sizes, self.blobs, self.inputs):
            column[:] = array(column.typecode, (column[position] for position in kept))
