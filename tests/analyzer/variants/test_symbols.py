"""How sizes relate over the calls that were seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer.observing.size_table import Column, Seen, SizeRow, SizeTable, value_in
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.symbols import Relation, Symbol, symbols_of


def rows_of(**vectors: Sequence[int]) -> SizeTable:
    """One tensor of rank one per vector, whose sizes are its elements."""
    calls = enumerate(zip(*vectors.values(), strict=True))
    return SizeTable.of(
        (SizeRow(tuple((size,) for size in sizes), ()), Seen(1, CallRef(b"", number)))
        for number, sizes in calls
    )


def found(preferred: Sequence[str] = (), **vectors: Sequence[int]) -> dict[str, Symbol]:
    """The symbols of vectors of sizes by name."""
    names = list(vectors)
    groups = [[Column(i, 0)] for i in range(len(names))]
    order = [names.index(name) for name in preferred]
    return dict(zip(names, symbols_of(groups, rows_of(**vectors), order), strict=True))


def relation(name: str, **vectors: Sequence[int]) -> tuple[dict[str, int], int] | None:
    """How the last vector follows from the others: factors by name, and the constant."""
    names = list(vectors)
    relation = found(**vectors)[name].relation
    if relation is None:
        return None
    return {names[i]: factor for factor, i in relation.terms}, relation.constant


def test_columns_are_dimensions_then_ints() -> None:
    row = SizeRow(((2, 3), (), (5,)), (7, 8))
    columns = row.columns
    assert [value_in(row, column) for column in columns] == [2, 3, 5, 7, 8]
    assert columns[2:] == [Column(2, 0), Column(0, None), Column(1, None)]


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        # a mask covers what was there and what is new
        ({"ids": [3, 1, 1], "past": [0, 3, 4], "y": [3, 4, 5]}, ({"ids": 1, "past": 1}, 0)),
        # one token goes in at a time: a constant part
        ({"past": [3, 4, 5], "y": [4, 5, 6]}, ({"past": 1}, 1)),
        ({"ids": [1, 1, 1], "past": [3, 4, 5], "y": [4, 5, 6]}, ({"past": 1}, 1)),
        ({"x": [5, 7, 4], "y": [3, 5, 2]}, ({"x": 1}, -2)),
        ({"x": [2, 3, 5], "y": [4, 6, 10]}, ({"x": 2}, 0)),
        ({"x": [2, 3], "y": [4, 6]}, ({"x": 2}, 0)),
        ({"x": [2, 3, 5], "y": [5, 7, 11]}, ({"x": 2}, 1)),
        ({"x": [2, 3, 5], "y": [2, 3, 5]}, ({"x": 1}, 0)),
        # A line through two points is no evidence.
        ({"x": [2, 3], "y": [5, 8]}, None),
        ({"x": [2, 3, 2], "y": [5, 8, 5]}, None),
        ({"x": [4, 6, 10], "y": [2, 3, 5]}, None),  # a half is no factor
        ({"x": [1, 2, 3], "y": [3, 2, 1]}, None),  # nor is a negative number
        ({"x": [1, 2, 3], "y": [1, 4, 9]}, None),
        ({"x": [2, 2, 3], "y": [4, 5, 6]}, None),
        # What never varied follows from nothing, and nothing from that alone.
        ({"x": [2, 3, 4], "y": [5, 5, 5]}, None),
        ({"x": [5, 5, 5], "y": [5, 6, 7]}, None),
        ({"x": [2, 2], "z": [3, 3], "y": [5, 5]}, None),
    ],
    ids=repr,
)
def test_a_relation_is_found_only_if_it_always_held(
    vectors: dict[str, list[int]], expected: tuple[dict[str, int], int] | None
) -> None:
    assert relation("y", **vectors) == expected


def test_one_call_relates_nothing() -> None:
    assert all(s.relation is None for s in found(x=[2], y=[4], z=[6]).values())


def test_the_preferred_are_what_others_depend_on() -> None:
    vectors = {"total": [3, 4, 6], "past": [0, 3, 4], "ids": [3, 1, 2]}
    symbols = found(["ids", "past"], **vectors)
    assert symbols["ids"].relation is None
    assert symbols["past"].relation is None
    assert symbols["total"].relation is not None


@pytest.mark.parametrize("order", list(itertools.permutations(["total", "a", "b", "double"])))
def test_the_order_of_arguments_hides_no_relation(order: tuple[str, ...]) -> None:
    vectors = {
        "total": [5, 7, 4], "a": [2, 3, 1], "b": [3, 4, 3], "double": [4, 6, 2]
    }  # fmt: skip
    symbols = found(**{name: vectors[name] for name in order})
    free = [name for name, symbol in symbols.items() if symbol.relation is None]
    assert len(free) == 2


def test_many_symbols_are_related_in_reasonable_time() -> None:
    vectors = {f"s{i}": [i * i + 3, i * 7 + 1, i + 11, (i * 13) % 29 + 2] for i in range(80)}
    assert all(
        symbol.relation is None or len(symbol.relation.terms) <= 2
        for symbol in found(**vectors).values()
    )


def test_a_sum_of_what_happens_to_depend_is_still_a_sum() -> None:
    # past is batch + 5 by chance; the mask is ids + past all the same.
    symbols = found(batch=[1, 2, 3], ids=[5, 3, 7], past=[6, 7, 8], mask=[11, 10, 15])
    assert symbols["past"].relation == Relation(((1, 0),), 5)
    assert symbols["mask"].relation == Relation(((1, 1), (1, 0)), 5)


SIZES = st.integers(0, 6)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, SizeTable, list[int]]:
    """Random rows in which some columns follow from others, and an order of preference."""
    calls = draw(st.integers(1, 6))
    vectors = draw(
        st.lists(st.lists(SIZES, min_size=calls, max_size=calls), min_size=1, max_size=4)
    )
    for _ in range(draw(st.integers(0, 3))):
        one, other = draw(st.sampled_from(vectors)), draw(st.sampled_from(vectors))
        constant = draw(st.integers(0, 2))
        vectors.append([a + b + constant for a, b in zip(one, other, strict=True)])
    vectors = draw(st.permutations(vectors))
    preferred = draw(st.lists(st.integers(0, len(vectors) - 1), unique=True))
    return len(vectors), rows_of(**{str(i): v for i, v in enumerate(vectors)}), preferred


@given(tables())
def test_every_relation_holds_in_every_row_and_rests_on_free_symbols(
    table: tuple[int, SizeTable, list[int]],
) -> None:
    count, rows, preferred = table
    symbols = symbols_of([[Column(i, 0)] for i in range(count)], rows, preferred)
    assert [symbol.columns for symbol in symbols] == [[Column(i, 0)] for i in range(count)]
    for i, symbol in enumerate(symbols):
        assert symbol.values == tuple(row.shapes[i][0] for row in rows)
        if symbol.relation is None:
            continue
        assert symbol.varied
        # On free ones only, so that there is no cycle, and never on itself.
        assert all(symbols[term].relation is None for _, term in symbol.relation.terms)
        assert all(factor >= 1 for factor, _ in symbol.relation.terms)
        for number in range(len(rows)):
            values = [each.values[number] for each in symbols]
            assert symbol.relation.value(values) == symbol.values[number]


@given(tables())
def test_equal_columns_depend_on_one(table: tuple[int, SizeTable, list[int]]) -> None:
    count, rows, preferred = table
    symbols = symbols_of([[Column(i, 0)] for i in range(count)], rows, preferred)
    free = [symbol.values for symbol in symbols if symbol.relation is None and symbol.varied]
    assert len(free) == len(set(free))
