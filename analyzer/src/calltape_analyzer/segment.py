"""One tape file, scanned: where its calls are, and what of it is damaged.

A scan hops from header to header and decodes the record of every call, because the record is what
makes the call exist. It touches no tensor bytes and keeps 40 bytes per call: to decode a record
again costs less than to keep millions of its parts in the garbage collector's view.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from array import array

from calltape_schema.errors import TapeError
from calltape_schema.framing import (
    BLOCK,
    MANIFEST,
    TRAILER,
    Member,
    blob_call_number,
    call_number,
    members,
    record_name,
)
from calltape_schema.packing import MAX_DOCUMENT_BYTES
from calltape_schema.records import (
    CallRecord,
    Coverage,
    Manifest,
    Trailer,
    decode_call,
    decode_manifest,
    decode_trailer,
)

__all__ = ["Damage", "Segment"]

_NO_BLOB = 2**64 - 1
_MAX_RECORD_BYTES = MAX_DOCUMENT_BYTES + BLOCK
_MAX_LISTED = 1000

# What is known of a call's tensors.
_UNKNOWN, _WHOLE, _DAMAGED = 0, 1, 2


class Damage:
    """What was found damaged, in the order found; bounded, so that a file of nothing but damage
    does not fill the memory."""

    def __init__(self) -> None:
        self._listed: list[TapeError] = []
        self._more = 0

    def add(self, error: TapeError) -> None:
        if len(self._listed) < _MAX_LISTED:
            # Kept for as long as the tape, and the frames of a traceback would be with it.
            error.__traceback__ = error.__context__ = None
            self._listed.append(error)
        else:
            self._more += 1

    def list(self) -> list[TapeError]:
        more = f"{self._more} more places are damaged"
        return [*self._listed, TapeError("damaged", more)] if self._more else list(self._listed)


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
        self.trailer: Trailer | None = None
        self.unfinished = 0
        self._view = _mapped(path)
        self.size = len(self._view)
        self._numbers = array("Q")
        self._records = array("Q")
        self._record_sizes = array("Q")
        self._blobs = array("Q")
        try:
            first, self.manifest = self._read_manifest()
            _Scan(self).run(first.end)
        except TapeError as error:
            self.close()
            raise error.at(path=path) from None
        except BaseException:
            self.close()
            raise
        self._checked = bytearray(len(self._numbers))
        self.order = self._sorted()

    def _sorted(self) -> array[int]:
        """Positions of the calls in the order of their numbers: threads may have finished
        writing in another."""
        positions = array("Q", range(len(self._numbers)))
        if any(a > b for a, b in zip(self._numbers, self._numbers[1:], strict=False)):
            return array("Q", sorted(positions, key=self._numbers.__getitem__))
        return positions

    def __len__(self) -> int:
        return len(self.order)

    @property
    def closed(self) -> bool:
        return self._view.closed

    def close(self) -> None:
        self._view.close()

    @property
    def coverage(self) -> Coverage:
        """From the trailer; without one, the numbers of the calls that were found tell how many
        were seen at least."""
        if self.trailer is not None:
            return self.trailer.coverage
        found = len(self._numbers)
        seen = max(self._numbers, default=-1) + 1
        gaps = {"unknown (the tape is not sealed)": seen - found} if seen > found else {}
        return Coverage(seen=seen, kept=found, dropped=gaps)

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of the file."""
        self._ensure_open()
        return self._view[offset : offset + size]

    def copy(self, offset: int, size: int) -> bytearray:
        """``size`` bytes of the file in memory of their own, copied once."""
        self._ensure_open()
        with memoryview(self._view) as view, view[offset : offset + size] as part:
            return bytearray(part)

    def _ensure_open(self) -> None:
        if self._view.closed:
            raise TapeError("closed", "the tape was closed", path=self.path)

    def number(self, position: int) -> int:
        return self._numbers[position]

    def record(self, position: int) -> CallRecord:
        """The record of a call, decoded anew."""
        return decode_call(self.read(self._records[position], self._record_sizes[position]))

    def blob(self, position: int) -> int | None:
        """Where the content of a call's blob starts."""
        header = self._blobs[position]
        return None if header == _NO_BLOB else header + BLOCK

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
            if self._crc32(self._blobs[position] + BLOCK, record.blob.size) == record.blob.crc32:
                self._checked[position] = _WHOLE
                return
            self.report(self._damaged_blob(position), position)
        raise self._damaged_blob(position)

    def _crc32(self, offset: int, size: int) -> int:
        self._ensure_open()
        with memoryview(self._view) as view, view[offset : offset + size] as part:
            return zlib.crc32(part)

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
        first = next(members(self.read, self.size, stray.append), None)
        if first is None or first.offset or first.name != MANIFEST:
            if self.read(0, len(MANIFEST)) == MANIFEST.encode():
                raise TapeError(
                    "damaged", "the file ends within its manifest", member=MANIFEST, offset=0
                )
            raise TapeError("not_a_tape", "the file does not start with a tape's manifest")
        try:
            return first, decode_manifest(self._content(first))
        except TapeError as error:
            raise error.at(member=MANIFEST, offset=0) from None

    def _content(self, member: Member) -> bytes:
        if member.size > _MAX_RECORD_BYTES:
            raise TapeError(
                "limit", f"a member of {member.size} bytes (at most {_MAX_RECORD_BYTES})"
            )
        return self.read(member.start, member.size)


