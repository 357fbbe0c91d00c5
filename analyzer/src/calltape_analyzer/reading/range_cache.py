"""The bytes of remote files that were read last, for the whole process.

Manifest and end of a tape are asked for more than once, and small reads are served from the larger
piece that was fetched for them. In come pieces; out go parts of them, while there is room.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import OrderedDict

__all__ = ["RangeCache", "ranges"]

_MOST_BYTES = 64 * 1024 * 1024


class RangeCache:
    """Keeps the pieces that were used last.

    Args:
        most: how many bytes stay, of all files together.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self._most = most
        self._held = 0
        self._pieces: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._starts: dict[int, list[int]] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew)

    def __len__(self) -> int:
        """How many bytes are held."""
        return self._held

    def get(self, file: int, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes of a file from ``offset`` on: as many as one piece has.

        Args:
            file: a number that no other file has.
            offset, size: in bytes.
        """
        best: tuple[int, int] | None = None
        with self._lock:
            for start in self._starts.get(file, ()):
                end = start + len(self._pieces[file, start])
                if start <= offset < end and (best is None or end > best[0]):
                    best = end, start
            if best is None:
                return b""
            _, start = best
            self._pieces.move_to_end((file, start))
            return self._pieces[file, start][offset - start : offset - start + size]

    def next_start(self, file: int, offset: int) -> int:
        """Where the next piece of a file behind an offset begins."""
        with self._lock:
            starts = self._starts.get(file, ())
            return min((start for start in starts if start > offset), default=sys.maxsize)

    def put(self, file: int, start: int, piece: bytes) -> None:
        """Keeps a piece of a file, instead of those that were not used for the longest time."""
        if len(piece) > self._most:
            return
        with self._lock:
            self._remove(file, start)
            self._pieces[file, start] = piece
            self._starts.setdefault(file, []).append(start)
            self._held += len(piece)
            while self._held > self._most:
                self._remove(*next(iter(self._pieces)))

    def drop(self, file: int) -> None:
        """Forgets a file."""
        with self._lock:
            for start in list(self._starts.get(file, ())):
                self._remove(file, start)

    def _remove(self, file: int, start: int) -> None:
        piece = self._pieces.pop((file, start), None)
        if piece is None:
            return
        self._held -= len(piece)
        starts = self._starts[file]
        starts.remove(start)
        if not starts:
            del self._starts[file]

    def _renew(self) -> None:
        """In a fork, the lock may be held by a thread that does not exist there, in the middle of a
        change."""
        self._lock = threading.Lock()
        self._held = 0
        self._pieces.clear()
        self._starts.clear()


ranges = RangeCache()
"""The pieces of all remote files of this process."""
