"""Nested tensors, and a model of them, that several tests use."""

from __future__ import annotations

import warnings
from typing import Any

import torch

__all__ = ["Attends", "Scales", "nested"]


def nested(*lengths: int, layout: torch.layout = torch.jagged, width: int = 8) -> torch.Tensor:
    """A nested tensor with a component per length."""
    components = [torch.randn(length, width) for length in lengths]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the strided layout is no longer developed
        return torch.nested.nested_tensor(components, layout=layout)


class Scales(torch.nn.Module):
    """Takes and returns a nested tensor; adds a second one of the same lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: Any, other: Any = None) -> Any:
        y = self.linear(x).relu()
        return y if other is None else {"sum": y + self.linear(other), "first": y}


class Attends(torch.nn.Module):
    """Self-attention of two heads within each component."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Linear(8, 24)

    def forward(self, x: Any) -> Any:
        # The scaled_dot_product_attention of nested tensors needs a GPU (torch 2.15).
        mixed = [self._attended(part) for part in self.project(x).unbind()]
        return torch.nested.as_nested_tensor(mixed, layout=x.layout)

    def _attended(self, projected: torch.Tensor) -> torch.Tensor:
        parts = projected.chunk(3, -1)
        q, k, v = (part.unflatten(-1, [2, 4]).transpose(0, 1) for part in parts)
        scores = (q @ k.transpose(1, 2) / 2).softmax(-1)
        return (scores @ v).transpose(0, 1).flatten(-2)
