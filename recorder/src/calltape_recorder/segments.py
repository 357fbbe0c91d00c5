"""The files of a recording: one, or one after the other within bounds of size, age and disk."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from calltape_recorder.room import Bounds, Refusal, Room
from calltape_recorder.stats import Ledger
from calltape_recorder.tape_writer import TRAILER_FRAME_BYTES, TapeWriter, manifest_bytes
from calltape_recorder.trailers import calls_of, fitted, traffic_in
from calltape_schema import TapeError
from calltape_schema.records import Coverage, Dump, Manifest, Segment
from calltape_schema.traffic import Traffic

__all__ = ["Bounds", "Refusal", "Segments"]

_LOOK_SECONDS = 1.0
_FREE_LOOK_BYTES = 16 * 1024 * 1024
_TRAILER_BYTES = 64 * 1024  # without the index, until one was larger
_LAST_TRAILER_BYTES = 8 * 1024  # of a file that has no calls
_TRAILER_SHARE = 8  # a trailer takes at most this part of the bound, besides its index
_INDEX_BYTES = 16  # in the trailer, per call
_MAX_CALLS = 1_000_000  # in a file: a trailer of more than 64 MiB is no trailer
_MAX_UNSEALED = 16  # open files that wait for their trailers


class Closed(NamedTuple):
    """A file that takes no more calls. ``counted`` are those that its traffic has."""

    tape: TapeWriter
    coverage: Coverage
    counted: int


class Unsealed(NamedTuple):
    """One of which the disk did not take the trailer yet."""

    closed: Closed
    traffic: Traffic
    dumps: tuple[Dump, ...]


class Segments:
    """What :class:`Writer` appends to. Its thread alone calls all but the properties.

    Args:
        path: of the first file; the others are ``<stem>-00001.tape`` and so on.
        overwrite: replaces that one; later ones take names that are free.
        file_mode: permissions of the files.
        bounds: when to go on in the next file, and when to stop.
        ledger: tells what became of calls, and is told of files that are gone.
        take_traffic: gives the counters, and the dumps, since the last time.
        gone: is told of a file that is gone, with the counters that it had.
        complain: says once what went wrong.

    Attributes:
        room: what the bound of disk leaves for others.

    Raises:
        TapeError: ``exists`` or ``io``.
    """

    def __init__(
        self,
        path: str,
        overwrite: bool,
        file_mode: int,
        bounds: Bounds,
        ledger: Ledger,
        take_traffic: Callable[[], tuple[Traffic, tuple[Dump, ...]]],
        gone: Callable[[Traffic], None],
        complain: Callable[[str, BaseException], None],
    ) -> None:
        self.first_path = path
        self._bounds = bounds
        self._ledger = ledger
        self._take_traffic = take_traffic
        self._gone = gone
        self._complain = complain
        self.room = Room(bounds.max_disk_bytes)
        self._new_bytes = 0  # of a file without calls
        self._trailer_bytes = _TRAILER_BYTES
        self._stem = path.removesuffix(".tape")
        self._number = 0
        self._closed: deque[Closed] = deque()
        self._unsealed: list[Unsealed] = []
        self._manifest: Manifest | None = None
        self._began = self._looked = time.monotonic()
        self._free_left = 0
        self._file_mode = file_mode
        self._tape: TapeWriter | None = TapeWriter(path, overwrite, file_mode)

    @property
    def path(self) -> str:
        """The current file."""
        tape = self._tape
        return self.first_path if tape is None else tape.path

    @property
    def written_bytes(self) -> int:
        """Of all files that are there, with those of calls under way."""
        return self._tape_bytes + self.room.lent

    @property
    def _tape_bytes(self) -> int:
        tape = self._tape
        return sum(closed.tape.end for closed in list(self._closed)) + (tape.end if tape else 0)

    @property
    def count(self) -> int:
        """How many files are there."""
        return len(self._closed) + (self._tape is not None)

    def begin(self, manifest: Manifest) -> None:
        """Writes the first manifest.

        Raises:
            OSError: it cannot be written.
        """
        self._manifest = manifest
        self._began = time.monotonic()
        if self._bounds.is_rolling:
            manifest = manifest.model_copy(update={"segment": Segment()})
        assert self._tape is not None
        self._tape.begin(manifest)
        segment = Segment(number=2**31, first_call=2**62)  # as long as it can be
        self._new_bytes = manifest_bytes(manifest.model_copy(update={"segment": segment}))
        self.room.take(self._needed())

    def append(self, calls: Sequence[tuple[int, Sequence[Any], int]]) -> None:
        """Appends whole calls, in the next file where this one is full.

        Raises:
            OSError: none of these calls counts as written.
            Refusal: a bound is reached; nothing is deleted for calls that would not fit anyway.
        """
        size = sum(size for _, _, size in calls)
        first = min(number for number, _, _ in calls)
        self._refuse(size, len(calls))
        if self._is_full(size, len(calls)):
            self.roll()
        self._make_room(size, len(calls))
        tape = self._current(first)
        try:
            tape.append(calls)
        except OSError:
            if not tape.is_there():
                self._lose(tape)
            raise

    def roll(self) -> None:
        """Seals the current file; the next one begins with the next call."""
        tape, self._tape = self._tape, None
        if tape is None:
            return
        coverage = self._ledger.take_coverage()
        traffic, dumps = self._take_counters()
        closed = Closed(tape, coverage, calls_of(traffic))
        self._closed.append(closed)
        self._unsealed.append(Unsealed(closed, traffic, dumps))
        with contextlib.suppress(OSError):  # tried again when the disk takes the next file
            self._seal_closed()

    def look(self) -> None:
        """What does not wait for a call: age, and whether the file is still there."""
        now = time.monotonic()
        tape = self._tape
        if self._unsealed:
            with contextlib.suppress(OSError):
                self._seal_closed()
        if tape is None or now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        if not tape.is_there():
            self._lose(tape)
        elif self._is_old(now) and tape.calls:
            self.roll()

    def seal(self) -> None:
        """Writes the last trailer.

        Raises:
            OSError: a file stays readable without it.
        """
        refused = None
        try:
            self._seal_closed()
        except OSError as error:
            refused = error
        tape = self._tape
        if tape is None and self._manifest is not None:
            # What became of calls since the last file has to stand somewhere.
            tape = self._current(self._ledger.seen)
        if tape is not None:
            try:
                coverage = self._ledger.take_coverage()
                self._finish(tape, coverage, *self._take_counters(), is_last=True)
            finally:
                tape.close()
        if refused is not None:
            raise refused

    def close(self) -> None:
        """Closes the files as they are."""
        for unsealed in list(self._unsealed):
            unsealed.closed.tape.close()
        if self._tape is not None:
            self._tape.close()

    def remove(self) -> None:
        """Removes the current file, if its path still leads to it."""
        if self._tape is not None:
            self._tape.remove()

    @property
    def _tape_id(self) -> bytes:
        assert self._manifest is not None
        return self._manifest.tape

    def _is_old(self, now: float) -> bool:
        most = self._bounds.segment_seconds
        return most is not None and now - self._began >= most

    def _current(self, first: int) -> TapeWriter:
        """The file to write to: the next one, of which call ``first`` will be the first, where the
        last one was sealed."""
        if self._tape is not None:
            return self._tape
        assert self._manifest is not None
        while True:
            path = f"{self._stem}-{self._number + 1:05d}.tape"
            try:
                tape = TapeWriter(path, overwrite=False, mode=self._file_mode)
            except TapeError as error:
                if error.kind != "exists":
                    raise OSError(errno.EIO, str(error)) from None
                self._number += 1
                continue
            break
        self._number += 1
        segment = Segment(number=self._number, first_call=first)
        changed = {"segment": segment, "created_ns": time.time_ns()}
        try:
            tape.begin(self._manifest.model_copy(update=changed))
        except BaseException:
            tape.close()
            tape.remove()
            self._number -= 1
            raise
        self._tape = tape
        self._began = time.monotonic()
        with contextlib.suppress(OSError):
            self._seal_closed()
        return tape

    def _seal_closed(self) -> None:
        """Writes the trailers that the disk did not take so far.

        Raises:
            OSError: it still does not; the files stay readable without.
        """
        while self._unsealed:
            (tape, coverage, _), traffic, dumps = self._unsealed[0]
            try:
                self._finish(tape, coverage, traffic, dumps)
            except Exception as error:
                if isinstance(error, OSError) and len(self._unsealed) < _MAX_UNSEALED:
                    raise
                self._complain("a file of the recording stays without its trailer", error)
            self._unsealed.pop(0)
            tape.close()

    def _take_counters(self) -> tuple[Traffic, tuple[Dump, ...]]:
        try:
            return self._take_traffic()
        except Exception as error:
            self._complain("the calls of a file could not be counted", error)
            return Traffic(), ()

    def _finish(
        self, tape: TapeWriter, coverage: Coverage, traffic: Traffic, dumps: tuple[Dump, ...],
        *, is_last: bool = False,
    ) -> None:  # fmt: skip
        """Writes a trailer, with what there is room for."""
        index = _INDEX_BYTES * tape.calls
        least = (self._trailer_bytes if tape.calls else _LAST_TRAILER_BYTES) + index
        others = self._needed(besides=tape, is_last=is_last)

        def fits(nbytes: int) -> bool:
            nbytes += TRAILER_FRAME_BYTES
            if self._bounds.max_disk_bytes is not None:  # the next one will be like this one
                most = self._bounds.max_disk_bytes // _TRAILER_SHARE
                self._trailer_bytes = max(self._trailer_bytes, min(nbytes - index, most))
            return self.room.take(others + nbytes)

        def encode(traffic: Traffic, dumps: tuple[Dump, ...]) -> bytes:
            return tape.trailer(self._tape_id, coverage, traffic, dumps, continues=not is_last)

        tape.seal(fitted(encode, traffic, dumps, fits, least - TRAILER_FRAME_BYTES))

    def _is_full(self, size: int, calls: int) -> bool:
        """Whether calls go into the next file."""
        tape = self._tape
        if tape is None or not tape.calls:
            return False
        most = self._bounds.most_in_segment
        is_large = most is not None and tape.end + size > most
        return is_large or tape.calls + calls > _MAX_CALLS

    def _needed(self, *, besides: TapeWriter | None = None, is_last: bool = False) -> int:
        """Bytes of all files with the trailers that they will get, and of one more without calls
        (what is told at the end has to stand somewhere).

        Args:
            besides: gets no trailer.
            is_last: there will be no more file.
        """
        opened = [unsealed.closed.tape for unsealed in self._unsealed]
        if self._tape is not None:
            opened.append(self._tape)
        trailers = sum(
            self._trailer_bytes + _INDEX_BYTES * tape.calls
            for tape in opened
            if tape is not besides
        )
        end = 0 if is_last else self._new_bytes + _LAST_TRAILER_BYTES
        return self._tape_bytes + trailers + end

    def _refuse(self, size: int, calls: int) -> None:
        """Refuses calls that do not fit a disk that has nothing but them."""
        most = self.room.for_tapes
        alone = 2 * self._new_bytes + self._trailer_bytes + _LAST_TRAILER_BYTES
        if most is not None and alone + size + _INDEX_BYTES * calls > most:
            raise Refusal("max_disk_bytes")

    def _make_room(self, size: int, calls: int) -> None:
        while True:
            more = size + _INDEX_BYTES * calls
            if self._tape is None:
                more += self._new_bytes + self._trailer_bytes
            if self.room.take(self._needed() + more):
                break
            if not self._delete_oldest():
                raise Refusal("max_disk_bytes")
        floor = self._bounds.min_free_bytes
        if floor is None:
            return
        self._free_left -= size
        if self._free_left < 0:
            while (missing := floor + size - self._free()) > 0:
                if missing > self._deletable() or not self._delete_oldest():
                    raise Refusal("disk_full")
            self._free_left = min(_FREE_LOOK_BYTES, -missing // 2)

    def _deletable(self) -> int:
        """Bytes that deleting every file would free."""
        return self._tape_bytes if self._bounds.deletes else 0

    def _free(self) -> int:
        found = os.statvfs(os.path.dirname(self.first_path) or ".")
        return found.f_bavail * found.f_frsize

    def _delete_oldest(self) -> bool:
        if not self._bounds.deletes:
            return False
        if not self._closed:
            if self._tape is None or not self._tape.calls:
                return False
            self.roll()
        oldest = self._closed[0]
        traffic = self._traffic_of(oldest)
        if not oldest.tape.remove():
            return False
        self._closed.popleft()
        self._unsealed = [other for other in self._unsealed if other.closed is not oldest]
        oldest.tape.close()
        self._ledger.lose(oldest.coverage, "deleted")
        self._gone(traffic)
        return True

    def _traffic_of(self, closed: Closed) -> Traffic:
        """What its trailer has, or will have; they are not kept in memory."""
        for unsealed in self._unsealed:
            if unsealed.closed is closed:
                return unsealed.traffic
        return traffic_in(closed.tape.read_trailer()) or Traffic(other_calls=closed.counted)

    def _lose(self, tape: TapeWriter) -> None:
        """Somebody removed the file: its calls are gone, and the next ones go into another."""
        self._tape = None
        tape.close()
        coverage = self._ledger.take_coverage()
        self._ledger.lose(coverage, "file_removed")
        self._gone(Traffic())  # its counters are those of the next file
        error = FileNotFoundError(f"somebody removed {tape.path}")
        self._complain("calls on the tape are gone, the next ones go into another file", error)
