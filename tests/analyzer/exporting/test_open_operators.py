"""Operators that would make a constant of a size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from calltape_analyzer.exporting.torch_fixes.open_operators import OpenOperators
from tests.analyzer.exported import Call, assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t


class Sized(Model):
    """Gives sizes to operators."""

    def forward(self, x, how: str = "as_tensor"):
        high, wide = x.shape[2:]
        if how == "as_tensor":
            return x.sum((1, 2, 3)) / torch.as_tensor([(high, wide), (wide, 2)]).sum()
        if how == "new_tensor":
            return x.sum((1, 2, 3)) / x.new_tensor([high, wide]).sum()
        if how == "linspace":
            return x * torch.linspace(0.5, high - 0.5, wide)
        if how == "one_hot":
            return x + functional.one_hot(torch.tensor([1, 2]), wide).sum(0)
        if how == "avg_pool2d":
            return functional.avg_pool2d(x, kernel_size=x.shape[-2:])
        if how == "max_pool2d":
            return functional.max_pool2d(x, (high, wide))
        if how == "interpolate":
            scale = 24 / min(high, wide)
            return functional.interpolate(
                x, scale_factor=scale, mode="bilinear", recompute_scale_factor=True
            )
        if how == "max_pool1d":
            return functional.max_pool1d(x[0], wide)
        return functional.max_pool1d(x[:, 0], 2, stride=1)[..., : wide // 2]


_OPERATORS = (
    "as_tensor", "new_tensor", "linspace", "one_hot", "avg_pool2d", "max_pool2d", "max_pool1d",
    "interpolate", "part",
)  # fmt: skip


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
@pytest.mark.parametrize("how", _OPERATORS)
def test_a_size_stays_open_in_an_operator(tmp_path: Path, how: str, to: str) -> None:
    calls = [call(t(2, 3, n, 5 + n), how=how) for n in (6, 9, 12)]
    model = Sized()
    programs = made(tmp_path, model, calls, to=to)
    assert len(programs) == 1
    unseen = [call(t(2, 3, 8, 11), how=how), call(t(2, 3, 20, 5), how=how)]
    assert_as_module(programs, model, unseen, rtol=1e-3)


class Taken(Model):
    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, x, i):
        return torch.take_along_dim(x, i, self.axis)


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.integration)])
def test_sizes_stay_open_where_elements_are_taken(tmp_path: Path, to: str) -> None:
    def given(*sizes: int) -> Call:
        rows, columns, indices, taken = sizes
        return call(t(rows, columns), torch.randint(0, columns, (indices, taken)))

    # Indices of one row are for all rows.
    calls = [given(2, 4, 1, 3), given(5, 7, 1, 2)]
    programs = made(tmp_path, Taken(-1), calls, [given(1, 5, 1, 3), given(3, 9, 1, 4)], to=to)
    assert len(programs) == 1


def test_sizes_stay_open_where_elements_of_all_rows_are_taken(tmp_path: Path) -> None:
    calls = [call(t(n, 3), torch.randint(0, n, (n + 1,))) for n in (2, 5)]
    more = [call(t(n, 3), torch.randint(0, n, (n + 1,))) for n in (1, 8)]
    assert len(made(tmp_path, Taken(None), calls, more)) == 1


def test_values_are_as_without() -> None:
    x = t(2, 3, 6, 5)
    given = (
        lambda: functional.avg_pool2d(x, 2, stride=1),
        lambda: functional.max_pool2d(x, (6, 5), padding=2),
        lambda: functional.max_pool1d(x[0], 5),
        lambda: functional.max_pool1d(x[0], 2),
        lambda: functional.max_pool1d(x[0], 3, 2, 1),
        lambda: torch.linspace(0, 1, 7, dtype=torch.float64),
        lambda: torch.as_tensor(x),
    )
    for operator in given:
        with OpenOperators():
            got = operator()
        assert torch.equal(got, operator())


def test_a_list_of_tensors_is_a_tensor_as_before() -> None:
    one, two = torch.tensor(3, dtype=torch.int32), torch.tensor(4, dtype=torch.int32)
    for data in ([one, two], (two,), [one, torch.tensor(2.5)], [[one], [two]], [2, 3], []):
        for own in ({}, {"dtype": torch.float64}, {"dtype": torch.half, "requires_grad": True}):
            expected = torch.tensor(data, **own)
            with OpenOperators():
                found = torch.tensor(data, **own)
            torch.testing.assert_close(found, expected)
            assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
