"""Which sizes a variant is traced with, and which it is tried with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given as with_values
from hypothesis import strategies as st

from calltape_analyzer.arguments.sizings import (
    Bound,
    Sizing,
    elements_at,
    sizings_beyond,
    sizings_far,
    sizings_for_tracing,
    sizings_unrelated,
    sizings_unseen,
)
from calltape_analyzer.variants.facts import VariantFacts
from tests.analyzer.observed import Given, Optional, given, tape_of, zeros


def variants(directory: Path, calls: list[Given]) -> list[VariantFacts]:
    return [v.facts for v in tape_of(directory, calls, Optional(), values="none").variants()]


def only(directory: Path, calls: list[Given]) -> VariantFacts:
    (variant,) = variants(directory, calls)
    return variant


def named(variant: VariantFacts, sizing: Sizing) -> dict[str, int]:
    return {s.name: v for s, v in zip(variant.symbols, sizing.values, strict=True)}


def is_fit(sizing: Sizing) -> bool:
    return min(sizing.values, default=2) >= 2 and len(set(sizing.values)) == len(sizing.values)


def assert_consistent(variant: VariantFacts, sizing: Sizing) -> None:
    """What always held between sizes still does; ``resized`` says whether they are not recorded."""
    recorded = tuple(symbol.values[sizing.row] for symbol in variant.symbols)
    assert len(sizing.values) == len(variant.symbols)
    for symbol, value in zip(variant.symbols, sizing.values, strict=True):
        assert symbol.relation is None or symbol.relation.value(sizing.values) == value
    assert sizing.resized is (sizing.values != recorded)


def decoding(past: int, new: int, batch: int) -> Given:
    return given(
        zeros(batch, new),
        zeros(batch, past + new),
        last=[zeros(batch, 2, past, 4), zeros(batch, 2, past, 4)],
    )


def test_a_recorded_call_that_is_fit_is_taken_as_it_is(tmp_path: Path) -> None:
    # The first is too small, the second has two equal sizes.
    calls = [decoding(3, 1, 1), decoding(2, 2, 5), decoding(4, 3, 2), decoding(40, 3, 2)]
    variant = only(tmp_path, calls)
    (sizing,) = sizings_for_tracing(variant)
    assert not sizing.resized
    # Of those that are, the smallest.
    assert variant.rows.row(sizing.row).shapes[0] == (2, 3)
    assert variant.rows.row(sizing.row).shapes[1] == (2, 7)


def test_else_the_nearest_is_resized_and_the_sums_stay(tmp_path: Path) -> None:
    variant = only(tmp_path, [decoding(3, 1, 1), decoding(4, 1, 2), decoding(7, 5, 1)])
    first, last = sizings_for_tracing(variant)
    assert first.resized
    assert is_fit(first)
    assert_consistent(variant, first)
    # As recorded comes second, should the resized one not do.
    assert not last.resized
    assert last.row == first.row


def test_only_what_is_unfit_is_moved(tmp_path: Path) -> None:
    calls = [given(zeros(1, 7), last=zeros(9)), given(zeros(1, 8), last=zeros(11)),
             given(zeros(2, 2), last=zeros(2))]  # fmt: skip
    variant = only(tmp_path, calls)
    sizing = sizings_for_tracing(variant, [variant.rows.row(0)])[0]
    assert sizing.resized
    assert sorted(sizing.values) == [2, 7, 9]


def test_sizes_can_be_asked_for_near_given_rows_only(tmp_path: Path) -> None:
    variant = only(tmp_path, [decoding(4, 3, 2), decoding(3, 1, 1)])
    wanted = [row for row in variant.rows if row.shapes[0] == (1, 1)]
    assert all(variant.rows.row(s.row) in wanted for s in sizings_for_tracing(variant, wanted))


def test_a_variant_without_symbols_is_traced_as_recorded(tmp_path: Path) -> None:
    variant = only(tmp_path, [given(zeros(2, 3))])
    assert sizings_for_tracing(variant) == [Sizing(0, (), False)]
    assert sizings_unseen(variant, 3) == []


def test_many_symbols_are_moved_apart_at_once(tmp_path: Path) -> None:
    calls = [given([zeros(size) for size in sizes]) for sizes in ((1,) * 9, range(9, 0, -1))]
    variant = next(v for v in variants(tmp_path, calls) if v.symbols)
    sizing = sizings_for_tracing(variant, [variant.rows.row(0)])[0]
    assert_consistent(variant, sizing)


def test_a_varying_int_is_moved_like_a_size(tmp_path: Path) -> None:
    variant = only(tmp_path, [given(zeros(2), steps=0), given(zeros(3), steps=5)])
    sizing = sizings_for_tracing(variant, [variant.rows.row(0)])[0]
    assert is_fit(sizing)


CALLS = st.lists(
    st.builds(decoding, st.integers(0, 5), st.integers(1, 5), st.integers(1, 3)),
    min_size=1,
    max_size=6,
)


@with_values(CALLS)
def test_sizes_for_tracing_are_fit_and_consistent(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given]
) -> None:
    for variant in variants(tmp_path_factory.mktemp("a"), calls):
        found = sizings_for_tracing(variant)
        assert 1 <= len(found) <= 2
        for sizing in found:
            assert_consistent(variant, sizing)
        assert not found[-1].resized
        # This structure can always be made fit.
        assert is_fit(found[0])


@with_values(CALLS, st.integers(1, 4))
def test_unseen_sizes_were_not_recorded_and_are_consistent(
    tmp_path_factory: pytest.TempPathFactory, calls: list[Given], count: int
) -> None:
    for variant in variants(tmp_path_factory.mktemp("a"), calls):
        found = sizings_unseen(variant, count)
        recorded = {
            tuple(symbol.values[row] for symbol in variant.symbols)
            for row in range(len(variant.rows))
        }
        assert len(found) <= count
        assert len({sizing.values for sizing in found}) == len(found)
        for sizing in found:
            assert sizing.values not in recorded
            assert min(sizing.values) >= 0
            assert_consistent(variant, sizing)
        if any(max(symbol.values) > 0 for symbol in variant.symbols):
            assert found


# --- how large they may be -----------------------------------------------------------------------


def test_a_symbol_goes_beyond_what_was_recorded_alone(tmp_path: Path) -> None:
    variant = only(tmp_path, [decoding(3, 1, 1), decoding(4, 2, 2), decoding(9, 5, 1)])
    largest = {s.name: max(s.values) for s in variant.symbols if s.relation is None}
    found = [named(variant, sizing) for sizing in sizings_beyond(variant, 9)]
    assert len(found) == len(largest) > 1
    for values, (name, value) in zip(found, largest.items(), strict=True):
        assert values[name] == 2 * value
        assert all(values[other] <= size for other, size in largest.items() if other != name)


def test_a_symbol_that_may_be_nothing_goes_beyond_from_where_it_was_something(
    tmp_path: Path,
) -> None:
    variant = only(tmp_path, [given(zeros(n, 2), last=zeros(k)) for n, k in ((2, 0), (3, 6))])
    (sizing,) = (s for s in sizings_beyond(variant, 9) if 12 in s.values)
    assert variant.rows.row(sizing.row).shapes == ((3, 2), (6,))


def test_elements_are_counted_after_related_sizes_followed(tmp_path: Path) -> None:
    # The length is three times the batch.
    variant = only(tmp_path, [given(zeros(n, 3 * n)) for n in (2, 4, 5)])
    bound = Bound.of([variant])
    assert bound == Bound(5 * 15)
    (row,) = (r for r, row in enumerate(variant.rows) if row.shapes == ((5, 15),))

    def at(batch: int) -> Sizing:
        return Sizing(row, (batch, 3 * batch), True)

    assert elements_at(variant, at(10)) == 300
    assert bound.allows(variant, at(10))
    assert not bound.allows(variant, at(11))


def test_each_symbol_is_bounded_by_itself(tmp_path: Path) -> None:
    calls = [given(zeros(100), last=zeros(n), steps=k) for n, k in ((2, 3), (3, 7))]
    variant = only(tmp_path, calls)
    bound = Bound.of([variant])
    assert bound.allows(variant, Sizing(0, (12, 28), True))
    assert not bound.allows(variant, Sizing(0, (13, 28), True))
    assert not bound.allows(variant, Sizing(0, (12, 29), True))


def test_recorded_sizes_are_allowed_and_the_largest_variant_counts_for_all(tmp_path: Path) -> None:
    calls = [given(zeros(2, 3)), given(zeros(3, 3)), given(zeros(50), last=zeros(2))]
    small, large = variants(tmp_path, calls)
    assert Bound.of([small, large]) == Bound(52)
    assert Bound.of([small, large]).allows(small, Sizing(0, (12,), True))
    assert not Bound(0).allows(small, Sizing(0, (4,), True))
    assert Bound(0).allows(small, Sizing(0, (2,), False))


def test_a_multiple_of_two_calls_is_tried_without_it_and_one_of_three_is_not(
    tmp_path: Path,
) -> None:
    two = only(tmp_path, [given(zeros(n, 3 * n)) for n in (2, 4)])
    (sizing,) = sizings_unrelated(two, 3)
    assert sizing.values == (2, 7)
    (tmp_path / "b").mkdir()
    three = only(tmp_path / "b", [given(zeros(n, 3 * n)) for n in (2, 4, 5)])
    assert sizings_unrelated(three, 3) == []


def test_far_sizes_keep_their_tensors_small(tmp_path: Path) -> None:
    small = only(tmp_path, [given(zeros(n, 4)) for n in (2, 3)])
    assert [sizing.values for sizing in sizings_far(small)] == [(24,), (192,), (1500,)]
    (tmp_path / "b").mkdir()
    large = only(tmp_path / "b", [given(zeros(n, 40_000)) for n in (2, 3)])
    assert [sizing.values for sizing in sizings_far(large)] == [(24,)]
