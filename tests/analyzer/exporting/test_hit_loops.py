"""Models that loop over what is hit, as a mixture of experts does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from calltape_analyzer.exporting.hit_loops import LoopEvidence
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.test_arguments import Model, t

_ITERATE = torch.Tensor.__iter__


class Experts(nn.Module):
    """Two of six experts for each token. An expert without a token is skipped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(4, 6)
        self.up = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x):
        out = torch.zeros_like(x)
        chosen = self.gate(x).topk(2)
        mask = nn.functional.one_hot(chosen.indices, 6).permute(2, 1, 0)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            place, token = torch.where(mask[int(expert.item())])
            if token.numel() == 0:
                continue
            done = self.up[expert[0]](x[token]) * chosen.values[token, place, None]
            out.index_add_(0, token, done)
        return out


class Marked(Model):
    """Changes the rows that are marked, and no others."""

    def forward(self, x, marks):
        out = x.clone()
        for row in marks.nonzero():
            out[row] = out[row] * 2
        return out


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_experts_run_in_a_loop(tmp_path: Path, to: str) -> None:
    model = Experts().eval()
    programs = made(tmp_path, model, [call(t(2, 4)), call(t(7, 4)), call(t(5, 4))], to=to)
    assert len(programs) == 1
    # One token: four experts have none.
    assert_as_module(programs, model, [call(t(1, 4)), call(t(3, 4)), call(t(40, 4))], rtol=1e-3)


def evidence(model: nn.Module, *calls: tuple[torch.Tensor, ...]) -> LoopEvidence:
    found = LoopEvidence()
    with torch.no_grad():
        for args in calls:
            found.look(lambda args=args: model(*args), torch.equal)
    return found


def test_experts_may_run_without_tokens() -> None:
    assert evidence(Experts().eval(), (t(2, 4),)).is_enough


def test_a_loop_that_does_more_for_what_is_hit_is_not_changed() -> None:
    assert not evidence(Marked(), (t(3, 4), torch.tensor([True, False, True]))).is_enough


def test_a_loop_whose_every_item_was_hit_is_not_changed() -> None:
    every = torch.ones(3, dtype=torch.bool)
    assert not evidence(Marked(), (t(3, 4), every)).is_enough
    assert torch.Tensor.__iter__ is _ITERATE


def test_a_model_without_such_loops_shows_nothing() -> None:
    assert not evidence(nn.Linear(4, 2), (t(3, 4),)).is_enough
