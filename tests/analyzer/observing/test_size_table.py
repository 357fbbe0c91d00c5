"""The sizes of all calls, exactly: whatever their number, and in whichever order they come."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer.observing.size_table import Seen, SizeRow, SizeTable, Span, value_in
from calltape_analyzer.reading.call_ref import CallRef

# Two tensors and two ints, of few values, so that columns are equal and constant for a while.
SIZES = st.integers(0, 2)
ROWS = st.builds(
    lambda a, b, c, n, m: SizeRow(((a, b), (c, a)), (n, m)),
    SIZES, SIZES, SIZES, st.sampled_from([1, 2, 1 << 70, -5]), SIZES,
)  # fmt: skip
ADDED = st.lists(
    st.tuples(ROWS, st.integers(1, 4), st.sampled_from([b"a", b"b"]), st.integers(0, 50)),
    max_size=40,
)

Added = list[tuple[SizeRow, int, bytes, int]]


def rows_of(added: Added) -> SizeTable:
    return SizeTable.of(
        (row, Seen(calls, CallRef(tape, number))) for row, calls, tape, number in added
    )


def counted(added: Added) -> dict[SizeRow, Seen]:
    """The same without any of its economies."""
    found: dict[SizeRow, Seen] = {}
    for row, calls, tape, number in added:
        known = found.get(row, Seen(0, CallRef(tape, number)))
        found[row] = Seen(known.calls + calls, min(known.first, CallRef(tape, number)))
    return found


@given(ADDED)
def test_rows_are_those_that_were_added(added: Added) -> None:
    rows, expected = rows_of(added), counted(added)
    assert dict(rows.items()) == expected
    assert [row for row, _ in rows.items()] == list(rows)
    assert rows.calls == sum(calls for _, calls, *_ in added)
    firsts = [seen.first for _, seen in rows.items()]
    assert firsts == sorted(firsts)
    for column in rows.columns:
        values = [value_in(row, column) for row in expected]
        in_order = [value_in(row, column) for row in rows]
        assert [rows.value(at, column) for at in range(len(rows))] == in_order
        assert list(rows.values(column)) == in_order
        assert rows.span(column) == Span(min(values), max(values))
        assert rows.distinct(column) == set(values)
        calls: Counter[int] = Counter()
        for row, seen in expected.items():
            calls[value_in(row, column)] += seen.calls
        assert {size: seen.calls for size, seen in rows.sizes(column).items()} == calls
        for other in rows.columns:
            same = all(value_in(row, column) == value_in(row, other) for row in expected)
            assert rows.same(column, other) is same


@given(ADDED, ADDED, ADDED)
def test_merging_is_associative_and_commutative_and_gives_all(
    one: Added, two: Added, three: Added
) -> None:
    a, b, c = map(rows_of, (one, two, three))
    expected = counted([*one, *two, *three])
    for merged in (a.merge(b).merge(c), a.merge(b.merge(c)), c.merge(a).merge(b)):
        assert dict(merged.items()) == expected
        assert merged.calls == a.calls + b.calls + c.calls
    assert dict(a.items()) == counted(one)


@given(ADDED, ADDED)
def test_merged_rows_take_more(one: Added, two: Added) -> None:
    merged = rows_of(one).merge(SizeTable())
    for row, calls, tape, number in two:
        merged.add(row, Seen(calls, CallRef(tape, number)))
    assert dict(merged.items()) == counted([*one, *two])


@given(ADDED, st.randoms(use_true_random=False))
def test_a_part_of_the_rows_keeps_their_equal_columns(added: Added, chance: random.Random) -> None:
    rows = rows_of(added)
    wanted = [chance.random() < 0.5 for _ in range(len(rows))]
    part = rows.where(wanted)
    assert part.items() == [item for item, take in zip(rows.items(), wanted, strict=True) if take]
    for column in part.columns if len(part) else ():
        for other in part.columns:
            same = all(value_in(row, column) == value_in(row, other) for row in part)
            assert part.same(column, other) is same


def test_a_sample_has_what_is_rare() -> None:
    every = [(SizeRow(((n % 7, 3),), (n,)), 1, b"a", n) for n in range(5000)]
    every[3333] = (SizeRow(((99, 3),), (-1,)), 1, b"a", 3333)
    every[4444] = (SizeRow(((0, 3),), (10**30,)), 1, b"a", 4444)
    rows = rows_of(every)
    sample = {rows.row(at) for at in rows.sample(100)}
    assert {every[3333][0], every[4444][0]} <= sample
    assert len(sample) < 150
    assert rows.sample(5000) == list(range(5000))


def test_the_most_common_sizes_do_not_depend_on_the_order_of_rows() -> None:
    once = (SizeRow(((7, 3),), (1,)), 3, b"a", 8)
    twice = [(SizeRow(((5, 3),), (n,)), 2, b"a", number) for n, number in ((2, 9), (3, 1))]
    rows = rows_of([once, *twice])
    (at,) = rows.most_common()
    assert rows.row(at) == twice[1][0]


def test_memory_follows_what_varies() -> None:
    # 64 tensors of rank 4, as a cache of 32 layers has them, and three sizes that vary.
    rows, numbers = SizeTable(), list(range(3000))
    tracemalloc.start()
    for n in numbers:
        rows.add(SizeRow(((1 + n % 3, 8, n, 64),) * 64, (n + 1,)), Seen(1, CallRef(b"a", n)))
    bytes_per_row = tracemalloc.get_traced_memory()[0] / len(numbers)
    tracemalloc.stop()
    assert len(rows) == 3000
    assert len({rows.line(column) for column in rows.columns}) == 5
    assert bytes_per_row < 400


@given(ADDED, st.sets(st.integers(0, 40)))
def test_a_part_has_the_rows_at_its_places(added: Added, places: set[int]) -> None:
    rows = rows_of(added)
    chosen = {at for at in places if at < len(rows)}
    expected = [item for at, item in enumerate(rows.items()) if at in chosen]
    assert rows.part(chosen).items() == expected
    for at, row in enumerate(rows):
        assert rows.elements(at) == sum(math.prod(shape) for shape in row.shapes)
