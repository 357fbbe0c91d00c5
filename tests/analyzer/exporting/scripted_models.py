"""Models that TorchScript runs, as a whole or in part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Buffered", "Parts", "Picture", "Summing", "Weighted"]


class Weighted(nn.Module):
    """Returns a dict, and takes an optional tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, ids: Tensor, weights: Tensor | None = None) -> dict[str, Tensor]:
        h = self.embedding(ids)
        if weights is not None:
            h = h * weights.unsqueeze(-1)
        return {"logits": self.head(h.mean(1))}


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x)).relu()


class Parts(nn.Module):
    """Ordinary Python around scripted and traced parts, also in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.jit.script(Picture().eval())
        self.again = torch.jit.trace(nn.Conv2d(4, 4, 1), torch.randn(1, 4, 2, 2))
        self.heads = nn.ModuleList([torch.jit.script(nn.Linear(4, 2)), nn.Linear(4, 2)])

    def forward(self, x: Tensor) -> list[Tensor]:
        h = self.again(self.inner(x)).mean((2, 3))
        return [head(h) for head in self.heads]


class Buffered(nn.Module):
    """The script replaces a buffer, and writes to another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("last", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = x.sum().reshape(1)
        return x + 1


class Summing(nn.Module):
    """Has a method beside ``forward`` that is scripted, too."""

    def forward(self, x: Tensor) -> Tensor:
        return x

    @torch.jit.export
    def total(self, x: Tensor) -> Tensor:
        return x.sum(-1) * 2
