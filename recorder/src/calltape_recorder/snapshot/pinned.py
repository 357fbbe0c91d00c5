"""Pinned host memory that devices copy to, and that comes back when their copies are done.

Torch has a pool of such memory too. It rounds sizes up to powers of two and never frees, so caches
that grow would leave every size they had in it. So small copies use torch's pool, and large ones
use a pool of ours, which is bounded.
"""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

import torch

from calltape_recorder.snapshot import cuda_driver
from calltape_recorder.snapshot.buffers import Buffer, Buffers
from calltape_recorder.snapshot.large_copies import memory_at

__all__ = ["Copies", "HostMemory", "Landing", "PinnedBuffer"]

_SMALL = 64 * 1024
_unfinished: deque[tuple[Copies, Any, Buffers]] = deque()


class Copies:
    """Copies that may not be done yet."""

    __slots__ = ("_events", "_failure")

    def __init__(self, events: list[Any]) -> None:
        self._events = events
        self._failure: str | None = None

    def add(self, event: Any) -> None:
        """An event that comes after some of these copies."""
        self._events.append(event)

    def are_done(self) -> bool:
        """Whether all bytes are in host memory, without waiting for them."""
        if self._events:
            with cuda_driver.relaxed():
                if not all(event.query() for event in self._events):
                    return False
            self._events = []
        return True

    def wait(self) -> None:
        """Returns when all bytes are in host memory.

        Raises:
            RuntimeError: the device failed. Every later call raises it again.
        """
        if self._failure is not None:  # the exception itself would keep its frames alive
            raise RuntimeError(self._failure)
        if not self._events:
            return
        try:
            with cuda_driver.relaxed():
                for event in self._events:
                    event.synchronize()  # it gives the interpreter lock away
        except Exception as error:
            self._failure = str(error)
            raise
        self._events = []


class PinnedBuffer(Buffer):
    """A buffer that devices copy to.

    Raises:
        OSError: the system does not pin so much memory.
    """

    __slots__ = ("_pinned",)

    def __init__(self, size: int) -> None:
        self._pinned = False
        super().__init__(size)
        cuda_driver.pin(self.address, self.size)
        self._pinned = True

    def __del__(self) -> None:
        self._unpin()
        super().__del__()

    def empty(self) -> None:
        self._unpin()
        super().empty()

    def _unpin(self) -> None:
        if self._pinned:
            self._pinned = False
            cuda_driver.unpin(self.address)


class HostMemory(Buffers):
    """A pool of host memory with a pool of pinned memory beside it, each of at most ``max_bytes``.

    Attributes:
        pinned: the pool of pinned memory.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.pinned = Buffers(max_bytes, PinnedBuffer)

    def clear(self) -> None:
        super().clear()
        self.pinned.clear()


class Landing:
    """Host memory for copies from devices. It goes back to its pool when the copies are done and
    :meth:`release` was called, or nobody refers to it any more.

    Attributes:
        view: its bytes.
        copies: the copies to it.
    """

    __slots__ = ("_memory", "_pool", "copies", "view")

    _memory: Any  # a Buffer, a tensor, or None once it was given back

    def __init__(self, memory: Any, view: memoryview, copies: Copies, pool: Buffers) -> None:
        self._memory, self._pool = memory, pool
        self.view, self.copies = view, copies

    @classmethod
    def of_size(cls, size: int, copies: Copies, pool: Buffers) -> Landing:
        """Memory of so many bytes.

        Raises:
            OSError, RuntimeError: there is no pinned memory.
        """
        _sweep()
        if size > _SMALL:
            buffer = pool.acquire(size)
            return cls(buffer, buffer.view[:size], copies, pool)
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return cls(memory, memory_at(memory.data_ptr(), size), copies, pool)

    @property
    def address(self) -> int:
        memory = self._memory
        return int(memory.address if isinstance(memory, Buffer) else memory.data_ptr())

    def release(self) -> None:
        """Gives the memory back. Its bytes may not be read afterwards."""
        memory, self._memory = self._memory, None
        if memory is None:
            return
        with contextlib.suppress(Exception):  # a device that failed writes no more
            if not self.copies.are_done():
                _unfinished.append((self.copies, memory, self._pool))
                return
        _give_back(memory, self._pool)

    __del__ = release


def _sweep() -> None:
    """Gives back what was released before its copies were done."""
    for _ in range(len(_unfinished)):
        try:
            copies, memory, pool = _unfinished.popleft()
        except IndexError:  # another thread took it
            return
        with contextlib.suppress(Exception):
            if not copies.are_done():
                _unfinished.append((copies, memory, pool))
                continue
        _give_back(memory, pool)


def _give_back(memory: Any, pool: Buffers) -> None:
    if isinstance(memory, Buffer):
        pool.give_back(memory)
