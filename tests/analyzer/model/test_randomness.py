"""Generators are put back, and what draws from them is seen."""

from __future__ import annotations

import random
import random as other_name
import sys
from random import choice
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch

from calltape_analyzer.model.code import may_draw
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
        self.numpy: Any = numpy.random.default_rng(1)


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
        assert generators.drawn_from() == ["random", "numpy.random", "torch", OF_NUMPY]
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
    assert generators.drawn_from() == []


@pytest.mark.filterwarnings("error")
def test_other_generators_of_numpy_are_put_back() -> None:
    """In the module, and under the functions of ``numpy.random``."""
    held = Holding()
    held.numpy = numpy.random.RandomState(numpy.random.PCG64(1))
    old = numpy.random.get_bit_generator()
    numpy.random.set_bit_generator(numpy.random.PCG64(1))
    try:
        with generators_kept(held) as generators:
            first = drawn(held)
            assert generators.drawn_from() == ["random", OF_NUMPY, "torch"]
        with generators_kept(held):
            reseed(held)
            other = drawn(held)
        assert drawn(held) == first
    finally:
        numpy.random.set_bit_generator(old)
    assert all(one != another for one, another in zip(first, other, strict=True))


def test_python_and_numpy_give_their_smallest_and_largest_numbers() -> None:
    held = Holding()
    for numbers, bound in (("smallest", 0.0), ("largest", 1.0)):
        with generators_kept(held):
            set_python(held, numbers)
            own = random.random(), held.python.random(), float(numpy.random.rand())
            assert all(abs(number - bound) < 1e-9 for number in own)
            random.normalvariate(0, 1)  # draws until a number is small enough: it ends


OWN = random.Random(3)


class Calling(torch.nn.Module):
    def __init__(self, function: Any, held: Any = None) -> None:
        super().__init__()
        self.function = function
        self.held = held

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def by_module(own: Any, x: Any) -> Any:
    return x * random.random()


def by_other_name(own: Any, x: Any) -> Any:
    return x * other_name.gauss(0, 1)


def by_function(own: Any, x: Any) -> Any:
    return x * choice([1, 2])


def by_global(own: Any, x: Any) -> Any:
    return x * OWN.gauss(0, 1)


def by_numpy(own: Any, x: Any) -> Any:
    return x * numpy.random.rand()


def by_held(own: Any, x: Any) -> Any:
    return x * own.held.uniform(0, 1)


def by_inner(own: Any, x: Any) -> Any:
    return (lambda: x * other_name.gauss(0, 1))()


@pytest.mark.parametrize(
    "function", [by_module, by_other_name, by_function, by_global, by_numpy, by_inner]
)
def test_code_that_draws_is_recognized(function: Any) -> None:
    assert may_draw(Calling(function))


def test_generators_that_the_model_holds_are_recognized() -> None:
    assert may_draw(Calling(by_held, random.Random(1)))
    assert may_draw(Calling(by_held, numpy.random.default_rng(1)))


def test_methods_of_the_names_of_python_s_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    source = """
import torch

class Sampler:
    seed = 3
    def sample(self, x):
        return x * self.seed

class Model(torch.nn.Module):
    def forward(self, x):
        return Sampler().sample(x)
"""
    module = ModuleType("calltape_test_of_names")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(source, module.__dict__)
    assert not may_draw(module.Model())


def test_a_layer_draws_nothing() -> None:
    assert not may_draw(torch.nn.Linear(2, 2))
    assert not may_draw(torch.nn.TransformerEncoderLayer(4, 2))
