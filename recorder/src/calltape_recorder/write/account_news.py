"""What the accounts of a recording say from one second to the next.

The accounts come in, once a second. News for the log go out, and for which reason calls are lost.
"""

from __future__ import annotations

import logging
import time

from calltape_recorder.keep.ledger import Stats
from calltape_recorder.write.notices import Notices

__all__ = ["AccountNews"]

# Calls that were lost because they could not be written. Others were on the disk, or never ended.
_REFUSED = ("disk_full", "max_disk_bytes", "io", "queue_full", "internal")


class AccountNews:
    """Follows the accounts of one recording in one process.

    Args:
        notices: is told when the recording stops or is paused, and when calls are written again
            that were lost before.

    Attributes:
        losing: as in :class:`~calltape_recorder.keep.ledger.Stats`.
    """

    def __init__(self, notices: Notices) -> None:
        self.losing: str | None = None
        self._notices = notices
        self._is_paused = self._is_stopped = False
        self._lost = 0  # calls that were not written
        self._lost_before = 0
        self._losing_since = 0.0
        self._last_write_ns: int | None = None

    def look(self, stats: Stats, refused: str | None, stopped: str | None) -> None:
        """Is called about once a second by the writer's thread.

        Args:
            stats: the accounts.
            refused: why the last call could not be written; None if it was.
            stopped: the bound that was reached, so that no further call is recorded; or None.
        """
        self._follow(stats, refused)
        if stopped is not None:
            if not self._is_stopped:
                self._notices.tell("stopped", f"recording stopped: {stopped} is reached")
            self._is_stopped = True
        elif stats.paused != self._is_paused:
            says = "only counts calls" if stats.paused else "records calls again"
            self._notices.tell(says, f"{says} of {stats.target}")
            self._is_paused = stats.paused

    def _follow(self, stats: Stats, refused: str | None) -> None:
        """Finds out whether calls are lost, and since when no call was written."""
        lost = sum(stats.dropped.get(reason, 0) for reason in _REFUSED)
        wrote = stats.last_write_ns != self._last_write_ns
        if refused is None and lost > self._lost and not wrote:
            refused = "queue_full"  # the writer did not even see them
        if refused is not None:
            if self.losing is None:
                self._losing_since, self._lost_before = time.monotonic(), self._lost
            self.losing = refused
        elif wrote and self.losing is not None:
            seconds = time.monotonic() - self._losing_since
            self._notices.tell(
                "writes again",
                f"calls are written again to {stats.path}: {lost - self._lost_before} were lost in"
                f" {seconds:.0f} s ({self.losing})",
                level=logging.WARNING,
            )
            self._notices.forget()
            self.losing = None
        self._lost, self._last_write_ns = lost, stats.last_write_ns
