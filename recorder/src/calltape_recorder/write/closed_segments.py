"""Segments that take no more calls: they get their ends, and are deleted when they are too old or
their room is needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from calltape_recorder.bounds import MAX_UNSEALED_FILES
from calltape_recorder.keep.ledger import Ledger
from calltape_recorder.write.disk_file import Accounts, TapeFile
from calltape_recorder.write.notices import Notices
from calltape_schema import TapeError
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import FileNumbers, joined_runs
from calltape_schema.inputs_table import Counts, InputsTable

_LOOKS = 16  # closed files that are looked for at once


class ClosedSegment(NamedTuple):
    """A segment that takes no more calls since ``ended`` (a time of :func:`time.monotonic`); its
    table has ``counted`` calls. ``number`` is that of the file, and ``accounts`` are those of its
    end."""

    tape: TapeFile
    number: int
    accounts: Accounts
    counted: int
    ended: float


OnLostFile: TypeAlias = Callable[[InputsTable, DropReason, int], None]
"""Is called with the table of the calls of a file that is gone, the reason, and the number of its
novel calls."""


class ClosedSegments:
    """The segments of this recording that take no more calls, the oldest first. Only files that
    this recorder created are ever deleted. Only the writer's thread uses it, except the properties.

    Args:
        ledger: counts the calls of files that are deleted as dropped.
        on_lost_file: is called for a file that is deleted.
        notices: logs the deletion of files that are too old.
        finish: writes the end of a file.
        announce: is called before a file is deleted, with the reason.

    Attributes:
        deleted: the numbers of the files that were deleted.
        nbytes: the size of all files, kept as a sum, because there may be thousands.
        unsealed: the files that wait for their ends.
    """

    def __init__(
        self, ledger: Ledger, on_lost_file: OnLostFile, notices: Notices,
        finish: Callable[[TapeFile, Accounts], None],
        announce: Callable[[ClosedSegment, DropReason], None],
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self._on_lost_file = on_lost_file
        self._notices = notices
        self._finish = finish
        self._announce = announce
        self.deleted: FileNumbers = ()
        self._all: list[ClosedSegment] = []
        self._cursor = 0
        self.nbytes = 0
        self.unsealed: list[ClosedSegment] = []

    def __len__(self) -> int:
        return len(self._all)

    def add(self, tape: TapeFile, number: int, accounts: Accounts) -> None:
        """Adds a segment that has no end yet."""
        counted = tape.table.totals().seen
        closed = ClosedSegment(tape, number, accounts, counted, time.monotonic())
        self._all.append(closed)
        self.nbytes += tape.size
        self.unsealed.append(closed)

    def seal(self) -> OSError | None:
        """Writes the ends that could not be written so far. Returns the error if they still cannot:
        the files are readable without them, and the next file tries again."""
        while self.unsealed:
            closed = self.unsealed[0]
            tape, before = closed.tape, closed.tape.size
            try:
                self._finish(tape, closed.accounts)
            except Exception as error:
                is_lost = isinstance(error, FileNotFoundError)  # somebody removed or cut it
                is_few = len(self.unsealed) < MAX_UNSEALED_FILES
                if isinstance(error, OSError) and is_few and not is_lost:
                    return error
                self._notices.complain("a file of the recording cannot be sealed", error)
                if is_lost:
                    self._lose(closed, DropReason.FILE_REMOVED, tape.table)
                    continue
            else:
                says = f"sealed {tape.path}: the next calls go to another file"
                self._notices.add_news("sealed", says)
            self.nbytes += tape.size - before
            self.unsealed.pop(0)
            tape.close()
        return None

    def forget_moved(self) -> None:
        """Forgets sealed files that were moved away: they use no space here any more, and their
        calls count as kept. A few are checked at a time."""
        if self._cursor >= len(self._all):
            self._cursor = 0
        checked = self._all[self._cursor : self._cursor + _LOOKS]
        moved = [
            closed
            for closed in checked
            if closed not in self.unsealed and not closed.tape.is_there()
        ]
        for closed in moved:
            self._remove(closed)
        self._cursor += len(checked) - len(moved)

    def expire(self, seconds: float) -> None:
        """Deletes the files that ended at least this long ago, and counts their calls."""
        now = time.monotonic()
        old = list(takewhile(lambda closed: now - closed.ended >= seconds, self._all))
        files = calls = 0
        for closed in old:
            is_there = closed.tape.is_there()
            # The sizes in the calls expire, too: only the number of the calls is still counted.
            if self._delete(
                closed, DropReason.EXPIRED if is_there else None, _only_counted(closed.counted)
            ):
                files += is_there
                calls += closed.accounts.coverage.kept * is_there
        if files:
            says = f"deleted files that ended {seconds:g} s ago (files: {files}, calls: {calls})"
            self._notices.add_news(DropReason.EXPIRED, says)

    def delete_one(self) -> bool:
        """Deletes a file, because its room is needed; False if it is still there."""
        # The oldest of the files with the fewest novel calls: mere samples go first.
        first = min(self._all, key=lambda closed: closed.tape.novel_calls)
        # It may just have been moved.
        reason = DropReason.DELETED if first.tape.is_there() else None
        if first in self.unsealed:
            return self._delete(first, reason, first.tape.table)
        # The table is read from the file: in memory, tables would grow with every segment.
        try:
            end = first.tape.read_end()
            table = None if end is None else end.table()
        except TapeError:
            table = None
        return self._delete(first, reason, table or _only_counted(first.counted))

    def _delete(self, closed: ClosedSegment, reason: DropReason | None, table: InputsTable) -> bool:
        if reason is not None:
            self._announce(closed, reason)
        if not closed.tape.remove():
            return False
        if reason is not None:
            self.deleted = joined_runs([*self.deleted, (closed.number, closed.number)])
        self._lose(closed, reason, table)
        return True

    def _lose(self, closed: ClosedSegment, reason: DropReason | None, table: InputsTable) -> None:
        """Forgets a file, and counts its calls as dropped if there is a reason."""
        self._remove(closed)
        if closed in self.unsealed:
            self.unsealed.remove(closed)
        closed.tape.close()
        if reason is not None:
            self._ledger.lose_file(closed.accounts.coverage, reason)
            self._on_lost_file(table, reason, closed.tape.novel_calls)

    def _remove(self, closed: ClosedSegment) -> None:
        self._all.remove(closed)
        self.nbytes -= closed.tape.size


def _only_counted(calls: int) -> InputsTable:
    """A table of this many calls whose inputs are unknown."""
    table = InputsTable()
    table.other.add(Counts(calls))
    return table
