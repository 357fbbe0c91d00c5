"""What became of the calls: the one place where they are counted."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Ledger", "State", "Stats"]

State = Literal["open", "recording", "closed", "forked"]


@dataclass(frozen=True)
class Stats:
    """A snapshot of the accounts; ``seen == kept + sum(dropped.values()) + queued``.

    Attributes:
        seen: calls of the recorded method so far.
        kept: calls that are whole in the file; each of them survives the death of the process.
        dropped: calls that are not on the tape, by reason.
        queued: calls under way in the model, or waiting to be written.
        queued_bytes: host memory that those calls hold, in bytes; at most ``max_queue_bytes``.
        written_bytes: length of the tape file so far, in bytes.
        state: ``open`` (nothing attached), ``recording``, ``closed``, or ``forked`` (this process
            is a fork of the one that records).
    """

    seen: int
    kept: int
    dropped: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    queued_bytes: int = 0
    written_bytes: int = 0
    state: State = "open"


class Ledger:
    """Counts under one lock that nobody holds for longer than a few additions.

    The lock is reentrant: a signal handler may call the model while its thread is in here.
    """

    def __init__(self, max_bytes: int, max_calls: int | None) -> None:
        self._lock = threading.RLock()
        self._max_bytes = max_bytes
        self._max_calls = max_calls
        self.seen = 0
        self.accepted = 0
        self.kept = 0
        self.bytes = 0
        self.dropped: dict[str, int] = {}

    def see(self) -> int | None:
        """The number of a call that begins; None (and counted) once ``max_calls`` were accepted."""
        with self._lock:
            number = self.seen
            self.seen = number + 1
            if self.accepted == self._max_calls:
                self.dropped["max_calls"] = self.dropped.get("max_calls", 0) + 1
                return None
            self.accepted += 1
            return number

    def reserve(self, nbytes: int) -> bool:
        """Takes ``nbytes`` of the bound, if that many are left."""
        with self._lock:
            total = self.bytes + nbytes
            if total > self._max_bytes:
                return False
            self.bytes = total
            return True

    def drop(self, reason: str, nbytes: int = 0, *, accepted: bool = True) -> None:
        """Counts a call that was seen and will not be on the tape, and frees what it reserved."""
        with self._lock:
            self.bytes -= nbytes
            self.accepted -= accepted
            self.dropped[reason] = self.dropped.get(reason, 0) + 1

    def keep(self, calls: int, nbytes: int) -> None:
        """Counts calls that are whole in the file, and frees what they reserved."""
        with self._lock:
            self.bytes -= nbytes
            self.kept += calls

    def drop_rest(self, reason: str) -> None:
        """Counts every call that is neither kept nor dropped."""
        with self._lock:
            rest = self.seen - self.kept - sum(self.dropped.values())
            if rest > 0:
                self.dropped[reason] = self.dropped.get(reason, 0) + rest

    def renew_lock(self) -> None:
        """In a forked child: the old lock may be held by a thread that does not exist here."""
        self._lock = threading.RLock()

    def snapshot(self, written_bytes: int, state: State) -> Stats:
        """All accounts at one moment."""
        with self._lock:
            queued = self.seen - self.kept - sum(self.dropped.values())
            return Stats(
                self.seen, self.kept, dict(self.dropped), queued, self.bytes, written_bytes, state
            )
