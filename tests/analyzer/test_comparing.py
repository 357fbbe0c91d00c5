"""Two results are the same, or it is said where they are not."""

from __future__ import annotations

import enum
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given as with_values
from hypothesis import settings
from hypothesis import strategies as st
from torch.testing._comparison import default_tolerances

from calltape_analyzer.comparing import (
    Difference,
    Tolerances,
    compared,
    has_values,
    leaves_of,
    recorded_leaves,
)

from .observing import given, tape_of

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
EXACT = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool]


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


def difference(expected: Any, got: Any, **tolerances: Any) -> Difference:
    return compared(leaves_of(expected), leaves_of(got), Tolerances(**tolerances))


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


@settings(max_examples=150, deadline=None)
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
    assert str(found.error).startswith("b: 1 of 10000 elements differ")


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


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (torch.zeros(2), torch.zeros(3), "float32[3] instead of float32[2]"),
        (torch.zeros(2), torch.zeros(2, 1), "float32[2, 1] instead of float32[2]"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "float64[2] instead of float32[2]"),
        (torch.zeros(0, 3), torch.zeros(0, 4), "float32[0, 4]"),
        ((torch.zeros(1),), (torch.zeros(1), torch.zeros(1)), "unexpected: 1"),
        ((torch.zeros(1), torch.zeros(1)), (torch.zeros(1),), "missing: 1"),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}, "missing: a; unexpected: b"),
        (torch.zeros(1), None, "missing: the output"),
        (None, torch.zeros(1), "unexpected: the output"),
        (3, 4, "4 instead of 3"),
        (3, 3.0, "3.0 instead of 3"),
        (True, torch.zeros(2), "instead of True"),
        (True, False, "False instead of True"),
        (1.0, True, "True instead of 1.0"),
        (torch.float32, torch.float64, "dtype float64 instead of dtype float32"),
        (Shade.DARK, Shade.LIGHT, "enum LIGHT instead of enum DARK"),
        ({"a", "b"}, {"a", "c"}, "instead of frozenset"),
        ({"a", "b"}, {"a"}, "instead of frozenset"),
        ({1: torch.zeros(1), "1": torch.zeros(1)}, {1: torch.zeros(1), "1": torch.ones(1)}, "1~:"),
        ("a", "b", "'b' instead of 'a'"),
        (2.5, 2.6, "2.6 instead of 2.5"),
        (2.5, math.nan, "nan instead of 2.5"),
        (torch.tensor(3), 4, "4 instead of 3"),
        (3, torch.tensor(4), "4 instead of 3"),
        (3, torch.tensor([3, 3]), "instead of 3"),
        (1j, 2j, "instead of"),
    ],
    ids=repr,
)
def test_what_differs_is_said(expected: Any, got: Any, words: str) -> None:
    found = difference(expected, got)
    assert not found.ok
    assert words in str(found.error)


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (torch.zeros(0), torch.zeros(0)),
        (torch.zeros(2, 0, 3), torch.zeros(2, 0, 3)),
        ({"a", "b", "c"}, {"c", "b", "a"}),
        (Shade.DARK, Shade.DARK),
        ((True, None), [True]),  # None is no value
        (3, 3),
        (3, torch.tensor(3)),
        (torch.tensor([3]), 3),
        (2.5, 2.5 + 1e-7),
        (math.nan, math.nan),
        (math.inf, math.inf),
        (1j, 1j),
        ("a", "a"),
        (torch.ones(2).requires_grad_(), torch.ones(2)),
        (torch.ones(2, 3), torch.ones(3, 2).t()),
        (torch.ones(1, 3).expand(2, 3), torch.ones(2, 3)),
        (torch.ones(2, dtype=torch.complex64).conj(), torch.ones(2, dtype=torch.complex64)),
        ([torch.ones(2)], (torch.ones(2),)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ],
    ids=repr,
)
def test_what_is_the_same_is_ok(expected: Any, got: Any) -> None:
    found = difference(expected, got)
    assert found.ok
    assert found.error is None


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (None, None, "nothing was compared: the outputs hold no tensor and no value"),
        ((), [], "nothing was compared"),
        ({}, {}, "nothing was compared"),
        ({"a": [None]}, {"a": [None]}, "nothing was compared"),
        (torch.zeros(2, device="meta"), torch.ones(2), "outputs has no value on the tape"),
        (torch.ones(2), torch.zeros(2, device="meta"), "outputs has no value on the tape"),
        ({"f": len}, {"f": len}, "nothing was compared: outputs.f (builtins:builtin_function_or_m"),
        (
            [torch.ones(1), (i for i in "a")],
            [torch.ones(1), (i for i in "a")],
            "not verified: outp",
        ),
        ((torch.nn.ReLU(),), (torch.nn.ReLU(),), "outputs.0 (torch.nn.modules.activation:ReLU)"),
        ({"f": len}, {"f": torch.ones(1)}, "nothing was compared: outputs.f"),
        ({"f": {"x": torch.ones(1)}}, {"f": len}, "nothing was compared: outputs.f"),
        ({torch.ones(1), torch.zeros(1)}, {torch.ones(1), torch.zeros(1)}, "without an order"),
    ],
    ids=repr,
)
def test_what_was_not_compared_is_not_the_same(expected: Any, got: Any, words: str) -> None:
    found = difference(expected, got)
    assert not found.ok
    assert words in str(found.error)


