"""Two results are the same, or it is said where they are not."""

from __future__ import annotations

import enum
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    has_values,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.comparison.reports import Verdict
from tests.analyzer.comparison.differences import difference
from tests.analyzer.observed import given, tape_of


def stable(value: Any) -> str:
    """The same name in every process, for sets and objects without a repr too."""
    plain = not re.search(r" at 0x|\{'", repr(value))
    return repr(value) if plain else type(value).__name__


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


@pytest.mark.parametrize(
    ("expected", "got", "words"),
    [
        (torch.zeros(2), torch.zeros(3), "float32[3] instead of float32[2]"),
        (torch.zeros(2), torch.zeros(2, 1), "float32[2, 1] instead of float32[2]"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "float64[2] instead of float32[2]"),
        (torch.zeros(0, 3), torch.zeros(0, 4), "float32[0, 4]"),
        ((torch.zeros(1),), (torch.zeros(1), torch.zeros(1)), "unexpected: outputs.1"),
        ((torch.zeros(1), torch.zeros(1)), (torch.zeros(1),), "missing: outputs.1"),
        ({"a": torch.zeros(1)}, {"b": torch.zeros(1)}, "missing: outputs.a; unexpected: outputs.b"),
        (torch.zeros(1), None, "missing: outputs"),
        (None, torch.zeros(1), "unexpected: outputs"),
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
    ids=stable,
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
    ids=stable,
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
    ids=stable,
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
    assert str(found.error).startswith("outputs.latent.0.")
    assert not difference(one, {"latent": [made(torch.ones(4))]}).ok


def test_a_part_of_an_object_that_cannot_be_described_is_named() -> None:
    one, other = (Dist(torch.ones(3), sampler=torch.relu) for _ in range(2))
    found = difference({"d": one}, {"d": other})
    assert not found.ok
    assert found.agrees
    assert found.compared == 6
    (said,) = found.unverified
    assert str(said).startswith(
        "outputs.d.sampler (builtins:builtin_function_or_method) cannot be desc"
    )
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
    assert str(found.error).startswith("outputs.b:")


def test_private_attributes_are_compared() -> None:
    one = SimpleNamespace(x=torch.zeros(1), _state=torch.zeros(3))
    other = SimpleNamespace(x=torch.zeros(1), _state=torch.ones(3))
    assert difference(one, one).ok
    assert str(difference(one, other).error).startswith("outputs._state:")


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
    assert compared(expected, leaves_of(model(x)), Tolerances()) == Verdict(compared=12)
    assert not compared(expected, leaves_of(model(x + 1)), Tolerances()).ok


def test_outputs_without_values_are_not_the_same(tmp_path: Path) -> None:
    model, x = Returning(), torch.rand(3)
    expected = recorded_leaves(tape_of(tmp_path, [given(x)], model, values="none").calls[0])
    assert expected is not None
    found = compared(expected, leaves_of(model(x + 1)), Tolerances())
    assert not found.ok
    said = " ".join(map(str, found.unverified))
    assert "outputs.logits has no value on the tape, only a dtype and a shape" in said
    assert "outputs.s (builtins:float) has no value on the tape" in said
    assert not has_values(expected)
    assert not compared(expected, leaves_of(model(torch.rand(4))), Tolerances()).agrees


def test_outputs_that_were_not_kept_are_none(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [given(torch.rand(3))], Returning(), outputs=False)
    assert recorded_leaves(tape.calls[0]) is None


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


@pytest.mark.parametrize("recorded", ["past_key_values", "cache_params", "cache"])
@pytest.mark.parametrize("here", ["past_key_values", "cache_params", "cache"])
def test_a_renamed_field_is_compared_by_value(recorded: str, here: str) -> None:
    """docs/decisions/guards-and-verdicts.md: by value, whichever side has the new name."""
    expected, same = ({"logits": torch.ones(1), n: [torch.ones(2)]} for n in (recorded, here))
    other = {"logits": torch.ones(1), here: [torch.zeros(2)]}
    known = "cache" in (recorded, here) or recorded == here
    assert difference(expected, same).ok == known
    assert not difference(expected, other).ok
    leaves = leaves_of(expected), leaves_of(other)
    assert compared(*leaves, Tolerances(), against="shapes").ok == known


def test_both_names_are_two_fields() -> None:
    both = {"cache": torch.ones(1), "past_key_values": torch.ones(1)}
    one = {"cache": torch.ones(1)}
    assert "missing: outputs.past_key_values" in str(difference(both, one).error)
    assert "unexpected: outputs.past_key_values" in str(difference(one, both).error)
    assert difference({"a": {"cache": torch.ones(1)}}, {"a": {"past": torch.ones(1)}}).error


def test_the_default_device_of_an_application_is_left_alone() -> None:
    with torch.device("meta"):
        found = difference(torch.zeros(2, 3, device="cpu"), torch.ones(2, 3, device="cpu"))
    assert "index=(0, 0)" in repr(found)
