"""Outputs that share memory with arguments."""

from __future__ import annotations

import torch

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.programs.caller_objects import views_of


def values(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def test_outputs_are_views_of_the_arguments_whose_memory_they_share() -> None:
    x, y = values(3, 2), values(3, 2)
    leaves = {"a": x[1:], "b": y + 1, "c": 3, "d": y.t(), "e": x[:0], "f": y}
    found = views_of(leaves, Sample([x, y, x.view(-1)], []))
    assert found == {"a": frozenset({0, 2}), "d": frozenset({1})}
