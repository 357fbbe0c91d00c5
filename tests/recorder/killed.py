"""A forked process that is killed (torch is imported once), and what it said until then."""

from __future__ import annotations

import os
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["Killed", "in_daemon"]


class Killed:
    """Runs ``serve``, which gets the end of a pipe to write to, until it is killed.

    Args:
        serve: what runs.
        message: the form of what it writes.

    Attributes:
        pid: its number, and that of its group.
        said: what it wrote.
    """

    def __init__(self, serve: Callable[[int], None], message: struct.Struct) -> None:
        self.said: list[Any] = []
        self._message = message
        self._pipe, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.setpgid(0, 0)
                os.close(self._pipe)
                serve(writing)
            finally:
                os._exit(1)
        os.close(writing)
        os.setpgid(self.pid, self.pid)  # here as well: who comes first is not known

    def wait(self, seconds: float) -> None:
        """Listens meanwhile: a full pipe would stop it."""
        moment = time.monotonic() + seconds
        os.set_blocking(self._pipe, False)
        while time.monotonic() < moment:
            try:
                self._take(os.read(self._pipe, 1 << 16))
            except BlockingIOError:
                time.sleep(0.001)
        os.set_blocking(self._pipe, True)

    def kill(self) -> None:
        """With all its children."""
        os.killpg(self.pid, signal.SIGKILL)
        while chunk := os.read(self._pipe, 1 << 16):
            self._take(chunk)
        os.close(self._pipe)
        assert os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == -signal.SIGKILL

    def _take(self, chunk: bytes) -> None:
        size = self._message.size
        while len(chunk) % size:
            more = os.read(self._pipe, size - len(chunk) % size)
            if not more:
                chunk = chunk[: len(chunk) // size * size]
            chunk += more
        self.said += self._message.iter_unpack(chunk)


def in_daemon(work: Callable[..., None], *arguments: Any) -> None:
    """Whoever fails takes the process along: it is found to have ended otherwise."""

    def guarded() -> None:
        try:
            work(*arguments)
        finally:
            os.write(2, traceback.format_exc().encode())  # a buffer would die with the process
            os.killpg(0, signal.SIGTERM)

    threading.Thread(target=guarded, daemon=True).start()
