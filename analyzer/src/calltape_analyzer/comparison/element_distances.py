"""How far the elements of two tensors are apart.

In come two tensors of one dtype and shape, and how far they may be apart. Out go the largest
differences, and the first elements that differ by more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from calltape_analyzer.comparison.verdicts import ElementDifference

__all__ = ["Distances", "distances"]

_PART = 2**20
_MAX_ELEMENTS = 5
_DIGITS = {"float16": 5, "bfloat16": 4, "float32": 9, "complex64": 9}


class Distances(NamedTuple):
    """How far two tensors are apart.

    Attributes:
        max_abs, max_rel: the largest absolute and relative difference.
        differing, compared: how many elements differ, and how many were compared.
        elements: the first that differ.
    """

    max_abs: float = 0.0
    max_rel: float = 0.0
    differing: int = 0
    compared: int = 0
    elements: tuple[ElementDifference, ...] = ()


def distances(expected: Any, got: Any, bounds: tuple[float, float]) -> Distances:
    """How far two tensors of one dtype and shape are apart.

    Args:
        expected, got: the tensors.
        bounds: ``(rtol, atol)``.
    """
    digits = _DIGITS.get(str(expected.dtype).removeprefix("torch."), 17)

    def text(value: Any) -> str:
        return f"{value:.{digits}g}" if isinstance(value, float | complex) else str(value)

    every, start = Distances(), 0
    for one, other in _parts(expected, got):
        found, beyond = _apart(one, other, bounds)
        elements = tuple(
            ElementDifference(
                _index(start + place, tuple(expected.shape)),
                text(one[place].item()),
                text(other[place].item()),
            )
            for place in beyond[: _MAX_ELEMENTS - len(every.elements)].tolist()
        )
        every = Distances(
            max(every.max_abs, found.max_abs),
            max(every.max_rel, found.max_rel),
            every.differing + found.differing,
            every.compared + found.compared,
            every.elements + elements,
        )
        start += len(one)
    return every


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


def _apart(one: Any, other: Any, bounds: tuple[float, float]) -> tuple[Distances, Any]:
    """How far flat tensors are apart, and the places of the elements that differ."""
    import torch

    if torch.equal(one, other):
        return Distances(compared=one.numel()), torch.empty(0)
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
    beyond = (~same & ~((distance <= bound) & bound.isfinite())).nonzero().flatten()
    relative = torch.where(size > 0, distance / size, torch.where(same, 0.0, math.inf))
    finite = relative[torch.isfinite(relative)]
    counted = one.numel() - int(unknown.sum())
    largest = float(finite.max()) if len(finite) else 0.0
    return Distances(float(distance.max()), largest, len(beyond), counted), beyond
