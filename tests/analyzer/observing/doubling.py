"""Recordings of a model that doubles its argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_recorder import record

ZEROS = torch.zeros


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor, n: int = 3, scale: float = 1.0) -> torch.Tensor:
        if x.shape[1] == 13:
            raise ValueError("13")
        return x * 2


def doubled(path: Path, sizes: list[tuple[int, int]], keep: Any, **more: Any) -> Path:
    model = Doubling().eval()
    with record(model, path, keep=keep, **more):
        for size in sizes:
            model(ZEROS(size))
    return path


# What inference makes of it.

SIZES = [(2, 3), (2, 6), (4, 5), (1, 40), (8, 7), (8, 2)]
