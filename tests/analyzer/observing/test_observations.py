"""Observations of several tapes add up to those of one tape of all calls."""

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
from calltape_analyzer.observing.observations import LeafObservation, Observations
from calltape_analyzer.observing.tallies import Span
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


def plain_leaf(leaf: LeafObservation) -> dict[str, Any]:
    """A leaf observation without the calls in which things were first seen: tapes that are
    recorded anew have ids of their own."""
    return {
        "calls": leaf.calls,
        "kinds": leaf.kinds,
        "dtypes": leaf.dtypes,
        "ranks": leaf.ranks,
        "devices": leaf.devices,
        "formats": leaf.formats,
        "sizes": {at: counts(tally) for at, tally in leaf.sizes.items()},
        "values": counts(leaf.values),
        "range": leaf.range,
    }


def counts(tally: Any) -> dict[str, int]:
    return {f"{type(v).__name__} {v!r}": seen.calls for v, seen in tally.items()}


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
                "devices": group.devices,
                "formats": group.formats,
                "places": [str(p) for p in (*group.layout.tensors, *group.layout.scalars)],
            }
            for key, group in observations.groups.items()
        },
        "leaves": {(leaf.argument, leaf.path): plain_leaf(leaf) for leaf in observations.leaves()},
    }


def exact(observations: Observations) -> dict[str, Any]:
    """Everything, with the first calls, for observations of the same tapes."""
    return plain(observations) | {
        "first": {repr(key): group.first for key, group in observations.groups.items()},
        "rows": {repr(key): group.rows.items() for key, group in observations.groups.items()},
        "constants": {repr(k): repr(group.constants) for k, group in observations.groups.items()},
        "order": [(leaf.argument, leaf.path) for leaf in observations.leaves()],
    }


@with_values(st.lists(CALLS, max_size=8), st.integers(0, 8))
def test_two_tapes_add_up_to_one_of_all_calls(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given], cut: int
) -> None:
    directory = tmp_path_factory.mktemp("a")
    whole = tape_of(directory, calls, Optional(), values="none")
    parts = [tape_of(directory, part, Optional(), values="none")
             for part in (calls[:cut], calls[cut:])]  # fmt: skip
    merged = parts[0].observations().merge(parts[1].observations())
    assert plain(merged) == plain(whole.observations())


@with_values(st.lists(st.lists(CALLS, max_size=4), min_size=3, max_size=3))
def test_merging_is_associative_and_commutative(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[Given]]
) -> None:
    directory = tmp_path_factory.mktemp("a")
    a, b, c = (
        tape_of(directory, calls, Optional(), values="none").observations() for calls in parts
    )
    expected = exact(a.merge(b).merge(c))
    assert exact(a.merge(b.merge(c))) == expected
    for order in itertools.permutations((a, b, c)):
        assert exact(order[0].merge(order[1]).merge(order[2])) == expected


@with_values(st.lists(CALLS, max_size=8), st.integers(0, 8))
def test_tapes_opened_together_give_what_they_merge_to(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given], cut: int
) -> None:
    # The same files, so that even the first calls are the same.
    directory = tmp_path_factory.mktemp("a")
    paths = [recorded(directory, part, Optional(), values="none")
             for part in (calls[:cut], calls[cut:])]  # fmt: skip
    together = open_tape(paths).observations()
    one, other = (open_tape(path).observations() for path in paths)
    assert exact(together) == exact(one.merge(other))


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
    one, other = (fussy_tape(tmp_path, steps).observations() for steps in parts)
    together = open_tape(sorted(tmp_path.iterdir())).observations()
    assert exact(one.merge(other)) == exact(together)
    assert exact(other.merge(one)) == exact(together)
    every = [*parts[0], *parts[1]]
    assert together.raised == sum(step < 0 for step in every)
    assert together.calls == (sum(step > 0 for step in every) or len(every))


def test_ranges_of_one_tensor_are_those_of_all_its_calls(tmp_path: Path) -> None:
    parts = [[given(ids(4, 9, 3))], [given(ids(2, 5, 3)), given(ids(7, 30, 3))]]
    one, other = (tape_of(tmp_path, calls).observations() for calls in parts)
    for merged in (one.merge(other), other.merge(one)):
        (group,) = merged.groups.values()
        assert group.ranges == {0: Span(2, 30)}
        assert group.rows.items()[0][1].calls == 3


