"""Counters of the end against the calls on the tape: what contradicts them is not believed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import open_tape
from calltape_analyzer.targets.engines import optimization_profile
from calltape_recorder import First
from calltape_schema.inputs_table import Axis, Counts, InputsTable, Row
from calltape_schema.packing import pack
from tests.analyzer.cli.commands import run
from tests.analyzer.observing.counters import FORGED, reasons, recorded, the_kind
from tests.forging.changes import change_table


def rows(table: InputsTable) -> list[Row]:
    """Those of one call, and those of several."""
    return sorted(table.rows.values(), key=lambda row: (row.kept, row.first))


def other_counts(table: InputsTable) -> None:
    few, *_, many = rows(table)
    for row, step in ((few, 1), (many, -1)):
        row.seen, row.kept = row.seen + step, row.kept + step


def other_sizes(table: InputsTable) -> None:
    rows(table)[0].leaves = rows(table)[1].leaves.replace(b"\x05\x03", b"\x07\x03")


def other_ints(table: InputsTable) -> None:
    rows(table)[0].scalars = pack([100])


def another_dtype(table: InputsTable) -> None:
    for row in rows(table):
        row.leaves = row.leaves.replace(b"float32", b"float16")


def no_rows(table: InputsTable) -> None:
    table.rows.clear()
    table.other.add(Counts(3, 3))


def others_beyond_all(table: InputsTable) -> None:
    table.other.add(Counts(1))


def fewer_kept(table: InputsTable) -> None:
    rows(table)[-1].kept -= 1


def raised(table: InputsTable) -> None:
    rows(table)[0].raised = 1


def a_later_first(table: InputsTable) -> None:
    rows(table)[-1].example = rows(table)[-1].last


def other_numbers(table: InputsTable) -> None:
    row = rows(table)[0]
    row.first = row.last = row.example = 77


@pytest.mark.parametrize(
    "change",
    [
        other_counts, other_sizes, other_ints, another_dtype, no_rows, others_beyond_all,
        fewer_kept, raised, a_later_first, other_numbers,
    ],
)  # fmt: skip
def test_a_table_that_contradicts_the_calls_is_not_used(
    tmp_path: Path, change: Callable[[InputsTable], Any]
) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 2])
    with open_tape(path) as tape:
        assert tape.counters.complete
        assert not tape.damage
        true = tape.variants()[0].infer_dynamic_shapes()
        profile = optimization_profile(tape.variants()[0]).inputs
    change_table(path, change)
    with open_tape(path, scan=True) as tape:
        assert tape.counters.missing == {str(path)}
        assert tape.counters.calls == 0
        (reason,) = reasons(tape)
        assert reason.startswith(FORGED)
        assert tape.variants()[0].infer_dynamic_shapes() == true
        inputs = optimization_profile(tape.variants()[0]).inputs
        assert {n: (p.min, p.max) for n, p in inputs.items()} == {
            n: (p.min, p.max) for n, p in profile.items()
        }
    with open_tape(path) as tape:
        list(tape.calls)
        assert reasons(tape) == [reason]
        assert tape.counters.missing == {str(path)}
    shown = run("info", path)
    assert shown.code == 3
    assert reason in shown.err


def axis(table: InputsTable, number: int = 0) -> Axis:
    found = the_kind(table).axes[number]
    assert found is not None
    return found


def max_alone(table: InputsTable) -> None:
    axis(table).max = 100_000


def a_size_that_no_call_had(table: InputsTable) -> None:
    axis(table).sizes[100_000] = 0
    axis(table).max = 100_000


def more_calls_than_the_kind(table: InputsTable) -> None:
    axis(table).sizes[4] += 2**61


def fewer_calls_than_the_kind(table: InputsTable) -> None:
    del axis(table).sizes[4]


def others_of_a_short_list(table: InputsTable) -> None:
    axis(table).other += axis(table).sizes.pop(9)


def an_int_of_more_calls(table: InputsTable) -> None:
    axis(table, 2).sizes[4] += 2**40


def fewer_axes(table: InputsTable) -> None:
    del the_kind(table).axes[1:]


def a_kind_without_calls(table: InputsTable) -> None:
    the_kind(table).seen = 0


def more_kept_than_seen(table: InputsTable) -> None:
    the_kind(table).kept = 2**40


@pytest.mark.parametrize(
    "change",
    [
        max_alone, a_size_that_no_call_had, more_calls_than_the_kind, fewer_calls_than_the_kind,
        others_of_a_short_list, an_int_of_more_calls, fewer_axes, a_kind_without_calls,
        more_kept_than_seen,
    ],
)  # fmt: skip
def test_a_table_that_contradicts_itself_is_not_used(
    tmp_path: Path, change: Callable[[InputsTable], Any]
) -> None:
    """Whatever calls were not kept."""
    path = recorded(tmp_path / "a.tape", [2, 5, 30, 9, 9, 7, 4], keep=First(3))
    with open_tape(path) as tape:
        assert tape.counters.complete
        assert not tape.damage
    with open_tape(change_table(path, change)) as tape:
        assert tape.counters.missing == {str(path)}
        (reason,) = reasons(tape)
        assert reason.startswith(FORGED)
        assert optimization_profile(tape.variants()[0]).inputs["x"].max == (30, 3)
        list(tape.calls)
        assert reasons(tape) == [reason]
    assert run("info", path).code == 3
