"""Host memory for large snapshots, used again and again.

Fresh memory costs a page fault per 4 KiB, which for large tensors is most of a copy; a pool of
mapped buffers pays that once.
"""

from __future__ import annotations

import ctypes
import mmap
import threading

__all__ = ["Buffer", "Buffers"]

_SMALLEST = 1 << 16


class Buffer:
    """``address`` of ``size`` writable bytes that belong to nobody else."""

    __slots__ = ("_export", "address", "memory", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size)
        # The export keeps the mapping from being closed while the address is in use.
        self._export = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._export)


def _rounded(nbytes: int) -> int:
    """Steps of an eighth of a power of two: at most an eighth is wasted, few distinct sizes."""
    step = max(_SMALLEST, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-nbytes // step) * step


class Buffers:
    """A pool whose idle memory stays within ``max_idle_bytes``."""

    def __init__(self, max_idle_bytes: int) -> None:
        self._lock = threading.RLock()
        self._max_idle = max_idle_bytes
        self._idle: dict[int, list[Buffer]] = {}
        self._idle_bytes = 0

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``."""
        size = _rounded(nbytes)
        with self._lock:
            idle = self._idle.get(size)
            if idle:
                self._idle_bytes -= size
                return idle.pop()
        return Buffer(size)

    def give_back(self, buffer: Buffer) -> None:
        """Makes a buffer available again, or lets it go where enough are idle."""
        with self._lock:
            if self._idle_bytes + buffer.size > self._max_idle:
                self._idle.clear()  # sizes have changed: start over rather than keep the wrong ones
                self._idle_bytes = 0
            if buffer.size <= self._max_idle:
                self._idle.setdefault(buffer.size, []).append(buffer)
                self._idle_bytes += buffer.size

    def clear(self) -> None:
        """Lets every idle buffer go."""
        with self._lock:
            self._idle.clear()
            self._idle_bytes = 0