class _Scan:
    """The walk over one file, which fills a segment."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.pending: tuple[int, Member] | None = None
        self.offsets: dict[int, int] = {}
        self.lost: set[int] = set()
        self.tail: TapeError | None = None

    def run(self, start: int) -> None:
        segment = self.segment
        view = segment._view
        for member in members(
            lambda offset, size: view[offset : offset + size], segment.size, self._on_damage, start
        ):
            if self.tail is not None:
                self._add(self.tail)
                self.tail = None
            self._take(member)
        if segment.trailer is None:
            self._end_unsealed()
        else:
            self._end_sealed(segment.trailer)

    def _on_damage(self, error: TapeError) -> None:
        # Held back until it is known whether a member follows: at the end of an unsealed tape,
        # a member cut short is a call that was being written, and that is no damage.
        if self.tail is not None:
            self._add(self.tail)
        self.tail = error

    def _add(self, error: TapeError) -> None:
        self.segment.damage.add(error.at(path=self.segment.path))

    def _lose(self, number: int, error: TapeError, member: Member) -> None:
        self.lost.add(number)
        error.reason = f"call {number} is skipped: {error.reason}"
        self._add(error.at(member=member.name, offset=member.offset))

    def _take(self, member: Member) -> None:
        if (number := call_number(member.name)) is not None:
            try:
                self._commit(member, number, self._blob_of(number))
            except TapeError as error:
                self._lose(number, error, member)
        elif (number := blob_call_number(member.name)) is not None:
            self._drop_pending()
            self.pending = (number, member)
        elif member.name == TRAILER:
            self._take_trailer(member)
        # Members of other names are for newer readers.

    def _blob_of(self, number: int) -> Member | None:
        """The blob that waits for the record of this call."""
        if self.pending is not None and self.pending[0] != number:
            self._drop_pending()
        pending, self.pending = self.pending, None
        return pending[1] if pending is not None else None

    def _drop_pending(self) -> None:
        if self.pending is not None:
            number, member = self.pending
            self.pending = None
            self._lose(number, TapeError("damaged", "its record is missing"), member)

    def _commit(self, member: Member, number: int, blob: Member | None) -> None:
        segment = self.segment
        record = decode_call(segment._content(member))
        if record.tape != segment.manifest.tape:
            raise TapeError("damaged", "its record belongs to another tape")
        if record.call != number:
            raise TapeError("damaged", f"its record says that it is call {record.call}")
        if number in self.offsets:
            raise TapeError("damaged", "there was a call of this number before")
        if record.blob is None:
            blob = None
        elif blob is None or blob.size != record.blob.size:
            found = "none" if blob is None else f"one of {blob.size}"
            reason = f"its record tells of a blob of {record.blob.size} bytes, but there is {found}"
            raise TapeError("damaged", reason)
        self.offsets[number] = member.offset if blob is None else blob.offset
        segment._numbers.append(number)
        segment._records.append(member.start)
        segment._record_sizes.append(member.size)
        segment._blobs.append(_NO_BLOB if blob is None else blob.offset)

    def _take_trailer(self, member: Member) -> None:
        self._drop_pending()
        try:
            trailer = decode_trailer(self.segment._content(member))
            if trailer.tape != self.segment.manifest.tape:
                raise TapeError("damaged", "the trailer belongs to another tape")
        except TapeError as error:
            self._add(error.at(member=member.name, offset=member.offset))
        else:
            self.segment.trailer = trailer

    def _end_unsealed(self) -> None:
        segment = self.segment
        if self.tail is not None:
            offset = self.tail.offset or 0
            if self.tail.member == TRAILER or not _cut_short(self.tail, segment.size):
                self._add(self.tail)
                self._drop_pending()
                return
            segment.unfinished = segment.size - offset
        if self.pending is not None:
            segment.unfinished = segment.size - self.pending[1].offset

    def _end_sealed(self, trailer: Trailer) -> None:
        """The index of a sealed tape says which calls it holds, and where."""
        self._drop_pending()
        if self.tail is not None:
            self._add(self.tail)
        index = dict(struct.iter_unpack("<QQ", trailer.index))
        for number, offset in index.items():
            if number not in self.offsets and number not in self.lost:
                reason = f"call {number} is lost: it stood here by the tape's index"
                self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        if any(index.get(number) != offset for number, offset in self.offsets.items()):
            self._remove_strangers(index)

    def _remove_strangers(self, index: dict[int, int]) -> None:
        """Calls that the walk met but the index does not know: bytes inside damaged tensors that
        look like members."""
        segment = self.segment
        kept = []
        for position, (number, offset) in enumerate(self.offsets.items()):
            if index.get(number) == offset:
                kept.append(position)
                continue
            reason = f"call {number} is skipped: the tape's index does not have it here"
            self._add(TapeError("damaged", reason, member=record_name(number), offset=offset))
        columns = (segment._numbers, segment._records, segment._record_sizes, segment._blobs)
        for column in columns:
            column[:] = array("Q", (column[position] for position in kept))


def _cut_short(error: TapeError, size: int) -> bool:
    """Whether a file of ``size`` bytes ends like one whose writer was interrupted: within a
    member, or within a header."""
    return error.member is not None or size - (error.offset or 0) < BLOCK


def _mapped(path: str) -> mmap.mmap:
    try:
        # Before opening, which would wait for the other end of a named pipe.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise TapeError("not_a_tape", "not a regular file", path=path)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise TapeError("not_a_tape", "the file is empty", path=path)
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise TapeError("not_found", "no such file", path=path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TapeError("io", f"cannot read it: {reason}", path=path) from None
