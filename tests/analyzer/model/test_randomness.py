"""Generators are put back, and what draws from them is seen."""

from __future__ import annotations

import random

import numpy
import torch

from calltape_analyzer.model.randomness import Draws, Generators, generators_kept, reseed


class Holding(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator()
        self.python = random.Random(1)
        self.numpy = numpy.random.default_rng(1)


def drawn(held: Holding) -> tuple[float, ...]:
    return (
        float(torch.rand(())),
        float(torch.rand((), generator=held.own)),
        random.random(),
        held.python.random(),
        float(numpy.random.rand()),
        float(held.numpy.random()),
    )


def test_all_generators_are_put_back() -> None:
    held = Holding()
    with generators_kept(held) as generators:
        first = drawn(held)
        assert generators.moved() == ["random", "numpy.random", "torch"]
    assert drawn(held) == first


def test_another_state_gives_other_numbers() -> None:
    held = Holding()
    with generators_kept(held):
        first = drawn(held)
    with generators_kept(held):
        reseed(held)
        other = drawn(held)
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_nothing_moves_unless_somebody_draws() -> None:
    generators = Generators(Holding())
    torch.zeros(3)
    assert generators.moved() == []


def test_attention_that_drops_nothing_draws_nothing() -> None:
    x = torch.ones(1, 2, 3, 4)
    with generators_kept(), Draws(None) as draws:
        torch.nn.functional.scaled_dot_product_attention(x, x, x)
        assert not draws.operators
        torch.nn.functional.dropout(x, 0.5)
    assert list(draws.operators) == ["aten.native_dropout.default"] or draws.operators
