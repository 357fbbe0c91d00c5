"""One tape file: what it says of itself, and which calls it has.

In comes a path. Out go the manifest, the trailer and the positions of the calls; what is damaged is
added to a list.
"""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from functools import cached_property
from typing import Any

from calltape_analyzer.reading.damage import Damage, is_damage
from calltape_analyzer.reading.distinct_inputs import NOT_NUMBERED
from calltape_analyzer.reading.file_descriptors import DescriptorError
from calltape_analyzer.reading.file_piece import PlannedPiece, begin_of
from calltape_analyzer.reading.opened_file import opened_file
from calltape_analyzer.reading.scan import Scan
from calltape_analyzer.reading.stored_calls import DAMAGED, StoredCalls
from calltape_analyzer.reading.summary_rows import InputsOfCalls, differences, rows_of, stale
from calltape_analyzer.reading.tape_beginning import manifest_of
from calltape_analyzer.reading.tape_end import summary_of
from calltape_analyzer.reading.tape_file import is_ahead
from calltape_analyzer.reading.torn_tail import coverage_without_trailer
from calltape_schema.endings import Coverage, Ending
from calltape_schema.errors import TapeError
from calltape_schema.fields import MAX_COUNT
from calltape_schema.framing import SUMMARY
from calltape_schema.records import Manifest, encode_manifest
from calltape_schema.summary import Summary

__all__ = ["UNDER_WAY", "UNDER_WAY_WORDS", "Segment"]

UNDER_WAY = "under way"
"""The reason why a call that was written ahead has no outputs."""
UNDER_WAY_WORDS = "under way when the process died"

_TRIES = 5


class Segment(StoredCalls):
    """One open tape file.

    A sealed file with a summary is not scanned until somebody asks for a single call.

    Attributes:
        path: as people may see it: without what is secret in a URL.
        location: what opens the file again.
        left_out: how many of its calls are in another file too, and count there.
        copies: the locations of files that have calls of this one too, and were closed.

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
        self.copies: list[str] = []
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
            first, self.manifest = manifest_of(self._file)
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
            self._order = self._sorted(found)
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
        first, manifest = manifest_of(self._file)
        begin = first.end if piece.start is None else begin_of(self._file, piece.start)
        found = Scan(self._file, manifest.tape, self.damage)
        found.run(begin, piece.stop, is_piece=True)
        self._checked = bytearray(len(found.numbers))
        self._order = self._sorted(found)
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
                first, manifest = manifest_of(self._file)
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
    def _sorted(found: Scan) -> array[int]:
        """The positions of the calls by their numbers."""
        positions = array("Q", range(len(found.numbers)))
        if found.ascends:
            return positions
        return array("Q", sorted(positions, key=found.numbers.__getitem__))

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
    def span_ns(self) -> tuple[int, int] | None:
        """When the first call began and the last one ended, Unix time in nanoseconds, by the end of
        the file; None if that was not read, or does not say."""
        found = self.summary
        if found is None or found.first_ns is None or found.last_ns is None:
            return None
        return found.first_ns, found.last_ns

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
            return Coverage(seen=len(self), kept=len(self), at_least=True)
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

    @property
    def knows_ranges(self) -> bool:
        """Whether the scan knows the ranges of integer tensors: of all calls on the list, and of no
        other ones."""
        found = self._scan
        return found.ranges.complete and len(self.order) == len(found.numbers)

    def ranges_at(self, position: int) -> tuple[tuple[int, int, int], ...] | None:
        """Leaf, smallest and largest element of all calls whose inputs equal those of a call; None
        if these have no number."""
        number = self._scan.inputs[position]
        return None if number == NOT_NUMBERED else self._scan.ranges.of(number)

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

    def drop_damaged(self) -> None:
        """Removes the calls that are known to be damaged from the list."""
        if self.is_scanned:
            self.order = array("Q", (p for p in self.order if self._checked[p] != DAMAGED))


def _sound(coverage: Coverage) -> Coverage:
    """The coverage of a trailer, with a sum that holds. If the trailer contradicts itself (which
    is damage), the larger number counts as seen, as far as it can be counted."""
    told = coverage.kept + sum(coverage.dropped.values())
    if coverage.seen == told:
        return coverage
    seen = min(max(coverage.seen, told), MAX_COUNT)
    dropped = dict(coverage.dropped) if told <= seen else {}
    told = coverage.kept + sum(dropped.values())
    if seen > told:
        dropped["unknown (the trailer contradicts itself)"] = seen - told
    return coverage.model_copy(update={"seen": seen, "dropped": dropped})
