"""How far apart two numbers may be: the verdicts of torch.testing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given as with_values
from hypothesis import strategies as st
from torch.testing._comparison import default_tolerances

from calltape_analyzer.comparison.comparing import (
    Tolerances,
)
from tests.analyzer.comparison.differences import difference

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
EXACT = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]


def close_to_torch(expected: torch.Tensor, got: torch.Tensor) -> bool:
    """The verdict of torch with the tolerances of the dtype, computed in double precision: in half
    precision a difference rounds to the tolerance that it exceeds."""
    rtol, atol = default_tolerances(expected.dtype)
    wide = torch.complex128 if expected.is_complex() else torch.float64
    try:
        torch.testing.assert_close(
            got.to(wide), expected.to(wide), rtol=rtol, atol=atol, equal_nan=True
        )
    except AssertionError:
        return False
    return True


ELEMENTS = st.floats(-1000, 1000) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0])


@with_values(
    st.lists(ELEMENTS, min_size=1, max_size=5),
    st.sampled_from(FLOATS + COMPLEX),
    st.integers(0, 4),
    st.sampled_from([0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1.0, math.nan, math.inf]),
    st.booleans(),
)
def test_the_verdict_is_that_of_torch(
    elements: list[float], dtype: torch.dtype, at: int, error: float, relative: bool
) -> None:
    expected = torch.tensor(elements, dtype=torch.float64).to(dtype)
    moved = list(elements)
    at %= len(moved)
    moved[at] += error * moved[at] if relative else error
    got = torch.tensor(moved, dtype=torch.float64).to(dtype)
    found = difference(expected, got)
    assert found.ok is close_to_torch(expected, got)
    assert found.ok is (found.error is None)


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX, ids=str)
def test_tolerances_are_those_of_torch(dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    assert Tolerances().of(name) == default_tolerances(dtype)


@pytest.mark.parametrize("dtype", EXACT, ids=str)
def test_exact_dtypes_are_compared_exactly(dtype: torch.dtype) -> None:
    expected = torch.tensor([0, 1, 1, 0]).to(dtype)
    got = torch.tensor([0, 1, 0, 0]).to(dtype)
    assert difference(expected, expected.clone()).ok
    found = difference(expected, got, factor=1e9)
    assert not found.ok
    assert "1 of 4 elements" in str(found.error)
    assert found.max_abs == 1


def test_large_ints_are_not_rounded_to_equal_ones() -> None:
    expected = torch.tensor([2**62 + 1, 2**53 + 1])
    assert not difference(expected, torch.tensor([2**62, 2**53 + 1])).ok
    assert not difference(expected, torch.tensor([2**62 + 1, 2**53])).ok
    assert difference(expected, expected.clone()).ok


@pytest.mark.parametrize("dtype", FLOATS + COMPLEX + EXACT[:4], ids=str)
def test_a_single_wrong_element_among_many_is_caught(dtype: torch.dtype) -> None:
    expected = torch.ones(100, 100).to(dtype)
    got = expected.clone()
    got[99, 0] = 2
    found = difference({"a": torch.zeros(2), "b": expected}, {"a": torch.zeros(2), "b": got})
    assert not found.ok
    assert found.max_abs == 1
    assert found.max_rel == 1
    assert str(found.error).startswith("outputs.b: 1 of 10000 elements differ")


def test_how_far_apart_is_said_of_what_is_ok_too() -> None:
    expected = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    got = expected + torch.tensor([5e-8, 1e-8, 0.0], dtype=torch.float64)
    found = difference(expected, got)
    assert found.ok
    assert found.max_abs == pytest.approx(5e-8)
    assert found.max_rel == pytest.approx(5e-8)


@pytest.mark.parametrize(
    ("tolerances", "ok"),
    [
        ({}, False),
        ({"factor": 100.0}, True),
        ({"rtol": 1e-3}, True),
        ({"atol": 1e-3}, True),
        ({"atol": 1e-9, "rtol": 0.0, "factor": 1e9}, False),
        ({"by_dtype": {"float32": (0.0, 1e-3)}}, True),
        ({"by_dtype": {"float64": (0.0, 1e-3)}}, False),
        ({"by_dtype": {"float32": (0.0, 0.0)}, "atol": 1.0}, False),
    ],
    ids=repr,
)
def test_tolerances_can_be_set(tolerances: dict[str, Any], ok: bool) -> None:
    assert difference(torch.ones(3), torch.ones(3) + 1e-4, **tolerances).ok is ok


@pytest.mark.parametrize(
    ("expected", "got"),
    [(math.nan, 1.0), (1.0, math.nan), (math.inf, -math.inf), (math.inf, 1.0), (1.0, math.inf)],
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_and_infinity_equal_only_themselves(
    expected: float, got: float, dtype: torch.dtype
) -> None:
    one, other = torch.tensor([1, expected]).to(dtype), torch.tensor([1, got]).to(dtype)
    found = difference(one, other, atol=1e9, rtol=1e9)
    assert not found.ok
    assert found.max_abs == math.inf
    same = difference(one, one.clone())
    assert same.ok
    assert same.max_abs == same.max_rel == 0
    # NaN on both sides is no difference, and says nothing.
    assert same.compared == (1 if math.isnan(expected) else 2)
