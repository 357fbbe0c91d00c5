"""What the ends say of the whole traffic: adding up, names, and what inference makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import open_tape
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.traffic_counters import (
    CountedTables,
    TrafficCounters,
    Values,
    ints_of,
    tensors_of,
)
from calltape_recorder import First, record
from calltape_schema.bounds import MAX_SIZES
from calltape_schema.inputs_table import Axis, Counts, InputsTable, Kind, Row
from calltape_schema.tree import encode_structure
from tests.analyzer.chats import toy_lm
from tests.analyzer.cli.commands import run
from tests.analyzer.observing.doubling import ZEROS, Doubling, doubled
from tests.analyzer.tapes import write_tape
from tests.forging.changes import change_table


def structure(leaves: int, ints: int, name: str = "x") -> bytes:
    nodes: list[Any] = [{"kind": "tensor", "leaf": i} for i in range(leaves)]
    nodes += [{"kind": "int", "scalar": i} for i in range(ints)]
    args = {"kind": "tuple", "children": nodes}
    kwargs = {"kind": "dict", "keys": [name], "children": [{"kind": "none"}]}
    root = {"kind": "tuple", "children": [args, kwargs]}
    return encode_structure({"root": root, "leaves": leaves, "scalars": ints})


@st.composite
def axes(draw: st.DrawFn, calls: int = 9) -> Axis:
    """The sizes of some calls."""
    found = draw(st.lists(st.integers(0, 60), min_size=calls, max_size=calls))
    made = Axis({}, 0, 0)
    for size in found:
        made.absorb(Axis({size: 1}, 0, size))
    return made


@st.composite
def tables(draw: st.DrawFn) -> InputsTable:
    table = InputsTable()
    for name in draw(st.sets(st.sampled_from("ab"))):
        for dtype in draw(st.sets(st.sampled_from(["int64", "float32"]))):
            calls = draw(st.integers(1, 60))
            parts = [draw(axes(calls)), draw(axes(calls)), draw(st.none() | axes(calls))]
            counts = Counts(calls)
            table.add_kind(Kind(structure(1, 1, name), (dtype,), (2,), parts, counts))
    table.other.add(Counts(draw(st.integers(0, 9))))
    return table


def counters(*every: InputsTable) -> TrafficCounters:
    counted = CountedTables()
    for table in every:
        assert not counted.add(table)
    return counted.counters()


@given(tables(), tables(), tables())
def test_tables_add_up_in_any_order(a: InputsTable, b: InputsTable, c: InputsTable) -> None:
    assert counters(a, b, c) == counters(c, b, a) == counters(b, a, c)
    assert counters(a, b).calls == counters(a).calls + counters(b).calls
    assert counters(a, InputsTable()) == counters(a)


@given(axes(), axes())
def test_no_call_is_lost_beyond_the_sizes_that_are_kept(one: Axis, other: Axis) -> None:
    def calls(values: Values) -> int:
        return sum(values.sizes.values()) + values.other_calls

    a, b = Values.of(one), Values.of(other)
    both = a.merge(b)
    assert calls(both) == calls(a) + calls(b)
    assert len(both.sizes) <= MAX_SIZES
    assert (both.min, both.max) == (min(a.min, b.min), max(a.max, b.max))


def test_sizes_beyond_32_are_summed_up() -> None:
    one = Values(0, 31, dict.fromkeys(range(32), 2))
    other = Values(20, 40, dict.fromkeys(range(20, 41), 1))
    both = one.merge(other)
    assert list(both.sizes) == list(range(32))
    assert (both.sizes[0], both.sizes[20], both.other_calls, both.max) == (2, 3, 9, 40)


@pytest.mark.parametrize(
    ("values", "taken", "left"),
    [
        (Values(1, 9, {1: 2, 9: 1}), (9, 1), Values(1, 1, {1: 2})),
        (Values(1, 9, {1: 2, 9: 3}), (9, 1), Values(1, 9, {1: 2, 9: 2})),
        (Values(1, 9, {1: 2}, 2), (9, 1), Values(1, 9, {1: 2}, 1)),
        (Values(1, 9, {1: 2}, 1), (9, 1), Values(1, 1, {1: 2})),
        (Values(9, 9, {9: 1}), (9, 1), None),
    ],
)
def test_calls_can_be_taken_out(
    values: Values, taken: tuple[int, int], left: Values | None
) -> None:
    assert values.without(*taken) == left


def test_names_are_those_of_the_signature(tmp_path: Path) -> None:
    model = toy_lm()
    with record(model, tmp_path / "a.tape", keep=First(1)):
        _, cache = model(ZEROS(2, 3, dtype=torch.int64))
        model(ZEROS(2, 1, dtype=torch.int64), past_key_values=cache, scale=0.5)
        model(input_ids=ZEROS(2, 1, dtype=torch.int64), past_key_values=[cache[0], cache[1], None])
    with open_tape(tmp_path / "a.tape") as tape:
        found = tape.counters
        signature = Signature.of(tape.target)
        assert (found.calls, found.other_calls, found.complete) == (3, 0, True)
        names = [[name for name, _, _ in tensors_of(g, signature)] for g in found.in_order()]
    assert sorted(names) == [
        ["input_ids"],
        ["input_ids", "past_key_values.0", "past_key_values.1"],
        ["input_ids", "past_key_values.0", "past_key_values.1"],
    ]


def test_ints_have_values(tmp_path: Path) -> None:
    model = Doubling()
    with record(model, tmp_path / "a.tape", keep=First(1)):
        for n in (5, 9, 5):
            model(ZEROS(2, 2), n)
    with open_tape(tmp_path / "a.tape") as tape:
        (group,) = tape.counters.groups.values()
        ((name, values),) = ints_of(group, Signature.of(tape.target))
    assert (name, values) == ("n", Values(5, 9, {5: 2, 9: 1}))


def test_files_add_up_and_those_without_counters_are_named(tmp_path: Path) -> None:
    doubled(tmp_path / "a.tape", [(2, 3), (2, 4)], First(1))
    doubled(tmp_path / "b.tape", [(5, 3)], First(1))
    plain = write_tape(tmp_path / "c.tape", [], sealed=False)
    with open_tape([tmp_path / "a.tape", tmp_path / "b.tape", plain]) as tape:
        found = tape.counters
        assert not found.complete
        assert found.missing == {str(plain)}
        (group,) = found.groups.values()
        assert group.calls == found.calls == 3
        assert group.leaves[0] == (Values(2, 5, {2: 2, 5: 1}), Values(3, 4, {3: 2, 4: 1}))


def kind(encoded: bytes, dtypes: tuple[str, ...], ranks: tuple[int, ...], *found: Axis) -> Kind:
    calls = max((sum(one.sizes.values()) + one.other for one in found), default=4)
    return Kind(encoded, dtypes, ranks, list(found), Counts(calls))


def test_a_group_that_contradicts_itself_is_left_out() -> None:
    table = InputsTable()
    table.other.add(Counts(16))
    two = Axis({1: 1, 2: 1}, 0, 2)
    for wrong in (
        kind(b"\xc1", (), ()),
        kind(structure(2, 0), ("int8",), (1,), two),
        kind(structure(1, 1), ("int8",), (1,), two),
        kind(structure(1, 0), ("int8",), (1,), Axis({-1: 8}, 0, -1)),
    ):
        table.add_kind(wrong)
    for at, bad in enumerate((b"\xc1", b"\x91" * 10_000 + b"\x90", structure(1, 0))):
        row = Row(bad, b"\x90", b"\x90", at, at)
        row.add(Counts(1, 0, 0))
        table.add_row(at, row)
    counted = CountedTables()
    errors = counted.add(table)
    made = counted.counters()
    assert (made.calls, made.other_calls, len(errors)) == (35, 35, 7)
    assert not made.groups


def test_a_kind_with_more_axes_than_another_one_is_left_out() -> None:
    table = InputsTable()
    table.add_kind(kind(structure(1, 0), ("int8",), (1,), Axis({1: 3}, 0, 1)))
    table.add_kind(kind(structure(1, 0), ("int8",), (1,), Axis({1: 4}, 0, 1), Axis({1: 4}, 0, 1)))
    for _ in range(2):
        counted = CountedTables()
        (error,) = counted.add(table)
        assert error.kind == "invalid"
        made = counted.counters()
        assert ([group.calls for group in made.in_order()], made.other_calls) == ([3], 4)
        table.kinds = dict(reversed(table.kinds.items()))


def test_an_end_that_lies_is_damage_and_nothing_worse(tmp_path: Path) -> None:
    """Of a kind that breaks the format only the calls are left; sound ones are as they are."""
    most = 2**62
    path = write_tape(
        tmp_path / "a.tape", [((ZEROS(4),), {"x": None})], dropped={"policy": most + 2**61}
    )

    def lie(table: InputsTable) -> None:
        wide = [Axis({0: 1, 2**63 - 1: most - 1}, 0, 2**63 - 1)] * 64
        table.add_kind(kind(structure(1, 0), ("int8",), (1,), Axis({1: 1, 9: 2}, 0, 9)))
        table.add_kind(kind(structure(1, 0), ("\x1b[31m",), (64,), *wide))
        table.add_kind(kind(b"\xc1", ("a",), (1,), Axis({1: 5}, 0, 1)))
        table.add_kind(kind(b"\x91" * 10_000 + b"\x90", ("a",), (1,), Axis({1: 7}, 0, 1)))
        table.other.add(Counts(2**61 - 16))

    change_table(path, lie)
    with open_tape(path) as tape:
        found = tape.counters
        assert [group.calls for group in found.in_order()] == [most, 3, 1]
        assert found.other_calls == 2**61 - 16 + 12
        assert [error.path for error in tape.damage] == [str(path)] * 2
        assert {error.kind for error in tape.damage} <= {"invalid", "limit", "damaged"}
        tape.variants()
        _ = tape.single.findings
    shown = run("info", path)
    assert "\x1b" not in shown.out
    assert "Traceback" not in shown.err
    assert run("info", path, "--json").out.startswith("{")
