"""The checksum of a blob: at once, or of a large one while it is written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

__all__ = ["Checksum", "checksum", "crc32"]

try:  # the extra ``fast``: the same sums at a multiple of the speed
    from zlib_ng.zlib_ng import crc32
except ImportError:
    from zlib import crc32


def checksum(parts: Sequence[Any]) -> int:
    """CRC-32 over these bytes, one part after the other."""
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc


class Checksum:
    """CRC-32 over these bytes, in a thread of its own from now on.

    It may take as long as writing them; neither holds the interpreter lock meanwhile.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self._found: int | None = None
        self._thread = threading.Thread(target=self._run, name="calltape-checksum", daemon=True)
        # Where no thread can be had (the interpreter shuts down) value() does it.
        with contextlib.suppress(RuntimeError):
            self._thread.start()

    def value(self) -> int:
        """Waits for it; may be asked again."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._found is None:
            self._found = checksum(self._parts)
        self._parts = ()
        return self._found

    def _run(self) -> None:
        # At the host's own priority: a thread of a lower one may get the interpreter lock and then
        # no core, and all others wait for it.
        self._found = checksum(self._parts)
