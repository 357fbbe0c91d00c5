"""Where a model draws is noted, and what depends on it is followed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from calltape_analyzer.model.draws import Draws
from calltape_analyzer.model.randomness import generators_kept


def test_attention_that_drops_nothing_draws_nothing() -> None:
    x = torch.ones(1, 2, 3, 4)
    with generators_kept(), Draws(None) as draws:
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        assert not draws.operators
        torch.nn.functional.dropout(x, 0.5)
    assert draws.operators


def _written(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3)
    made[1:] = torch.rand(2)
    return made


def _selected(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(torch.nonzero(torch.rand(3) > 2)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.rand(3),
        lambda x: x + torch.randint(0, 1, (3,)),
        lambda x: torch.rand(3, 3)[0].view(3, 1),
        _written,
        _selected,
        lambda x: x * int(torch.randint(0, 1, ())),
        lambda x: x * torch.rand(1).tolist()[0],
        lambda x: x * torch.rand(1).numpy()[0],
        lambda x: x * 2 if torch.rand(()) < 2 else x,
    ],
)
def test_what_depends_on_a_draw_is_known(function: Callable[[Any], Any]) -> None:
    x = torch.ones(3)
    with generators_kept(), Draws(None) as draws:
        before = x * 3
        result = function(x)
    assert draws.reach(result)
    assert draws.reach(before) == draws.reach(1)  # all of it only if a number was read


def test_what_does_not_depend_on_it_is_known() -> None:
    x = torch.ones(3)
    with generators_kept(), Draws(None) as draws:
        noise = torch.rand_like(x)
        steady = x.sum() + noise.shape[0]
    assert draws.reach(noise)
    assert not draws.reach(steady)


def test_the_line_that_draws_with_python_is_known() -> None:
    def inner() -> float:
        number = random.uniform(0, 1)
        return number + 1

    with generators_kept(), Draws(None) as draws:
        inner()
        sum([1, 2])
    assert draws.others == ["random"]
    assert [line.line for line in draws.lines] == ["number = random.uniform(0, 1)"]
