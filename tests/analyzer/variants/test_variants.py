"""Calls split into the programs that can serve them, and what these are exported with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape
from tests.analyzer.arguments.generating import Generating, step
from tests.analyzer.observed import (
    Given,
    Optional,
    given,
    tape_of,
    zeros,
)
from tests.analyzer.variants.named import named, numbers

# --- which variants there are --------------------------------------------------------------------


def test_prefill_and_decode_are_two(tmp_path: Path) -> None:
    tape = tape_of(tmp_path, [step(1, 5, 0), step(1, 1, 5), step(2, 4, 0), step(2, 1, 6)],
                   Generating())  # fmt: skip
    assert numbers(tape) == {"prefill": [0, 2], "decode": [1, 3]}


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([given(zeros(2)), given(zeros(3))], {"main": [0, 1]}),
        (
            [given(zeros(2)), given(zeros(2), zeros(2)), given(zeros(3), mask=None)],
            {"no mask": [0, 2], "mask present": [1]},
        ),
        ([given(zeros(2), add=False), given(zeros(3))], {"add=False": [0], "add=True": [1]}),
        (
            [given(zeros(size), mode=mode) for size in (2, 3) for mode in ("sum", "max")],
            {"mode='sum'": [0, 2], "mode='max'": [1, 3]},
        ),
        (
            [given(zeros(size), scale=scale) for size in (2, 3) for scale in (0.5, 0.25)],
            {"main": [0, 1, 2, 3]},
        ),
        # Each came once: nothing says that they select anything.
        ([given(zeros(2), mode="sum"), given(zeros(3), mode="max")], {"main": [0, 1]}),
        ([given(zeros(2), steps=2), given(zeros(3), steps=3)], {"main": [0, 1]}),
        (
            [given(zeros(2)), given(zeros(2, dtype=torch.float64))],
            {"x float32": [0], "x float64": [1]},
        ),
        ([given(zeros(2)), given(zeros(2, 2))], {"x of rank 1": [0], "x of rank 2": [1]}),
        (
            [given([zeros(2)]), given([zeros(2), zeros(3)])],
            {"1 tensor in x": [0], "2 tensors in x": [1]},
        ),
        (
            [given(zeros(4), zeros(4)), given(zeros(5), zeros(1)), given(zeros(6), zeros(6))],
            {"mask[0] > 1": [0, 2], "mask[0] = 1": [1]},
        ),
        (
            [
                given(zeros(2), add=add, **mask)
                for add in (True, False)
                for mask in ({}, {"mask": zeros(2)})
            ],
            {
                "add=True, no mask": [0],
                "add=True, mask present": [1],
                "add=False, no mask": [2],
                "add=False, mask present": [3],
            },
        ),
    ],
    ids=lambda value: None if isinstance(value, list) else ",".join(value),
)
def test_variants_and_their_names(
    tmp_path: Path, calls: list[Given], expected: dict[str, list[int]]
) -> None:
    def in_any_order(by_name: dict[str, list[int]]) -> dict[frozenset[str], list[int]]:
        return {frozenset(name.split(", ")): calls for name, calls in by_name.items()}

    tape = tape_of(tmp_path, calls, Optional())
    assert in_any_order(numbers(tape)) == in_any_order(expected)


def test_names_are_unique_even_where_nothing_readable_tells_variants_apart(tmp_path: Path) -> None:
    calls = [given([zeros(1), (zeros(1),)]), given([(zeros(1),), zeros(1)]),
             given(((zeros(1),), zeros(1)))]  # fmt: skip
    assert len(named(tape_of(tmp_path, calls, Optional()))) == 3


def test_the_variants_stand_in_the_order_of_their_first_call(tmp_path: Path) -> None:
    calls = [given(zeros(2)), given(zeros(2), zeros(2)), given(zeros(3)), given([zeros(2)])]
    variants = tape_of(tmp_path, calls, Optional()).variants()
    assert [variant.calls[0].number for variant in variants] == [0, 1, 3]
    assert [len(variant) for variant in variants] == [2, 1, 1]


def test_calls_that_raised_are_left_out_unless_all_did(tmp_path: Path) -> None:
    class Raising(Optional):
        def forward(self, x: Any, fail: Any = None) -> torch.Tensor:  # type: ignore[override]
            if fail is not None:
                raise ValueError
            return torch.zeros(())

    def tape(*fails: Any) -> Tape:
        from calltape_analyzer import open_tape
        from calltape_recorder import record

        model, path = Raising(), tmp_path / f"{len(fails)}.tape"
        with record(model, path):
            for fail in fails:
                try:
                    model(zeros(2), fail)
                except ValueError:
                    continue
        return open_tape(path)

    (variant,) = tape(None, zeros(2)).variants()
    assert [str(place) for place in variant.facts.group.layout.tensors] == ["x"]
    assert [call.number for call in variant.calls] == [0]
    (only_failed,) = tape(zeros(3)).variants()
    assert len(only_failed) == 1
    assert [call.number for call in only_failed.calls] == [0]


# --- accepts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (given(zeros(9, 3), zeros(8), steps=7), None),
        (given(x=zeros(9, 3), mask=zeros(8), steps=2), None),
        (given(zeros(9, 3), zeros(8), steps=7, scale=1.0, last=None), None),
        (
            given(zeros(9, 4), zeros(8), steps=7),
            "x[1] is 4; it was 3 in every recorded call of this variant",
        ),
        (given(zeros(9, 3), steps=7), "mask is missing"),
        (given(zeros(9, 3), zeros(8)), None),  # steps varies: its default is one more value
        (given(zeros(9, 3)), "mask is missing"),
        (given(zeros(9, 3), zeros(8), steps=7, last=zeros(1)), "last is not expected"),
        (given(zeros(9, 3), [zeros(8)], steps=7), "mask is a list, not a tensor"),
        (given(zeros(9, 3), zeros(8), steps=7, last=zeros(1), add=False), "add is False, not True"),
        (given(zeros(9), zeros(8), steps=7), "x is of rank 1, not 2"),
        (given(zeros(9, 3).double(), zeros(8), steps=7), "x is float64"),
        (given(zeros(9, 3), zeros(8), steps=7, add=False), "add is False, not True"),
        (given(zeros(9, 3), zeros(8), steps=7.0), "steps is 7.0, not an int"),
    ],
    ids=repr,
)
def test_accepts_with_a_reason_where_not(tmp_path: Path, call: Given, reason: str | None) -> None:
    calls = [given(zeros(2, 3), zeros(4), steps=2), given(zeros(5, 3), zeros(6), steps=3)]
    (variant,) = tape_of(tmp_path, calls, Optional()).variants()
    found = variant.accepts(*call)
    assert bool(found) is found.accepted is (reason is None)
    assert (found.reason or "").startswith(reason or "")
    if reason is not None:
        assert found.reason


def test_another_constant_is_a_reason(tmp_path: Path) -> None:
    (variant,) = tape_of(tmp_path, [given(zeros(2), mode="sum")], Optional()).variants()
    assert variant.accepts((zeros(2),), {"mode": "sum"})
    refused = variant.accepts((zeros(2),), {"mode": "max"})
    assert not refused
    assert refused.reason == "mode is 'max', not 'sum'"


def test_a_condition_is_a_reason(tmp_path: Path) -> None:
    calls = [given(zeros(4), zeros(4)), given(zeros(5), zeros(1)), given(zeros(6), zeros(6))]
    variants = named(tape_of(tmp_path, calls, Optional()))
    one, more = variants["mask[0] = 1"], variants["mask[0] > 1"]
    assert one.accepts((zeros(9), zeros(1)))
    assert one.accepts((zeros(9), zeros(9))).reason == "not mask[0] = 1"
    assert more.accepts((zeros(9), zeros(9)))
    assert more.accepts((zeros(9), zeros(1))).reason == "mask[0] is 1; it is for other sizes"


def test_every_recorded_call_is_accepted_by_its_variant_and_no_other(tmp_path: Path) -> None:
    calls = [
        given(zeros(4, 2), zeros(4, 2)), given(zeros(5, 2), zeros(1, 2)), given(zeros(6, 2)),
        given(zeros(6, 2), steps=3), given(zeros(7, 2), steps=4), given([zeros(2)], add=False),
        given([zeros(3)], add=False, last={"a": zeros(2)}), given(zeros(8, 2), zeros(8, 2)),
    ]  # fmt: skip
    variants = tape_of(tmp_path, calls, Optional()).variants()
    for number, call in enumerate(calls):
        accepting = [variant for variant in variants if variant.accepts(*call)]
        assert len(accepting) == 1
        assert number in [recorded.number for recorded in accepting[0].calls]
