"""New values for tensors that keep some: whole numbers permuted, floats drawn anew.

In come the bytes of a tensor, and what is known of all tensors that are treated like it. Out go
bytes of the same form. What values mean to a model stays: masks stay masks, sorted rows stay
sorted, and numbers below a size stay below it.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from calltape_analyzer.redacting.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    import torch

__all__ = ["Drawn", "NoiseRange", "is_mask", "noisy", "permuted"]

_FEW = 2
_LARGEST_SIGNAL = 1e30
"""A larger float is a mask's minus infinity, and no signal."""


@dataclass
class NoiseRange:
    """The smallest and the largest value of the tensors of one pattern."""

    low: float = math.inf
    high: float = -math.inf

    def widen(self, tensor: torch.Tensor) -> None:
        """Takes the values of a tensor into account, but for NaN and infinities."""
        values = _signal(tensor)
        if values.numel():
            self.low = min(self.low, float(values.min()))
            self.high = max(self.high, float(values.max()))


@dataclass(frozen=True)
class Drawn:
    """How the whole numbers of a tensor were replaced.

    Attributes:
        low, high: what each became by chance: a number of this range.
        in_order: whether each row was sorted, as it had been.
        among_all: whether numbers outside of the range were replaced too; else they stay.
    """

    low: int
    high: int
    in_order: bool = False
    among_all: bool = False

    def bits(self, row: Collection[int]) -> float:
        """How improbable it is that a row becomes itself, or any other row that was fixed before:
        the binary logarithm of how many rows it might have become."""
        values = {one for one in row if self.among_all or self.low <= one <= self.high}
        many = max(self.high - self.low + 1, len(values))
        orders = (taken + 1 if self.in_order else 1 for taken in range(len(values)))
        return sum(math.log2((many - taken) / own) for taken, own in enumerate(orders))


def is_mask(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a mask: zeros and ones, or floats of at most two values, of which one is
    zero or one."""
    import torch

    if tensor.dtype is torch.bool or not tensor.numel():
        return True
    if not tensor.dtype.is_floating_point:
        return bool(((tensor == 0) | (tensor == 1)).all())
    first = tensor.flatten()[0]
    other = tensor.flatten()[tensor.flatten() != first]
    if other.numel() and not bool((other == other[0]).all()):
        return False
    values = {float(first)} | ({float(other[0])} if other.numel() else set())
    return bool(values & {0.0, 1.0}) and tensor.numel() > _FEW


def permuted(
    tensor: torch.Tensor, highest: int, pseudonyms: Pseudonyms, known: dict[tuple[int, int], int],
    drawn: Drawn,
) -> torch.Tensor:  # fmt: skip
    """Whole numbers, permuted; 0 and negative ones stay.

    Args:
        tensor: of integers.
        highest: the largest number in any tensor that is permuted.
        pseudonyms: have the permutations.
        known: remembers it.
        drawn: which numbers are permuted among each other; all of the tensor that are not 0 or
            negative must be among them.
    """
    import torch

    size = drawn.high + 1
    values, places = torch.unique(tensor.long(), return_inverse=True)
    made = [_one(value, size, highest, pseudonyms, known) for value in values.tolist()]
    found = torch.tensor(made, dtype=torch.long)[places].reshape(tensor.shape)
    return (found.sort(-1).values if drawn.in_order else found).to(tensor.dtype)


def _one(
    value: int, size: int, highest: int, pseudonyms: Pseudonyms, known: dict[tuple[int, int], int]
) -> int:
    """Another number from 1 to ``size - 1``. It is found in a permutation of all up to the next
    power of two: sizes that are near to each other share it, and a walk ends after two steps."""
    if not 0 < value < size:
        return value
    if (value, size) not in known:
        if len(known) > 2**20:
            known.clear()
        every = min(1 << (size - 1).bit_length(), highest)
        found = value
        while True:
            found = 1 + pseudonyms.within(found - 1, every)
            if found < size:
                break
        known[value, size] = found
    return known[value, size]


def noisy(
    tensor: torch.Tensor, span: NoiseRange, seed: int, *, by_value: bool, special: bool
) -> torch.Tensor:
    """Random values of the same dtype and shape.

    Args:
        tensor: of floats or integers.
        span: the range of the new values.
        seed: of the random numbers.
        by_value: whether equal values become equal ones, so that what was copied from one tensor to
            another still is; otherwise each is drawn by itself.
        special: whether NaN and the infinities stay where they are.
    """
    import torch

    wide = tensor.double() if tensor.dtype.is_floating_point else tensor.long()
    if by_value:
        share = _shares(wide, seed)
    else:
        generator = torch.Generator().manual_seed(seed)
        share = torch.rand(tensor.shape, dtype=torch.float64, generator=generator)
    low, high = (span.low, span.high) if span.low <= span.high else (0.0, 1.0)
    if tensor.dtype.is_floating_point:
        most = torch.finfo(tensor.dtype)  # of a pattern, some tensors may have fewer bits
        low, high = max(low, most.min), min(high, most.max)
        low = min(low, high)
        made = (low + (high - low) * share).clamp(low, high).to(tensor.dtype)
        # Rounding to few bits may lead out of the range.
        lowest = torch.full_like(wide, low).to(tensor.dtype)
        made = torch.where(made.double() > high, lowest, made)
        return torch.where(torch.isfinite(wide), made, tensor) if special else made
    if tensor.dtype is not torch.bool:
        low = max(low, torch.iinfo(tensor.dtype).min)
        high = max(low, min(high, torch.iinfo(tensor.dtype).max))
    made = low + torch.floor(share * (high - low + 1))
    # The largest int64 is no float, and the next one is 2**63.
    highest = math.nextafter(high, 0.0) if high >= 2**53 else high
    return made.clamp(low, highest).to(tensor.dtype)


def _shares(values: torch.Tensor, seed: int) -> torch.Tensor:
    """A number from 0 to 1 for each value, that depends on nothing else: a keyed mix of its
    bits."""
    import torch

    bits = values.view(torch.int64) if values.dtype is torch.float64 else values.clone()
    for turn in range(3):
        bits = bits ^ (seed * (2 * turn + 1) % 2**63)
        bits = (bits ^ ((bits >> 30) & (2**34 - 1))) * -4658895280553007687
        bits = (bits ^ ((bits >> 27) & (2**37 - 1))) * -7723592293110705685
        bits = bits ^ ((bits >> 31) & (2**33 - 1))
    return ((bits >> 11) & (2**53 - 1)).double() / 2**53


def _signal(tensor: torch.Tensor) -> Any:
    wide = tensor.double()
    return wide[wide.isfinite() & (wide.abs() < _LARGEST_SIGNAL)]
