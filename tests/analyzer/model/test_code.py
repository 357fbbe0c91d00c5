"""Which models may draw random numbers with Python, as far as their code shows."""

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
def test_code_that_draws(function: Any) -> None:
    assert may_draw(Calling(function))


def test_a_generator_that_the_model_holds() -> None:
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
