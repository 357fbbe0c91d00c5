"""Counts add up in any order, exactly for what is kept, in bounded memory."""

from __future__ import annotations

import random
import weakref
from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer.observing.tallies import MAX_DISTINCT, Seen, Span, Tally
from calltape_analyzer.reading.call_ref import CallRef

# (value, calls, tape, number): few values, so that they repeat, and more than the small limits.
ADDITIONS = st.lists(
    st.tuples(
        st.integers(0, 60), st.integers(1, 5), st.sampled_from([b"a", b"b"]), st.integers(0, 99)
    ),
    max_size=120,
)
LIMITS = st.sampled_from([1, 2, 3, 8, 1000])

Addition = tuple[int, int, bytes, int]


def tally_of(additions: list[Addition], limit: int) -> Tally[int]:
    tally: Tally[int] = Tally(limit)
    for value, calls, tape, number in additions:
        tally.add(value, Seen(calls, CallRef(tape, number)))
    return tally


def content(tally: Tally[int]) -> tuple[list[tuple[int, Seen]], bool, int]:
    """Everything that a reader of a tally can see."""
    return tally.items(), tally.complete, tally.distinct


@given(ADDITIONS, ADDITIONS, LIMITS)
def test_merging_gives_what_one_tally_of_everything_gives(
    one: list[Addition], other: list[Addition], limit: int
) -> None:
    together = tally_of(one + other, limit)
    merged = tally_of(one, limit).merge(tally_of(other, limit))
    assert content(merged) == content(together)
    assert merged == together


@given(ADDITIONS, ADDITIONS, LIMITS)
def test_merging_is_commutative(one: list[Addition], other: list[Addition], limit: int) -> None:
    a, b = tally_of(one, limit), tally_of(other, limit)
    assert content(a.merge(b)) == content(b.merge(a))


@given(ADDITIONS, ADDITIONS, ADDITIONS, LIMITS)
def test_merging_is_associative(
    one: list[Addition], two: list[Addition], three: list[Addition], limit: int
) -> None:
    a, b, c = (tally_of(part, limit) for part in (one, two, three))
    assert content(a.merge(b).merge(c)) == content(a.merge(b.merge(c)))


@given(ADDITIONS, LIMITS)
def test_merging_leaves_its_operands_as_they_were(additions: list[Addition], limit: int) -> None:
    one, other = tally_of(additions, limit), tally_of(additions[::2], limit)
    before = content(one), content(other)
    one.merge(other)
    assert (content(one), content(other)) == before


@given(ADDITIONS, LIMITS)
def test_what_is_kept_has_its_exact_count_and_first_call(
    additions: list[Addition], limit: int
) -> None:
    tally = tally_of(additions, limit)
    calls: Counter[int] = Counter()
    for value, count, _, _ in additions:
        calls[value] += count
    first = {
        value: min(CallRef(tape, number) for v, _, tape, number in additions if v == value)
        for value in calls
    }
    assert len(tally) == min(len(calls), limit)
    for value, seen in tally.items():
        assert seen == Seen(calls[value], first[value])


@given(ADDITIONS, LIMITS)
def test_complete_is_asked_first_and_still_right(additions: list[Addition], limit: int) -> None:
    # Nothing else looks at the tally before: dropping is put off, the answer must not be.
    tally = tally_of(additions, limit)
    assert tally.complete is (len({value for value, *_ in additions}) <= limit)


@given(ADDITIONS, st.randoms(use_true_random=False))
def test_the_order_of_additions_makes_no_difference(
    additions: list[Addition], order: random.Random
) -> None:
    shuffled = list(additions)
    order.shuffle(shuffled)
    assert content(tally_of(shuffled, 8)) == content(tally_of(additions, 8))


def test_adding_to_a_merged_tally_goes_on_as_if_it_had_been_one() -> None:
    low = [(value, 1, b"a", value) for value in range(40)]
    high = [(value, 1, b"a", value) for value in range(30, 90)]
    more = [(value, 2, b"b", value) for value in range(20, 140)]
    merged = tally_of(low, 8).merge(tally_of(high, 8))
    for value, calls, tape, number in more:
        merged.add(value, Seen(calls, CallRef(tape, number)))
    assert content(merged) == content(tally_of(low + high + more, 8))


def test_distinct_is_estimated_within_a_few_standard_errors() -> None:
    tally: Tally[int] = Tally()
    for value in range(50_000):
        tally.add(value, Seen(1, CallRef(b"a", value)))
    # The relative standard error of a bottom-k estimate is 1 / sqrt(k - 2), about 3 % here.
    assert abs(tally.distinct / 50_000 - 1) < 0.12
    assert not tally.complete
    assert len(tally) == MAX_DISTINCT


def test_a_merged_estimate_counts_what_both_have_seen_once() -> None:
    halves = [tally_of([(v, 1, b"a", v) for v in range(start, start + 6000)], 256)
              for start in (0, 3000)]  # fmt: skip
    merged = halves[0].merge(halves[1])
    assert abs(merged.distinct / 9000 - 1) < 0.3
    assert len(merged) == 256


@dataclass(frozen=True)
class Value:
    number: int


def test_memory_stays_within_twice_the_limit() -> None:
    alive: weakref.WeakSet[Value] = weakref.WeakSet()

    def part(first: int) -> Tally[Value]:
        tally: Tally[Value] = Tally(50)
        for number in range(first, first + 500):
            value = Value(number)
            alive.add(value)
            tally.add(value, Seen(1, CallRef(b"a", number)))
            assert len(alive) <= 201  # twice the limit in each tally, and this one
        return tally

    merged: Tally[Value] = Tally(50)
    for first in range(0, 3500, 500):
        merged = merged.merge(part(first))
        assert len(alive) <= 100


def test_items_stand_in_the_order_of_their_first_call() -> None:
    tally: Tally[str] = Tally()
    for value, tape, number in (("c", b"b", 0), ("a", b"a", 7), ("b", b"a", 2), ("c", b"a", 3)):
        tally.add(value, Seen(1, CallRef(tape, number)))
    assert [value for value, _ in tally.items()] == ["b", "c", "a"]


def test_a_tally_of_another_limit_or_content_is_not_equal() -> None:
    additions: list[Addition] = [(1, 1, b"a", 0), (2, 1, b"a", 1)]
    assert tally_of(additions, 8) == tally_of(additions[::-1], 8)
    assert tally_of(additions, 8) != tally_of(additions, 9)
    assert tally_of(additions, 8) != tally_of([*additions, additions[0]], 8)
    assert tally_of(additions, 8) != "a tally"


@given(st.lists(st.tuples(st.integers(), st.integers()), min_size=1))
def test_spans_merge_to_the_span_of_all(pairs: list[tuple[int, int]]) -> None:
    merged = Span(*sorted(pairs[0]))
    for pair in pairs[1:]:
        merged = merged.merge(Span(*sorted(pair)))
    every = [number for pair in pairs for number in pair]
    assert merged == Span(min(every), max(every))
