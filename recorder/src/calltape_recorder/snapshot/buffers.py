"""Copies large tensors to host memory, which a pool lends.

New memory costs a page fault per 4 KiB, which is most of the cost of copying a large tensor. A pool
of mapped buffers pays this once.

A copy that holds the interpreter lock stops all other Python threads. A copy that releases it has
to wait until a busy thread returns it, for up to the switch interval (5 ms). So small sides are
copied under the lock, and large ones by one operator of torch, which releases the lock once for all
pieces.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from calltape_recorder.snapshot.facts import storage_offset
from calltape_recorder.threads import RLock

SMALL_BYTES = 64 * 1024
"""A copy of at most this size gets memory of its own. A larger one lies in pooled, pinned or
mapped memory."""

_LARGE = 1 << 20
_HUGE = 1 << 21
_STEP = 4 * 1024 * 1024
_WIPEONFORK = 18  # Linux's number, for which Python has no name


class Buffer:
    """``size`` writable bytes at ``address``, for one copy that may have several users.

    Attributes:
        pieces: the tensors that the last copy was made with. The writer's thread frees them when it
            releases the copied call: torch releases the interpreter lock for each tensor that it
            frees, and a busy thread returns it after 5 ms. Measured, freeing the 512 tensors of
            64 MiB took 100 ms beside such a thread.
        users: how many will return it.
    """

    __slots__ = ("address", "lost", "memory", "pieces", "size", "users")

    def __init__(self, size: int) -> None:
        self.pieces: object = None
        self.users = 1
        self.lost: deque[int] | None = None  # the list of the pool that counts this buffer
        self.size = size
        self.memory = mapped(size)
        self.address = address_of(self.memory)
        if size >= _LARGE:
            # Touches every page without the interpreter lock, because a copy may hold the lock.
            ctypes.memset(self.address, 0, size)

    def __del__(self) -> None:
        # If an interrupt came between two steps, the buffer was not given back.
        lost = getattr(self, "lost", None)
        if lost is not None:
            lost.append(self.size)

    @property
    def view(self) -> memoryview:
        """All its bytes."""
        return memoryview(self.memory)

    def empty(self) -> None:
        """Gives the memory back to the system in steps. To unmap all of it at once would hold the
        interpreter lock for a long time."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for start in range(0, self.size, _STEP):
                _advise(self.memory, mmap.MADV_DONTNEED, start, min(_STEP, self.size - start))


def address_of(memory: Any) -> int:
    """The address of these writable bytes. Their owner neither moves nor closes them."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def mapped(size: int) -> mmap.mmap:
    """New memory, of zeros, which costs a page fault where it is used."""
    # The mapping is private, because shared memory gets huge pages only if the administrator allows
    # it, and without huge pages the first touch takes eight times as long. A child of a fork finds
    # zeros in it: for a copy, this process would pay a page fault for each page that it writes.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux":
        _advise(memory, _WIPEONFORK, 0, size)
        if size >= _HUGE:
            _advise(memory, mmap.MADV_HUGEPAGE, 0, size)
    return memory


def _advise(memory: mmap.mmap, advice: int, start: int, size: int) -> None:
    with contextlib.suppress(OSError, ValueError):  # an old kernel, or a closed mapping
        memory.madvise(advice, start, size)


class Buffers:
    """A pool of at most ``max_bytes``, buffers in use included. If more are in use, a buffer is
    freed when it comes back.

    Args:
        max_bytes: the bound.
        make: makes a buffer of a size.

    Attributes:
        nbytes: how many bytes all buffers have, idle or in use.
    """

    def __init__(self, max_bytes: int, make: Callable[[int], Buffer] = Buffer) -> None:
        self.lock = RLock()
        self._max = max_bytes
        self._make = make
        self._idle: dict[int, list[Buffer]] = {}  # sizes in the order in which they were last used
        self.nbytes = 0
        self._lost: deque[int] = deque()  # sizes of buffers that were never given back

    def acquire(self, nbytes: int) -> Buffer:
        """A buffer of at least ``nbytes``.

        Raises:
            OSError: there is no memory.
        """
        # In steps of an eighth of a power of two, distinct sizes are few, and little is wasted.
        step = max(SMALL_BYTES, 1 << max(nbytes.bit_length() - 4, 0))
        size = -(-nbytes // step) * step
        freed: list[Buffer] = []
        with self.lock:
            self._count_lost()
            with contextlib.suppress(LookupError):
                buffer = self._idle[size].pop()
                buffer.users = 1
                return buffer
            self._make_room(freed, size)
        _empty(freed)
        buffer = self._make(size)
        with self.lock:
            buffer.lost, self.nbytes = self._lost, self.nbytes + size  # no interrupt comes between
        return buffer

    def share(self, buffer: Buffer) -> None:
        """Notes that one more will give a buffer back."""
        with self.lock:
            buffer.users += 1

    def give_back(self, buffer: Buffer, users: int = 1) -> None:
        """Makes a buffer available again when its last user gives it back, or frees it if there are
        too many."""
        freed: list[Buffer] = []
        with self.lock:
            buffer.users -= users
            if buffer.users > 0:
                return
            self._count_lost()
            # The size that was used last comes last. The list must stay the same object: a signal
            # handler may have interrupted acquire(), and lent its lock to the writer's thread.
            idle = self._idle.pop(buffer.size, [])
            self._idle[buffer.size] = idle
            idle.append(buffer)
            self._make_room(freed, 0)
        _empty(freed)

    def clear(self) -> None:
        """Frees every idle buffer."""
        freed: list[Buffer] = []
        with self.lock:
            self._count_lost()
            for size in list(self._idle):
                while self._drop(size, freed):
                    pass
        _empty(freed)

    def _count_lost(self) -> None:
        while self._lost:
            self.nbytes -= self._lost.popleft()

    def _make_room(self, freed: list[Buffer], nbytes: int) -> None:
        """Takes idle buffers out until ``nbytes`` more fit. Sizes that were not used for longest go
        first."""
        while self.nbytes + nbytes > self._max:
            size = next(iter(self._idle), None)
            if size is None:
                return
            self._drop(size, freed)

    def _drop(self, size: int, freed: list[Buffer]) -> bool:
        """Takes one idle buffer of this size out; False if there was none."""
        try:
            buffer = self._idle[size].pop()
        except LookupError:
            self._idle.pop(size, None)
            return False
        buffer.lost, self.nbytes = None, self.nbytes - size  # no interrupt comes between
        freed.append(buffer)
        return True


def _empty(freed: list[Buffer]) -> None:
    while freed:
        freed.pop().empty()


# The copied bytes of one leaf, and the owner of their memory.


class Piece(NamedTuple):
    """The bytes of one leaf, and the owner of their memory: our own tensor, a pooled buffer, or
    pinned memory, where they begin at ``begin``."""

    data: memoryview
    owner: Any
    begin: int = 0


SPAN = 5
Span = tuple[int, int, int, int, int]
"""The part of its memory that is the copy of a leaf: where it begins, its size, and three zeros. If
the tensor grew, the fields of :class:`~calltape_recorder.snapshot.grown_copies.Grown` after its
memory."""

SideCopies = tuple[Sequence[Any], bytes]
"""The copies of one side: per leaf what holds its bytes, or None; and the numbers of all spans, as
:func:`packed_numbers` gives them. There are none if each holds one copy.

