"""Copies tensors from a CUDA device to pinned host memory, on a stream of our own.

The application's thread only enqueues work. Our stream waits for what the application has enqueued
so far, and copies. What the application enqueues afterwards waits for the copies on the device, so
the application may overwrite its tensors at once. The writer's thread waits until the bytes are in
host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from calltape_recorder.snapshot.buffers import SMALL_BYTES, Buffer, Buffers, Piece, memory_at

cuda: Any = torch.cuda  # it has no types
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PORTABLE = 1  # cudaHostRegisterPortable: pinned memory for all devices


def copier() -> Callable[[int, int, int, int], int] | None:
    """The driver's function that enqueues a copy to host memory. It takes the address there, the
    address on the device, the number of bytes and the stream, and returns 0 or an error number.
    None on ROCm, which has no such driver: there, torch's operators copy, which takes about four
    times as long and three operators per tensor."""
    driver = _driver()
    return None if driver is None else driver.cuMemcpyDtoHAsync_v2


@contextlib.contextmanager
def _relaxed() -> Iterator[None]:
    """Lets this thread wait for events and allocate memory while another one captures a CUDA graph.
    Otherwise, either would make the capture fail."""
    driver, mode = _driver(), ctypes.c_int(_RELAXED)
    if driver is None:
        yield
        return
    driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
    try:
        yield
    finally:  # the variable holds the earlier mode now
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


@functools.cache
def _driver() -> Any:
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.cuMemcpyDtoHAsync_v2.argtypes = (
            ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p,
        )  # fmt: skip
    except (OSError, AttributeError):
        return None
    return library


# Torch has a pool of pinned memory too. It rounds sizes up to powers of two and never frees, so
# caches that grow would leave every size they had in it. So small copies use torch's pool, and
# large ones use a pool of ours, which is bounded.

_unfinished: deque[tuple[Copies, Any, Buffers]] = deque()


class Copies:
    """Copies that may not be done yet."""

    __slots__ = ("_events", "_failure")

    def __init__(self, events: list[Any]) -> None:
        self._events = events
        self._failure: str | None = None

    def add(self, event: Any) -> None:
        """Adds an event that comes after some of these copies."""
        self._events.append(event)

    def are_done(self) -> bool:
        """Whether all bytes are in host memory, without waiting for them."""
        if self._events:
            with _relaxed():
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
            with _relaxed():
                for event in self._events:
                    event.synchronize()  # it gives the interpreter lock away
        except Exception as error:
            self._failure = str(error)
            raise
        self._events = []


class _PinnedBuffer(Buffer):
    """A buffer that devices copy to: copies to it need not be waited for.

    Raises:
        OSError: the system cannot pin this much memory.
    """

    __slots__ = ("_pinned",)

    def __init__(self, size: int) -> None:
        self._pinned = False
        super().__init__(size)
        with _relaxed():
            code = int(cuda.cudart().cudaHostRegister(self.address, self.size, _PORTABLE))
        if code:
            raise OSError(f"CUDA error {code}: {self.size} bytes of host memory cannot be pinned")
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
            with _relaxed():
                cuda.cudart().cudaHostUnregister(self.address)


class HostMemory(Buffers):
    """A pool of host memory with a pool of pinned memory beside it, each of at most ``max_bytes``.

    Attributes:
        pinned: the pool of pinned memory.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.pinned = Buffers(max_bytes, _PinnedBuffer)

    def clear(self) -> None:
        super().clear()
        self.pinned.clear()


class Landing:
    """Host memory for copies from devices. It goes back to its pool when the copies are done and
    :meth:`release` was called, or when there is no reference to it any more.

    Attributes:
        size: in bytes.
        copies: the copies to it.
    """

    __slots__ = ("_pool", "copies", "memory", "size")

    memory: Any  # a Buffer, a tensor, or None once it was given back

    def __init__(self, memory: Any, size: int, copies: Copies, pool: Buffers) -> None:
        self.memory, self._pool = memory, pool
        self.size, self.copies = size, copies

    @classmethod
    def of_size(cls, size: int, copies: Copies, pool: Buffers) -> Landing:
        """Memory of this size in bytes.

        Raises:
            OSError, RuntimeError: there is no pinned memory.
        """
        _sweep()
        if size > SMALL_BYTES:
            buffer = pool.acquire(size)
            return cls(buffer, size, copies, pool)
        memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        return cls(memory, size, copies, pool)

    @property
    def view(self) -> memoryview:
        """Its bytes."""
        return memory_at(self.address, self.size)

    @property
    def address(self) -> int:
        memory = self.memory
        return int(memory.address if isinstance(memory, Buffer) else memory.data_ptr())

    def release(self) -> None:
        """Gives the memory back. Its bytes may not be read afterwards."""
        memory, self.memory = self.memory, None
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


