"""What models do with sizes, and with ints that are sizes."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy
import torch
from torch import nn

from tests.answers.small.case import Small, small
from tests.zoo.case import Arguments

__all__ = ["CASES"]


class PaddingMask(nn.Module):
    """The mask is as wide as the longest sequence, as speech models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Any, lengths: Any) -> Any:
        rows, longest = lengths.shape[0], int(torch.max(lengths).item())
        padding = torch.arange(longest).expand(rows, longest) >= lengths.unsqueeze(1)
        halves = nn.functional.glu(self.inner(x).transpose(1, 2), dim=1).transpose(1, 2)
        return halves.masked_fill(padding[..., None], 0.0).sum(1), lengths


def _padded(rows: int, frames: int) -> Arguments:
    lengths = torch.randint(1, frames + 1, (rows,))
    lengths[0] = frames
    return (torch.randn(rows, frames, 4), lengths), {}


class Ceiling(nn.Module):
    """Ceiling division, as people write it."""

    def forward(self, x: Any) -> Any:
        parts = -(-x.shape[1] // 4)
        padded = nn.functional.pad(x, (0, parts * 4 - x.shape[1]))
        return padded.view(x.shape[0], parts, 4).mean(-1)


class PadsByFloats(nn.Module):
    """Pads a picture to a multiple of 8 by way of floats, as detectors do."""

    def forward(self, picture: Any) -> Any:
        height, width = (math.ceil(float(size) / 8) * 8 for size in picture.shape[1:])
        padded = picture.new_zeros(picture.shape[0], height, width)
        padded[:, : picture.shape[1], : picture.shape[2]] = picture
        return padded.view(picture.shape[0], height // 8, 8, width // 8, 8).mean((2, 4))


class Window(nn.Module):
    """A window that numpy makes for each length."""

    def forward(self, x: Any) -> Any:
        return x * torch.from_numpy(numpy.hanning(x.shape[1])).to(x)


class Boxes(nn.Module):
    """No box, one box or many."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, boxes: Any, classes: Any) -> Any:
        held = self.embed(boxes)
        mixed = torch.softmax(held @ held.T / 3, -1) @ held
        pooled = mixed.sum(0) if boxes.shape[0] else mixed.new_full((8,), -1.0)
        return self.score(mixed).squeeze(1) * (classes > 0), pooled


class NoRows(nn.Module):
    """Size 0 is a case of its own."""

    def forward(self, x: Any) -> Any:
        return x.new_full((4,), -1.0) if x.shape[0] == 0 else x.mean(0)


class Squeezed(nn.Module):
    """``squeeze()`` without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(4, 1, 3, padding=1)

    def forward(self, series: Any) -> Any:
        return self.convolution(series).squeeze()


@functools.lru_cache
def _ramp(length: int) -> Any:
    return torch.linspace(0, 1, length)


class CachedFunction(nn.Module):
    """A function with a cache hashes a size."""

    def forward(self, x: Any) -> Any:
        return x + _ramp(x.shape[1])


class DefaultInt(nn.Module):
    """An int that is passed in every call, in one with the value of its default."""

    def forward(self, x: Any, top_k: int = 5) -> Any:
        return x.topk(top_k).values


class NegativeInt(nn.Module):
    """An int that is -1 for all, else how many."""

    def forward(self, x: Any, keep: int) -> Any:
        return x[:, 0 if keep < 0 else max(x.shape[1] - keep, 0) :] * 2


class EmptyFirstCache(nn.Module):
    """A stream begins with a cache of size 0 along every axis."""

    def forward(self, x: Any, cache: Any) -> Any:
        keys = values = x.view(1, x.shape[1], 2, 4).transpose(1, 2)
        if cache.size(0) > 0:
            old_keys, old_values = cache[:1].chunk(2, -1)
            keys, values = torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)
        mixed = (keys @ keys.transpose(2, 3)).softmax(-1) @ values
        return mixed, torch.cat([keys, values], -1).expand(3, -1, -1, -1)


def _chunk(length: int, past: int) -> Arguments:
    cache = torch.randn(3, 2, past, 8) if past else torch.zeros(0, 0, 0, 0)
    return (torch.randn(1, length, 8), cache), {}


class Strides(nn.Module):
    """Reads the strides of its argument."""

    def forward(self, x: Any) -> Any:
        return x.as_strided((x.shape[0], x.shape[1] - 1), x.stride()) * 2


def _laid_out(rows: int, columns: int, how: str) -> Arguments:
    if how == "transposed":
        return (torch.rand(columns, rows).t(),), {}
    step = 2 if how == "every other" else 1
    return (torch.rand(rows, columns * step)[:, ::step],), {}


class OwnStrides(nn.Module):
    """Windows over a signal by its own strides."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 3)

    def forward(self, signal: Any) -> Any:
        rows, length = signal.shape
        count, step = (length - 6) // 2 + 1, signal.stride(1)
        strides = signal.stride(0), 2 * step, step
        return self.project(signal.as_strided((rows, count, 6), strides, signal.storage_offset()))


CASES: list[Small] = [
    small(PaddingMask, _padded, name="padding_mask",
          seen=[(2, 12), (1, 20), (3, 9)], unseen=[(4, 15), (2, 31), (1, 6)]),
    small(Ceiling, lambda n: ((torch.randn(2, n),), {}), name="ceiling",
          seen=[(10,), (17,), (33,)], unseen=[(21,), (12,), (50,)]),
    small(PadsByFloats, lambda n, h, w: ((torch.randn(n, h, w),), {}), name="pads_by_floats",
          seen=[(2, 10, 13), (3, 17, 9), (2, 24, 20)], unseen=[(4, 30, 11), (1, 16, 16)]),
    small(Window, lambda b, n: ((torch.randn(b, n),), {}), name="window",
          seen=[(2, 10), (3, 10), (5, 16), (4, 16)], unseen=[(7, 10), (9, 16), (2, 12)]),
    small(Boxes, lambda n: ((torch.rand(n, 4), torch.randint(0, 3, (n,))), {}), name="boxes",
          seen=[(0,), (4,), (1,), (7,), (0,), (1,)], unseen=[(2,), (0,), (1,), (30,)]),
    small(NoRows, lambda n: ((torch.rand(n, 4),), {}), name="no_rows",
          seen=[(0,), (4,), (7,)], unseen=[(1,), (2,), (5,), (30,)]),
    small(Squeezed, lambda b, n: ((torch.randn(b, 4, n),), {}), name="squeezed",
          seen=[(2, 10), (3, 16), (1, 12), (1, 9), (5, 7)], unseen=[(4, 21), (1, 30), (6, 5)]),
    small(CachedFunction, lambda n: ((torch.ones(2, n),), {}), name="cached_function",
          seen=[(5,), (8,), (11,)], unseen=[(7,), (20,), (33,)]),
    small(DefaultInt, lambda n, k: ((torch.randn(2, n),), {"top_k": k}), name="default_int",
          seen=[(n, k) for k in (1, 5, 10) for n in (20, 33)],
          unseen=[(41, 1), (41, 5), (41, 10)]),
    small(NegativeInt, lambda n, keep: ((torch.randn(2, n), keep), {}), name="negative_int",
          seen=[(8, -1), (11, -1), (15, -1), (10, 4), (14, 4), (20, 4)],
          unseen=[(40, -1), (9, -1), (30, 4), (12, 4)]),
    small(EmptyFirstCache, _chunk, name="empty_first_cache",
          seen=[(16, 0), (16, 16), (16, 32), (9, 48), (7, 57)],
          unseen=[(8, 8), (12, 30), (5, 64), (11, 0)]),
    small(Strides, _laid_out, name="strides",
          seen=[(3, 5, "plain"), (6, 8, "plain"), (5, 4, "transposed")],
          unseen=[(9, 4, "plain"), (7, 6, "transposed"), (4, 10, "every other")]),
    small(OwnStrides, _laid_out, name="own_strides",
          seen=[(2, 16, "plain"), (3, 22, "plain"), (4, 31, "plain"), (5, 26, "transposed")],
          unseen=[(5, 40, "plain"), (6, 30, "transposed"), (4, 25, "every other")]),
]  # fmt: skip
