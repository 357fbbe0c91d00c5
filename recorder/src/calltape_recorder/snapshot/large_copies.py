"""Copies many pieces of this process's memory into one buffer.

In come addresses and sizes; out go the same bytes, one piece behind the other. A copy that holds
the interpreter lock stops all other Python threads. A copy that gives it away waits until a busy
thread gives it back, up to its switch interval (5 ms). So small sides are copied under the lock,
and large ones by one operator of torch, which gives the lock away once for all pieces.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from calltape_recorder.snapshot.buffers import Buffer
from calltape_recorder.snapshot.facts import storage_offset

_MOST_LOCKED = 4 * 1024 * 1024  # bytes of one side, copied in less than a millisecond
# Torch copies tensors of at least 32768 elements with several threads (``at::internal::GRAIN_SIZE``
# of its C++). They would wait for cores that the host's other threads use: measured, two calls at
# once took twice as long. Pieces below that size are copied by the calling thread alone.
_MOST_ELEMENTS = 32767
_ELEMENTS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}

_array_types: dict[int, Any] = {}
_copy_pieces: Any = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


def array_type(size: int) -> Any:
    """The ctypes array of so many bytes. It is remembered, because to make one takes long."""
    known = _array_types.get(size)
    if known is None:
        if len(_array_types) > 4096:
            _array_types.clear()
        known = _array_types[size] = ctypes.c_char * size
    return known


def memory_at(address: int, size: int) -> memoryview:
    """The bytes at this address. The caller must keep them alive."""
    return memoryview(array_type(size).from_address(address)).cast("B")


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
    """Hides operators in this block from all modes, autograd and tensor subclasses of the host."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        yield


def copy_all(sources: Sequence[tuple[int, int]], target: Buffer) -> None:
    """Copies the bytes at these addresses to the buffer, from its beginning, without gaps.

    The caller keeps the memory alive meanwhile, because other threads may run.
    """
    if sum([size for _, size in sources]) <= _MOST_LOCKED:
        begin = 0
        for address, size in sources:
            target.view[begin : begin + size] = memory_at(address, size)
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
        width = _width(address, begin, size)
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


def _width(address: int, begin: int, size: int) -> int:
    """The widest element, up to 8 bytes, that divides all three. Wide elements make few pieces."""
    bits = address | begin | size | 8
    return bits & -bits
