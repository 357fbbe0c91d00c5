"""The walk over one tape file, which finds its calls.

It hops from header to header and reads the record of every call, because the record is what makes
the call exist. It touches no tensor bytes and keeps 45 bytes per call: to decode a record again
costs less than to keep millions of its parts in the garbage collector's view.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable

from calltape_analyzer.damage import Damage
from calltape_analyzer.descriptors import DescriptorError
from calltape_analyzer.input_keys import InputKeys
from calltape_analyzer.tape_file import TapeFile, Window
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
from calltape_schema.records import Trailer, decode_trailer
from calltape_schema.skimming import Skimmer

__all__ = ["NO_BLOB", "Scan", "content_of"]

NO_BLOB = 2**64 - 1

_MAX_RECORD_BYTES = MAX_DOCUMENT_BYTES + BLOCK


def content_of(read: Callable[[int, int], bytes], member: Member) -> bytes:
    """The bytes of a msgpack member.

    Raises:
        TapeError: ``limit``, or what ``read(offset, size)`` raises.
    """
    _, offset, size = member
    if size > _MAX_RECORD_BYTES:
        raise TapeError("limit", f"a member of {size} bytes (at most {_MAX_RECORD_BYTES})")
    return read(offset + BLOCK, size)


class Scan:
    """What a walk over one file found. The columns have an element per call, in file order.

    Attributes:
        numbers: of the calls.
        records: where the contents of the records start.
        record_sizes: of these contents.
        blobs: where the headers of the blobs start, :data:`NO_BLOB` without one.
        keys: indices of the inputs among ``input_keys.keys``.
        unfinished: bytes at the end that belong to a call which was being written.
    """

    def __init__(self, file: TapeFile, tape: bytes, damage: Damage) -> None:
        self.trailer: Trailer | None = None
        self.unfinished = 0
        self.input_keys = InputKeys()
        self.numbers = array("Q")
        self.records = array("Q")
        self.record_sizes = array("Q")
        self.blobs = array("Q")
        self.keys = array("I")
        self._read = Window(file).read
        self._next_data = file.next_data
        self._size = file.size
        self._path = file.path
        self._tape = tape
        self._damage = damage
        self._skim = Skimmer(self.input_keys.id_of)
        # A blob that waits for its record: the record's name, the call's number, the blob.
        self._pending: tuple[str, int, Member] | None = None
        self._offsets: dict[int, int] = {}
        self._lost: set[int] = set()
        self._tail: TapeError | None = None

    def run(self, start: int) -> None:
        """Walks from the offset of a header to the end of the file."""
        for member in members(self._read, self._size, self._on_damage, start, self._next_data):
            if self._tail is not None:
                self._add(self._tail)
                self._tail = None
            self._take(member)
        if self.trailer is None:
            self._end_unsealed()
        else:
            self._end_sealed(self.trailer)

    def _on_damage(self, error: TapeError) -> None:
        # Held back until it is known whether a member follows: at the end of an unsealed tape,
        # a member cut short is a call that was being written, and that is no damage.
        if self._tail is not None:
            self._add(self._tail)
        self._tail = error

    def _add(self, error: TapeError) -> None:
        self._damage.add(error.at(path=self._path))

    def _lose(self, number: int, error: TapeError, member: Member) -> None:
        self._lost.add(number)
        error.reason = f"call {number} is skipped: {error.reason}"
        self._add(error.at(member=member.name, offset=member.offset))

    def _take(self, member: Member) -> None:
        pending, blob = self._pending, None
        if pending is not None and member.name == pending[0]:
            # Nearly every record: the blob before it has told its number.
            _, number, blob = pending
            self._pending = None
        else:
            call = call_member(member.name)
            if call is None:
                if member.name == TRAILER:
                    self._take_trailer(member)
                return  # members of other names are for newer readers
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
        tape, call, blob_size, key = self._skim(content_of(self._read, member))
        if tape != self._tape:
            raise TapeError("damaged", "its record belongs to another tape")
        if call != number:
            raise TapeError("damaged", f"its record says that it is call {call}")
        if number in self._offsets:
            raise TapeError("damaged", "there was a call of this number before")
        _, offset, size = member
        if blob_size is None:
            first, blob_offset = offset, NO_BLOB
        elif blob is None or blob.size != blob_size:
            found = "none" if blob is None else f"one of {blob.size}"
            reason = f"its record tells of a blob of {blob_size} bytes, but there is {found}"
            raise TapeError("damaged", reason)
        else:
            first = blob_offset = blob.offset
        self._offsets[number] = first
        self.numbers.append(number)
        self.records.append(offset + BLOCK)
        self.record_sizes.append(size)
        self.blobs.append(blob_offset)
        self.keys.append(key)

    def _take_trailer(self, member: Member) -> None:
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
        if self._tail is not None:
            offset = self._tail.offset or 0
            if self._tail.member == TRAILER or not _cut_short(self._tail, self._size):
                self._add(self._tail)
                self._drop_pending()
                return
            self.unfinished = self._size - offset
        if self._pending is not None:
            self.unfinished = self._size - self._pending[2].offset

    def _end_sealed(self, trailer: Trailer) -> None:
        """The index of a sealed tape says which calls it holds, and where."""
        self._drop_pending()
        if self._tail is not None:
            self._add(self._tail)
        coverage = trailer.coverage
        told = coverage.kept + sum(coverage.dropped.values())
        if coverage.seen != told:
            reason = f"the trailer says {coverage.seen} calls seen, and accounts for {told}"
            self._add(TapeError("damaged", reason, member=TRAILER))
        index = dict(struct.iter_unpack("<QQ", trailer.index))
        if index == self._offsets:
            return
        for number, offset in index.items():
            if number not in self._offsets and number not in self._lost:
                reason = f"call {number} is lost: it stood here by the tape's index"
                self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        if any(index.get(number) != offset for number, offset in self._offsets.items()):
            self._remove_strangers(index)

    def _remove_strangers(self, index: dict[int, int]) -> None:
        """Calls that the walk met but the index does not know: bytes inside damaged tensors that
        look like members."""
        kept = []
        for position, (number, offset) in enumerate(self._offsets.items()):
            if index.get(number) == offset:
                kept.append(position)
                continue
            reason = f"call {number} is skipped: the tape's index does not have it here"
            self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        for column in (self.numbers, self.records, self.record_sizes, self.blobs, self.keys):
            column[:] = array(column.typecode, (column[position] for position in kept))


def _cut_short(error: TapeError, size: int) -> bool:
    """Whether a file of ``size`` bytes ends like one whose writer was interrupted: within a
    member, or within a header."""
    return error.member is not None or size - (error.offset or 0) < BLOCK