Source = tuple[int, int]
"""The address and the size of bytes on a device."""


def copy_out(
    tensors: Sequence[torch.Tensor],
    sources: Sequence[Source | None],
    prepare: Callable[[int], torch.Tensor],
    pool: Buffers,
) -> list[Piece]:
    """Begins to copy these tensors from CUDA devices to pinned memory.

    Args:
        sources: where the bytes of a tensor are, if they are copied as raw bytes; else None. The
            caller keeps their memory alive.
        prepare: takes the position of a tensor that is not copied as raw bytes, and returns the
            tensor whose elements are copied. It runs on the stream that copies.
        pool: of pinned memory.

    Raises:
        RuntimeError, OSError: the device failed, or there is no pinned memory. No copy is under way
            then.
    """
    pieces: dict[int, Piece] = {}
    by_device: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_device.setdefault(tensor.get_device(), []).append(place)
    for device, places in by_device.items():
        app_stream, copy_stream = cuda.current_stream(device), stream_of(device)
        copy_stream.wait_stream(app_stream)
        try:
            for place in places:  # the application may free this tensor before the copy is done
                tensors[place].record_stream(copy_stream)
            copies = Copies([])
            if copier() is not None:
                raw_sources = {
                    place: sources[place] for place in places if sources[place] is not None
                }
                pieces |= _copy_raw(raw_sources, device, copy_stream, copies, pool)
            others = [place for place in places if place not in pieces]
            pieces |= _copy_with_operators(others, prepare, copy_stream, copies, pool)
            event = cuda.Event()
            event.record(copy_stream)
            app_stream.wait_event(event)
            copies.add(event)
        except Exception:
            copy_stream.synchronize()
            raise
    return [pieces[place] for place in range(len(tensors))]


def _copy_raw(
    sources: dict[int, Any], device: int, stream: Any, copies: Copies, pool: Buffers
) -> dict[int, Piece]:
    """Copies raw bytes side by side. One function of the driver copies a tensor: operators would
    take longer than everything else that is done for a small call."""
    copy = copier()
    if not sources or copy is None:
        return {}
    landing = Landing.of_size(sum(size for _, size in sources.values()), copies, pool)
    pieces: dict[int, Piece] = {}
    begin, address, whole, queue = 0, landing.address, landing.view, stream.cuda_stream
    with _on(device):
        for place, (source, size) in sources.items():
            code = copy(address + begin, source, size, queue)
            if code:
                raise RuntimeError(f"CUDA error {code} while a tensor was copied to the host")
            pieces[place] = Piece(whole[begin : begin + size], landing, begin)
            begin += size
    return pieces


def _copy_with_operators(
    places: list[int], prepare: Callable[[int], torch.Tensor], stream: Any, copies: Copies,
    pool: Buffers,
) -> dict[int, Piece]:  # fmt: skip
    """Copies strided, expanded or conjugated tensors with torch's operators."""
    pieces: dict[int, Piece] = {}
    if places:
        with cuda.stream(stream):
            for place in places:
                value = prepare(place)
                pinned = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
                pinned.copy_(value, non_blocking=True)
                landing = Landing(pinned, pinned.nbytes, copies, pool)
                pieces[place] = Piece(landing.view, landing)
    return pieces


def _on(device: int) -> contextlib.AbstractContextManager[Any]:
    """Makes a device current for the thread, because the driver copies on the current device."""
    if cuda.current_device() == device:
        return contextlib.nullcontext()
    return cuda.device(device)  # type: ignore[no-any-return]


@functools.cache
def stream_of(device: int) -> Any:
    return cuda.Stream(device)
