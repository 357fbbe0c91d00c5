"""One small model per awkward tensor: dtypes, strides, aliases, mutation, relations of sizes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.arguments import sounds
from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import WIDTH, Linear, made

__all__ = ["CASES"]


class Add(Linear):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x) + y


class Filter(nn.Module):
    """A filter in the frequency domain, on complex spectra."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(WIDTH, dtype=torch.complex64))

    def forward(self, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        y = spectrum * self.gain
        return y, y.abs()


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(9))

    def forward(self, audio: Tensor) -> Tensor:
        frames = audio.unfold(-1, 16, 8) * torch.hann_window(16)
        return torch.view_as_real(torch.fft.rfft(frames) * self.gain)


class HalfPrecision(Linear):
    def __init__(self) -> None:
        super().__init__()
        self.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).float().softmax(-1).to(x.dtype)


class Twice(Linear):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = self.linear(query) @ key.transpose(-1, -2)
        return scores.softmax(-1) @ value


class PassesThrough(Linear):
    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.linear(x), ids, x


class Accumulates(Linear):
    def forward(self, x: Tensor, total: Tensor) -> Tensor:
        y = self.linear(x)
        total.add_(y)
        return y.relu()


class Tables(nn.Module):
    """Constant buffers, looked up and masked with integers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(20, WIDTH))
        self.register_buffer("causal", torch.ones(32, 32).tril().bool(), persistent=False)
        self.scale = torch.tensor(0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table[ids] * self.scale
        length = ids.shape[1]
        scores = (x @ x.transpose(1, 2)).masked_fill(~self.causal[:length, :length], -1e4)
        return scores.softmax(-1) @ x


class Frames(nn.Module):
    """Mel frames, of which there are two per token."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.embed = nn.Embedding(30, WIDTH)

    def forward(self, frames: Tensor, tokens: Tensor) -> Tensor:
        return self.down(frames.transpose(1, 2)).transpose(1, 2) + self.embed(tokens)


class PastAndNew(Linear):
    """A mask as long as what came before and what is new."""

    def forward(self, x: Tensor, past: Tensor, mask: Tensor) -> Tensor:
        everything = torch.cat([past, x], dim=1)
        scores = (self.linear(x) @ everything.transpose(1, 2)).masked_fill(~mask[:, None], -1e4)
        return scores.softmax(-1) @ everything


class Adjacent(Linear):
    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        degree = adjacency.sum(-1, keepdim=True).clamp(min=1)
        return self.linear(adjacency @ x / degree)


class Flattened(Linear):
    """Patches of a picture: their number is height × width."""

    def forward(self, patches: Tensor, picture: Tensor) -> Tensor:
        return self.linear(patches) + picture.flatten(1)[..., None]


class Bytes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2)

    def forward(self, image: Tensor, keep: Tensor) -> Tensor:
        pixels = image.permute(0, 3, 1, 2).float() / 255
        return self.conv(pixels).mean((2, 3)) * keep[:, None]


class Empty(Linear):
    def forward(self, x: Tensor, history: Tensor) -> Tensor:
        return torch.cat([history, self.linear(x)], dim=1).cumsum(1)


class TwoGrids(Linear):
    def forward(self, x: Tensor) -> Tensor:
        rows = torch.arange(x.shape[0])[:, None, None] / 10
        return self.linear(x) + rows - x.mean(1, keepdim=True)


def _rows(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH)


def _broadcast(rows: int, other: int) -> Arguments:
    return (_rows(rows), _rows(other)), {}


def _spectrum(rows: int, dtype: torch.dtype = torch.complex64) -> Arguments:
    return (torch.randn(rows, WIDTH, dtype=dtype),), {}


def _strided(rows: int, columns: int, how: str) -> Arguments:
    if how == "transposed":
        x = torch.randn(rows, WIDTH, columns).transpose(1, 2)
    elif how == "sliced":
        x = torch.randn(rows, 2 * columns, WIDTH)[:, ::2]
    else:
        x = torch.randn(rows, 1, WIDTH).expand(rows, columns, WIDTH)
    return (x, torch.randn(columns, rows, WIDTH).transpose(0, 1)), {}


def _twice(rows: int, steps: int) -> Arguments:
    x = _rows(rows, steps)
    return (x, x, x), {}


def _through(rows: int) -> Arguments:
    return (_rows(rows), torch.randint(0, 9, (rows, 2))), {}


def _ids(rows: int, steps: int) -> Arguments:
    return (torch.randint(0, 20, (rows, steps)),), {}


def _frames(rows: int, tokens: int) -> Arguments:
    return (_rows(rows, 2 * tokens), torch.randint(0, 30, (rows, tokens))), {}


