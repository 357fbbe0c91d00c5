"""Segments that take no more calls: how long they stay, and what their ends say or will say."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import takewhile
from typing import NamedTuple, TypeAlias

from calltape_recorder.bounds import MAX_UNSEALED_FILES
from calltape_recorder.keep.ledger import Ledger
from calltape_recorder.write.disk_file import TapeFile
from calltape_recorder.write.notices import Notices
from calltape_schema import TapeError
from calltape_schema.end import Coverage, Dump
from calltape_schema.inputs_table import Counts, InputsTable

__all__ = ["Closed", "ClosedSegments"]

_LOOKS = 16  # files that are looked for at once


class Closed(NamedTuple):
    """A segment that takes no more calls since ``ended`` (a time of :func:`time.monotonic`); its
    table has ``counted`` calls. ``coverage`` and ``dumps`` are those of its end."""

    tape: TapeFile
    coverage: Coverage
    dumps: tuple[Dump, ...]
    counted: int
    ended: float


Gone: TypeAlias = Callable[[InputsTable, str, int], None]
"""Is told that a file is gone: with the table of its calls, why, and how many of its calls were
evidence."""

Finish: TypeAlias = Callable[[TapeFile, Coverage, tuple[Dump, ...]], None]
"""Writes the end of a file."""


class ClosedSegments:
    """The segments of this recording that take no more calls, the oldest first. Only files that
    this recorder made are ever deleted. The writer's thread alone uses it, but for the properties.

    Args:
        ledger: is told of the calls of files that are deleted.
        gone: is called for a file that is deleted.
        notices: is told of files that are too old.

    Attributes:
        unsealed: the files that wait for their ends.
    """

    def __init__(self, ledger: Ledger, gone: Gone, notices: Notices) -> None:
        self._ledger = ledger
        self._gone = gone
        self._notices = notices
        self._all: list[Closed] = []
        self._cursor = 0
        self._nbytes = 0
        self.unsealed: list[Closed] = []

    @property
    def nbytes(self) -> int:
        """How many bytes they have. It is asked for with every append, and there may be thousands
        of files: so it is a sum that is kept."""
        return self._nbytes

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._all)

    def add(self, tape: TapeFile, coverage: Coverage, dumps: tuple[Dump, ...]) -> None:
        """Adds a segment that has no end yet."""
        closed = Closed(tape, coverage, dumps, tape.table.totals().seen, time.monotonic())
        self._all.append(closed)
        self._nbytes += tape.size
        self.unsealed.append(closed)

    def seal(self, finish: Finish) -> None:
        """Writes the ends that the disk did not take so far, with ``finish``.

        Raises:
            OSError: it still does not. The files stay readable without them.
        """
        while self.unsealed:
            closed = self.unsealed[0]
            tape, before = closed.tape, closed.tape.size
            try:
                finish(tape, closed.coverage, closed.dumps)
            except Exception as error:
                if isinstance(error, OSError) and len(self.unsealed) < MAX_UNSEALED_FILES:
                    raise
                self._notices.complain("a file of the recording stays without its end", error)
            else:
                says = f"sealed {tape.path}: the next calls go to another file"
                self._notices.tell("sealed", says)
            self._nbytes += tape.size - before
            self.unsealed.pop(0)
            tape.close()

    def forget_moved(self) -> None:
        """Forgets sealed files that somebody moved away: they use no space here any more, and their
        calls count as kept. A few are looked for at a time."""
        if self._cursor >= len(self._all):
            self._cursor = 0
        some = self._all[self._cursor : self._cursor + _LOOKS]
        gone = [one for one in some if not self._waits(one) and not one.tape.is_there()]
        for closed in gone:
            self._remove(closed)
        self._cursor += len(some) - len(gone)

    def expire(self, seconds: float) -> None:
        """Deletes the files that ended so many seconds ago, and counts their calls."""
        now = time.monotonic()
        old = list(takewhile(lambda closed: now - closed.ended >= seconds, self._all))
        files = calls = 0
        for closed in old:
            is_there = closed.tape.is_there()
            # Their sizes are as old as the calls: only the number of the calls is counted on.
            if self._delete(closed, "expired" if is_there else None, _only_counted(closed.counted)):
                files += is_there
                calls += closed.coverage.kept * is_there
        if files:
            says = f"deleted what ended {seconds:g} s ago: files {files}, calls {calls}"
            self._notices.tell("expired", says)

    def delete_one(self) -> bool:
        """Deletes a file, because its room is needed; False if it is still there."""
        # The oldest of the files with the least evidence: what is only a sample goes first.
        first = min(self._all, key=lambda closed: closed.tape.evidence)
        return self._delete(first, "deleted", self._table_of(first))

    def _delete(self, closed: Closed, reason: str | None, table: InputsTable) -> bool:
        if not closed.tape.remove():
            return False
        self._remove(closed)
        self.unsealed = [other for other in self.unsealed if other is not closed]
        closed.tape.close()
        if reason is not None:
            self._ledger.lose(closed.coverage, reason)
            self._gone(table, reason, closed.tape.evidence)
        return True

    def _remove(self, closed: Closed) -> None:
        self._all.remove(closed)
        self._nbytes -= closed.tape.size

    def _waits(self, closed: Closed) -> bool:
        return any(other is closed for other in self.unsealed)

    def _table_of(self, closed: Closed) -> InputsTable:
        """The table that its end has, or will have. It is read from the file if that is sealed: in
        memory, tables would grow with every segment."""
        if self._waits(closed):
            return closed.tape.table
        try:
            end = closed.tape.read_end()
            found = None if end is None else end.table()
        except TapeError:
            found = None
        return found or _only_counted(closed.counted)


def _only_counted(calls: int) -> InputsTable:
    """A table that knows no more than how many calls there were."""
    table = InputsTable()
    table.other.add(Counts(calls))
    return table
