"""A function that remembers its results hashes a size, and keeps what it made of it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensor

from tests.analyzer.exported import assert_as_module, call, made


@functools.lru_cache
def ramp(n: int) -> torch.Tensor:
    return torch.linspace(0, 1, n)


@functools.cache
def fixed(n: int) -> torch.Tensor:
    return torch.full((n,), 2.0)


class OfFunction(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + ramp(x.shape[1])


class OfMethod(torch.nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def ramp(self, n: int) -> torch.Tensor:
        return torch.linspace(0, 1, n)

    @staticmethod
    @functools.lru_cache
    def twice(n: int) -> torch.Tensor:
        return torch.linspace(0, 2, n)

    def forward(self, x: Any) -> Any:
        return x + self.ramp(x.shape[1]) * self.twice(x.shape[1])


class OfNumber(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x * fixed(2)


CALLS = [call(torch.ones(2, n)) for n in (5, 8, 11)]
UNSEEN = [call(torch.ones(2, n)) for n in (7, 20)]


def test_a_cached_function_of_a_size_caches_no_fake_tensor(tmp_path: Path) -> None:
    module = OfFunction()
    programs = made(tmp_path, module, CALLS, UNSEEN)
    assert len(programs) == 1
    assert not isinstance(ramp(5), FakeTensor)
    assert_as_module(programs, module, UNSEEN)


def test_a_cached_method_is_put_back_after_the_export(tmp_path: Path) -> None:
    before = OfMethod.__dict__["ramp"]
    assert len(made(tmp_path, OfMethod(), CALLS, UNSEEN)) == 1
    assert OfMethod.__dict__["ramp"] is before


def test_what_the_trace_made_is_not_remembered(tmp_path: Path) -> None:
    module = OfNumber()
    calls = [call(torch.ones(n, 2)) for n in (3, 4)]
    fixed.cache_clear()
    made(tmp_path, module, calls)
    fixed.cache_clear()
    from calltape_analyzer.exporting.torch_fixes.cached_functions import cached_functions

    with cached_functions(module):
        program = torch.export.export(module, (torch.ones(3, 2),), strict=False)
    assert type(fixed(2)) is torch.Tensor
    assert torch.equal(program.module()(torch.ones(3, 2)), torch.full((3, 2), 2.0))


class Told(torch.nn.Module):
    """Looks at the memory of a function, which gives a tensor in an object."""

    def forward(self, x: Any) -> Any:
        assert boxed.cache_info().maxsize == 4
        return x * boxed(2).tensor


class Box:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor


@functools.lru_cache(maxsize=4)
def boxed(n: int) -> Box:
    return Box(torch.full((n,), 2.0))


def test_what_an_object_holds_is_forgotten_too(tmp_path: Path) -> None:
    module = Told()
    calls = [call(torch.ones(n, 2)) for n in (3, 4)]
    made(tmp_path, module, calls)
    boxed.cache_clear()
    from calltape_analyzer.exporting.torch_fixes.cached_functions import cached_functions

    with cached_functions(module):
        torch.export.export(module, (torch.ones(3, 2),), strict=False)
    assert type(boxed(2).tensor) is torch.Tensor
