"""One tape file: what it says of itself, and which calls it has.

Takes a path; returns the manifest, the end, and the calls at their positions; what is damaged is
added to a list. The bytes are understood by :class:`calltape_schema.reader.TapeReader` alone.
"""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import cached_property

from calltape_analyzer.errors import Damage, DescriptorError, is_damage, no_single_call
from calltape_analyzer.limits import Allowance, bounded, check_memory, memory_limit_of
from calltape_analyzer.progress import steps
from calltape_analyzer.reading.call_checks import CallChecks
from calltape_analyzer.reading.call_ref import (
    CallRef,
    CallRefs,
    SeenInputs,
    WideInts,
    checked_inputs,
    has_ranges,
    inputs_in,
)
from calltape_analyzer.reading.files import opened_file
from calltape_analyzer.reading.recordings import coverage_without_end, sound_coverage
from calltape_analyzer.reading.tape_file import is_ahead
from calltape_schema.blob import interleaved
from calltape_schema.end import Coverage, End, FileNumbers
from calltape_schema.errors import LostCallsError, TapeError
from calltape_schema.groups import CALL_BYTES
from calltape_schema.inputs_table import InputsTable, widen
from calltape_schema.reader import TapeReader, TensorPlace
from calltape_schema.records import CallRecord, Manifest, Range, Source, encode_manifest
from calltape_schema.scan import Scan, stale_table

__all__ = ["UNDER_WAY", "UNDER_WAY_WORDS", "Segment"]

UNDER_WAY = "under way"
"""The reason why a call that was written ahead has no outputs."""
UNDER_WAY_WORDS = "under way when the process died"


