"""Whether the recorders of a directory record: the command ``calltape health``.

``python -m calltape_recorder.health DIR`` is the same for images that have no analyzer. The status
files of the directory and of those below it come in (:mod:`calltape_schema.status`), and one state
goes out. Nothing is asked of the recording process itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from calltape_schema.errors import TapeError
from calltape_schema.processes import Process, is_gone, is_stopped, this_process
from calltape_schema.status import SIZE, SUFFIX, Status, read_status

__all__ = ["CODES", "STALE_AFTER", "Health", "RecorderHealth", "State", "health_of"]

State = Literal["recording", "paused", "full", "stale", "ended", "nothing", "unknown"]

CODES: dict[State, int] = {
    "recording": 0, "unknown": 1, "paused": 10, "full": 11, "stale": 12, "ended": 13,
    "nothing": 14,
}  # fmt: skip
"""The exit code of the command for each state. 2 is wrong usage."""

STALE_AFTER = 60.0  # seconds

_WORST_FIRST: tuple[State, ...] = (
    "unknown", "stale", "full", "paused", "recording", "ended", "nothing",
)  # fmt: skip
_NO_ROOM = ("disk_full", "max_disk_bytes")
_LEAST_BEATS = 3  # a status may be so many times as late as its recorder promised
_MAX_FILES = 1000
_MAX_ENTRIES = 200_000
_MAX_DEPTH = 8
_TORN_SECONDS = 0.05


@dataclass(frozen=True)
class RecorderHealth:
    """The state of one recorder, and why it is so.

    Attributes:
        path: its status file.
        replaced: whether its process is gone, and a later recorder records the same target. Then
            it does not count.
        status: what the file says; None if it cannot be read.
    """

    path: str
    state: State
    reason: str
    replaced: bool = False
    status: Status | None = None


@dataclass(frozen=True)
class Health:
    """The state of a directory: the worst one of its recorders."""

    directory: str
    state: State
    reason: str
    recorders: tuple[RecorderHealth, ...] = ()

    @property
    def code(self) -> int:
        """The exit code; see :data:`CODES`."""
        return CODES[self.state]

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {"code": self.code, **asdict(self)}


def health_of(
    directory: str, stale_after: float = STALE_AFTER, *, now_ns: int | None = None,
    here: Process | None = None,
) -> Health:  # fmt: skip
    """The state of the recorders that write to a directory, or below it.

    Args:
        directory: where the tapes are.
        stale_after: after how many seconds without a status, or without a written call while
            calls are lost, a recorder is stale. No status is taken for late before it is three
            times as late as its recorder promised.
        now_ns: Unix time in nanoseconds; None for now.
        here: the process that asks; None for this one.
    """
    now = time.time_ns() if now_ns is None else now_ns
    here = this_process() if here is None else here
    try:
        paths, tapes, missed = _found_in(directory)
    except FileNotFoundError:
        return Health(directory, "nothing", "the directory does not exist")
    except OSError as error:
        reason = f"the directory cannot be read: {error.strerror or error}"
        return Health(directory, "unknown", reason)
    judge = _Judge(now, stale_after, here)
    found = _without_replaced([one for one in map(judge.of, paths) if one is not None], judge)
    if missed:
        found.append(RecorderHealth(directory, "unknown", missed))
    counted = [one for one in found if not one.replaced]
    if not counted:
        files = f"; tapes there: {tapes}" if tapes else ""
        return Health(directory, "nothing", f"no recorder is at work here{files}", tuple(found))
    worst = min(counted, key=lambda one: _WORST_FIRST.index(one.state))
    return Health(directory, worst.state, worst.reason, tuple(found))


def _found_in(directory: str) -> tuple[list[str], int, str | None]:
    """The status files, the latest first; how many tapes there are; and what was not looked at."""
    found: list[tuple[float, str]] = []
    tapes = 0
    missed: str | None = None
    for number, entry in enumerate(_entries(directory)):
        if isinstance(entry, OSError):
            missed = f"{entry.filename} cannot be read: {entry.strerror}"
        elif number >= _MAX_ENTRIES:
            missed = f"the directory has more than {_MAX_ENTRIES} entries; name one with fewer"
            break
        elif entry.name.endswith(SUFFIX):
            try:
                found.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
            except FileNotFoundError:
                continue
            except OSError:
                found.append((0.0, entry.path))
        elif entry.name.endswith(".tape"):
            tapes += 1
    found.sort(reverse=True)
    return [path for _, path in found[:_MAX_FILES]], tapes, missed


def _entries(directory: str) -> Iterator[os.DirEntry[str] | OSError]:
    """The entries of a directory and of those below it that are no links.

    Raises:
        OSError: the directory itself cannot be read; of one below it, the error is yielded.
    """
    waiting = [(directory, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if depth < _MAX_DEPTH:
                            waiting.append((entry.path, depth + 1))
                    else:
                        yield entry
        except OSError as error:
            if not depth:
                raise
            if not isinstance(error, FileNotFoundError):
                yield error


class _Judge:
    """Tells the state of single recorders at one moment."""

    def __init__(self, now_ns: int, stale_after: float, here: Process) -> None:
        self._now = now_ns
        self._stale_after = stale_after
        self._here = here

    def of(self, path: str) -> RecorderHealth | None:
        """The state of the recorder of this status file; None if the file is gone by now."""
        try:
            status = _read(path)
        except TapeError as error:
            if error.kind == "not_found":  # the tape was sealed meanwhile
                return None
            return RecorderHealth(path, "unknown", f"its status cannot be read: {error.reason}")
        state, reason = self._state_of(status, path)
        return RecorderHealth(path, state, reason, status=status)

    def _state_of(self, status: Status, path: str) -> tuple[State, str]:
        pid = status.process.pid
        if status.activity == "unsealed":
            return "stale", f"process {pid} closed its tape and could not seal it{_error(status)}"
        if is_gone(status.process, self._here):
            return "stale", f"process {pid} is gone, and did not seal its tape"
        if is_stopped(status.process, self._here):
            return "stale", f"process {pid} is stopped by a signal"
        if self._is_silent(status):
            return self._silent(status, path, (self._now - status.beat_ns) / 1e9)
        if status.activity == "paused":
            return "paused", f"process {pid} only counts calls"
        if status.activity == "stopped":
            return "ended", f"process {pid} has recorded all that it was asked for"
        return self._written(status)

    def is_over(self, status: Status) -> bool:
        """Whether a recorder will write nothing more, as far as can be known from here."""
        if status.activity == "unsealed":
            return True
        gone = is_gone(status.process, self._here)
        return self._is_silent(status) if gone is None else gone

    def _is_silent(self, status: Status) -> bool:
        late = max(self._stale_after, _LEAST_BEATS * status.beat_seconds)
        return abs(self._now - status.beat_ns) / 1e9 > late

    def _silent(self, status: Status, path: str, age: float) -> tuple[State, str]:
        """Of a recorder that does not write its status, although its process may be there."""
        pid = status.process.pid
        if age < 0:
            return "stale", f"the status of process {pid} is of the future: a clock was changed"
        if _is_full(path):
            return "full", f"the disk is full; process {pid} wrote nothing for {age:.0f} s"
        return "stale", f"process {pid} wrote no status for {age:.0f} s"

    def _written(self, status: Status) -> tuple[State, str]:
        pid, reason = status.process.pid, status.losing
        if reason is None:
            return "recording", f"process {pid} records{_last_write(status, self._now)}"
        seconds = max(0, self._now - (status.losing_since_ns or status.beat_ns)) / 1e9
        said = f"process {pid} has written no call for {seconds:.0f} s, although calls came"
        if reason in _NO_ROOM:
            return "full", f"{said}: {reason}"
        if seconds >= self._stale_after:
            return "stale", f"{said}: {reason}{_error(status)}"
        return "recording", f"process {pid} loses calls: {reason}{_error(status)}"


def _read(path: str) -> Status:
    """The status in a file. On a full disk it is written in place, so a second look may help."""
    try:
        return read_status(path)
    except TapeError as error:
        if error.kind != "invalid":
            raise
    time.sleep(_TORN_SECONDS)
    return read_status(path)


def _error(status: Status) -> str:
    return "" if status.last_error is None else f" ({status.last_error})"


def _last_write(status: Status, now_ns: int) -> str:
    if status.last_write_ns is None:
        return ", and has written no call yet"
    return f", and wrote a call {max(0, now_ns - status.last_write_ns) / 1e9:.0f} s ago"


def _is_full(path: str) -> bool:
    """Whether the disk has no room for a status."""
    try:
        found = os.statvfs(os.path.dirname(path) or ".")
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < SIZE or (found.f_files > 0 and not found.f_favail)


def _without_replaced(found: Sequence[RecorderHealth], judge: _Judge) -> list[RecorderHealth]:
    """Marks those whose process is gone and was replaced: a later recorder of the same target
    began after the last status. One recorder replaces one. A process that is there is never
    replaced."""
    known = [(one.status, one) for one in found if one.status is not None]
    begun: dict[str | None, list[int]] = {}
    for status, _ in sorted(known, key=lambda pair: -pair[0].began_ns):
        begun.setdefault(status.target, []).append(status.began_ns)  # the earliest is the last
    replaced: set[str] = set()
    for status, one in sorted(known, key=lambda pair: pair[0].beat_ns):
        if not judge.is_over(status):
            continue
        later = begun[status.target]
        while later and later[-1] < status.beat_ns:
            later.pop()
        if later:
            later.pop()
            replaced.add(one.path)
    return [replace(one, replaced=one.path in replaced) for one in found]
