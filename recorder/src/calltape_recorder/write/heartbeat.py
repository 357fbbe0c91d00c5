"""What a recorder says of itself about every ten seconds, and when it loses calls.

The accounts come in, once a second. A status file and news for the log go out.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace

from calltape_recorder.keep.ledger import Stats
from calltape_recorder.write.notices import Notices
from calltape_recorder.write.status_file import StatusFile
from calltape_schema.processes import this_process
from calltape_schema.status import BEAT_SECONDS, Activity, Status, encode_status

__all__ = ["Heartbeat"]

# Calls that were lost because they could not be written. Others were on the disk, or never ended.
_REFUSED = ("disk_full", "max_disk_bytes", "io", "queue_full", "internal")


class Heartbeat:
    """Follows the accounts of one recording in one process.

    Args:
        file: the file for the status.
        tape: the id of the recording.
        notices: is told when calls are written again that were lost before.

    Attributes:
        target, losing: as in :class:`~calltape_recorder.keep.ledger.Stats`.
    """

    def __init__(self, file: StatusFile, tape: bytes, notices: Notices) -> None:
        self._file = file
        self._notices = notices
        self._status = Status(tape.hex(), this_process(), "recording", time.time_ns(), 0)
        self.target: str | None = None
        self._lost = 0  # calls that were not written
        self._lost_before = 0
        self._last_write_ns: int | None = None
        self.losing: str | None = None
        self._losing_since_ns: int | None = None
        self._told: tuple[object, ...] | None = None
        self._beat = 0.0

    def look(self, stats: Stats, refused: str | None, stopped: str | None, unsealed: int) -> None:
        """Is called about once a second by the writer's thread.

        Args:
            stats: the accounts.
            refused: why the last call could not be written; None if it was.
            stopped: the bound that was reached, so that no further call is recorded; or None.
            unsealed: how many files wait for their trailers.
        """
        self._follow(stats, refused)
        if stopped is not None and self._status.activity != "stopped":
            self._notices.tell("stopped", f"recording stopped: {stopped} is reached")
        activity: Activity = "recording"
        if stopped is not None:
            activity = "stopped"
        elif stats.paused:
            activity = "paused"
        if activity != self._status.activity and "paused" in (activity, self._status.activity):
            says = "only counts calls" if stats.paused else "records calls again"
            self._notices.tell(says, f"{says} of {self.target}")
        self._write(stats, activity, unsealed)

    def end(self, stats: Stats, *, is_sealed: bool) -> None:
        """Removes the status of a tape that is complete. Of one that is not, the status stays."""
        if is_sealed:
            self.remove()
        else:
            self._told = None
            self._write(stats, "unsealed", 1)

    def remove(self) -> None:
        """Removes the status: the tape is complete, or there is none."""
        self._file.remove()

    def _follow(self, stats: Stats, refused: str | None) -> None:
        """Finds out whether calls are lost, and since when no call was written."""
        lost = sum(stats.dropped.get(reason, 0) for reason in _REFUSED)
        wrote = stats.last_write_ns != self._last_write_ns
        if refused is None and lost > self._lost and not wrote:
            refused = "queue_full"  # the writer did not even see them
        if refused is not None:
            if self.losing is None:
                self._losing_since_ns, self._lost_before = time.time_ns(), self._lost
            self.losing = refused
        elif wrote and self.losing is not None:
            seconds = (time.time_ns() - (self._losing_since_ns or 0)) / 1e9
            self._notices.tell(
                "writes again",
                f"calls are written again to {stats.path}: {lost - self._lost_before} were lost in"
                f" {seconds:.0f} s ({self.losing})",
                level=logging.WARNING,
            )
            self._notices.forget()
            self.losing = self._losing_since_ns = None
        self._lost, self._last_write_ns = lost, stats.last_write_ns

    def _write(self, stats: Stats, activity: Activity, unsealed: int) -> None:
        what = activity, self.losing, bool(unsealed)
        now = time.monotonic()
        self._status = replace(self._status, activity=activity)
        if what == self._told and now - self._beat < BEAT_SECONDS:
            return
        self._beat, self._told = now, what
        status = replace(
            self._status,
            target=self.target,
            beat_ns=time.time_ns(), file=os.path.basename(stats.path or "") or None,
            seen=stats.seen, kept=stats.kept, dropped=stats.dropped, queued=stats.queued,
            queued_bytes=stats.queued_bytes, written_bytes=stats.written_bytes,
            segments=stats.segments, unsealed=unsealed, last_write_ns=stats.last_write_ns,
            last_error=stats.last_error, last_error_ns=stats.last_error_ns,
            losing=self.losing, losing_since_ns=self._losing_since_ns,
        )  # fmt: skip
        try:
            self._file.write(encode_status(status))
        except OSError as error:
            self._notices.complain(f"the status {self._file.path} cannot be written", error)
