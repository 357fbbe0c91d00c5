"""A model whose calls change its state in every way, and calls for it."""

from __future__ import annotations

from typing import Any

import torch

from tests.analyzer.exported import call
from tests.analyzer.exporting.models import t

__all__ = ["CALLS", "Counting", "assert_same_state", "state"]

CALLS = [call(t(n, 3)) for n in (4, 6, 5)]


class Counting(torch.nn.Module):
    """Has buffers that each call updates, in place and by replacing them, and attributes."""

    def __init__(self, returned: bool, norm: bool = True) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(2), persistent=False)
        self.register_buffer("lazy", None)
        self.norm = torch.nn.BatchNorm1d(3) if norm else torch.nn.Identity()
        self.calls = 0
        self.kept = torch.zeros(1)
        self.returned = returned

    def forward(self, x):
        self.n += 1
        self.replaced = self.replaced + 1
        self.lazy = x.detach().sum() * 0
        self.calls += 1
        y = self.norm(x)
        return (y + self.n, self.n) if self.returned else y


def state(model: Counting) -> dict[str, Any]:
    found = {name: value.clone() for name, value in model.named_buffers()}
    return found | {"calls": model.calls, "kept": model.kept.clone(), "lazy": model.lazy}


def assert_same_state(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[name]), name
        else:
            assert value == other[name], name
