"""Integer tensors keep what makes them valid when they are resized."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer.arguments.samples import resized
from calltape_analyzer.arguments.value_rules import ValueRule, value_rules
from tests.analyzer.arguments.generating import sample_at, single
from tests.analyzer.observed import Given, given, sorter_of


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def nodes(count: int) -> torch.Tensor:
    return torch.rand(count, 3)


def rules_of(tape: Any, variant: Any) -> dict[int, ValueRule]:
    return value_rules(variant.facts, tape.calls.at, sorter_of(tape))


def names(tmp_path: Path, calls: list[Given], **options: Any) -> list[str]:
    return [rule.name for rule in rules_of(*single(tmp_path, calls, **options)).values()]


def at_sizes(tmp_path: Path, calls: list[Given], wanted: dict[str, int]) -> list[torch.Tensor]:
    """The first call with other sizes, given by the name of a dimension."""
    tape, variant = single(tmp_path, calls)
    facts = variant.facts
    layout = facts.group.layout
    values = [
        next((v for c in s.columns if (v := wanted.get(layout.column_name(c))) is not None),
             s.values[0])
        for s in facts.symbols
    ]  # fmt: skip
    sample = sample_at(tape, variant, 0)
    return resized(sample, facts, 0, values, rules_of(tape, variant)).tensors


def test_edges_stay_among_the_nodes(tmp_path: Path) -> None:
    calls = [given(nodes(n), torch.randint(0, n, (2, e))) for n, e in ((9, 30), (5, 11), (7, 20))]
    x, edges = at_sizes(tmp_path, calls, {"x[0]": 3, "mask[1]": 40})
    assert (x.shape[0], edges.shape[1]) == (3, 40)
    assert 0 <= edges.min() <= edges.max() < 3


def test_edges_change_if_there_are_fewer_nodes_only(tmp_path: Path) -> None:
    calls = [given(nodes(n), torch.randint(0, n, (2, e))) for n, e in ((9, 30), (5, 11), (7, 20))]
    _, edges = at_sizes(tmp_path, calls, {"x[0]": 4})
    assert edges.shape[1] == 30
    assert edges.max() < 4


@pytest.mark.parametrize(("tokens", "offsets"), [(20, 6), (7, 3), (31, 4)])
def test_offsets_end_at_the_number_of_tokens(tmp_path: Path, tokens: int, offsets: int) -> None:
    calls = [
        given(nodes(8), ids(0, 3, 8)), given(nodes(5), ids(0, 5)), given(nodes(9), ids(0, 2, 6, 9))
    ]  # fmt: skip
    _, made = at_sizes(tmp_path, calls, {"x[0]": tokens, "mask[0]": offsets})
    assert (int(made[0]), int(made[-1]), len(made)) == (0, tokens, offsets)
    assert bool((made.diff() >= 0).all())


def test_beginnings_of_bags_stay_within_the_bags(tmp_path: Path) -> None:
    calls = [given(nodes(8), ids(0, 3, 5)), given(nodes(6), ids(0, 2)),
             given(nodes(9), ids(0, 2, 6, 7))]  # fmt: skip
    _, made = at_sizes(tmp_path, calls, {"x[0]": 5, "mask[0]": 6})
    assert made[0] == 0
    assert made[-1] < 5
    assert bool((made.diff() >= 0).all())


def test_segments_stay_in_order_and_without_gaps(tmp_path: Path) -> None:
    calls = [
        given(nodes(n), torch.arange(n) * g // n, steps=g) for n, g in ((6, 2), (9, 3), (5, 4))
    ]
    _, made = at_sizes(tmp_path, calls, {"x[0]": 11, "mask[0]": 11, "steps": 5})
    assert made.unique_consecutive().tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_numbers_have_rules_too(tmp_path: Path, dtype: torch.dtype) -> None:
    calls = [
        given(nodes(8), ids(0, 3, 8).to(dtype)), given(nodes(5), ids(0, 5).to(dtype)),
        given(nodes(9), ids(0, 2, 6, 9).to(dtype)),
    ]  # fmt: skip
    _, made = at_sizes(tmp_path, calls, {"x[0]": 20, "mask[0]": 6})
    assert made.dtype is dtype
    assert (int(made.long()[0]), int(made.long()[-1]), len(made)) == (0, 20, 6)


def test_numbers_below_a_byte_have_no_rule(tmp_path: Path) -> None:
    calls = [given(nodes(n), torch.ones(n, dtype=torch.uint8).view(torch.uint4)) for n in (3, 5, 8)]
    assert names(tmp_path, calls) == []


def test_padding_stays_on_its_side(tmp_path: Path) -> None:
    def padded(lengths: Sequence[int], left: bool) -> torch.Tensor:
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
        return mask.flip(-1) if left else mask

    batches = [(2, 5), (3, 4, 7), (6,)]
    for left in (False, True):
        calls = [given(nodes(len(b)), padded(b, left)) for b in batches]
        _, made = at_sizes(tmp_path, calls, {"x[0]": 4, "mask[1]": 12})
        assert made.shape == (4, 12)
        rows = made.flip(-1) if left else made
        assert bool((rows.diff(dim=-1) <= 0).all())
        assert rows.sum(-1).tolist() == [5, 12, 5, 12]


def test_masks_without_padding_and_bytes_have_no_rule(tmp_path: Path) -> None:
    ones = [given(torch.ones(n, 3, dtype=torch.int64)) for n in (2, 3)]
    images = [given(torch.randint(0, 255, (n, 100, 90), dtype=torch.uint8)) for n in (8, 9)]
    assert names(tmp_path, ones) == []
    assert names(tmp_path, images) == []


def test_values_at_other_sizes_stay_one_hot_permuted_or_consecutive(tmp_path: Path) -> None:
    def made(n: int) -> Given:
        hot = torch.nn.functional.one_hot(torch.arange(n) * 2 % n, n)
        # never in order
        return given(hot, torch.arange(n).flip(0), last=torch.arange(n).repeat(2, 1))

    calls = [made(n) for n in (5, 4, 7)]
    assert names(tmp_path, calls) == ["one-hot", "permutation", "consecutive"]
    hot, order, positions = at_sizes(tmp_path, calls, {"x[0]": 9})
    assert hot.sum(-1).tolist() == [1] * 9
    assert sorted(order.tolist()) == list(range(9))
    assert positions.tolist() == [list(range(9))] * 2


def test_positions_begin_where_the_past_ends(tmp_path: Path) -> None:
    calls = [given(nodes(past), past + torch.arange(new)[None]) for past, new in
             ((5, 2), (6, 2), (9, 3))]  # fmt: skip
    _, positions = at_sizes(tmp_path, calls, {"x[0]": 20, "mask[1]": 4})
    assert positions.tolist() == [[20, 21, 22, 23]]


def test_lengths_follow_the_longest_or_the_total(tmp_path: Path) -> None:
    batches = [(2, 5), (3, 4, 7), (6, 1)]
    longest = [given(torch.rand(len(b), max(b)), torch.tensor(b)) for b in batches]
    _, made = at_sizes(tmp_path, longest, {"x[0]": 4, "x[1]": 9})
    assert made.max() == 9
    assert made.min() >= 1
    total = [given(nodes(sum(b)), torch.tensor(b)) for b in batches]
    _, made = at_sizes(tmp_path, total, {"x[0]": 23, "mask[0]": 5})
    assert (int(made.sum()), len(made)) == (23, 5)


def test_token_ids_have_no_rule(tmp_path: Path) -> None:
    calls = [given(torch.randint(0, 1000, (2, n)), torch.ones(2, n)) for n in (8, 9, 12)]
    assert names(tmp_path, calls) == []


def test_values_that_are_not_on_the_tape_have_no_rule(tmp_path: Path) -> None:
    calls = [given(nodes(n), torch.arange(n)) for n in (3, 4)]
    assert names(tmp_path, calls, values="none") == []


def test_a_rule_that_one_call_breaks_is_none(tmp_path: Path) -> None:
    calls = [given(nodes(8), ids(0, 3, 8)), given(nodes(9), ids(0, 9)), given(nodes(5), ids(5, 0))]
    assert "offsets" not in names(tmp_path, calls)


def boxes(count: int, pictures: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The picture of each box, and corners."""
    numbers = torch.arange(count).remainder(pictures)[:, None]
    return torch.cat([numbers, torch.rand(count, 4) * 7 + 0.3], 1).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_boxes_stay_with_the_pictures_that_are_left(tmp_path: Path, dtype: torch.dtype) -> None:
    calls = [given(nodes(n), boxes(count, n, dtype)) for n, count in ((4, 9), (2, 5), (3, 7))]
    for pictures in (1, 2, 3, 6):
        _, made = at_sizes(tmp_path, calls, {"x[0]": pictures, "mask[0]": 11})
        assert made.dtype is dtype
        assert made.shape == (11, 5)
        assert made[:, 0].max() == min(pictures, 4) - 1
        again = calls[0][0][1].to(dtype)[torch.arange(11) % 9, 1:]
        torch.testing.assert_close(made[:, 1:], again, rtol=2**-7, atol=0)
        assert (made[:9, 1:] == again[:9]).all()


def test_tables_of_whole_numbers_and_features_have_no_column_of_numbers(tmp_path: Path) -> None:
    whole = [given(nodes(n), torch.randint(0, n, (c, 3)).float()) for n, c in ((4, 9), (3, 7))]
    assert names(tmp_path, whole) == []
    zeros = [given(nodes(n), boxes(c, 1)) for n, c in ((4, 9), (3, 7))]
    assert names(tmp_path, zeros) == []
    beyond = [given(nodes(n), boxes(c, n + 1)) for n, c in ((4, 10), (3, 8))]
    rules = names(tmp_path, beyond)
    assert rules == ["index column"]  # of the boxes themselves: there are more of them
    of_any_width = [given(nodes(n), boxes(c, n)[:, : n + 1]) for n, c in ((4, 9), (2, 5), (3, 7))]
    assert names(tmp_path, of_any_width) == []
