"""Finds the smallest and the largest element of integer leaves, in the writer's thread."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["has_many", "range_of"]

# Formats of memoryview, which is faster for the few elements of a decoding step.
_FORMATS = {
    torch.uint8: "B", torch.int8: "b", torch.int16: "h", torch.uint16: "H",
    torch.int32: "i", torch.uint32: "I", torch.int64: "q", torch.uint64: "Q",
}  # fmt: skip

# aminmax takes no unsigned types wider than a byte. They are read as signed ones, shifted by half
# of the range.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

_FEW = 512
# With more elements at once, an operator would start a thread pool of its own for this thread.
_CHUNK = 16 * 1024


def range_of(data: Any, dtype: torch.dtype) -> tuple[int, int] | None:
    """``(min, max)`` of the integers in ``data``; None for other dtypes and for no elements."""
    code = _FORMATS.get(dtype)
    if code is None or not len(data):
        return None
    if len(data) <= _FEW * dtype.itemsize:
        values: Any = memoryview(data).cast(code)  # type: ignore[call-overload]  # pyright: ignore
        return min(values), max(values)
    signed = _SIGNED.get(dtype, dtype)
    lows, highs = [], []
    elements: Any = torch.frombuffer(data, dtype=signed)
    half = 0 if signed is dtype else 1 << (8 * dtype.itemsize - 1)
    for chunk in elements.split(_CHUNK):
        low, high = torch.aminmax(chunk ^ -half if half else chunk)
        lows.append(int(low) + half)
        highs.append(int(high) + half)
    return min(lows), max(highs)


def has_many(data: Any, dtype: torch.dtype, least: int) -> bool:
    """Whether ``data`` has at least ``least`` different integers. Padded data has few, however long
    it is."""
    signed = _SIGNED.get(dtype, dtype)
    known: set[int] = set()
    elements: Any = torch.frombuffer(data, dtype=signed)
    for chunk in elements.split(_CHUNK):
        known.update(torch.unique(chunk).tolist())
        if len(known) >= least:
            return True
    return False
