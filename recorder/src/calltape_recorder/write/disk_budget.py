"""Who has how much of ``max_disk_bytes``."""

from __future__ import annotations

import os

from calltape_recorder.bounds import AHEAD_SHARE
from calltape_recorder.threads import RLock

__all__ = ["DiskBudget", "Refusal", "free_bytes"]


class Refusal(Exception):  # noqa: N818 - a decision, not an error
    """No more bytes may be written. Calls are dropped for the reason in ``args[0]``."""


def free_bytes(path: str) -> int:
    """How many bytes are free where a file is."""
    found = os.statvfs(os.path.dirname(path) or ".")
    return found.f_bavail * found.f_frsize


class DiskBudget:
    """Shares the bytes of ``max_disk_bytes``. The writer's thread claims some for the tapes
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
        self._wanted = 0  # the most that was lent at once, within its share
        self.lent = 0

    @property
    def for_tapes(self) -> int | None:
        """How many bytes all tapes may have; None if there is no bound."""
        if self._most is None:
            return None
        # If old tapes are deleted for new ones, the disk is always full. So the bytes that
        # write-ahead needed once stay free, because it will need them again.
        return self._most - max(self.lent, self._wanted)

    def claim(self, nbytes: int) -> bool:
        """Sets how many bytes the tapes have, with what they are about to write. False, and nothing
        changes, if that is too much."""
        with self.lock:
            most = self.for_tapes
            if most is not None and nbytes > most:
                return False
            self._taken = nbytes
            return True

    def lend(self, nbytes: int) -> bool:
        """Lends so many more bytes to a call that is written ahead. False, and nothing changes, if
        that is too much."""
        with self.lock:
            lent = self.lent + nbytes
            if self._most is not None:
                if lent <= self._most // AHEAD_SHARE:
                    self._wanted = max(self._wanted, lent)
                if self._taken + lent > self._most:
                    return False
            self.lent = lent
            return True

    def give_back(self, nbytes: int) -> None:
        """Takes back so many bytes that were lent, as they are gone from the disk."""
        with self.lock:
            self.lent -= nbytes
