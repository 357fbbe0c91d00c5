"""Host memory for large snapshots, used again and again.

Fresh memory costs a page fault per 4 KiB, which for large tensors is most of a copy; a pool of
mapped buffers pays that once.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections import deque

from calltape_recorder.patience import Patient

__all__ = ["Buffer", "Buffers"]

_SMALLEST = 1 << 16
_LARGE = 1 << 20
_HUGE = 1 << 21
_STEP = 4 * 1024 * 1024
_WIPEONFORK = 18  # Linux's number; Python has no name for it


class Buffer:
    """``address`` of ``size`` writable bytes that belong to nobody else."""

    __slots__ = ("_export", "address", "lost", "memory", "size", "view")

    def __init__(self, size: int) -> None:
        self.lost: deque[int] | None = None  # of the pool that counts it
        self.size = size
        self.memory = _mapped(size)
        # The export keeps the mapping from being closed while the address is in use.
        self._export = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._export)
        self.view = memoryview(self.memory)
        if size >= _LARGE:
            # Touches every page without the interpreter lock: the copies into it may hold that.
            ctypes.memset(self.address, 0, size)

    def __del__(self) -> None:
        # Nobody gave it back: an interrupt came between two steps.
        lost = getattr(self, "lost", None)
        if lost is not None:
            lost.append(self.size)

    def empty(self) -> None:
        """Gives the memory back to the system in steps: unmapping all of it would take the
        interpreter lock for as long as that takes."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for start in range(0, self.size, _STEP):
                _advise(self.memory, mmap.MADV_DONTNEED, start, min(_STEP, self.size - start))


def _mapped(size: int) -> mmap.mmap:
    # Private: huge pages, an eighth of the time to touch it, are had for shared memory only where
    # the administrator says so. A child of a fork finds zeros instead of a copy, for which this
    # process would pay with a page fault at every page that it writes afterwards.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        _advise(memory, _WIPEONFORK, 0, size)
        if size >= _HUGE:
            _advise(memory, mmap.MADV_HUGEPAGE, 0, size)
    return memory


def _advise(memory: mmap.mmap, advice: int, start: int, size: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # a kernel without it; closed
        memory.madvise(advice, start, size)


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
        self._lost: deque[int] = deque()  # sizes of those that are gone

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``.

        Raises:
            OSError: there is no memory.
        """
        size = _rounded(nbytes)
        gone: list[Buffer] = []
        with self._lock:
            self._count_lost()
            with contextlib.suppress(LookupError):
                return self._idle[size].pop()
            self._make_room(gone, size)
        _let_go(gone)
        buffer = Buffer(size)
        with self._lock:
            buffer.lost, self._bytes = self._lost, self._bytes + size  # one step
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Makes a buffer available again, or lets it go where there are too many."""
        gone: list[Buffer] = []
        with Patient(self._lock):
            self._count_lost()
            # The size that was used last stands last. The list stays the same one: a signal
            # handler may have come in the middle of take(), and the writer does not wait for ever.
            idle = self._idle.pop(buffer.size, [])
            self._idle[buffer.size] = idle
            idle.append(buffer)
            self._make_room(gone, 0)
        _let_go(gone)

    def clear(self) -> None:
        """Lets every idle buffer go."""
        gone: list[Buffer] = []
        with Patient(self._lock):
            for size in list(self._idle):
                while self._drop(size, gone):
                    pass
        _let_go(gone)

    def _count_lost(self) -> None:
        while self._lost:
            self._bytes -= self._lost.popleft()

    def _make_room(self, gone: list[Buffer], nbytes: int) -> None:
        """Of sizes that were not used for the longest time first."""
        while self._bytes + nbytes > self._max:
            size = next(iter(self._idle), None)
            if size is None:
                return
            self._drop(size, gone)

    def _drop(self, size: int, gone: list[Buffer]) -> bool:
        """Takes one idle buffer of this size out; False where there was none."""
        try:
            buffer = self._idle[size].pop()
        except LookupError:
            self._idle.pop(size, None)
            return False
        buffer.lost, self._bytes = None, self._bytes - size  # one step
        gone.append(buffer)
        return True


def _let_go(gone: list[Buffer]) -> None:
    while gone:
        gone.pop().empty()
