"""Observations of several tapes are those of one tape of all calls."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given as with_values
from hypothesis import strategies as st

from calltape_analyzer import Tape, open_tape
from calltape_analyzer.observing.groups import Observations
from calltape_analyzer.observing.size_table import Span
from tests.analyzer.observed import Given, Optional, given, recorded, tape_of, zeros


class Fussy(Optional):
    """Raises for a negative number of steps."""

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> torch.Tensor:  # type: ignore[override]
        if kwargs.get("steps", 1) < 0:
            raise ValueError("negative")
        return torch.zeros(())


def ids(low: int, high: int, size: int) -> torch.Tensor:
    return torch.linspace(low, high, size).to(torch.int64)


SIZES = st.integers(1, 3)
TENSORS = st.one_of(
    st.builds(zeros, SIZES, SIZES),
    st.builds(zeros, SIZES, SIZES, dtype=st.just(torch.float16)),
    st.builds(zeros, SIZES),
    st.builds(ids, st.integers(0, 5), st.integers(5, 100), st.integers(2, 4)),
    st.builds(lambda a, b: zeros(a, b).t(), SIZES, SIZES),
    st.builds(lambda a, b: zeros(1, b).expand(a, b), SIZES, SIZES),
    st.just(torch.zeros(2, 2, device="meta")),
)
STRUCTURES = st.one_of(
    TENSORS,
    st.lists(TENSORS, max_size=2),
    st.tuples(TENSORS, st.none() | TENSORS),
    st.permutations(["a", "b"]).map(lambda keys: {key: zeros(2) for key in keys}),
    st.dictionaries(st.sampled_from(["p", "q"]), st.integers(0, 3)),
    # A private text, which tells no groups apart.
    st.sampled_from(["u", "v"]).map(lambda tag: SimpleNamespace(x=zeros(2), _tag=tag)),
)
CONSTANTS = {
    "scale": st.sampled_from([1.0, 2.0, float("nan"), -0.0, 0.0]),
    "steps": st.integers(0, 4),
    "add": st.booleans(),
    "mode": st.sampled_from(["mean", "sum"]),
    "last": st.none() | st.sampled_from([1, 1.0, "1", b"1", 1j, torch.float16]),
    "other": st.integers(-2, 2) | st.none(),
}
CALLS: st.SearchStrategy[Given] = st.tuples(
    st.tuples(STRUCTURES) | st.tuples(STRUCTURES, st.none() | TENSORS),
    st.fixed_dictionaries({}, optional=CONSTANTS),
)


def plain(observations: Observations) -> dict[str, Any]:
    """Everything that was seen, but for the first calls."""
    return {
        "calls": observations.calls,
        "raised": observations.raised,
        "groups": {
            repr(key): {
                "calls": group.calls,
                "facts": group.facts,
                "rows": {row: seen.calls for row, seen in group.rows.items()},
                "ranges": group.ranges,
                "formats": group.formats,
                "places": [str(p) for p in (*group.layout.tensors, *group.layout.scalars)],
            }
            for key, group in observations.groups.items()
        },
    }


@with_values(st.lists(CALLS, max_size=8), st.integers(0, 8))
def test_two_tapes_opened_together_are_one_of_all_calls(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given], cut: int
) -> None:
    directory = tmp_path_factory.mktemp("a")
    whole = tape_of(directory, calls, Optional(), values="none")
    parts = [recorded(directory, part, Optional(), values="none")
             for part in (calls[:cut], calls[cut:])]  # fmt: skip
    assert plain(open_tape(parts).observations()) == plain(whole.observations())


@with_values(st.lists(CALLS, max_size=8), st.randoms(use_true_random=False))
def test_variants_count_the_calls_that_observations_count(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given], order: random.Random
) -> None:
    # Variants look at equal inputs once, observations at every record.
    repeated = calls * 3
    order.shuffle(repeated)
    tape = tape_of(tmp_path_factory.mktemp("a"), repeated, Optional(), values="none")
    variants = tape.variants()
    assert sum(map(len, variants)) == len(repeated) == tape.observations().calls
    assert sorted(call.number for v in variants for call in v.calls) == list(range(len(repeated)))
    for variant in variants:
        assert len(variant.calls) == len(variant)
        firsts = {seen.first for _, seen in variant.facts.rows.items()}
        assert min(call.ref for call in variant.calls) == min(firsts)


def fussy_tape(directory: Path, steps: list[int]) -> Tape:
    from calltape_recorder import record

    model, path = Fussy(), directory / f"{len(list(directory.iterdir()))}.tape"
    with record(model, path):
        for size, step in enumerate(steps, 1):
            try:
                model(zeros(size), steps=step)
            except ValueError:
                assert step < 0
    return open_tape(path)


@pytest.mark.parametrize(
    "parts",
    [
        ([-1, -2], [3]),  # all of one tape raised: they are evidence only while nothing returned
        ([3], [-1, -2]),
        ([-1], [-2]),
        ([-1, 2], [2, -3]),
        ([], [-1]),
        ([], [2, -1]),
    ],
)
def test_calls_that_raised_are_evidence_only_where_all_did(
    tmp_path: Path, parts: tuple[list[int], list[int]]
) -> None:
    for steps in parts:
        fussy_tape(tmp_path, steps)
    together = open_tape(sorted(tmp_path.iterdir())).observations()
    every = [*parts[0], *parts[1]]
    assert together.raised == sum(step < 0 for step in every)
    assert together.calls == (sum(step > 0 for step in every) or len(every))


def test_ranges_of_one_tensor_are_those_of_all_its_calls(tmp_path: Path) -> None:
    parts = [[given(ids(4, 9, 3))], [given(ids(2, 5, 3)), given(ids(7, 30, 3))]]
    paths = [recorded(tmp_path, calls) for calls in parts]
    (group,) = open_tape(paths).observations().groups.values()
    assert group.ranges == {0: Span(2, 30)}
    assert group.rows.items()[0][1].calls == 3


def test_layout_and_constants_are_those_of_the_first_call(tmp_path: Path) -> None:
    # Private texts tell no groups apart, but one of them is kept.
    calls = [[given(SimpleNamespace(x=zeros(2), _tag=tag))] for tag in ("u", "v", "w")]
    paths = [recorded(tmp_path, part) for part in calls]
    first = min((open_tape(path).observations().in_order()[0] for path in paths),
                key=lambda group: group.first)  # fmt: skip
    for order in itertools.permutations(paths):
        (group,) = open_tape(order).observations().groups.values()
        assert group.constants == first.constants
        assert group.first == first.first


def test_memory_follows_distinct_rows_not_calls(tmp_path: Path) -> None:
    calls = [given(zeros(size, 3), steps=step) for size in (2, 3) for step in (5, 6)]
    few = tape_of(tmp_path, calls, values="none").observations()
    many = tape_of(tmp_path, calls * 50, values="none").observations()
    (small,), (large,) = few.groups.values(), many.groups.values()
    assert len(large.rows) == len(small.rows) == 4
    assert [seen.calls for _, seen in large.rows.items()] == [50] * 4
    assert many.calls == large.calls == 200


def test_values_that_python_takes_for_equal_are_told_apart(tmp_path: Path) -> None:
    # 1, 1.0, b"1" and "1" at one place, and a complex number, which tapes keep as two floats.
    values: list[Any] = [1, 1.0, "1", b"1", 1j, 2.5, 1, -0.0, 0.0]
    observed = tape_of(tmp_path, [given(value=value) for value in values]).observations()
    seen = Counter({repr(group.constants): group.calls for group in observed.parts()})
    assert seen == {
        "()": 2, "(1.0,)": 1, "('1',)": 1, "(b'1',)": 1, "((0.0, 1.0),)": 1, "(2.5,)": 1,
        "(-0.0,)": 1, "(0.0,)": 1,
    }  # fmt: skip


def test_a_bool_is_a_constant_of_the_structure(tmp_path: Path) -> None:
    observed = tape_of(tmp_path, [given(flag=True), given(flag=False)]).observations()
    assert len(observed.groups) == 2