class Segment:
    """One open tape file.

    A file is scanned when somebody asks for a single call; if it has no end with a table of counted
    inputs, when somebody asks for anything. Calls are told apart by their position: where the scan
    found them.

    Attributes:
        path: as people may see it: without what is secret in a URL.
        location: what opens the file again.
        reader: of its bytes.
        manifest: of the file.
        size: in bytes, when it was opened.
        damage: gets what is wrong with single calls.
        allowance: what questions about it may cost, together with those about the other files of
            its tape.
        left_out: how many of its calls are in another file too, and count there.
        copies: the locations of files that have calls of this one too, and were closed.
        recording_began_ns: when its recording began, as far as the files that are open know.

    Args:
        path: of a file, or a URL.
        damage: gets what is wrong with single calls.

    Raises:
        TapeError: ``not_found``, ``io``, ``not_a_tape``, ``version``, ``damaged`` or ``invalid``
            (the last two if it is the manifest that is wrong).
    """

    def __init__(self, path: str, damage: Damage) -> None:
        self.damage = damage
        self.left_out = 0
        self.copies: list[str] = []
        self.allowance = Allowance(lambda: self.disk_bytes)
        self._found: Scan | None = None
        self._rows: list[SeenInputs] | None = None
        self._ranges: dict[int, dict[int, tuple[int, int]]] | None = None
        self._order: array[int] | None = None
        self._sound: array[int] | None = None
        self._table: InputsTable | None = None
        self._end: End | None = None
        self._wide = WideInts()
        self._checks: CallChecks | None = None
        self._lock = threading.RLock()
        self._file = opened_file(path)
        self.path, self.location = self._file.path, self._file.location
        try:
            self.reader = TapeReader(self._file)
            self.manifest: Manifest = self.reader.manifest
            self.recording_began_ns = self.manifest.created_ns
            if self.reader.manifest_damage is not None:
                self._report(self.reader.manifest_damage)
            self._read_end()
        except TapeError as error:
            self.close()
            raise error.at(path=self.path) from None
        except BaseException:
            self.close()
            raise
        self.size = self._file.size

    def _report(self, wrong: TapeError) -> None:
        self.damage.add(wrong.at(path=self.path))

    def _read_end(self) -> None:
        """Takes what the end says, if it has a table of the inputs."""
        end = self.reader.end
        if end is None or is_ahead(self.path):
            return
        if not end.elsewhere and end.coverage.kept * CALL_BYTES > self._file.size:
            return  # it claims more calls than the file can have; the scan reports it
        try:
            self._table = end.table()
        except TapeError as error:
            if end.elsewhere:  # else the scan reports it
                self._report(stale_table(error.reason))
        if end.elsewhere and self._table is None:
            self._table = InputsTable()  # there is nothing else
        if self._table is not None:
            self._end = end
            self._file.expect_unchanged(self.reader.start, is_sealed=True)

    @property
    def unscanned_end(self) -> End | None:
        """What the end of the file says of its calls, while that is all that is known of them; None
        once the file was scanned, or a part of its calls was chosen."""
        return self._end if self._found is None and self._order is None else None

    @property
    def is_survey(self) -> bool:
        """Whether this is a survey: its calls are on other tapes."""
        return self._end is not None and bool(self._end.elsewhere)

    @cached_property
    def sources(self) -> tuple[Source, ...]:
        """The recordings of its calls."""
        steps = self.manifest.history or ()
        if self.is_survey and steps and steps[-1].sources:
            return tuple(steps[-1].sources)
        return (Source(tape=self.manifest.tape, parts=((self.part, self.part),)),)

    @cached_property
    def recordings(self) -> dict[bytes, int]:
        """Their ids, with what was added to the numbers of their calls."""
        return {source.tape: source.first for source in self.sources}

    @cached_property
    def _refs(self) -> CallRefs:
        return CallRefs(self.manifest.tape, self.recordings if self.is_survey else {})

    def ref(self, number: int) -> CallRef:
        """The call of a number: of a survey, the call of the recording that it counts."""
        return self._refs.ref(number, self.recording_began_ns)

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
        return self.reader.end

    @property
    def table(self) -> InputsTable | None:
        """What the end says of the inputs of all calls that were seen, kept or not; None if it does
        not."""
        self.end  # noqa: B018 - a scan may show that it is forged
        return self._table

    # --- which calls there are ---------------------------------------------------------------

    def scan(self) -> Scan:
        """Finds every call of the file, which is read once for that. What its end says is compared
        with the calls; a difference is damage.

        Raises:
            TapeError: it is another file by now, or cannot be read; ``usage`` for a survey.
        """
        if self.is_survey:
            raise no_single_call()
        return self._scan_once() if self._found is None else self._found

    @bounded()
    def _scan_once(self) -> Scan:
        def read() -> Scan:
            self.reader = TapeReader(self._file)
            self.manifest = self.reader.manifest
            scan = self.reader.scan(
                lambda there, size: steps(there, "bytes", size, lambda record: record.offset)
            )
            self._file.expect_unchanged(self.reader.start, is_sealed=self.reader.end is not None)
            return scan

        with self._lock:
            if self._found is not None:
                return self._found
            before, is_sealed = encode_manifest(self.manifest), self._end is not None
            try:
                result = self._file.settled(read, lambda result: bool(result.damage), is_sealed)
            except TapeError as error:
                raise error.at(path=self.path) from None
            for wrong in result.damage:
                if wrong is not self.reader.manifest_damage:  # it was told
                    self._report(wrong)
            self.damage.add_more(result.more_damage)
            if encode_manifest(self.manifest) != before:  # a NaN equals itself there
                raise self._file.changed("it is another tape")
            self._checks = CallChecks(self._file, self.reader, result, self.damage)
            if self._order is None:
                self._order = result.order
            self._table = result.table
            self._found = result  # last, because other threads ask for it
            return result

    @property
    def checks(self) -> CallChecks:
        """What was compared of its calls; the file is scanned for them."""
        self.scan()
        assert self._checks is not None
        return self._checks

    @property
    def unfinished(self) -> int:
        """How many bytes at the end belong to a call that was being written."""
        return 0 if self._found is None and self._end else self.scan().unfinished

    @property
    def order(self) -> array[int]:
        """The positions of the calls, in the order of their numbers. The file has them in the order
        in which they were written. Setting it leaves calls out."""
        return self.scan().order if self._order is None else self._order

    @order.setter
    def order(self, positions: array[int]) -> None:
        self._order = positions
        self._ranges = None

    def __len__(self) -> int:
        return len(self.order) if self.unscanned_end is None else self.unscanned_end.coverage.kept

    @property
    def extent(self) -> tuple[int, int] | None:
        """The lowest and the highest number of its calls, those that were left out too; None
        without calls."""
        end = self._end
        if self._found is None and end is not None:
            low, high = end.first_call, end.last_call
            return None if low is None or high is None else (low, high)
        numbers = self.scan().numbers
        return (min(numbers), max(numbers)) if numbers else None

    @property
    def span_ns(self) -> tuple[int, int] | None:
        """When the first call began and the last one ended, Unix time in nanoseconds; of a part of
        the calls, or without an end, the first and the last one by number. None if nobody knows."""
        end = self.unscanned_end
        if end is None and len(self.order) == len(self.scan()):
            end = self.end
        if end is not None:
            first, last = end.first_ns, end.last_ns
            return None if first is None or last is None else (first, last)
        times: list[int] = []
        for position in {self.order[0], self.order[-1]} if len(self) else ():
            with contextlib.suppress(TapeError):  # a look at the call tells
                record = self.reader.record_at(position)
                times += [record.time_ns, record.time_ns + (record.duration_ns or 0)]
        return (min(times), max(times)) if times else None

    @property
    def disk_bytes(self) -> int:
        """How many of its bytes are stored on a disk; of a file on a web server, how many came."""
        return self._file.disk_bytes

    @property
    def stored_bytes(self) -> int:
        """How many bytes a copy of it takes at least: its size, without holes."""
        return self._file.disk_bytes if self._file.has_holes else self._file.size

    @property
    def tensor_bytes(self) -> int:
        """The sizes of all blobs together, as its end or a scan found them."""
        return self.scan().tensor_bytes if self.end is None else self.end.tensor_bytes

    def close(self) -> None:
        self._file.close()

    @property
    def coverage(self) -> Coverage:
        """How many calls were seen, kept and dropped: by the end, or without one by what the
        recorder counted so far, and by the numbers of the calls that were found."""
        if self.end is not None:
            return sound_coverage(self.end.coverage)
        if self.is_ahead:
            return Coverage(seen=len(self), kept=len(self), at_least=True)
        return self._coverage_so_far

    @cached_property
    def _coverage_so_far(self) -> Coverage:
        scan, place, last_ns = self.scan(), self.manifest.segment, None
        with contextlib.suppress(TapeError):  # a look at the call tells
            last_ns = self.reader.record_at(scan.order[-1]).time_ns if scan.order else None
        first_call = 0 if place is None else place.first_call
        return coverage_without_end(scan.numbers, first_call, scan.counts, last_ns)

    @property
    def continues(self) -> bool:
        """Whether the recording goes on in another file, as its end says."""
        return self.end is not None and bool(self.end.continues)

    @property
    def closed_ns(self) -> int | None:
        """When it was sealed, Unix time in nanoseconds; None if it is not."""
        return None if self.end is None else self.end.closed_ns

    @property
    def next_call(self) -> int:
        """How many calls of its recording were seen by then, if that goes on; 0 if it does not
        say."""
        counts = self.end or self.scan().counts  # the counts so far, of a recording that goes on
        return (counts and counts.next_call) or 0

    @property
    def deleted(self) -> FileNumbers:
        """The numbers of the files of its recording that the recorder had deleted."""
        counts = self.end or self.scan().counts
        return (counts and counts.deleted) or ()

    @property
    def is_ahead(self) -> bool:
        """Whether this is a write-ahead file: its only call was under way, or it has no call and
        the name of such a file."""
        return self._is_ahead  # a protocol has it as a property

    @cached_property
    def _is_ahead(self) -> bool:
        if self.end is not None or len(self.scan()) > 1:
            return False
        if not len(self.scan()):
            return is_ahead(self.path)
        try:
            return self.reader.record_at(0).outputs_missing == UNDER_WAY
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
        order, all_numbers = self.order, self.scan().numbers
        self.order = array("Q", (p for p in order if all_numbers[p] not in numbers))
        self.left_out += len(order) - len(self.order)

    @bounded()
    def drop_unsound(self) -> None:
        """Scans the file, reads every record, and removes the calls from the list whose records
        break the format, or are not as the table of their group says. Under a valid checksum only a
        writer with a bug or ill intent leaves one."""
        self._read_all()
        self.drop_damaged()
        self._sound = self._order

    def _read_all(self) -> None:
        """Reads every record, so that it is known which of them are sound."""
        for position in self.order:
            try:
                self.record(position)
            except TapeError as error:
                if not is_damage(error):
                    raise
        self._ranges = None

    def _sound_order(self) -> array[int]:
        """The positions of the calls, without those whose records are known not to be sound. These
        are still in the list of whoever counts the calls."""
        if not self.damaged:
            return self.order
        return array("Q", (p for p in self.order if not self.checks.is_unsound(p)))

    @bounded()
    def _expect_sound(self) -> None:
        """Reads the records that stand for others. If one of them is not sound, the others are not
        believed either: all are read."""
        if self._sound is not None and self._sound is self._order:
            return
        try:
            checked: set[int] = set()
            for position in self._sound_order():
                number = self.inputs_number(position)
                if number not in checked:
                    checked.add(number)
                    self.record(position)
            self._all_ranges()
        except TapeError as error:
            if not is_damage(error):
                raise
            self._read_all()
        self._sound = self._order

    def drop_damaged(self) -> None:
        """Removes the calls that are known to be damaged from the list."""
        if self.is_scanned:
            self.order = array("Q", (p for p in self.order if not self.checks.is_damaged(p)))

    # --- inputs of many calls ----------------------------------------------------------------

    def seen_inputs(self) -> Iterable[SeenInputs]:
        """The distinct inputs of its calls, in the order of their first calls. Calls that raised
        are apart from those that did not, and have no ranges. If the table of the end does not tell
        them all, the file is scanned, and a record is read for each; calls whose records turn out
        not to be sound are left out.
        """
        of_table = self.summed_inputs()
        return self._recorded_inputs() if of_table is None else of_table

    def summed_inputs(self) -> list[SeenInputs] | None:
        """:meth:`seen_inputs` by the table of the end; None if the file was scanned, or if the
        table does not tell them all apart. If it cannot be read, that is damage."""
        if self.unscanned_end is None:
            return None
        if self._rows is None:
            assert self._table is not None
            tell = self._report if self.is_survey else None
            try:
                self._rows = inputs_in(self._table, self.ref, self._wide, tell)
            except TapeError as error:
                broken = stale_table(error.reason)
                if self.is_survey:
                    self._report(broken)
                    self._rows = []
                else:
                    self.scan()
                    if self._table is not None:  # else the scan tells
                        self._report(broken)
                        self._table = None
            if self._rows is None:
                self.scan()
        return self._rows

    def _recorded_inputs(self) -> Iterator[SeenInputs]:
        self._expect_sound()
        order = self._sound_order()
        numbers = list(map(self.scan().inputs_number, order))
        counts = Counter(numbers)
        last = dict(zip(numbers, order, strict=True))
        for position, number in zip(order, numbers, strict=True):
            if not counts:
                return
            if number not in counts:
                continue
            inputs, raised = self.record(position).inputs, self.scan().raised(position)
            spans = self._all_ranges().get(number, {})
            if spans or inputs.ranges:
                ranges = (Range(leaf=n, min=a, max=b) for n, (a, b) in sorted(spans.items()))
                inputs = inputs.model_copy(update={"ranges": tuple(ranges)})
            refs = (self.ref(self.numbers[position_of]) for position_of in (position, last[number]))
            yield SeenInputs(inputs, raised, counts.pop(number), *refs)

    def inputs_number(self, position: int) -> int:
        """A number that is equal for calls of equal inputs that both raised, or both did not. No
        record is decoded for this."""
        return self.scan().inputs_number(position)

    def check_table(self) -> None:
        """Compares the documents in the table of the end with the format, and its ranges with those
        of the records, if all of these are sound."""
        if self._table is None:
            return
        try:
            for row in self._table.rows.values():
                checked_inputs(row.tree())
            for kind in self._table.kinds.values():
                kind.expect_sound()
        except TapeError as error:
            self._report(stale_table(error.reason))
            self._table = InputsTable() if self.is_survey else None
        if not self.is_survey:
            self._all_ranges()
        else:  # it has no calls, but may have members
            for damaged in self.reader.scan().damage:
                self._report(damaged)

    def _all_ranges(self) -> dict[int, dict[int, tuple[int, int]]]:
        """The ranges of integers, by :meth:`inputs_number` and leaf. Those of all calls are
        compared with the table."""
        if self._ranges is None:
            self._ranges, scan = {}, self.scan()
            for position in self._sound_order():
                if scan.has_ranges(position) and not scan.raised(position):
                    spans = self._ranges.setdefault(scan.inputs_number(position), {})
                    offset, there = scan.place(position)
                    widen(spans, self.reader.group(offset).ranges_of(there))
            unsound = self.checks.has_unsound
            has_all = len(self._order or ()) == len(scan)
            is_whole = has_all and not (scan.damage or unsound)
            if is_whole and self._table and not has_ranges(self._table, self._ranges):
                self._report(stale_table("it has other ranges of integers than the records"))
                self._table = None
        return self._ranges

    # --- single calls ------------------------------------------------------------------------

    @property
    def damaged(self) -> int:
        """How many of its calls are known to be damaged, although their records are whole."""
        return 0 if self._checks is None else self._checks.damaged

    @property
    def later(self) -> set[int]:
        """The numbers of the calls whose records only a later version can read, as far as anybody
        asked for them."""
        return {self.scan().numbers[position] for position in self.checks.later}

    @property
    def later_in_groups(self) -> int:
        """How many calls are in groups that only a later version can read."""
        lost = (error for error in self.scan().damage if isinstance(error, LostCallsError))
        return sum(loss.calls for loss in lost if loss.kind == "unsupported")

    @property
    def records_read(self) -> int:
        """How many of its records were read so far, each compared with what the file says of it."""
        return 0 if self._checks is None else self._checks.records_read

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of all its calls, in the order of the file."""
        return self.scan().numbers

    def position(self, number: int) -> int | None:
        """Where the call of a number is, also if it counts in another file; None if it is not
        here."""
        return self.scan().position(number)

    def record(self, position: int) -> CallRecord:
        """The record of a call, decoded anew. Its trees were checked against the format.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``, which is damage of the file too.
        """
        try:
            if (limits := self.allowance.limits) is None:  # a context per call would be dear
                return self._record(position)
            with limits:
                return self._record(position)
        except TapeError as error:
            raise self.checks.unsound(error, position) from None

    def _record(self, position: int) -> CallRecord:
        self.checks.note_read(position)
        record = self.reader.record_at(position)
        checked_inputs(record.inputs)
        self._wide.take(record.inputs.scalars)
        if record.outputs is not None:
            record.outputs.spec()
            self._wide.take(record.outputs.scalars)
        return record

    def bytes_of(self, place: TensorPlace) -> bytearray:
        """The bytes of a tensor in new memory."""
        parts = [
            self._file.copy(offset, size) if checksum is None else bytearray(checksum)
            for offset, size, checksum in place.parts
        ]
        return parts[0] if len(parts) == 1 else interleaved(parts, place.strips)

    def inflated_blob(self, record: CallRecord) -> bytes:
        """The file of the safetensors format in a compressed blob.

        Raises:
            TapeError: ``damaged``, ``limit`` or ``unsupported``.
        """
        with self.allowance.limits or contextlib.nullcontext():
            length = record.blob.length if record.blob is not None else 0
            what = f"a copy of the tensors of call {record.call}"
            check_memory(memory_limit_of(self.stored_bytes), [((length or 0,), 1)], what)
            return self.reader.inflated_blob(record)
