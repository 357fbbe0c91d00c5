"""Which process wrote a status, and whether it is gone.

The number of a process is not enough. The system gives numbers again, and in another container the
same number is another process. So a process is also known by when it started, by the boot of the
machine, and by the name space in which its number holds.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Process", "is_gone", "is_stopped", "this_process"]


@dataclass(frozen=True)
class Process:
    """One process of one machine.

    Attributes:
        pid: its number.
        started: when it started, in clock ticks since the machine did (field 22 of
            ``/proc/PID/stat``, proc(5)).
        boot: the id of the machine's boot.
        namespace: the inode number of the name space of process numbers.
    """

    pid: int
    started: int | None = None
    boot: str | None = None
    namespace: int | None = None


def this_process() -> Process:
    """The process that calls this. Where there is no ``/proc``, only its number is known."""
    pid = os.getpid()
    found = _state_of(pid)
    boot = _text_of("/proc/sys/kernel/random/boot_id")
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = None
    return Process(
        pid, None if found is None else found[1], None if boot is None else boot.strip(), namespace
    )


def is_gone(process: Process, here: Process) -> bool | None:
    """Whether a process has ended; None if that cannot be known from here.

    Args:
        process: the process that is asked about.
        here: :func:`this_process`.
    """
    if None in (process.boot, process.namespace) or process.pid < 1:
        return None
    if (process.boot, process.namespace) != (here.boot, here.namespace):
        return None  # another machine or container, whose processes are not visible here
    try:
        os.kill(process.pid, 0)  # sends nothing
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # it belongs to another user, so it is there
        pass
    found = _state_of(process.pid)
    if found is None:  # the system hides the processes of other users
        return False
    state, started = found
    return state in "ZX" or (process.started is not None and started != process.started)


def is_stopped(process: Process, here: Process) -> bool:
    """Whether a signal (SIGSTOP, Ctrl-Z) has halted a process that is there; False if that cannot
    be known from here.

    Args:
        process, here: as for :func:`is_gone`.
    """
    if is_gone(process, here) is not False:
        return False
    found = _state_of(process.pid)
    return found is not None and found[0] == "T"


def _state_of(pid: int) -> tuple[str, int] | None:
    """The state letter of a process, and when it started."""
    text = _text_of(f"/proc/{pid}/stat")
    if text is None:
        return None
    # The second field is the name of the program in brackets; it may have spaces and brackets.
    fields = text.rpartition(")")[2].split()
    try:
        return fields[0], int(fields[19])
    except (IndexError, ValueError):
        return None


def _text_of(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return None
