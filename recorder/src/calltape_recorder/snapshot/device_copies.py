"""Copies tensors from a CUDA device to pinned host memory, on a stream of our own.

The host's thread only enqueues work. Our stream waits for what the host has enqueued so far, and
copies. What the host enqueues afterwards waits for the copies on the device, so the host may
overwrite its tensors at once. The writer's thread waits until the bytes are in host memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from calltape_recorder.snapshot import cuda_driver
from calltape_recorder.snapshot.buffers import Buffers
from calltape_recorder.snapshot.large_copies import memory_at
from calltape_recorder.snapshot.piece import Piece
from calltape_recorder.snapshot.pinned import Copies, Landing

__all__ = ["Source", "copy_out"]

_cuda: Any = torch.cuda  # it has no types
_streams: dict[int, Any] = {}

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
        sources: where the bytes of a tensor lie, if they are copied as they lie; else None. The
            caller keeps their memory alive.
        prepare: takes the position of a tensor that is not copied as it lies, and gives the tensor
            whose elements are copied. It runs on the stream that copies.
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
        host, ours = _cuda.current_stream(device), _stream_of(device)
        ours.wait_stream(host)
        try:
            for place in places:  # the host may free this tensor before the copy is done
                tensors[place].record_stream(ours)
            copies = Copies([])
            if cuda_driver.copier() is not None:
                lying = {place: sources[place] for place in places if sources[place] is not None}
                pieces |= _as_they_lie(lying, device, ours, copies, pool)
            others = [place for place in places if place not in pieces]
            pieces |= _computed(others, prepare, ours, copies, pool)
            event = _cuda.Event()
            event.record(ours)
            host.wait_event(event)
            copies.add(event)
        except Exception:
            ours.synchronize()
            raise
    return [pieces[place] for place in range(len(tensors))]


def _as_they_lie(
    sources: dict[int, Any], device: int, stream: Any, copies: Copies, pool: Buffers
) -> dict[int, Piece]:
    """Copies bytes that lie side by side afterwards. One function of the driver copies a tensor:
    the operators would take longer than all else that is done for a small call."""
    copy = cuda_driver.copier()
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
            pieces[place] = Piece(whole[begin : begin + size], landing, whole, begin)
            begin += size
    return pieces


def _computed(
    places: list[int], prepare: Callable[[int], torch.Tensor], stream: Any, copies: Copies,
    pool: Buffers,
) -> dict[int, Piece]:  # fmt: skip
    """Copies strided, expanded or conjugated tensors with torch's operators."""
    pieces: dict[int, Piece] = {}
    if places:
        with _cuda.stream(stream):
            for place in places:
                value = prepare(place)
                mine = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
                mine.copy_(value, non_blocking=True)
                data = memory_at(mine.data_ptr(), mine.nbytes)
                pieces[place] = Piece(data, Landing(mine, data, copies, pool))
    return pieces


def _on(device: int) -> contextlib.AbstractContextManager[Any]:
    """The driver copies on the device that is current for the thread."""
    if _cuda.current_device() == device:
        return contextlib.nullcontext()
    return _cuda.device(device)  # type: ignore[no-any-return]


def _stream_of(device: int) -> Any:
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = _cuda.Stream(device)
    return stream
