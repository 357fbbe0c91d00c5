"""Says lines through ``logging.getLogger("calltape")``. Each begins with calltape and the process.

Under gevent or eventlet, the locks of logging belong to the greenlets of a thread. A thread of the
recorder that waited for one could wait for ever, or stop the greenlets. So it writes warnings to
stderr, and keeps all lines: the next greenlet that asks the recorder for something says them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections import deque

from calltape_recorder.threads import is_apart

__all__ = ["log", "say", "say_kept", "write"]

log = logging.getLogger("calltape")

_kept: deque[tuple[int, str]] = deque(maxlen=100)


def say(level: int, text: str) -> None:
    """Logs a line. It never raises: a handler of the host may."""
    line = f"calltape, process {os.getpid()}: {text}"
    if not is_apart():
        _log(level, line)
        return
    _kept.append((level, line))
    if level >= logging.WARNING and log.isEnabledFor(level):
        _write(line)


def say_kept() -> None:
    """Logs what a thread of the recorder could not."""
    while _kept and not is_apart():
        with contextlib.suppress(IndexError):  # another thread says it, too
            _log(*_kept.popleft())


def write(text: str) -> None:
    """Writes a line to stderr, if nobody handles the log and nobody forbade it: where Python itself
    prints nothing but warnings."""
    shows_warnings = logging.lastResort is not None and log.isEnabledFor(logging.WARNING)
    if shows_warnings and not log.hasHandlers():
        _write(f"calltape, process {os.getpid()}: {text}")


def _log(level: int, line: str) -> None:
    with contextlib.suppress(Exception):
        log.log(level, "%s", line)


def _write(line: str) -> None:
    with contextlib.suppress(Exception):  # stderr may be closed, or None
        sys.stderr.write(f"{line}\n")