class Dist:
    """A result of a plain class: no dataclass, not registered, with code that must not run."""

    def __init__(self, mean: torch.Tensor, **more: Any) -> None:
        self.mean = mean
        self._std = mean * 2
        vars(self).update(more)

    @property
    def mode(self) -> torch.Tensor:
        raise AssertionError("a property of a result was read")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


class Slotted:
    __slots__ = ("mean", "missing")

    def __init__(self, mean: torch.Tensor) -> None:
        self.mean = mean


class ToyCache:
    def __init__(self, keys: torch.Tensor, flag: bool) -> None:
        self.keys, self.is_ready, self._seen = keys, flag, torch.rand(1)


@pytest.mark.parametrize("made", [Dist, Slotted, lambda x: torch.distributions.Normal(x, x + 1)])
def test_an_object_is_compared_by_what_it_holds(made: Any) -> None:
    one = {"latent": [made(torch.ones(3))]}
    assert difference(one, {"latent": [made(torch.ones(3))]}).ok
    found = difference(one, {"latent": [made(torch.ones(3) + 1)]})
    assert not found.ok
    assert str(found.error).startswith("latent.0.")
    assert not difference(one, {"latent": [made(torch.ones(4))]}).ok


def test_a_part_of_an_object_that_cannot_be_described_is_named() -> None:
    one, other = (Dist(torch.ones(3), sampler=torch.relu) for _ in range(2))
    found = difference({"d": one}, {"d": other})
    assert not found.ok
    assert found.agrees
    assert found.compared == 6
    (said,) = found.unverified
    assert said.startswith("outputs.d.sampler (builtins:builtin_function_or_method) cannot be desc")
    other.mean += 1
    assert not difference({"d": one}, {"d": other}).agrees


def test_an_object_that_holds_itself_is_compared_by_the_rest() -> None:
    one, other = Dist(torch.ones(3)), Dist(torch.ones(3))
    vars(one)["me"], vars(other)["me"] = one, [other]
    assert difference(one, other).ok
    vars(other)["mean"] = torch.zeros(3)
    assert not difference(one, other).ok


def test_books_that_a_cache_keeps_are_not_compared() -> None:
    assert difference(ToyCache(torch.ones(2), True), ToyCache(torch.ones(2), False)).ok
    assert not difference(ToyCache(torch.ones(2), True), ToyCache(torch.zeros(2), True)).ok


def test_what_a_target_cannot_return_is_left_out() -> None:
    expected = leaves_of({"x": torch.ones(2), "n": 3})
    got = leaves_of({"x": torch.ones(2)})
    assert compared(expected, got, Tolerances(), [".n"]).ok
    found = compared(leaves_of({"n": 3}), {}, Tolerances(), [".n"])
    assert not found.ok
    assert "the model returns nothing of what was recorded" in str(found.error)