def _past(rows: int, past: int, new: int) -> Arguments:
    mask = torch.rand(rows, past + new) < 0.8
    return (), {"x": _rows(rows, new), "past": _rows(rows, past), "mask": mask}


def _adjacent(nodes: int) -> Arguments:
    return (_rows(nodes), (torch.rand(nodes, nodes) < 0.5).float()), {}


def _flattened(rows: int, height: int, width: int) -> Arguments:
    return (_rows(rows, height * width), torch.randn(rows, height, width)), {}


def _bytes(rows: int, height: int, width: int) -> Arguments:
    image = torch.randint(0, 256, (rows, height, width, 3), dtype=torch.uint8)
    return (image, torch.rand(rows) < 0.7), {}


def _history(rows: int, steps: int, before: int) -> Arguments:
    return (_rows(rows, steps), _rows(rows, before)), {}


def _half(rows: int) -> Arguments:
    return (_rows(rows).to(torch.bfloat16),), {}


def _grid(rows: int, columns: int) -> Arguments:
    return (_rows(rows, columns),), {}


_PLANE: dict[str, Any] = {"seen": [(2, 5), (3, 7), (4, 6)], "unseen": [(5, 9), (6, 3)]}
_ROWS: dict[str, Any] = {"seen": [(3,), (5,), (4,)], "unseen": [(7,), (12,)]}
_TOGETHER: dict[str, Any] = {"seen": [(3, 3), (5, 5), (4, 4)], "unseen": [(7, 7), (12, 12)]}

CASES: list[Case] = [
    simple(
        "broadcast_one_or_n", made(Add), _broadcast,
        seen=[(3, 3), (5, 1), (4, 4), (6, 1)], unseen=[(7, 7), (8, 1)],
    ),
    simple("batch_begins_at_one", made(Add), _broadcast, seen=[(1, 1), (3, 3), (5, 5)],
           unseen=[(4, 4), (2, 2)], note="a batch of 1 is a call like any other"),
    simple("complex_spectrum", made(Filter), _spectrum, **_ROWS),
    simple("audio_spectrum", made(Spectrum), sounds,
           seen=[(2, 64), (3, 96), (2, 80)], unseen=[(4, 120), (2, 100)], note="complex inside"),
    simple("bfloat16", made(HalfPrecision), _half, **_ROWS),
    simple(
        "non_contiguous", made(Add), _strided,
        seen=[(2, 5, "transposed"), (3, 7, "sliced"), (4, 6, "expanded")],
        unseen=[(5, 9, "transposed"), (6, 3, "expanded"), (3, 8, "sliced")],
    ),
    simple("same_tensor_thrice", made(Twice), _twice, **_PLANE),
    simple("returns_its_input", made(PassesThrough), _through, **_ROWS),
    simple("mutates_its_input", made(Accumulates), _broadcast, **_TOGETHER),
    simple("constant_buffers", made(Tables), _ids, **_PLANE),
    simple("twice_as_many_frames", made(Frames), _frames, **_PLANE),
    simple(
        "mask_is_past_plus_new", made(PastAndNew), _past,
        seen=[(2, 5, 3), (3, 8, 2), (4, 4, 6)], unseen=[(5, 7, 4), (2, 12, 5)],
    ),
    simple(
        "mask_is_past_plus_one", made(PastAndNew), _past,
        seen=[(2, 5, 1), (3, 8, 1), (4, 4, 1)], unseen=[(5, 7, 1), (2, 12, 1)],
    ),
    simple(
        "product_of_sizes", made(Flattened), _flattened,
        seen=[(2, 3, 4), (3, 5, 2), (2, 4, 6)], unseen=[(4, 5, 3), (2, 7, 4)],
    ),
    simple("dims_are_equal", made(Adjacent), _adjacent, **_ROWS, note="has to be square"),
    simple(
        "dims_equal_by_chance", made(TwoGrids), _grid,
        seen=[(3, 3), (5, 5), (4, 4)], unseen=[(7, 7), (6, 9)],
        note="nothing demands a square; the recording only has squares",
    ),
    simple("image_of_bytes", made(Bytes), _bytes,
           seen=[(2, 8, 10), (3, 12, 9), (2, 10, 14)], unseen=[(4, 11, 13), (2, 16, 8)]),
    simple(
        "empty_history", made(Empty), _history,
        seen=[(2, 3, 0), (3, 4, 5), (2, 5, 3)], unseen=[(4, 6, 0), (5, 3, 8)],
        note="the first call has a tensor of no elements",
    ),
]  # fmt: skip