A call that waits for the writer consists of these, not of objects for each leaf: Python's garbage
collector visits all objects of the application whenever the number of objects has grown much.
"""


def packed_numbers(numbers: list[int]) -> bytes:
    """These numbers of 64 bits. To the garbage collector, an array of them would be an object."""
    return array("q", numbers).tobytes()


# Copying from addresses to a buffer, without gaps.

_MOST_LOCKED = 4 * 1024 * 1024  # bytes of one side, copied in less than a millisecond
# Torch copies tensors of at least 32768 elements with several threads (``at::internal::GRAIN_SIZE``
# of its C++). They would wait for cores that the application's other threads use: measured, two
# calls at once took twice as long. Pieces below that size are copied by the calling thread alone.
_MOST_ELEMENTS = 32767
_ELEMENTS = {16: torch.complex128, 8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}

_copy_pieces: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


array_type: Callable[[int], Any] = lru_cache(maxsize=4096)(ctypes.c_char.__mul__)
"""The ctypes array type of a size. It is remembered, because making one takes long."""


def memory_at(address: int, size: int) -> memoryview:
    """The bytes at this address. The caller must keep them alive."""
    # A type for each size would be a dozen objects in each step of a generation.
    return memoryview(array_type(1 << size.bit_length()).from_address(address)).cast("B")[:size]


def source_of(leaf: torch.Tensor, memory: torch.UntypedStorage, size: int) -> tuple[int, int]:
    """The address and the size of the bytes of a leaf, in its memory.

    Raises:
        RuntimeError: another thread gave the tensor other memory.
    """
    begin = int(storage_offset(leaf)) * leaf.itemsize
    if begin + size > memory.nbytes():
        raise RuntimeError("a tensor was given other memory while it was recorded")
    return memory.data_ptr() + begin, size


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Hides operators in this block from all modes, autograd and tensor subclasses of the
    application."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


def copy_all(sources: Sequence[tuple[int, int]], target: Buffer) -> None:
    """Copies the bytes at these addresses to the buffer, from its beginning, without gaps.

    The caller keeps the memory alive meanwhile, because other threads may run.
    """
    if sum([size for _, size in sources]) <= _MOST_LOCKED:
        begin, view = 0, target.view
        for address, size in sources:
            view[begin : begin + size] = memory_at(address, size)
            begin += size
        return
    with unseen():
        pieces = _pieces(sources, target)
        target.pieces = pieces
        _copy_pieces(*pieces)


def _pieces(
    sources: Sequence[tuple[int, int]], target: Buffer
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors over the target and over the sources. Each pair has one element type and size."""
    copies: list[torch.Tensor] = []
    originals: list[torch.Tensor] = []
    begin = 0
    for address, size in sources:
        # The widest element, up to 16 bytes, that divides all three. Wide ones make few pieces.
        bits = address | begin | size | 16
        width = bits & -bits
        element, most = _ELEMENTS[width], _MOST_ELEMENTS * width
        while size:
            part = min(size, most)
            memory = array_type(part).from_address(address)
            originals.append(torch.frombuffer(memory, dtype=element))
            copies.append(
                torch.frombuffer(target.memory, dtype=element, count=part // width, offset=begin)
            )
            address, begin, size = address + part, begin + part, size - part
    return copies, originals
