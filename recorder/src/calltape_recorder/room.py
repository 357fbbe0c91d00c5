"""Bounds of the files, and who has how much of the disk."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Literal

from calltape_recorder.patience import Patient

__all__ = ["Bounds", "Refusal", "Room"]

_OLDEST_SHARE = 8  # a bound of disk with deletion is this many segments, where no size is given
_AHEAD_SHARE = 4  # at most this part of the bound is left free for calls under way


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


class Room:
    """Shared by the writer's thread (:meth:`take`) and those that write ahead (:meth:`lend`).

    The lock is reentrant: a signal handler may call the model while its thread is in here.

    Args:
        most: bytes; None where there is no bound.

    Attributes:
        lent: bytes of calls under way.
    """

    def __init__(self, most: int | None) -> None:
        self._lock = threading.RLock()
        self._most = most
        self._taken = 0
        self._wanted = 0  # ahead at a time, within that part
        self.lent = 0

    @property
    def for_tapes(self) -> int | None:
        """What they may have in all."""
        if self._most is None:
            return None
        # Where old tapes give way to new ones the disk is always full: what was needed ahead once
        # will be needed again.
        return self._most - max(self.lent, self._wanted)

    def take(self, nbytes: int) -> bool:
        """The tapes have, with what they are about to write, so many bytes; False (and nothing
        changes) where that is too much."""
        with Patient(self._lock):
            most = self.for_tapes
            if most is not None and nbytes > most:
                return False
            self._taken = nbytes
            return True

    def lend(self, nbytes: int) -> bool:
        """So many more bytes are written ahead; False (and nothing changes) where that is too
        much."""
        with self._lock:
            lent = self.lent + nbytes
            if self._most is not None:
                if lent <= self._most // _AHEAD_SHARE:
                    self._wanted = max(self._wanted, lent)
                if self._taken + lent > self._most:
                    return False
            self.lent = lent
            return True

    def give_back(self, nbytes: int) -> None:
        """So many bytes that were lent are gone from the disk."""
        with self._lock:
            self.lent -= nbytes
