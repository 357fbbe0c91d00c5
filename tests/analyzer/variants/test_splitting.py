"""Calls of one structure that one program cannot serve, told apart by their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import Tape
from calltape_analyzer.variants.facts import VariantFacts, counting_ints_of
from calltape_analyzer.variants.splitting import splits_of
from tests.analyzer.observed import Given, Optional, given, tape_of, zeros
from tests.analyzer.variants.caches import WindowCache


def splits(directory: Path, *calls: Given) -> list[VariantFacts]:
    """The splits of calls that are one group."""
    (group,) = tape_of(directory, calls, Optional()).observations().groups.values()
    return splits_of(group)


def texts(split: VariantFacts) -> list[str]:
    return [condition.text(split.group.layout) for condition in split.conditions]


def pair(left: tuple[int, ...], right: tuple[int, ...]) -> Given:
    return given(zeros(*left), zeros(*right))


def assert_partition(found: list[VariantFacts]) -> None:
    """Every row is in exactly one split, the one whose conditions it meets."""
    group = found[0].group
    rows = [row for split in found for row in split.rows]
    assert sorted(rows) == sorted(group.rows)
    assert sum(split.rows.calls for split in found) == group.calls
    for row in group.rows:
        meeting = [split for split in found if all(c.holds(row) for c in split.conditions)]
        assert len(meeting) == 1
        assert row in list(meeting[0].rows)


def test_an_axis_of_one_or_n_is_broadcasting(tmp_path: Path) -> None:
    found = splits(tmp_path, pair((4, 3), (4, 3)), pair((5, 3), (1, 3)), pair((6, 3), (6, 3)))
    assert sorted(map(texts, found)) == [["mask[0] = 1"], ["mask[0] > 1"]]
    assert_partition(found)


def test_axes_are_aligned_from_the_right(tmp_path: Path) -> None:
    found = splits(tmp_path, pair((4, 3), (3,)), pair((4, 5), (1,)), pair((2, 5), (5,)))
    assert sorted(map(texts, found)) == [["mask[0] = 1"], ["mask[0] > 1"]]
    assert_partition(found)


def test_broadcasting_on_two_axes_splits_twice(tmp_path: Path) -> None:
    calls = [
        pair((4, 3), (4, 3)), pair((5, 6), (1, 6)), pair((6, 4), (6, 1)), pair((7, 5), (1, 1))
    ]  # fmt: skip
    found = splits(tmp_path, *calls)
    assert len(found) == 4
    assert_partition(found)


@pytest.mark.parametrize(
    "calls",
    [
        # A batch of one call at a time is no broadcasting: both are 1 together.
        [pair((1, 3), (1, 3)), pair((4, 3), (4, 3))],
        # Batch 1 and 2 beside a head count that happens to be 2.
        [pair((1, 2, 5, 4), (1, 2, 5, 4)), pair((2, 2, 6, 4), (2, 2, 6, 4))],
        [pair((1, 5), (1, 2, 5, 4)), pair((2, 6), (2, 2, 6, 4))],
        # Sizes that are not aligned.
        [pair((1, 4), (4, 1)), pair((3, 4), (4, 3))],
        # An axis that never meets a larger one while it is 1.
        [pair((1, 3), (1, 3)), pair((4, 3), (4, 3)), pair((1, 3), (1, 3))],
        [pair((4, 3), (7, 3)), pair((5, 3), (1, 3))],
        [pair((4, 3), (1, 3))],
    ],
    ids=repr,
)
def test_calls_are_not_split_where_nothing_broadcasts(tmp_path: Path, calls: list[Given]) -> None:
    (split,) = splits(tmp_path, *calls)
    assert split.conditions == ()


def test_a_decode_step_of_one_token_is_explained_by_a_sum(tmp_path: Path) -> None:
    # ids [2, new], mask [2, past + new], keys [2, 2, past, 4], from a cache that starts empty: the
    # mask is aligned with ids, which is as long or 1.
    calls = [
        given(
            zeros(2, new, dtype=torch.int64),
            zeros(2, past + new, dtype=torch.int64),
            last=[zeros(2, 2, past, 4)],
        )
        for new, past in ((5, 0), (1, 5), (1, 6), (4, 0))
    ]
    (split,) = splits(tmp_path, *calls)
    assert split.conditions == ()


def test_a_step_of_one_token_without_a_sum_is_broadcasting(tmp_path: Path) -> None:
    calls = [pair((2, new), (2, past + new)) for new, past in ((5, 0), (1, 5), (1, 6), (4, 0))]
    assert len(splits(tmp_path, *calls)) == 2


def test_a_total_of_one_is_explained_by_the_sum_that_it_is(tmp_path: Path) -> None:
    # The total is 1 once (new 1, past 0), where what it is aligned with is longer.
    calls = [
        given(zeros(7, new), zeros(past, 7), last=zeros(7, new + past), other=zeros(7, other))
        for new, past, other in ((1, 0, 4), (2, 3, 5), (4, 2, 6))
    ]
    assert [split.conditions for split in splits(tmp_path, *calls)] == [()]


def test_an_axis_that_is_0_too_is_a_length(tmp_path: Path) -> None:
    (split,) = splits(tmp_path, pair((4,), (4,)), pair((5,), (1,)), pair((0,), (0,)))
    assert split.conditions == ()


def test_a_full_window_is_another_program(tmp_path: Path) -> None:
    calls = [given(zeros(2, 1), last=WindowCache(seen, 4)) for seen in (2, 3, 4, 5, 6)]
    found = splits(tmp_path, *calls)
    assert sorted(map(texts, found)) == [["window full"], ["window open"]]
    assert_partition(found)
    by_text = {texts(split)[0]: split for split in found}
    assert {row.ints for row in by_text["window open"].rows} == {(2,), (3,), (4,)}
    assert {row.ints for row in by_text["window full"].rows} == {(5,), (6,)}


@pytest.mark.parametrize("seen", [(2, 3), (5, 6)])
def test_a_window_that_is_always_open_or_always_full_is_not_split(
    tmp_path: Path, seen: tuple[int, ...]
) -> None:
    (split,) = splits(tmp_path, *(given(zeros(2, 1), last=WindowCache(n, 4)) for n in seen))
    assert split.conditions == ()


def test_counters_are_ints_of_the_object_beside_its_tensors(tmp_path: Path) -> None:
    (group,) = (
        tape_of(tmp_path, [given(zeros(2, 1), steps=2, last=[WindowCache(3, 4)])], Optional())
        .observations()
        .groups.values()
    )
    (counter,) = counting_ints_of(group)
    assert str(group.layout.path(counter)) == "last.0.cumulative_length"
    column = counting_ints_of(group)[counter]
    assert str(group.layout.tensors[column.index]) == "last.0.keys"
    assert column.axis == 2


def windowed_tape(directory: Path, prompt: int, steps: int) -> Tape:
    """A small model whose window of 8 fills while it generates."""
    transformers = pytest.importorskip("transformers")
    from calltape_analyzer import open_tape
    from calltape_recorder import record

    config = transformers.MistralConfig(
        vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, sliding_window=8, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.MistralForCausalLM(config).eval()
    path = directory / "a.tape"
    with record(model, path, values="none"), torch.no_grad():
        model.generate(
            torch.randint(3, 30, (2, prompt)), max_new_tokens=steps, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    return open_tape(path)


@pytest.mark.integration
def test_a_sliding_window_cache_is_split_where_its_window_is_full(tmp_path: Path) -> None:
    variants: Any = windowed_tape(tmp_path, 4, 10).variants()
    conditions = [variant.findings.conditions for variant in variants]
    assert conditions.count(("window open",)) == 1
    assert conditions.count(("window full",)) == 1
    # Nothing is lost, and which call is where follows from how many tokens there were.
    assert sum(map(len, variants)) == 10
    full = next(v for v in variants if v.findings.conditions == ("window full",))
    for call in full.calls:
        _, kwargs = call.inputs
        assert kwargs["cache"].layers[0].cumulative_length > 7
