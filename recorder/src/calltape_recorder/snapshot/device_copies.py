"""Copies tensors from a CUDA device to pinned host memory, on a stream of our own.

The host's thread only enqueues work. Our stream waits for what the host has enqueued so far, and
copies. What the host enqueues afterwards waits for the copies on the device, so the host may
overwrite its tensors at once. The writer's thread waits until the bytes are in host memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["Copies", "copy_out"]

_cuda: Any = torch.cuda  # it has no types
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_streams: dict[int, Any] = {}
_relaxed = threading.local()


class Copies:
    """Copies that may not be done yet."""

    __slots__ = ("_events", "_failure")

    def __init__(self, events: list[Any]) -> None:
        self._events = events
        self._failure: str | None = None

    def wait(self) -> None:
        """Returns when all bytes are in host memory.

        Raises:
            RuntimeError: the device failed. Every later call raises it again.
        """
        if self._failure is not None:  # the exception itself would keep its frames alive
            raise RuntimeError(self._failure)
        events = self._events
        if events:
            _relax()
        try:
            for event in events:
                event.synchronize()  # it gives the interpreter lock away
        except Exception as error:
            self._failure = str(error)
            raise
        self._events = []


def copy_out(
    tensors: Sequence[torch.Tensor], prepare: Callable[[int, torch.Tensor], torch.Tensor]
) -> tuple[list[torch.Tensor], Copies]:
    """Begins to copy these tensors from CUDA devices to pinned memory.

    Args:
        prepare: takes the position of a tensor and the tensor, and gives the tensor whose elements
            are copied. It runs on the stream that copies.
    """
    events: list[Any] = []
    found: dict[int, torch.Tensor] = {}
    by_device: dict[int, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_device.setdefault(tensor.get_device(), []).append(place)
    for device, places in by_device.items():
        host, ours = _cuda.current_stream(device), _stream_of(device)
        ours.wait_stream(host)
        with _cuda.stream(ours):
            for place in places:
                value = prepare(place, tensors[place])
                mine = torch.empty(value.shape, dtype=value.dtype, pin_memory=True)
                mine.copy_(value, non_blocking=True)
                # The host may free this tensor before the copy is done.
                tensors[place].record_stream(ours)
                found[place] = mine
            event = _cuda.Event()
            event.record(ours)
        host.wait_event(event)
        events.append(event)
    return [found[place] for place in range(len(tensors))], Copies(events)


def _stream_of(device: int) -> Any:
    stream = _streams.get(device)
    if stream is None:
        stream = _streams[device] = _cuda.Stream(device)
    return stream


def _relax() -> None:
    """Lets this thread wait for an event while another one captures a CUDA graph. Otherwise
    the wait would make the capture fail."""
    if getattr(_relaxed, "is", False):
        return
    _relaxed.__dict__["is"] = True
    with contextlib.suppress(Exception):  # without the library there is no such device
        driver = ctypes.CDLL("nvcuda.dll" if hasattr(ctypes, "windll") else "libcuda.so.1")
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
