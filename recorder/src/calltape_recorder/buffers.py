"""Host memory for large snapshots, used again and again.

Fresh memory costs a page fault per 4 KiB, which for large tensors is most of a copy; a pool of
mapped buffers pays that once.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import threading

__all__ = ["Buffer", "Buffers"]

_SMALLEST = 1 << 16
_LARGE = 1 << 20
_HUGE = 1 << 21
_STEP = 4 * 1024 * 1024


class Buffer:
    """``address`` of ``size`` writable bytes that belong to nobody else."""

    __slots__ = ("_export", "address", "memory", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size)
        if size >= _HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                self.memory.madvise(mmap.MADV_HUGEPAGE)
        # The export keeps the mapping from being closed while the address is in use.
        self._export = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._export)
        self.view = memoryview(self.memory)
        if size >= _LARGE:
            # Touches every page without the interpreter lock: the copies into it may hold that.
            ctypes.memset(self.address, 0, size)

    def empty(self) -> None:
        """Gives the memory back to the system in steps: unmapping all of it would take the
        interpreter lock for as long as that takes."""
        if hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError, ValueError):
                for start in range(0, self.size, _STEP):
                    self.memory.madvise(mmap.MADV_DONTNEED, start, min(_STEP, self.size - start))


def _rounded(nbytes: int) -> int:
    """Steps of an eighth of a power of two: at most an eighth is wasted, few distinct sizes."""
    step = max(_SMALLEST, 1 << max(nbytes.bit_length() - 4, 0))
    return -(-nbytes // step) * step


class Buffers:
    """A pool that holds at most ``max_bytes``, those in use included; what is in use beyond that is
    let go when it comes back."""

    def __init__(self, max_bytes: int) -> None:
        self._lock = threading.RLock()
        self._max = max_bytes
        self._idle: dict[int, list[Buffer]] = {}  # sizes in the order in which they were last used
        self._bytes = 0  # idle and in use

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``."""
        size = _rounded(nbytes)
        gone: list[Buffer] = []
        with self._lock:
            idle = self._idle.get(size)
            if idle:
                return idle.pop()
            self._bytes += size
            self._make_room(gone)
        _let_go(gone)
        return Buffer(size)

    def give_back(self, buffer: Buffer) -> None:
        """Makes a buffer available again, or lets it go where there are too many."""
        gone: list[Buffer] = []
        with self._lock:
            idle = self._idle.pop(buffer.size, [])
            idle.append(buffer)
            self._idle[buffer.size] = idle  # the size that was used last stands last
            self._make_room(gone)
        _let_go(gone)

    def clear(self) -> None:
        """Lets every idle buffer go."""
        with self._lock:
            gone = [buffer for idle in self._idle.values() for buffer in idle]
            self._idle.clear()
            self._bytes -= sum(buffer.size for buffer in gone)
        _let_go(gone)

    def _make_room(self, gone: list[Buffer]) -> None:
        """Of sizes that were not used for the longest time first."""
        while self._bytes > self._max and self._idle:
            size = next(iter(self._idle))
            idle = self._idle[size]
            if idle:
                gone.append(idle.pop())
                self._bytes -= size
            if not idle:
                self._idle.pop(size, None)


def _let_go(gone: list[Buffer]) -> None:
    while gone:
        gone.pop().empty()
