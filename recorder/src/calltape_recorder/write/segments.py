"""The files of a recording: one, or several in turn, within limits of size, age and disk space."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence

from calltape_recorder.bounds import (
    AHEAD_SHARE,
    COUNT_SECONDS,
    COUNTS_BYTES,
    END_SHARE,
    LOOK_SECONDS,
    MAX_CALLS_IN_FILE,
)
from calltape_recorder.keep.ledger import Ledger
from calltape_recorder.options import Options
from calltape_recorder.threads import RLock
from calltape_recorder.write.closed_segments import ClosedSegment, ClosedSegments, OnLostFile
from calltape_recorder.write.disk_file import Accounts, TapeFile, make_folders, next_file
from calltape_recorder.write.notices import Notices
from calltape_schema import TapeError
from calltape_schema.drop_reasons import DropReason
from calltape_schema.end import Coverage, Dump, FileNumbers, joined_runs
from calltape_schema.fields import now_ns
from calltape_schema.groups import Append, NewCall, planned
from calltape_schema.inputs_table import InputsTable
from calltape_schema.records import Manifest, Segment
from calltape_schema.writer import manifest_member

_END_BYTES = 64 * 1024  # of an end without its index, until one was larger
_LAST_END_BYTES = 8 * 1024  # of the end of a file without calls
_INDEX_BYTES = 48  # in the end, per group, before it is deflated


class LimitReached(Exception):  # noqa: N818 - a decision, not an error
    """No more bytes may be written.

    Attributes:
        reason: for which calls are dropped.
    """

    def __init__(self, reason: DropReason) -> None:
        super().__init__(reason)
        self.reason = reason


class DiskBudget:
    """Distributes the bytes of ``max_disk_bytes``. The writer's thread claims some for the tapes
    (:meth:`claim`), and threads that write ahead borrow some (:meth:`lend`).

    The lock is reentrant: a signal handler may call the model while its thread is in here.

    Args:
        most: how many bytes there are; None if there is no bound.

    Attributes:
        lent: bytes of calls under way.
    """

    def __init__(self, most: int | None) -> None:
        self.lock = RLock()
        self._most = most
        self._taken = 0
        self._peak = 0  # the most that was asked for at once, within its share
        self.lent = 0

    @property
    def for_tapes(self) -> int | None:
        """How many bytes all tapes may have; None if there is no bound."""
        if self._most is None:
            return None
        # If old tapes are deleted for new ones, the budget is always used up. So the bytes that
        # write-ahead needed once stay free, because it will need them again.
        return self._most - max(self.lent, self._peak)

    def claim(self, nbytes: int) -> bool:
        """Sets how many bytes the tapes have, including what they are about to write. Returns False
        and changes nothing if that is too much."""
        with self.lock:
            most = self.for_tapes
            if most is not None and nbytes > most:
                return False
            self._taken = nbytes
            return True

    def lend(self, nbytes: int) -> bool:
        """Lends more bytes to a call that is written ahead. Returns False and lends nothing if that
        is too much."""
        with self.lock:
            lent = self.lent + nbytes
            if self._most is not None:
                if lent <= self._most // AHEAD_SHARE:
                    self._peak = max(self._peak, lent)
                if self._taken + lent > self._most:
                    return False
            self.lent = lent
            return True

    def give_back(self, nbytes: int) -> None:
        """Takes back bytes that were lent and are gone from the disk."""
        with self.lock:
            self.lent -= nbytes


class OtherFile(Exception):  # noqa: N818 - a signal between two functions, not an error
    """The next file has begun. Calls that refer to the bytes of the last one are encoded again."""


class Segments:
    """The files that :class:`Writer` appends to. Other threads may use the properties only.

    Args:
        path: the path of the first file. The others are ``<stem>-00001.tape`` and so on.
        overwrite: whether to replace an existing first file. Later ones take names that are free.
        options: say when the next file begins and when to stop, and the permissions of the files.
        ledger: counts what became of calls, and the calls of files that are gone.
        drain: returns what became of the calls since its last call, the counted inputs of those
            that are not on the tape, and the dumps.
        on_lost_file: is called for a file that is gone.
        notices: the log of the recording.

    Attributes:
        budget: distributes ``max_disk_bytes``.
        max_file_bytes: how many bytes a file should have; None if there is no bound. One append is
            in one file, so it should not be larger.
        written_bytes: how many bytes were written to tapes, including those that are gone.
        file_serial: the serial number of the current file. A call may refer to bytes of its own
            file alone.

    Raises:
        TapeError: ``exists`` or ``io``.
    """

    def __init__(
        self,
        path: str,
        overwrite: bool,
        options: Options,
        ledger: Ledger,
        drain: Callable[[], tuple[Coverage, InputsTable, tuple[Dump, ...]]],
        on_lost_file: OnLostFile,
        notices: Notices,
    ) -> None:
        self.first_path = path
        self._options = options
        self._ledger = ledger
        self._drain = drain
        self._on_lost_file = on_lost_file
        self._notices = notices
        self.budget = DiskBudget(options.max_disk_bytes)
        self.max_file_bytes = options.max_segment_bytes
        self.written_bytes = 0
        self._new_bytes = 0  # of a file without calls, with its counts
        self._end_bytes = _END_BYTES
        self._stem = path.removesuffix(".tape")
        self._number = 0
        self.file_serial = 0
        self._closed = ClosedSegments(ledger, on_lost_file, notices, self._finish, self._announce)
        self._manifest: Manifest | None = None
        self._began = self._counted = time.monotonic()
        # What the files say of the calls since the last one; None if unknown.
        self._counts_written: tuple[Coverage, int] | None = (Coverage(), 0)
        self._first_appended: int | None = None  # the first call of the append under way
        seconds = options.max_segment_seconds
        self._count_seconds = COUNT_SECONDS if seconds is None else min(seconds, COUNT_SECONDS)
        self._tape: TapeFile | None = TapeFile(path, overwrite, options.file_mode)

    @property
    def path(self) -> str:
        """The path of the current file."""
        tape = self._tape
        return self.first_path if tape is None else tape.path

    @property
    def disk_bytes(self) -> int:
        """How many bytes all files have, with the files of calls under way."""
        return self._tape_bytes + self.budget.lent

    @property
    def _tape_bytes(self) -> int:
        tape = self._tape
        return self._closed.nbytes + (tape.size if tape else 0)

    @property
    def count(self) -> int:
        """How many files there are."""
        return len(self._closed) + (self._tape is not None)

    def begin(self, manifest: Manifest) -> None:
        """Writes the first manifest.

        Raises:
            OSError: the manifest cannot be written.
        """
        self._manifest = manifest
        self._began = self._counted = time.monotonic()
        if self._options.is_rolling:
            manifest = manifest.model_copy(update={"segment": Segment()})
        assert self._tape is not None
        self._tape.begin(manifest)
        self.written_bytes += self._tape.size
        segment = Segment(number=2**31, first_call=2**62)  # the longest that there can be
        longest = manifest.model_copy(update={"segment": segment})
        self._new_bytes = len(manifest_member(longest)) + COUNTS_BYTES
        self.budget.claim(self._needed())

    def append(self, calls: Sequence[NewCall], novel_calls: int = 0, file_serial: int = 0) -> None:
        """Appends whole calls, to the next file if this one is full.

        Args:
            calls: to append.
            novel_calls: how many of them were unlike all earlier calls.
            file_serial: the file that they were encoded for.

        Raises:
            OSError: none of these calls counts as written.
            LimitReached: a bound was reached. No file is deleted for calls that would not fit
                anyway.
            OtherFile: they refer to bytes of another file than the one that is next.
            TapeError: ``limit``: a record is larger than a reader takes.
        """
        assert self._manifest is not None
        append = planned(self._manifest.tape, calls)
        on_disk = self.budget.for_tapes
        if on_disk is not None:
            alone = 2 * self._new_bytes + self._end_bytes + _LAST_END_BYTES
            if alone + append.size + _INDEX_BYTES * len(append.groups) > on_disk:
                raise LimitReached(
                    DropReason.MAX_DISK_BYTES
                )  # also if all other files were deleted
        tape, most = self._tape, self.max_file_bytes
        if tape is not None and tape.calls:
            is_large = most is not None and tape.size + append.size > most
            if is_large or tape.calls + len(append.calls) > MAX_CALLS_IN_FILE:
                self.roll()
        self._first_appended = first = min([call.number for call in calls])
        try:
            self._make_room(append)
        finally:
            self._first_appended = None
        if file_serial != self.file_serial and any("at" in call.record for call in calls):
            raise OtherFile
        tape = self._tape or self._begin_next(first)
        before, is_first = tape.size, not tape.calls
        try:
            tape.commit(append)
            tape.novel_calls += novel_calls
        except OSError:
            if not (tape.is_there() and tape.is_whole()):
                self._lose(tape)
            raise
        self.written_bytes += tape.size - before
        if is_first:  # before it, the file has counts at most
            self._began = time.monotonic()

    def roll(self) -> None:
        """Seals the current file; the next one begins with the next call."""
        tape, self._tape = self._tape, None
        if tape is None:
            return
        self.file_serial += 1
        accounts = self._accounts(tape)
        self._counts_written = Coverage(), accounts.next_call
        self._closed.add(tape, self._number, accounts)
        if self._closed.seal() is None:
            self._counted = time.monotonic()

    def check(self) -> None:
        """Does what must not wait for a call: seals files, ends an old or a removed one, deletes
        what is too old, and writes what was counted."""
        tape, most = self._tape, self._options.max_segment_seconds
        is_old = most is not None and time.monotonic() - self._began >= most
        self._closed.seal()
        if tape is not None and not tape.is_there():
            self._lose(tape)
        elif tape is not None and is_old and tape.calls:
            self.roll()
        self._closed.forget_moved()
        if self._options.max_age_seconds is not None:
            self._closed.expire(self._options.max_age_seconds)
        # At the next look it would be too late.
        if time.monotonic() - self._counted > self._count_seconds - LOOK_SECONDS:
            self._count(self._closed.deleted)

    def seal(self) -> None:
        """Writes the last end.

        Raises:
            OSError: it cannot be written. The file stays readable without it.
        """
        failure = self._closed.seal()
        tape = self._tape
        if tape is not None and tape.calls and not tape.is_whole():
            self._lose(tape)
            tape = None
        if tape is None and self._manifest is not None:
            # It says what became of the calls since the last file.
            tape = self._begin_next(self._ledger.seen)
        if tape is not None:
            try:
                self._finish(tape, self._accounts(tape), is_last=True)
            finally:
                tape.close()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Closes the files as they are."""
        for closed in list(self._closed.unsealed):
            closed.tape.close()
        if self._tape is not None:
            self._tape.close()

    def remove(self) -> None:
        """Removes the current file, if its path still leads to it."""
        if self._tape is not None:
            self._tape.remove()

    def _begin_next(self, first: int) -> TapeFile:
        """Begins the next file, whose first call is ``first``."""
        assert self._manifest is not None
        before = self._number
        try:
            tape, self._number = next_file(
                lambda number: f"{self._stem}-{number:05d}.tape", before + 1,
                overwrite=False, mode=self._options.file_mode,
            )  # fmt: skip
        except TapeError as error:
            cause = error.__context__
            number = cause.errno if isinstance(cause, OSError) else None
            raise OSError(number or errno.EIO, str(error)) from None
        segment = Segment(number=self._number, first_call=first)
        changed = {"segment": segment, "created_ns": now_ns()}
        try:
            tape.begin(self._manifest.model_copy(update=changed))
        except BaseException:
            tape.close()
            tape.remove()
            self._number = before
            raise
        self._tape = tape
        self.written_bytes += tape.size
        self._began = time.monotonic()
        self._closed.seal()
        return tape

    def _count(
        self, deleted: FileNumbers, gone: Coverage | None = None, reason: DropReason | None = None
    ) -> None:
        """Writes what was counted since the last file, if that is not on the disk yet. If there is
        no file, the next one begins: the next call may not come for weeks, and the process may be
        killed. If the disk fails, the next look tries again.

        Args:
            deleted: the numbers of the files that are deleted.
            gone: what the next one of them said of its calls.
            reason: why it is deleted.
        """
        counted_ns, seen = now_ns(), self._ledger.seen
        coverage = self._ledger.coverage(gone, reason)
        if gone is None and (coverage, seen) == self._counts_written:
            self._counted = time.monotonic()
            return
        try:
            tape = self._tape or self._begin_next(
                self._ledger.seen if self._first_appended is None else self._first_appended
            )
            before = tape.size

            def fits(nbytes: int) -> bool:
                is_reserved = tape.counts_bytes + nbytes <= COUNTS_BYTES
                return is_reserved or self.budget.claim(self._needed() + nbytes)

            if tape.count(Accounts(coverage, (), seen, counted_ns), deleted, fits):
                self.written_bytes += tape.size - before
                self._counts_written = coverage, seen
                self._counted = time.monotonic()
        except OSError as error:
            self._notices.complain("the counters cannot be written", error)

    def _announce(self, closed: ClosedSegment, reason: DropReason) -> None:
        """Writes, before a file is deleted, that its calls are counted in the current one. So they
        are counted once, even if the process is killed before or after the deletion."""
        deleted = joined_runs([*self._closed.deleted, (closed.number, closed.number)])
        self._count(deleted, closed.accounts.coverage, reason)
        self._counts_written = None  # the file may still be there

    def _accounts(self, tape: TapeFile) -> Accounts:
        """What became of the calls since the last file, and the dumps. Adds the counted inputs of
        calls that are not on the tape to the table of this file."""
        # In this order, so that each call that ended before this moment was seen.
        closed_ns, seen = now_ns(), self._ledger.seen
        coverage, table, dumps = self._drain()
        tape.table.merge(table)
        return Accounts(coverage, dumps, seen, closed_ns)

    def _finish(self, tape: TapeFile, accounts: Accounts, *, is_last: bool = False) -> None:
        """Writes an end, with the table of counted inputs if there is room for it."""
        index, before = _INDEX_BYTES * tape.groups, tape.size
        others = self._needed() - self._end_bytes - index
        if is_last:  # there is no other file
            others -= self._new_bytes + _LAST_END_BYTES

        def fits(nbytes: int) -> bool:
            if self._options.max_disk_bytes is not None:  # the next end may be as long
                most = self._options.max_disk_bytes // END_SHARE
                self._end_bytes = max(self._end_bytes, min(nbytes - index, most))
            return self.budget.claim(others + nbytes)

        tape.seal(accounts, fits, continues=not is_last, deleted=self._closed.deleted)
        self.written_bytes += tape.size - before

    def _needed(self) -> int:
        """How many bytes all files need with the ends that they will get, and one more file
        without calls, which may be needed at the end to say what became of the last calls."""
        opened = [closed.tape for closed in self._closed.unsealed]
        if self._tape is not None:
            opened.append(self._tape)
        ends = sum([self._end_bytes + _INDEX_BYTES * tape.groups for tape in opened])
        counts = 0 if self._tape is None else max(COUNTS_BYTES - self._tape.counts_bytes, 0)
        return self._tape_bytes + counts + ends + self._new_bytes + _LAST_END_BYTES

    def _make_room(self, append: Append) -> None:
        options = self._options
        if options.max_disk_bytes is None and options.min_free_bytes is None:
            return
        size = append.size
        while True:
            needed = size + _INDEX_BYTES * len(append.groups)
            if self._tape is None:
                needed += self._new_bytes + self._end_bytes
            if self.budget.claim(self._needed() + needed):
                break
            if not self._delete_one():
                raise LimitReached(DropReason.MAX_DISK_BYTES)
        if options.min_free_bytes is not None and self._tape is None:
            # If the folder was removed, its free space is unknown.
            make_folders(os.path.dirname(self.first_path), options.file_mode)
        while options.min_free_bytes is not None:
            disk = os.statvfs(os.path.dirname(self.first_path) or ".")
            free = disk.f_bavail * disk.f_frsize - options.min_free_bytes - size
            if free >= 0:
                break
            if -free > self._tape_bytes or not self._delete_one():
                raise LimitReached(DropReason.DISK_FULL)

    def _delete_one(self) -> bool:
        if not self._options.deletes:
            return False
        if not self._closed:
            if self._tape is None or not self._tape.calls:
                return False
            self.roll()
        return self._closed.delete_one()

    def _lose(self, tape: TapeFile) -> None:
        """Counts the calls of a file that was removed or truncated as dropped, and logs it if there
        are any."""
        self._tape = self._counts_written = None
        self.file_serial += 1
        table = tape.table
        tape.close()
        coverage = self._ledger.drain_coverage()
        self._ledger.lose_file(coverage, DropReason.FILE_REMOVED)
        self._on_lost_file(table, DropReason.FILE_REMOVED, tape.novel_calls)
        if not tape.calls:
            return
        error = FileNotFoundError(f"somebody removed or truncated {tape.path}")
        self._notices.complain(
            "calls of the tape are lost; the next calls go to another file", error
        )