def test_layout_and_constants_are_those_of_the_first_call(tmp_path: Path) -> None:
    # Private texts tell no groups apart, but one of them is kept.
    calls = [[given(SimpleNamespace(x=zeros(2), _tag=tag))] for tag in ("u", "v", "w")]
    parts = [tape_of(tmp_path, part).observations() for part in calls]
    first = min(parts, key=lambda part: part.in_order()[0].first)
    expected = first.in_order()[0].constants
    for order in itertools.permutations(parts):
        (group,) = order[0].merge(order[1]).merge(order[2]).groups.values()
        assert group.constants == expected
        assert group.first == first.in_order()[0].first


def test_merging_leaves_its_operands_as_they_were(tmp_path: Path) -> None:
    one = tape_of(tmp_path, [given(ids(0, 9, 3), steps=2)]).observations()
    other = tape_of(tmp_path, [given(ids(5, 50, 4), steps=3)]).observations()
    before = exact(one), exact(other)
    one.merge(other).merge(one)
    assert (exact(one), exact(other)) == before


def test_memory_follows_distinct_rows_not_calls(tmp_path: Path) -> None:
    calls = [given(zeros(size, 3), steps=step) for size in (2, 3) for step in (5, 6)]
    few = tape_of(tmp_path, calls, values="none").observations()
    many = tape_of(tmp_path, calls * 50, values="none").observations()
    (small,), (large,) = few.groups.values(), many.groups.values()
    assert len(large.rows) == len(small.rows) == 4
    assert [seen.calls for _, seen in large.rows.items()] == [50] * 4
    assert many.calls == large.calls == 200
    assert len(many.leaves()) == len(few.leaves())


def test_leaves_tell_what_was_seen_of_each_argument(tmp_path: Path) -> None:
    tape = tape_of(
        tmp_path,
        [
            given(ids(3, 7, 5), steps=4),
            given(ids(1, 5, 2), mask=zeros(4, 2).t(), steps=9),
            given(x=torch.zeros(2, 3, device="meta"), scale=0.5),
        ],
        Optional(),
    )
    leaves = {f"{leaf.argument}{leaf.path}": leaf for leaf in tape.observations().leaves()}
    x, mask, steps, scale = (leaves[name] for name in ("x", "mask", "steps", "scale"))
    assert (x.calls, mask.calls, steps.calls, scale.calls) == (3, 1, 2, 1)
    assert x.dtypes == {"int64": 2, "float32": 1}
    assert x.ranks == {1: 2, 2: 1}
    assert x.devices == {"cpu": 2, "meta": 1}
    assert mask.formats == {"transposed (stride order 1,0)": 1}
    assert x.range == Span(1, 7)
    assert steps.range == Span(4, 9)
    assert counts(x.sizes[1, 0]) == {"int 5": 1, "int 2": 1}
    assert counts(x.sizes[2, 1]) == {"int 3": 1}
    assert counts(scale.values) == {"float 0.5": 1}
    assert steps.kinds == Counter(int=2)


def test_values_that_python_takes_for_equal_are_told_apart(tmp_path: Path) -> None:
    # 1, 1.0, b"1" and "1" at one place, and a complex number, which tapes keep as two floats.
    values: list[Any] = [1, 1.0, "1", b"1", 1j, 2.5, 1, -0.0, 0.0]
    observed = tape_of(tmp_path, [given(value=value) for value in values]).observations()
    (leaf,) = observed.leaves()
    seen = {f"{type(v).__name__} {v!r}": s.calls for v, s in leaf.values.items()}
    assert seen == {
        "int 1": 2, "float 1.0": 1, "str '1'": 1, "bytes b'1'": 1, "tuple (0.0, 1.0)": 1,
        "float 2.5": 1, "float -0.0": 1, "float 0.0": 1,
    }  # fmt: skip


def test_a_bool_is_a_constant_of_the_structure(tmp_path: Path) -> None:
    observed = tape_of(tmp_path, [given(flag=True), given(flag=False)]).observations()
    assert len(observed.groups) == 2
