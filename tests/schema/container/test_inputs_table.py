"""The table of counted inputs: exact with room, honest without, and the same in any order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calltape_schema.errors import TapeError
from calltape_schema.inputs_document import pack_inputs, unpack_inputs
from calltape_schema.inputs_table import Counts, InputsTable, Kind, signature_of
from calltape_schema.packing import pack
from calltape_schema.tree import encode_leaves
from tests.raising import raises
from tests.schema.container.tapes import structure

STRUCTURES = [structure(leaves, 1) for leaves in (1, 2)]


def documents(leaves: int, size: int, scalar: int) -> tuple[bytes, bytes, bytes]:
    leaf = {"dtype": "int64", "shape": [size, 3], "missing": "policy"}
    return STRUCTURES[leaves - 1], encode_leaves([leaf] * leaves), pack([scalar])


calls = st.lists(
    st.tuples(
        st.integers(1, 2), st.integers(0, 50), st.integers(-2, 2), st.integers(0, 1000),
        st.booleans(), st.booleans(), st.integers(0, 5),
    ),
    max_size=120,
)  # fmt: skip
Call = tuple[int, int, int, int, bool, bool, int]


def table_of(calls: list[Call], **bounds: int) -> InputsTable:
    table = InputsTable(**bounds)
    for leaves, size, scalar, number, kept, raised, low in calls:
        table.add(
            *documents(leaves, size, scalar), number, kept=kept, raised=raised,
            ranges=[(0, low, low + 3)],
        )  # fmt: skip
    return table


BOUNDS = st.sampled_from(
    [{}, {"max_rows": 5}, {"max_rows": 0}, {"max_bytes": 2000}, {"max_rows": 9, "max_axes": 36}]
)


@given(calls, calls, calls, BOUNDS)
def test_tables_add_up_in_any_order_and_grouping(
    one: list[Call], two: list[Call], three: list[Call], bounds: dict[str, int]
) -> None:
    """Also if they were read from tapes, which are as they were written."""
    whole = pack_inputs(table_of([*one, *two, *three], **bounds))
    assert pack_inputs(unpack_inputs(whole)) == whole

    def added(*parts: list[Call] | InputsTable) -> InputsTable:
        found = InputsTable(**bounds)
        for part in parts:
            table = part if isinstance(part, InputsTable) else table_of(part, **bounds)
            found.merge(unpack_inputs(pack_inputs(table)))
        return found

    for a, b, c in ([one, two, three], [three, one, two], [two, three, one]):
        assert pack_inputs(added(a, b, c)) == pack_inputs(added(a, added(b, c))) == whole


@given(calls, BOUNDS)
def test_no_call_is_left_out(calls: list[Call], bounds: dict[str, int]) -> None:
    totals = table_of(calls, **bounds).totals()
    assert totals.seen == len(calls)
    assert totals.kept == sum(call[4] for call in calls)
    assert totals.raised == sum(call[5] for call in calls)


@given(calls)
def test_a_table_with_room_counts_exactly(calls: list[Call]) -> None:
    table = table_of(calls)
    assert not table.kinds
    assert not table.other.seen
    found = {(row.structure, row.leaves, row.scalars): row for row in table.rows.values()}
    assert {key: row.seen for key, row in found.items()} == Counter(
        documents(*call[:3]) for call in calls
    )
    for key, row in found.items():
        mine = [call for call in calls if documents(*call[:3]) == key]
        kept = [call for call in mine if call[4]]
        assert (row.first, row.last) == (min(c[3] for c in mine), max(c[3] for c in mine))
        assert row.example == min((call[3] for call in kept), default=None)
        lows = [call[6] for call in kept if not call[5]]
        assert row.ranges == ({0: (min(lows), max(lows) + 3)} if lows else {})
        assert row.tree().spec().leaves == len(row.tree().facts())


@given(calls)
def test_a_table_without_room_counts_the_smallest_sizes_exactly(calls: list[Call]) -> None:
    """Without rows, each axis has the smallest 32 sizes and their exact counts."""
    table = table_of(calls, max_rows=0)
    assert not table.rows
    for kind in table.kinds.values():
        mine = [call for call in calls if call[0] == len(kind.dtypes)]
        sizes = Counter(call[1] for call in mine)
        smallest = dict(sorted(sizes.items())[:32])
        axis = kind.axes[0]
        assert axis is not None
        assert axis.sizes == smallest
        assert (axis.other, axis.max) == (len(mine) - sum(smallest.values()), max(sizes))
        ints = kind.axes[-1]
        assert ints is not None
        assert ints.sizes == Counter(call[2] for call in mine)


def test_one_large_row_does_not_take_the_room_of_all() -> None:
    table = InputsTable(max_bytes=8000)
    for size in range(10):
        table.add(*documents(1, size, 0), size)
    leaf = {"dtype": "float32", "shape": [1], "missing": "policy"}
    table.add(structure(60), encode_leaves([leaf] * 60), pack([]), 11)
    assert (len(table.rows), table.rows_below) == (10, None)
    assert [kind.seen for kind in table.kinds.values()] == [1]


def test_calls_of_which_only_the_kind_is_known() -> None:
    table = InputsTable()
    kind = Kind.of(STRUCTURES[0], ["int64"], [(5, 3)], [2**80], Counts(4, 0, 1))
    table.add_kind(kind)
    table.add(*documents(1, 5, 1), 3)
    assert table.kinds or table.other.seen
    (found,) = table.kinds.values()
    assert (found.seen, found.kept, found.raised, found.axes[2]) == (4, 0, 1, None)
    assert table.totals().seen == 5
    data = pack_inputs(table)
    assert pack_inputs(unpack_inputs(data)) == data


def test_kinds_that_differ_only_in_their_scalars_are_two() -> None:
    """Structures of kinds are not decoded: what a stranger says of their scalars may contradict."""
    form = {"structure": b"s", "dtypes": [], "ranks": [], "calls": [2, 0, 0]}
    kinds: list[Any] = [{**form, "axes": [None] * many} for many in (0, 1, 3)]
    kinds.sort(key=lambda kind: signature_of(b"s", pack([[], [], len(kind["axes"])]), b""))
    table = unpack_inputs(pack({"kinds": kinds}))
    assert sorted(len(kind.axes) for kind in table.kinds.values()) == [0, 1, 3]


def test_more_calls_than_a_count_holds() -> None:
    most = pack({"other": [2**63 - 1, 0, 0]})
    table = unpack_inputs(most)
    with raises("limit"):
        table.merge(unpack_inputs(most))


def test_rows_that_cannot_be_decoded_are_errors_when_asked_for() -> None:
    """They are read, and an error comes when they are asked for, or have to be counted by kind."""
    table = InputsTable(max_rows=1)
    table.add(b"\xc1", b"\xc1", b"\xc1", 0)
    (row,) = table.rows.values()
    with pytest.raises(TapeError):
        row.tree()
    with pytest.raises(TapeError):
        table.add(b"\xc2", b"\xc2", b"\xc2", 1)


def test_the_hash_is_of_the_parts() -> None:
    assert signature_of(b"ab", b"c", b"") != signature_of(b"a", b"bc", b"")
    assert signature_of(b"", b"ab", b"c") != signature_of(b"", b"a", b"bc")


def test_kinds_without_leaves_are_bounded_too() -> None:
    """As of a model that is called with flags only: each combination is a structure."""
    table = InputsTable()
    for number in range(6000):
        table.add_kind(Kind.of(b"%d" % number, [], [], [], Counts(1)))
    assert 1000 < len(table.kinds) <= 4096
    read = unpack_inputs(pack_inputs(table))
    assert read.totals().seen == 6000
    assert read.kinds.keys() == table.kinds.keys()
