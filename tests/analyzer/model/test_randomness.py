"""Generators are put back, and what draws from them is seen."""

from __future__ import annotations

import random

import numpy
import torch

from calltape_analyzer.model.randomness import (
    OF_NUMPY,
    Generators,
    generators_kept,
    reseed,
    set_python,
)


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
        assert generators.moved() == ["random", "numpy.random", "torch", OF_NUMPY]
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


def test_python_and_numpy_give_their_smallest_and_largest_numbers() -> None:
    held = Holding()
    for numbers, bound in (("smallest", 0.0), ("largest", 1.0)):
        with generators_kept(held):
            set_python(held, numbers)
            own = random.random(), held.python.random(), float(numpy.random.rand())
            assert all(abs(number - bound) < 1e-9 for number in own)
            random.normalvariate(0, 1)  # draws until a number is small enough: it ends