def test_a_meta_tensor_still_has_a_shape_and_a_dtype() -> None:
    expected = torch.zeros(2, device="meta")
    assert not difference(expected, torch.ones(3)).ok
    assert not difference(expected, torch.ones(2).double()).ok


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_quantized_tensors_are_compared_by_what_they_stand_for() -> None:
    def made(values: list[float]) -> torch.Tensor:
        return torch.quantize_per_tensor(torch.tensor(values), 0.5, 3, torch.quint8)

    assert difference(made([1.0, 2.0]), made([1.0, 2.0])).ok
    found = difference(made([1.0, 2.0]), made([1.0, 2.5]))
    assert not found.ok
    assert found.max_abs == 0.5


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64],
    ids=str,
)  # fmt: skip
def test_unusual_dtypes_are_compared_exactly(dtype: torch.dtype) -> None:
    expected = torch.tensor([1.0, 2.0]).to(dtype)
    assert difference(expected, torch.tensor([1.0, 2.0]).to(dtype)).ok
    found = difference(expected, torch.tensor([1.0, 4.0]).to(dtype))
    assert not found.ok
    assert found.max_abs == 2


def test_sparse_tensors_can_be_compared() -> None:
    assert difference(torch.eye(3).to_sparse(), torch.eye(3).to_sparse()).ok
    assert not difference(torch.eye(3).to_sparse(), (2 * torch.eye(3)).to_sparse()).ok


def test_the_worst_of_several_outputs_counts() -> None:
    expected = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}
    got = {"a": torch.zeros(2), "b": torch.full((2,), 3.0), "c": torch.ones(2)}
    found = difference(expected, got)
    assert not found.ok
    assert found.max_abs == 3
    assert str(found.error).startswith("b:")


def test_private_attributes_are_compared() -> None:
    one = SimpleNamespace(x=torch.zeros(1), _state=torch.zeros(3))
    other = SimpleNamespace(x=torch.zeros(1), _state=torch.ones(3))
    assert difference(one, one).ok
    assert str(difference(one, other).error).startswith("_state:")


class Returning(torch.nn.Module):
    """Returns the nested outputs of some models."""

    def forward(self, x: Any) -> Any:
        return {"logits": x * 2, "past": [(x, None), (x + 1, 3)], "n": x.shape[0], "s": 0.5}


def test_recorded_outputs_compare_with_live_ones(tmp_path: Path) -> None:
    model, x = Returning(), torch.rand(3)
    tape = tape_of(tmp_path, [given(x)], model)
    expected = recorded_leaves(tape.calls[0])
    assert expected is not None
    assert set(expected) == {".logits", ".past.0.0", ".past.1.0", ".past.1.1", ".n", ".s"}
    assert compared(expected, leaves_of(model(x)), Tolerances()) == Difference(
        True, compared=12, agrees=True
    )
    assert not compared(expected, leaves_of(model(x + 1)), Tolerances()).ok


def test_outputs_without_values_are_not_the_same(tmp_path: Path) -> None:
    model, x = Returning(), torch.rand(3)
    expected = recorded_leaves(tape_of(tmp_path, [given(x)], model, values="none").calls[0])
    assert expected is not None
    found = compared(expected, leaves_of(model(x + 1)), Tolerances())
    assert not found.ok
    said = " ".join(found.unverified)
    assert "outputs.logits has no value on the tape, only a dtype and a shape" in said
    assert "outputs.s (builtins:float) has no value on the tape" in said
    assert not has_values(expected)
    assert not compared(expected, leaves_of(model(torch.rand(4))), Tolerances()).agrees


def test_outputs_that_were_not_kept_are_none(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(torch.rand(3))], Returning(), outputs=False)
    assert recorded_leaves(tape.calls[0]) is None


def test_a_difference_is_plain_data() -> None:
    found = difference(torch.zeros(2), torch.ones(2))
    assert json.dumps([found.ok, found.max_abs, found.error])


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (1.0, 1),
        (torch.tensor([complex(1, math.nan)]), torch.tensor([complex(2, math.nan)])),
        (torch.eye(2).to_sparse(), torch.eye(2)),
    ],
    ids=["int for float", "complex beside NaN", "dense for sparse"],
)
def test_what_only_looks_alike_is_not_the_same(expected: Any, got: Any) -> None:
    assert not difference(expected, got).ok
    assert difference(expected, expected).ok
