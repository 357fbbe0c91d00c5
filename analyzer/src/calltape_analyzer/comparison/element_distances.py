"""How far the elements of two tensors are apart.

In come two tensors of one dtype and shape, and how far they may be apart. Out go the largest
differences, and the first elements that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["ElementPair", "distances", "first_beyond"]

_PART = 2**20


class ElementPair(NamedTuple):
    """An element that differs.

    Attributes:
        place: where it is, one number per axis.
        recorded, got: its values, as Python numbers.
    """

    place: tuple[int, ...]
    recorded: Any
    got: Any


class _Distances(NamedTuple):
    """Of flat tensors, element by element; ``beyond`` says which differ by more than they may."""

    distance: Any
    size: Any
    same: Any
    beyond: Any
    unknown: Any


def distances(
    expected: Any, got: Any, bounds: tuple[float, float]
) -> tuple[float, float, int, int]:
    """The largest absolute and relative difference, how many elements differ, and how many were
    compared.

    Args:
        expected, got: tensors of one dtype and shape.
        bounds: ``(rtol, atol)``.
    """
    largest, relative, beyond, counted = 0.0, 0.0, 0, 0
    for one, other in _parts(expected, got):
        found = _summed(one, other, bounds)
        largest, relative = max(largest, found[0]), max(relative, found[1])
        beyond, counted = beyond + found[2], counted + found[3]
    return largest, relative, beyond, counted


def first_beyond(
    expected: Any, got: Any, bounds: tuple[float, float], most: int
) -> list[ElementPair]:
    """The first elements that differ by more than they may, ``most`` at most; for the arguments of
    :func:`distances`."""
    found: list[ElementPair] = []
    start = 0
    for one, other in _parts(expected, got):
        beyond = _apart(one, other, bounds).beyond
        for place in beyond.nonzero().flatten()[: most - len(found)].tolist():
            index = _index(start + place, tuple(expected.shape))
            found.append(ElementPair(index, one[place].item(), other[place].item()))
        start += len(beyond)
        if len(found) == most:
            break
    return found


def _index(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found: list[int] = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        found.append(rest)
    return tuple(reversed(found))


def _parts(expected: Any, got: Any) -> Iterator[tuple[Any, Any]]:
    """Both as flat tensors that can be compared, in parts: the comparison makes tensors that are
    several times as large."""
    import torch

    if expected.is_quantized:
        expected, got = expected.dequantize(), got.dequantize()
    dense = (t if t.layout is torch.strided else t.to_dense() for t in (expected, got))
    flat = [t.detach().reshape(-1) for t in dense]
    if not expected.dtype.is_complex:
        wide = torch.float64 if expected.dtype.is_floating_point else expected.dtype
    else:
        wide = torch.complex128
    for one, other in zip(*(t.split(_PART) for t in flat), strict=True):
        yield one.cpu().to(wide), other.cpu().to(wide)


def _summed(one: Any, other: Any, bounds: tuple[float, float]) -> tuple[float, float, int, int]:
    import torch

    if torch.equal(one, other):
        return 0.0, 0.0, 0, one.numel()
    found = _apart(one, other, bounds)
    fractions = torch.where(found.same, 0.0, math.inf)
    relative = torch.where(found.size > 0, found.distance / found.size, fractions)
    finite = relative[torch.isfinite(relative)]
    counted = one.numel() - int(found.unknown.sum())
    largest = float(finite.max()) if len(finite) else 0.0
    return float(found.distance.max()), largest, int(found.beyond.sum()), counted


def _apart(one: Any, other: Any, bounds: tuple[float, float]) -> _Distances:
    import torch

    rtol, atol = bounds
    unknown = one.isnan() & other.isnan()
    if one.dtype.is_complex:
        # The real or imaginary part may be a number on both sides, and differ.
        parts, others = torch.view_as_real(one), torch.view_as_real(other)
        alike = (parts == others) | (parts.isnan() & others.isnan())
        unknown &= alike.all(-1)
    same = (one == other) | unknown
    if one.dtype.is_floating_point or one.dtype.is_complex:
        distance = torch.where(same, 0.0, (one - other).abs())
        size = one.abs()
    else:
        # Two large ints that differ may be the same double.
        distance = torch.where(same, 0.0, (one.double() - other.double()).abs().clamp(min=1))
        size = one.double().abs()
    distance = torch.nan_to_num(distance, nan=math.inf, posinf=math.inf)
    bound = atol + rtol * size
    # Only infinity itself agrees with infinity.
    beyond = ~same & ~((distance <= bound) & bound.isfinite())
    return _Distances(distance, size, same, beyond, unknown)
