"""Models that loop over what is hit, as a mixture of experts does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from calltape_analyzer import NoVariant
from calltape_analyzer.exporting.torch_fixes.nonzero_loops import LoopEvidence
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t

_ITERATE = torch.Tensor.__iter__


class Experts(nn.Module):
    """Two of six experts for each token. An expert without a token is skipped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate = nn.Linear(4, 6)
        self.up = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def expert(self, item):
        return self.up[item]

    def forward(self, x):
        out = torch.zeros_like(x)
        chosen = self.gate(x).topk(2)
        mask = nn.functional.one_hot(chosen.indices, 6).permute(2, 1, 0)
        for expert in torch.greater(mask.sum((-1, -2)), 0).nonzero():
            place, token = torch.where(mask[int(expert.item())])
            if token.numel() == 0:
                continue
            done = self.expert(expert[0])(x[token]) * chosen.values[token, place, None]
            out.index_add_(0, token, done)
        return out


class NamedExperts(Experts):
    """The same experts, found by a name that is written with the number of each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ModuleDict({f"expert_{i}": one for i, one in enumerate(self.up)})

    def expert(self, item):
        return self.up[f"expert_{item}"]


class Marked(Model):
    """Changes the rows that are marked, and no others."""

    def forward(self, x, marks):
        out = x.clone()
        for row in marks.nonzero():
            out[row] = out[row] * 2
        return out


class LastHit(Model):
    """Keeps what the last turn made."""

    def forward(self, x, counts):
        out = x
        for item in (counts > 0).nonzero():
            out = x * (item[0] + 1)
        return out


class FirstHit(Model):
    """Needs the first turn only."""

    def forward(self, x, counts):
        for item in (counts > 0).nonzero():
            return x * (item[0] + 1)
        return x


class Counting(Model):
    """Counts how often an item was hit."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hits", torch.zeros(4))

    def forward(self, x, counts):
        for item in (counts > 0).nonzero():
            self.hits[item[0]] += 1
        return x * 2


class Failing(Model):
    """Cannot do anything for an item that is not hit."""

    def forward(self, x, counts):
        for item in (counts > 0).nonzero():
            if counts[item[0]] == 0:
                raise ValueError("not hit")
        return x * 2


class Large(Model):
    """Asks about more than whether an item is hit."""

    def forward(self, x, chosen):
        out = x.clone()
        counts = nn.functional.one_hot(chosen, 3).sum(0)
        for item in (counts > 0).nonzero():
            (rows,) = torch.where(chosen == item[0])
            mine = x[rows]
            if mine[mine > 0].numel() == 0:
                mine = mine * 2
            out.index_copy_(0, rows, mine)
        return out


@pytest.mark.parametrize("kind", [Experts, NamedExperts])
@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_experts_run_in_a_loop(tmp_path: Path, to: str, kind: type[Experts]) -> None:
    model = kind().eval()
    programs = made(tmp_path, model, [call(t(2, 4)), call(t(7, 4)), call(t(5, 4))], to=to)
    assert len(programs) == 1
    # One token: four experts have none.
    assert_as_module(programs, model, [call(t(1, 4)), call(t(3, 4)), call(t(40, 4))], rtol=1e-3)


def evidence(model: nn.Module, *calls: tuple[torch.Tensor, ...]) -> LoopEvidence:
    found = LoopEvidence()

    def run(args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        before = [one.clone() for one in model.buffers()]
        result = [model(*args), *(one.clone() for one in model.buffers())]
        for one, was in zip(model.buffers(), before, strict=True):
            one.copy_(was)
        return result

    def same(expected: list[torch.Tensor], got: list[torch.Tensor]) -> bool:
        return all(map(torch.equal, expected, got))

    with torch.no_grad():
        for args in calls:
            found.look(partial(run, args), same)
    return found


@pytest.mark.parametrize("model", [LastHit(), FirstHit(), Counting(), Failing()])
@pytest.mark.parametrize("counts", [[2, 0, 1, 0], [0, 0, 3, 1], [1, 0, 0, 2]])
def test_the_order_and_the_state_of_a_loop_count(model: nn.Module, counts: list[int]) -> None:
    found = evidence(model, (t(3, 4), torch.tensor(counts)))
    assert not found.allowed
    assert found.harmful


@pytest.mark.integration
def test_another_question_in_a_turn_is_not_assumed(tmp_path: Path) -> None:
    """No program says of values below 0 what it says of others."""
    calls = [call(t(n, 3).abs(), torch.arange(n) % 2) for n in (4, 6, 5)]
    model = Large().eval()
    programs = made(tmp_path, model, calls)
    negative = call(-t(4, 3).abs(), torch.tensor([0, 1, 0, 1]))
    try:
        got = programs(*negative[0], **negative[1])
    except NoVariant:
        return
    assert torch.equal(got, model(*negative[0]))


def test_experts_may_run_without_tokens() -> None:
    assert evidence(Experts().eval(), (t(2, 4),)).allowed


def test_a_loop_that_does_more_for_what_is_hit_is_not_changed() -> None:
    assert not evidence(Marked(), (t(3, 4), torch.tensor([True, False, True]))).allowed


def test_a_loop_whose_every_item_was_hit_is_not_changed() -> None:
    every = torch.ones(3, dtype=torch.bool)
    assert not evidence(Marked(), (t(3, 4), every)).allowed
    assert torch.Tensor.__iter__ is _ITERATE


def test_a_model_without_such_loops_shows_nothing() -> None:
    assert not evidence(nn.Linear(4, 2), (t(3, 4),)).allowed
