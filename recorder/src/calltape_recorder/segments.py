"""The files of a recording: one, or one after the other within bounds of size, age and disk."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from calltape_recorder.stats import Ledger
from calltape_recorder.tape_writer import TapeWriter
from calltape_schema import TapeError
from calltape_schema.records import Coverage, Dump, Manifest, Segment
from calltape_schema.traffic import Traffic

__all__ = ["Bounds", "Refusal", "Segments"]

_LOOK_SECONDS = 1.0
_FREE_LOOK_BYTES = 16 * 1024 * 1024
_TRAILER_BYTES = 64 * 1024
_MAX_UNSEALED = 16  # open files that wait for their trailers
_OLDEST_SHARE = 8  # a bound of disk with deletion is this many segments, where no size is given


class Refusal(Exception):  # noqa: N818 - a decision, not an error
    """No more bytes may be written; ``args[0]`` is the reason that dropped calls are counted by."""


@dataclass(frozen=True)
class Bounds:
    """Bytes and seconds; None where there is no bound."""

    max_disk_bytes: int | None = None
    min_free_bytes: int | None = None
    segment_bytes: int | None = None
    segment_seconds: float | None = None
    when_full: Literal["stop", "delete_oldest"] = "stop"

    @property
    def deletes(self) -> bool:
        return self.when_full == "delete_oldest"

    @property
    def most_in_segment(self) -> int | None:
        """Bytes at which the next file begins."""
        if self.segment_bytes is None and self.deletes and self.max_disk_bytes is not None:
            return max(self.max_disk_bytes // _OLDEST_SHARE, 1)
        return self.segment_bytes

    @property
    def is_rolling(self) -> bool:
        return self.most_in_segment is not None or self.segment_seconds is not None


class Closed(NamedTuple):
    """A file that takes no more calls."""

    tape: TapeWriter
    coverage: Coverage


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
        bounds: when to go on in the next file, and when to stop.
        ledger: tells what became of calls, and is told of files that are gone.
        take_traffic: gives the counters, and the dumps, since the last time.

    Raises:
        TapeError: ``exists`` or ``io``.
    """

    def __init__(
        self,
        path: str,
        overwrite: bool,
        bounds: Bounds,
        ledger: Ledger,
        take_traffic: Callable[[], tuple[Traffic, tuple[Dump, ...]]],
    ) -> None:
        self.first_path = path
        self._bounds = bounds
        self._ledger = ledger
        self._take_traffic = take_traffic
        self._stem = path.removesuffix(".tape")
        self._number = 0
        self._closed: deque[Closed] = deque()
        self._unsealed: list[Unsealed] = []
        self._manifest: Manifest | None = None
        self._began = self._looked = time.monotonic()
        self._free_left = 0
        self._tape: TapeWriter | None = TapeWriter(path, overwrite)

    @property
    def path(self) -> str:
        """The current file."""
        tape = self._tape
        return self.first_path if tape is None else tape.path

    @property
    def written_bytes(self) -> int:
        """Of all files that are there."""
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

    def append(self, calls: Sequence[tuple[int, Sequence[Any], int]]) -> None:
        """Appends whole calls, in the next file where this one is full.

        Raises:
            OSError: none of these calls counts as written.
            Refusal: a bound is reached.
        """
        size = sum(size for _, _, size in calls)
        first = min(number for number, _, _ in calls)
        tape = self._current(first)
        most = self._bounds.most_in_segment
        if most is not None and tape.calls and tape.end + size > most:
            self.roll()
        self._make_room(size)
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
        closed = Closed(tape, self._ledger.take_coverage())
        self._closed.append(closed)
        self._unsealed.append(Unsealed(closed, *self._take_traffic()))
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
                tape.seal(self._tape_id, self._ledger.take_coverage(), *self._take_traffic())
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
                tape = TapeWriter(path, overwrite=False)
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
            (tape, coverage), traffic, dumps = self._unsealed[0]
            try:
                tape.seal(self._tape_id, coverage, traffic, dumps)
            except OSError:
                if len(self._unsealed) < _MAX_UNSEALED:
                    raise
            self._unsealed.pop(0)
            tape.close()

    def _make_room(self, size: int) -> None:
        most = self._bounds.max_disk_bytes
        while most is not None and self.written_bytes + self._trailer_bytes() + size > most:
            if not self._delete_oldest():
                raise Refusal("max_disk_bytes")
        floor = self._bounds.min_free_bytes
        if floor is None:
            return
        self._free_left -= size
        if self._free_left < 0:
            while self._free() < floor + size:
                if not self._delete_oldest():
                    raise Refusal("disk_full")
            self._free_left = min(_FREE_LOOK_BYTES, max(self._free() - floor - size, 0) // 2)

    def _trailer_bytes(self) -> int:
        """About what the trailer will take."""
        return _TRAILER_BYTES + (16 * self._tape.calls if self._tape is not None else 0)

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
        oldest = self._closed.popleft()
        self._unsealed = [other for other in self._unsealed if other.closed is not oldest]
        oldest.tape.close()
        oldest.tape.remove()
        self._ledger.lose(oldest.coverage, "deleted")
        return True

    def _lose(self, tape: TapeWriter) -> None:
        """Somebody removed the file: its calls are gone, and the next ones go into another."""
        self._tape = None
        tape.close()
        coverage = self._ledger.take_coverage()
        self._ledger.lose(coverage, "file_removed")
