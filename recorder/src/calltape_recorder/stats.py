"""What became of the calls: the one place where they are counted."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from calltape_recorder.counters import Count, value_of
from calltape_recorder.patience import Patient
from calltape_schema.records import UNWANTED, Coverage

__all__ = ["Ledger", "State", "Stats"]

State = Literal["open", "recording", "closed", "forked"]


@dataclass(frozen=True)
class Stats:
    """A snapshot of the accounts; ``seen == kept + sum(dropped.values()) + queued``.

    Attributes:
        seen: calls of the recorded method so far.
        kept: calls that are whole in a file; each of them survives the death of the process.
        dropped: calls that are not on the tape, by reason: ``policy`` (not one to keep),
            ``paused``, ``max_calls``, ``max_seconds``, ``tracing`` (not a call of the model but of
            something that traces it), ``queue_full`` (no memory left within the bound),
            ``flight_recorder`` (held for a while, and not asked for), ``max_disk_bytes``,
            ``disk_full`` (the floor of free space), ``deleted`` (with an old segment),
            ``file_removed`` (somebody removed the file), ``io`` (the disk failed), ``internal`` (a
            fault of the recorder, or a predicate that raised), ``interrupted``, ``unfinished``
            (under way at the end).
        queued: calls under way in the model, waiting to be written, or held in memory.
        queued_bytes: host memory that those calls hold, in bytes.
        written_bytes: length of the files on disk so far, in bytes.
        segments: files on disk that this recorder wrote and did not delete.
        paused: whether :meth:`Recorder.pause` was called.
        state: ``open`` (nothing attached), ``recording``, ``closed``, or ``forked`` (this process
            is a fork of the one that records, and has not called the model yet).
        control: why the control file is not followed; None where it is, or there is none.
    """

    seen: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    queued_bytes: int = 0
    written_bytes: int = 0
    segments: int = 0
    paused: bool = False
    state: State = "open"
    control: str | None = None

    @property
    def unwanted(self) -> dict[str, int]:
        """Of ``dropped``: calls that were not to be kept, by ``policy`` or what else was asked for
        (``paused``, ``max_calls``, ``max_seconds``, ``flight_recorder``, ``tracing``)."""
        return {reason: calls for reason, calls in self.dropped.items() if reason in UNWANTED}

    @property
    def lost(self) -> dict[str, int]:
        """Of ``dropped``: calls that were to be kept. Something is to be done about them."""
        return {reason: calls for reason, calls in self.dropped.items() if reason not in UNWANTED}


_UNLOCKED = ("policy", "paused", "max_calls", "max_seconds")
"""Reasons that are counted for most calls of a recorder, where they are counted at all."""


class Accounted(Protocol):
    """A call, as the accounts know it: the bytes that it reserved, and whether the last word on it
    was said."""

    nbytes: int
    is_settled: bool


class Ledger:
    """Counts under one lock that nobody holds for longer than a few additions; what happens in
    every call, kept or not, is counted without one.

    The lock is reentrant: a signal handler may call the model while its thread is in here.

    Attributes:
        see: the number of a call that begins; None (and counted) where none is recorded now.
        skip: counts a call that the policy does not keep.
    """

    def __init__(self, max_bytes: int, max_calls: int | None) -> None:
        self._lock = threading.RLock()
        self.max_bytes = max_bytes
        self._max_calls = max_calls
        self._stopped: str | None = None
        self._paused = False
        self._is_closed = False
        # One step of a counter is one step under the interpreter lock.
        self._numbers = Count()
        self._skipped: dict[str, Count[int]] = {reason: Count() for reason in _UNLOCKED}
        self._told: dict[str, int] = dict.fromkeys(_UNLOCKED, 0)  # of these, in earlier segments
        self.accepted = 0
        self.kept = 0
        self.bytes = 0
        self._dropped: dict[str, int] = {}
        self._account: Counter[str] = Counter()  # of the current segment; "" counts what is kept
        # In every call: where nothing is to be asked they are the counters themselves.
        self.see: Callable[[], int | None]
        self.skip: Callable[[], object] = (
            self._skipped["policy"].__next__ if max_calls is None else self._take_back
        )
        self._limit()

    @property
    def seen(self) -> int:
        """Calls so far."""
        return value_of(self._numbers)

    @property
    def paused(self) -> bool:
        """Whether calls are only counted for now."""
        return self._paused

    def pause(self, paused: bool) -> None:
        """Only counts calls from now on, or records them again."""
        with self._lock:
            self._paused = paused
            self._limit()

    def stop(self, reason: str) -> None:
        """Only counts calls from now on, as dropped for this reason."""
        with self._lock:
            self._stopped = reason
            self._limit()

    def _limit(self) -> None:
        limits = (self._max_calls, self._stopped, self._paused or None)
        self.see = self._numbers.__next__ if limits == (None, None, None) else self._admit

    def _admit(self) -> int | None:
        number = next(self._numbers)
        reason = "paused" if self._paused else self._stopped
        if reason is None:
            with self._lock:
                if self.accepted != self._max_calls:
                    self.accepted += 1
                    return number
            reason = "max_calls"
        if not self._is_closed:
            next(self._skipped[reason])
        return None

    def _take_back(self) -> None:
        if self._is_closed:
            return
        next(self._skipped["policy"])
        with self._lock:
            self.accepted -= 1

    def reserve(self, call: Accounted, nbytes: int) -> bool:
        """Takes ``nbytes`` of the bound for a call, if that many are left."""
        with self._lock:
            total = self.bytes + nbytes
            if total > self.max_bytes or self._is_closed:
                return False
            self.bytes, call.nbytes = total, call.nbytes + nbytes  # one step
            return True

    def drop(self, reason: str) -> None:
        """Counts a call that was seen and will not be on the tape."""
        with Patient(self._lock):
            if not self._is_closed:
                self.accepted -= 1
                self._count(reason)

    def settle(self, call: Accounted, reason: str | None, *, written: bool = False) -> None:
        """The last word on a call, of which the first counts: it is whole in the file (None), or
        dropped. Frees what it reserved; ``written`` if it came as far as the writer."""
        with Patient(self._lock):
            if call.is_settled or self._is_closed:
                return
            call.is_settled = True
            self.bytes -= call.nbytes
            if reason is None:
                self.kept += 1
                self._account[""] += 1
                return
            self.accepted -= not written
            self._count(reason)

    def lose(self, coverage: Coverage, reason: str) -> None:
        """Counts the kept calls of a file that is gone as dropped, in the current segment; what
        that file said of other calls is said there as well."""
        with Patient(self._lock):
            self.kept -= coverage.kept
            self._dropped[reason] = self._dropped.get(reason, 0) + coverage.kept
            self._account.update(coverage.dropped)
            self._account[reason] += coverage.kept

    def take_coverage(self) -> Coverage:
        """What became of calls since the last time."""
        with Patient(self._lock):
            account, self._account = self._account, Counter()
            for reason, counter in self._skipped.items():
                skipped = value_of(counter)
                account[reason] += skipped - self._told[reason]
                self._told[reason] = skipped
        kept = account.pop("", 0)
        dropped = {reason: calls for reason, calls in account.items() if calls}
        return Coverage(seen=kept + sum(dropped.values()), kept=kept, dropped=dropped)

    def close(self, reason: str) -> None:
        """Counts every call that is neither kept nor dropped; no other is counted afterwards."""
        with Patient(self._lock):
            self._is_closed = True
            self.skip = _nothing
            rest = -self.kept - sum(self._all_dropped().values()) + self.seen
            if rest > 0:
                self._count(reason, rest)
            self.bytes = 0

    def snapshot(self, written_bytes: int, segments: int, state: State) -> Stats:
        """All accounts at one moment."""
        with self._lock:
            dropped = self._all_dropped()
            seen = self.seen  # last: a call is seen before anything becomes of it
            queued = seen - self.kept - sum(dropped.values())
            return Stats(
                seen, self.kept, dropped, queued, self.bytes, written_bytes, segments,
                self._paused, state,
            )  # fmt: skip

    def _all_dropped(self) -> dict[str, int]:
        found = dict(self._dropped)
        for reason, counter in self._skipped.items():
            if skipped := value_of(counter):
                found[reason] = found.get(reason, 0) + skipped
        return found

    def _count(self, reason: str, calls: int = 1) -> None:
        self._dropped[reason] = self._dropped.get(reason, 0) + calls
        self._account[reason] += calls


def _nothing() -> None:
    pass
