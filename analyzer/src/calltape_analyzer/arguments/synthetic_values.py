"""Synthetic tensors: resized by tiling, or made up.

A tensor is resized by cyclic tiling of each axis, so its values stay plausible: token ids stay in
range, masks stay masks. Repeated floats are moved a little. Otherwise a model that sorts or takes
the largest would meet ties, which runtimes break differently. A tensor without elements to tile is
made up within the recorded range.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from calltape_analyzer.observing.size_table import Span
from calltape_analyzer.pytree.memory import (
    as_before,
    as_numbers,
    computable_dtypes,
    contiguous,
    place_of_leaf,
    relaid,
)
from calltape_analyzer.pytree.tensors import zeros

if TYPE_CHECKING:
    import torch

    from calltape_schema.tree import Leaf

__all__ = ["synthetic", "synthetic_leaf", "tiled"]

_LEAST_STEP = 2**-10
"""How far a float that is there again is moved, at most, as a part of it: more than two runtimes
differ by, and less than would make it another kind of value."""
_DRAWN = 1_048_573
"""Elements that are drawn at most. A prime: so rows of a large tensor do not become equal."""


def synthetic(
    shape: Sequence[int], dtype: torch.dtype, span: Span | None = None, *, seed: str = ""
) -> torch.Tensor:
    """A tensor of made-up values, the same for the same arguments: ints within ``span`` (0 and 1
    by default), normally distributed floats, True; zeros of dtypes that torch cannot compute with.

    Raises:
        InferenceError: torch has no such tensor.
    """
    import torch

    if dtype not in computable_dtypes():
        return cast("torch.Tensor", zeros(shape, dtype))
    text = f"{seed}{tuple(shape)}".encode(errors="backslashreplace")  # any key of a dict
    generator = torch.Generator().manual_seed(zlib.crc32(text))
    if dtype is torch.bool:
        return torch.ones(tuple(shape), dtype=dtype)
    values = torch.empty(tuple(shape), dtype=dtype)
    drawn = min(values.numel(), _DRAWN)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return _repeat(torch.randn(drawn, dtype=wide, generator=generator), values)
    low, high = (span.min, span.max) if span is not None else (0, 1)
    high = max(min(high, 2**63 - 2), -(2**63))  # torch draws below an int64
    low = min(max(low, -(2**63)), high)
    return _repeat(torch.randint(low, high + 1, (drawn,), generator=generator), values)


def synthetic_leaf(leaf: Leaf, dtype: torch.dtype, span: Span | None, seed: str) -> torch.Tensor:
    """A tensor of made-up values in place of a leaf that the tape does not have, laid out like it.

    Args:
        leaf: its facts.
        dtype: of it.
        span, seed: as for :func:`synthetic`.

    Raises:
        InferenceError: torch has no such tensor.
    """
    values = relaid(
        synthetic(leaf.shape, dtype, span, seed=seed), place_of_leaf(leaf, dtype.itemsize)
    )
    wants = leaf.requires_grad and (dtype.is_floating_point or dtype.is_complex)
    return values.requires_grad_(wants)


def _repeat(drawn: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Fills a tensor with the drawn values, again and again: to copy takes a fifth of the time that
    it takes to draw."""
    flat, drawn = made.view(-1), drawn.to(made.dtype)
    for start in range(0, flat.numel(), _DRAWN):
        part = flat[start : start + _DRAWN]
        part.copy_(drawn[: part.numel()])
    return made


def tiled(
    tensor: torch.Tensor, shape: Sequence[int], span: Span | None, seed: str, *, salt: str = ""
) -> torch.Tensor:
    """A tensor of another shape of the same rank, with the values of this one repeated. Floats that
    are there again are not quite the same, unless they are whole numbers, as in a mask.

    Args:
        tensor: any.
        shape: the new sizes.
        span, seed: as for :func:`synthetic`, if there is nothing to repeat.
        salt: another text moves the floats in another way.

    Raises:
        InferenceError: torch can neither copy the tensor nor make one like it.
    """
    import torch

    if list(tensor.shape) == list(shape):
        return contiguous(tensor)
    if tensor.numel() == 0:
        if not math.prod(shape):
            return cast("torch.Tensor", zeros(shape, tensor.dtype))
        return synthetic(shape, tensor.dtype, span, seed=seed)
    plain = as_numbers(tensor)
    for axis, size in enumerate(shape):
        if size != plain.shape[axis]:
            places = torch.arange(size, device=plain.device) % plain.shape[axis]
            plain = plain.index_select(axis, places)
    plain = plain.contiguous()
    moving = torch.float64, torch.float32, torch.float16, torch.bfloat16
    if tensor.dtype in moving and plain.numel() > tensor.numel():
        plain = _with_marked_corner(plain, tensor.shape, f"{seed}{salt}")
    return as_before(plain, tensor)


def _with_marked_corner(plain: torch.Tensor, strides: Sequence[int], seed: str) -> torch.Tensor:
    """Moves what is beyond the tensor's own elements, which are the first along each axis. Whole
    numbers stay: they may be a mask, or the numbers of pictures."""
    import torch

    step = max(_LEAST_STEP, 4 * torch.finfo(plain.dtype).eps)
    text = f"{seed}{tuple(plain.shape)}".encode(errors="backslashreplace")
    generator = torch.Generator().manual_seed(zlib.crc32(text))
    drawn = torch.rand(min(plain.numel(), _DRAWN), generator=generator) * 2 - 1
    factors = _repeat(1 + step * drawn, torch.empty(plain.shape, dtype=plain.dtype))
    factors[tuple(slice(min(a, b)) for a, b in zip(strides, plain.shape, strict=True))] = 1
    moved = plain * factors.to(plain.device)
    return torch.where(plain == plain.round(), plain, moved)
