"""What was compared of the calls of one tape file, and what is wrong with each.

Records are compared with the format, and tensors with their checksums, each once; the damage of a
call is told once.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

from calltape_analyzer.errors import Damage, is_damage
from calltape_analyzer.reading.tape_file import TapeBytes
from calltape_schema.bounds import CHECKED_BYTES
from calltape_schema.errors import TapeError
from calltape_schema.reader import Holder, TapeReader
from calltape_schema.records import CallRecord
from calltape_schema.scan import Scan
from calltape_schema.sections import STORED, steps_of
from calltape_schema.tar import Member, group_name

__all__ = ["CallChecks"]

# Flags of a call: its record was read; its blob was compared with the checksum, and is whole or
# not; its damage is told, and is that of its record.
_READ, _WHOLE, _BROKEN, _TOLD, _UNSOUND = 1, 2, 4, 8, 16

_BROKEN_BLOB = "the checksum of its tensors does not match their bytes"


class CallChecks:
    """The checks of the calls that a scan found.

    Attributes:
        later: the positions of the calls whose records only a later version can read, as far as
            anybody asked for them.

    Args:
        file: the bytes.
        reader: of the file.
        found: where the calls are.
        damage: gets what is wrong with single calls.
    """

    def __init__(self, file: TapeBytes, reader: TapeReader, scan: Scan, damage: Damage) -> None:
        self.later = set[int]()
        self._file, self._reader, self._scan, self._damage = file, reader, scan, damage
        self._flags = bytearray(len(scan))
        self._steps: dict[int, dict[int, bool]] = {}  # of large blobs, those that were compared

    @property
    def damaged(self) -> int:
        """How many calls are known to be damaged, although their records are whole."""
        return sum([flags >= _TOLD for flags in self._flags])

    @property
    def records_read(self) -> int:
        """How many records were read so far, each compared with what the file says of it."""
        return sum([flags & _READ for flags in self._flags])

    @property
    def has_unsound(self) -> bool:
        """Whether a record is known to break the format."""
        return any(flags & _UNSOUND for flags in self._flags)

    def is_damaged(self, position: int) -> bool:
        """Whether a call is known to be damaged."""
        return bool(self._flags[position] & _TOLD)

    def is_unsound(self, position: int) -> bool:
        """Whether the record of a call is known to break the format."""
        return bool(self._flags[position] & _UNSOUND)

    def note_read(self, position: int) -> None:
        """Somebody reads the record of a call."""
        self._flags[position] |= _READ

    def unsound(self, error: TapeError, position: int) -> TapeError:
        """What is wrong with the record of a call, as :meth:`reported`."""
        if is_damage(error):
            self._flags[position] |= _UNSOUND
        if error.kind == "unsupported":
            self.later.add(position)
        return self.reported(error, position)

    def blob(self, position: int, record: CallRecord | Holder) -> None:
        """Compares a call's blob with its checksums. The bytes are read the first time only.

        Raises:
            TapeError: ``damaged``, each time; ``unsupported``.
        """
        facts = record.blob
        if facts is None or self._flags[position] & _WHOLE:
            return
        member = self._reader.blob_member(record)
        if facts.steps:
            self._check_steps(position, record, member, range(steps_of(facts.size) + 1))
        elif (
            self._flags[position] & _BROKEN
            or self._file.crc32(member.start, member.size) != facts.checksum
        ):
            raise self._broken_blob(position, record, member)
        self._flags[position] |= _WHOLE

    def _check_steps(
        self, position: int, holder: CallRecord | Holder, member: Member, steps: range
    ) -> None:
        """Compares some of the parts of a blob that have a checksum each."""
        facts, checksums = holder.blob, self._steps.setdefault(position, {})
        assert facts is not None
        for step in steps:
            if step not in checksums:
                begin = step * CHECKED_BYTES
                size = min(CHECKED_BYTES, member.size - begin)
                before = facts.sum_of(step - 1) if step else 0
                checksum = self._file.crc32(member.start + begin, size, before)
                checksums[step] = checksum == facts.sum_of(step)
            if not checksums[step]:
                raise self._broken_blob(position, holder, member)

    def _broken_blob(self, position: int, holder: CallRecord | Holder, member: Member) -> TapeError:
        """What is wrong with a blob, which is reported once."""
        reason = f"call {holder.call}: {_BROKEN_BLOB}"
        wrong = TapeError(
            "damaged", reason, path=self._file.path, member=member.name, offset=member.offset
        )
        if not self._flags[position] & _BROKEN:
            self._flags[position] |= _BROKEN
            self._report(copy(wrong), position)
        return wrong

    def value(self, position: int, record: CallRecord, key: str) -> None:
        """Compares what has the bytes of a tensor with its checksums: in blobs whose parts have
        some, the parts where it is, and the header.

        Raises:
            TapeError: ``damaged``, ``invalid``, ``limit`` or ``unsupported``.
        """
        own_holder = Holder(record.call, record.blob)
        if key not in record.elsewhere:
            self._check_tensor(position, own_holder, key)
            return
        # Without it no value of the call is there; a later codec costs the values in it alone.
        if record.blob is not None and record.blob.is_supported:
            if record.blob.steps:
                self._reader.blob_member(own_holder)
            else:
                self.blob(position, own_holder)
        number = None
        try:
            parts, axis = self._reader.holders(record, key)
            for holder, there in parts:
                number = holder.call if holder.call != record.call else None
                holder_position = self._scan.position(holder.call)
                assert holder_position is not None
                self._check_tensor(holder_position, holder, there)
                if axis is not None:  # each part is read as a whole before the next one
                    self._reader.span(holder, there)
        except TapeError as error:
            raise self._of_holder(error, position, record, number) from None

    def _check_tensor(self, position: int, holder: Holder, key: str) -> None:
        """Compares the header of a blob and one of its tensors with their checksums."""
        facts = holder.blob
        if facts is None or not facts.steps or facts.codec != STORED:
            self.blob(position, holder)
        elif not self._flags[position] & _WHOLE:
            member = self._reader.blob_member(holder)
            self._check_steps(position, holder, member, range(1))  # says how long the header is
            ends = self._reader.header_size(holder)
            self._check_steps(position, holder, member, _steps_between(0, ends))
            between = _steps_between(*self._reader.span(holder, key))
            self._check_steps(position, holder, member, between)

    def holders(self, record: CallRecord, keys: Iterable[str]) -> list[Holder]:
        """The calls whose blobs have the tensors of a call for these keys, each once."""
        holders = [h for key in keys for h, _ in self._reader.holders(record, key).parts]
        return list({holder.call: holder for holder in holders}.values())

    def blobs(self, position: int, record: CallRecord, keys: Iterable[str]) -> None:
        """Compares the blobs of the calls that have tensors for these keys with their checksums.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``: damage of the call at this position.
        """
        number = None
        try:
            for holder in self.holders(record, keys):
                number = holder.call
                blob_position = self._scan.position(number)
                assert blob_position is not None
                self.blob(blob_position, holder)
        except TapeError as error:
            raise self._of_holder(error, position, record, number) from None

    def _of_holder(
        self, error: TapeError, position: int, record: CallRecord, number: int | None
    ) -> TapeError:
        """What is wrong with call ``number``, of which another call has tensors, as damage of that
        one; with no number, the error says already which call is not there."""
        if not is_damage(error):
            return error
        reason = error.reason
        if number is not None:
            holder_position = self._scan.position(number)
            is_broken = holder_position is not None and self._flags[holder_position] & _BROKEN
            why = _BROKEN_BLOB if is_broken else reason
            reason = f"call {record.call} has tensors of call {number}: {why}"
        return self.reported(TapeError(error.kind, reason), position)

    def located(self, error: TapeError, position: int) -> TapeError:
        """The error, with the file, the member and the offset of the group of the call."""
        offset, record_offset = self._scan.place(position)
        first = self._scan.numbers[position - record_offset]
        return error.at(path=self._file.path, member=group_name(first), offset=offset)

    def reported(self, error: TapeError, position: int) -> TapeError:
        """The error, located; it is added to the list if it says something about the call."""
        located = self.located(error, position)
        if is_damage(located):
            self._report(located, position)
        return located

    def _report(self, error: TapeError, position: int) -> None:
        """Adds the damage of a call to the list, once per call."""
        if not self._flags[position] & _TOLD:
            self._flags[position] |= _TOLD
            self._damage.add(error)


def _steps_between(begin: int, end: int) -> range:
    """The parts of a blob with a checksum each that have its bytes from ``begin`` to ``end``."""
    return range(begin // CHECKED_BYTES, -(-end // CHECKED_BYTES))
