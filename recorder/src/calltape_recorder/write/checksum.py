"""Computes the checksum of a blob. If the blob is large, it does so while the blob is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calltape_recorder.threads import Event, start_thread
from calltape_schema.checksum import crc32

__all__ = ["Checksum", "checksum"]


def checksum(parts: Sequence[Any]) -> int:
    """The CRC-32 of these parts, one after the other."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc


class Checksum:
    """Computes the CRC-32 of these parts in a thread of its own.

    This may take as long as to write them. Neither holds the interpreter lock meanwhile.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._found: int | None = None
        self._done = Event()
        try:
            start_thread(self._run, "calltape-checksum")
        except RuntimeError:  # the interpreter shuts down: value() computes it
            self._done.set()

    def value(self) -> int:
        """Waits for the checksum. It may be called again."""
        while not self._done.wait(1.0):
            pass
        if self._found is None:
            self._found = checksum(self._parts)
        self._parts = ()
        return self._found

    def _run(self) -> None:
        # This runs at the host's own priority. A thread of a lower priority may get the interpreter
        # lock and then no core, and all other threads would wait for it.
        try:
            self._found = checksum(self._parts)
        finally:
            self._done.set()
