"""Host memory for large snapshots, used again and again.

Fresh memory costs a page fault per 4 KiB, which for large tensors is most of a copy; a pool of
mapped buffers pays that once.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import sys
import threading
from collections import deque
from typing import Any

from calltape_recorder.patience import Patient

__all__ = ["WITH_FILE", "Buffer", "Buffers"]

_MOST_PARTS = 1024  # in one system call

_SMALLEST = 1 << 16
_LARGE = 1 << 20
_HUGE = 1 << 21
_STEP = 4 * 1024 * 1024
_WIPEONFORK = 18  # Linux's number; Python has no name for it

WITH_FILE = 4 * 1024 * 1024
"""From this size on a buffer is a file in memory, as long as there are few of those."""
_MOST_FILES = 8  # each takes two descriptors, which are the host's


class Buffer:
    """``address`` of ``size`` writable bytes that belong to nobody else; ``file`` where a system
    call can write them as well."""

    __slots__ = ("_export", "address", "file", "lost", "memory", "size", "view")

    def __init__(self, size: int, *, with_file: bool = False) -> None:
        self.lost: deque[tuple[int, bool]] | None = None  # of the pool that counts it
        self.file: MemoryFile | None = None
        self.size = size
        if with_file:
            with contextlib.suppress(OSError, AttributeError):  # no descriptor, or not Linux
                self.file = MemoryFile(size)
        self.memory = _mapped(size) if self.file is None else self.file.memory
        # The export keeps the mapping from being closed while the address is in use.
        self._export = ctypes.c_char.from_buffer(self.memory)
        self.address = ctypes.addressof(self._export)
        self.view = memoryview(self.memory)
        if size >= _LARGE and self.file is None:
            # Touches every page without the interpreter lock: the copies into it may hold that.
            ctypes.memset(self.address, 0, size)

    def __del__(self) -> None:
        # Nobody gave it back: an interrupt came between two steps.
        lost = getattr(self, "lost", None)
        if lost is not None:
            lost.append((self.size, self.file is not None))

    def empty(self) -> None:
        """Gives the memory back to the system in steps: unmapping all of it would take the
        interpreter lock for as long as that takes."""
        advice = getattr(mmap, "MADV_DONTNEED" if self.file is None else "MADV_REMOVE", None)
        # A file is one and the same in the forks of the process that made it.
        if advice is not None and (self.file is None or self.file.process == os.getpid()):
            for start in range(0, self.size, _STEP):
                _advise(self.memory, advice, start, min(_STEP, self.size - start))


class MemoryFile:
    """A file that has no name and is nowhere but in memory, mapped.

    Bytes that lie in many places can be copied into it by one system call, without the interpreter
    lock in between: a thread that gives that lock away once per place waits for a busy host as
    often.

    Attributes:
        memory: where it is mapped.
        process: that made it.

    Raises:
        OSError: there is none to be had.
    """

    __slots__ = ("_identity", "_number", "memory", "process")

    def __init__(self, size: int) -> None:
        self.process = os.getpid()
        self._number = os.memfd_create("calltape", os.MFD_CLOEXEC)
        # Takes the memory now, where a lack of it is an error: later it would be a signal. In
        # steps, because a signal of the host's makes the system begin a step anew.
        for start in range(0, size, _STEP):
            os.posix_fallocate(self._number, start, min(_STEP, size - start))
        self._identity = self._identify()
        self.memory = mmap.mmap(self._number, size)

    def __del__(self) -> None:
        # What was opened, if it came that far.
        with contextlib.suppress(OSError, AttributeError):
            if not hasattr(self, "_identity") or self._identify() == self._identity:
                os.close(self._number)

    def write(self, parts: list[Any], size: int) -> bool:
        """Copies these ``size`` bytes to the front; False where that is not done.

        Raises:
            OSError: EFAULT, where a part is not in memory any more.
        """
        try:
            # A host that closes descriptors which it does not know may have the number by now.
            if self._identify() != self._identity:
                return False
            written = 0
            for some in range(0, len(parts), _MOST_PARTS):
                written += os.pwritev(self._number, parts[some : some + _MOST_PARTS], written)
        except OSError as error:
            if error.errno == errno.EFAULT:
                raise
            return False
        return written == size

    def _identify(self) -> tuple[int, int]:
        status = os.fstat(self._number)
        return status.st_dev, status.st_ino


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
        self._files = 0  # of those
        self._lost: deque[tuple[int, bool]] = deque()  # sizes of those that are gone

    def take(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``.

        Raises:
            OSError: there is no memory.
        """
        size = _rounded(nbytes)
        gone: list[Buffer] = []
        with self._lock:
            self._count_lost()
            idle = self._idle.get(size)
            if idle:
                return idle.pop()
            self._make_room(gone, size)
            with_file = size >= WITH_FILE and self._files < _MOST_FILES
        _let_go(gone)
        buffer = Buffer(size, with_file=with_file)
        with self._lock:
            self._count(buffer, 1)
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Makes a buffer available again, or lets it go where there are too many."""
        gone: list[Buffer] = []
        with Patient(self._lock):
            self._count_lost()
            # The size that was used last stands last.
            self._idle[buffer.size] = [*self._idle.pop(buffer.size, ()), buffer]
            self._make_room(gone, 0)
        _let_go(gone)

    def clear(self) -> None:
        """Lets every idle buffer go."""
        with Patient(self._lock):
            gone = [buffer for idle in self._idle.values() for buffer in idle]
            self._idle.clear()
            for buffer in gone:
                self._count(buffer, -1)
        _let_go(gone)

    def _count(self, buffer: Buffer, more: int) -> None:
        bytes_now = self._bytes + more * buffer.size
        files_now = self._files + more * (buffer.file is not None)
        lost = self._lost if more > 0 else None
        buffer.lost, self._bytes, self._files = lost, bytes_now, files_now  # one step

    def _count_lost(self) -> None:
        while self._lost:
            size, is_file = self._lost.popleft()
            self._bytes -= size
            self._files -= is_file

    def _make_room(self, gone: list[Buffer], nbytes: int) -> None:
        """Of sizes that were not used for the longest time first."""
        while self._bytes + nbytes > self._max and self._idle:
            size = next(iter(self._idle))
            idle = self._idle[size]
            if idle:
                buffer = idle.pop()
                self._count(buffer, -1)
                gone.append(buffer)
            if not idle:
                self._idle.pop(size, None)


def _let_go(gone: list[Buffer]) -> None:
    while gone:
        gone.pop().empty()
