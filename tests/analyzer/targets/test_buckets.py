from __future__ import annotations

from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import TapeError, Variant
from calltape_analyzer.targets.buckets import (
    Buckets,
    buckets,
    buckets_per_symbol,
    padding_sizes,
)
from tests.analyzer.targets.conftest import VariantsOf


def padded_sum(calls: dict[int, int], sizes: list[int]) -> int:
    return sum(min(s for s in sizes if s >= size) * number for size, number in calls.items())


def best_by_trying(calls: dict[int, int], count: int, multiple_of: int) -> int:
    rounded = sorted({-(-size // multiple_of) * multiple_of for size in calls})
    largest = rounded[-1]
    return min(
        padded_sum(calls, [*chosen, largest])
        for k in range(min(count, len(rounded)))
        for chosen in combinations(rounded[:-1], k)
    )


@given(
    st.dictionaries(st.integers(0, 40), st.integers(1, 30), min_size=1, max_size=9),
    st.integers(1, 6),
    st.sampled_from([1, 1, 4, 8]),
)
def test_nothing_wastes_less(calls: dict[int, int], count: int, multiple_of: int) -> None:
    sizes = padding_sizes(calls, count, multiple_of=multiple_of)
    assert sizes == sorted(set(sizes))
    assert len(sizes) <= count
    assert all(size % multiple_of == 0 for size in sizes)
    assert padded_sum(calls, sizes) == best_by_trying(calls, count, multiple_of)


@given(st.integers(1, 300), st.integers(1, 12), st.randoms(use_true_random=False))
def test_many_sizes_as_by_the_plain_recurrence(n: int, count: int, random: object) -> None:
    choose = getattr(random, "randint")  # noqa: B009
    calls = {size: choose(1, 1000) for size in sorted({choose(0, 10_000) for _ in range(n)})}
    sizes, known = sorted(calls), [0]
    for size in sizes:
        known.append(known[-1] + calls[size])
    cost = [0] + [size * known[j] for j, size in enumerate(sizes, 1)]
    for _ in range(min(count, len(sizes)) - 1):
        cost = [0] + [
            min([cost[j], *(cost[i] + s * (known[j] - known[i]) for i in range(1, j))])
            for j, s in enumerate(sizes, 1)
        ]
    assert padded_sum(calls, padding_sizes(calls, count)) == cost[-1]


def test_edges() -> None:
    assert padding_sizes({}, 3) == []
    assert padding_sizes({7: 2}, 3) == [7]
    assert padding_sizes({0: 2, 5: 1}, 1) == [5]
    assert padding_sizes({3: 1, 4: 1, 9: 0}, 1, multiple_of=8) == [8]
    for count, multiple_of in ((0, 1), (1, 0)):
        with pytest.raises(TapeError, match="at least 1"):
            padding_sizes({3: 1}, count, multiple_of=multiple_of)


@pytest.fixture
def traffic(variants_of: VariantsOf) -> Variant:
    """One symbol with sizes 3 (6 calls), 4 (1 call), 16 (2 calls) and 30 (1 call)."""
    sizes = [3] * 6 + [4] + [16] * 2 + [30]
    (variant,) = variants_of(torch.nn.ReLU(), [((torch.ones(n, 2),), {}) for n in sizes])
    return variant


def test_buckets_of_recorded_calls(traffic: Variant) -> None:
    (symbol,) = traffic.findings.symbols
    made = buckets(traffic, symbol.name, 3)
    assert made == Buckets(
        symbol=symbol.name, sizes=(4, 16, 30), calls=(7, 2, 1), recorded=84, padded=6, waste=6 / 90
    )
    assert Buckets.model_validate_json(made.model_dump_json()) == made
    assert buckets(traffic, symbol.name, 9).padded == 0
    assert buckets(traffic, symbol.name, 2, multiple_of=8).sizes == (8, 32)


def test_an_unknown_symbol(traffic: Variant) -> None:
    with pytest.raises(TapeError, match="It has: "):
        buckets(traffic, "nothing", 2)


def test_each_symbol_on_its_own(decoder: Variant) -> None:
    free = [s.name for s in decoder.findings.symbols if s.expression is None]
    made = buckets_per_symbol(decoder, 2)
    assert [found.symbol for found in made] == free
    assert len(free) == 3, "the mask's length follows from the others"
    (one,) = buckets_per_symbol(decoder, {free[0]: 1})
    assert one.sizes == (3,)
    assert sum(one.calls) == len(decoder)
