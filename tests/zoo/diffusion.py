"""Denoisers: a UNet and a transformer, called once per step of a sampling loop."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo.case import Arguments, Case, simple
from tests.zoo.containers import made

__all__ = ["CASES"]

_CHANNELS = 8


def _embedding(timestep: Tensor, width: int) -> Tensor:
    half = width // 2
    frequencies = torch.exp(torch.arange(half) * (-math.log(1000.0) / half))
    angles = timestep.float()[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Block(nn.Module):
    """A convolution that the timestep shifts."""

    def __init__(self, inner: int, outer: int, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(2, inner)
        self.conv = nn.Conv2d(inner, outer, 3, padding=1)
        self.time = nn.Linear(width, outer)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y: Tensor = self.conv(nn.functional.silu(self.norm(x)))
        return y + self.time(time)[:, :, None, None]


class UNet(nn.Module):
    """One level down and up again, optionally attending to a text.

    As in diffusers, the timestep may be a 0-d tensor or one number per sample, and the output may
    be wrapped.
    """

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.width = width
        self.enter = nn.Conv2d(4, _CHANNELS, 3, padding=1)
        self.down = Block(_CHANNELS, width, width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.text = nn.Linear(12, width)
        self.up = Block(width + _CHANNELS, _CHANNELS, width)
        self.leave = nn.Conv2d(_CHANNELS, 4, 3, padding=1)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor | None = None,
        return_dict: bool = True,
    ) -> Any:
        time = _embedding(timestep.reshape(-1).expand(sample.shape[0]), self.width)
        skip = self.enter(sample)
        deep = self.down(nn.functional.avg_pool2d(skip, 2), time)
        if encoder_hidden_states is not None:
            deep = deep + self._attended(deep, self.text(encoder_hidden_states))
        deep = nn.functional.interpolate(deep, size=skip.shape[-2:], mode="nearest")
        y = self.leave(self.up(torch.cat([deep, skip], dim=1), time))
        return {"sample": y} if return_dict else (y,)

    def _attended(self, deep: Tensor, text: Tensor) -> Tensor:
        rows = deep.flatten(2).transpose(1, 2)
        return self.attention(rows, text, text)[0].transpose(1, 2).reshape(deep.shape)


class DiT(nn.Module):
    """Patches, adaptive normalization by timestep and label, and back to a picture."""

    def __init__(self, width: int = 32, patch: int = 2) -> None:
        super().__init__()
        self.width, self.patch = width, patch
        self.patches = nn.Conv2d(4, width, patch, stride=patch)
        self.labels = nn.Embedding(11, width)
        self.modulate = nn.Linear(width, 6 * width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.leave = nn.Linear(width, 4 * patch * patch)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        grid = self.patches(x)
        rows, columns = grid.shape[-2:]
        h = grid.flatten(2).transpose(1, 2)
        h = h + _embedding(torch.arange(rows * columns), self.width)
        condition = _embedding(t, self.width) + self.labels(y)
        shifts = self.modulate(nn.functional.silu(condition))[:, None].chunk(6, dim=-1)
        z = self.norm(h) * (1 + shifts[0]) + shifts[1]
        h = h + shifts[2] * self.attention(z, z, z, need_weights=False)[0]
        h = h + shifts[5] * self.mlp(self.norm(h) * (1 + shifts[3]) + shifts[4])
        tiles = self.leave(h).reshape(-1, rows, columns, self.patch, self.patch, 4)
        return tiles.permute(0, 5, 1, 3, 2, 4).reshape(x.shape)


class Decoder(nn.Module):
    """The last step: latents to pixels, eight times as large."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 8, 3, padding=1), nn.SiLU(), nn.Upsample(scale_factor=2),
            nn.GroupNorm(2, 8), nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1),
            nn.PixelShuffle(2), nn.Conv2d(2, 3, 1),
        )  # fmt: skip

    def forward(self, latents: Tensor) -> Tensor:
        return self.body(latents / 0.18).clamp(-1, 1)


def _latents(rows: int, height: int, width: int) -> Tensor:
    return torch.randn(rows, 4, height, width)


def _denoised(rows: int, height: int, width: int, step: int) -> Arguments:
    """The scheduler's timestep is one number for all samples."""
    return (_latents(rows, height, width), torch.tensor(step)), {"return_dict": False}


def _conditioned(rows: int, height: int, width: int, tokens: int) -> Arguments:
    times = torch.randint(0, 1000, (rows,))
    text = torch.randn(rows, tokens, 12)
    return (_latents(rows, height, width), times), {"encoder_hidden_states": text}


def _sometimes(rows: int, height: int, width: int, tokens: int) -> Arguments:
    args, kwargs = _conditioned(rows, height, width, max(tokens, 1))
    return args, kwargs if tokens else {}


def _labelled(rows: int, height: int, width: int) -> Arguments:
    times, labels = torch.randint(0, 1000, (rows,)), torch.randint(0, 11, (rows,))
    return (_latents(rows, height, width), times, labels), {}


def _decoded(rows: int, height: int, width: int) -> Arguments:
    return (_latents(rows, height, width),), {}


_SIZES: dict[str, Any] = {
    "seen": [(2, 8, 12), (3, 10, 8), (2, 16, 14)], "unseen": [(4, 12, 10), (5, 8, 18)]
}  # fmt: skip

CASES: list[Case] = [
    simple(
        "unet", made(UNet), _denoised,
        seen=[(2, 8, 12, 980), (2, 8, 12, 500), (3, 10, 8, 980), (3, 10, 8, 20)],
        unseen=[(4, 12, 10, 740), (5, 8, 16, 3)], note="the timestep is a 0-d tensor",
    ),
    simple(
        "unet_conditioned", made(UNet), _conditioned,
        seen=[(2, 8, 12, 5), (4, 10, 8, 7), (3, 16, 14, 9)],
        unseen=[(5, 12, 10, 6), (2, 8, 18, 11)],
    ),
    simple(
        "unet_guided", made(UNet), _sometimes,
        seen=[(2, 8, 12, 5), (2, 8, 12, 0), (3, 10, 8, 7), (3, 10, 8, 0)],
        unseen=[(4, 12, 10, 6), (5, 8, 14, 0)], note="with and without the text, in turns",
    ),
    simple("dit", made(DiT), _labelled, **_SIZES),
    simple("latents_to_pixels", made(Decoder), _decoded, **_SIZES),
]  # fmt: skip
