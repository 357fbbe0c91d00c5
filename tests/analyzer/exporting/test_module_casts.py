"""Models that cast their own parts while they run."""

from __future__ import annotations

import torch
from torch import nn

from calltape_analyzer.exporting.torch_fixes.module_casts import unneeded_casts


class Routed(nn.Module):
    """Keeps its router in float32, whatever the rest is."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 2)

    def forward(self, x):
        self.router = self.router.to(torch.float32)
        return self.router(x)


def test_a_cast_to_the_same_dtype_is_traced() -> None:
    model = Routed()
    with unneeded_casts():
        program = torch.export.export(model, (torch.ones(3, 4),), strict=False)
    x = torch.rand(3, 4)
    torch.testing.assert_close(program.module()(x), model(x))


def test_a_cast_to_another_dtype_still_casts() -> None:
    with unneeded_casts():
        assert nn.Linear(4, 2).to(torch.float64).weight.dtype == torch.float64
        assert nn.Linear(4, 2).to("cpu", torch.float32).weight.dtype == torch.float32
