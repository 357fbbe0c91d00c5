"""How many calls were seen, against the calls on the tape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import filter_tape, open_tape
from calltape_recorder import First, FlightRecorder, Recorder
from calltape_schema.end import Coverage
from calltape_schema.inputs_table import Counts, InputsTable
from tests.analyzer.observing.counters import FORGED, Add, reasons, recorded, the_kind
from tests.forging.changes import change_end, change_table, more_seen


def test_calls_that_nobody_looked_at_are_not_counted(tmp_path: Path) -> None:
    path = more_seen(recorded(tmp_path / "a.tape", [2, 5, 9], keep=First(1)), 1000)
    for scan in (False, True):
        with open_tape(path, scan=scan) as tape:
            assert (tape.coverage.seen, tape.counters.calls) == (1003, 3)
            assert not tape.damage


def test_no_more_calls_are_counted_than_were_seen(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])
    change_table(path, lambda table: table.other.add(Counts(1)))
    with open_tape(path) as tape:
        assert not tape.counters.complete
        (reason,) = reasons(tape)
        assert reason.startswith(FORGED)
        assert "3 kept calls of 4" in reason


def test_what_nobody_can_refute_stands(tmp_path: Path) -> None:
    """Sizes that no call on the tape has are those of calls that were not kept."""
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 40], keep=First(2))
    with open_tape(path) as tape:
        (group,) = tape.counters.groups.values()
        assert (group.calls, group.leaves[0][0].max) == (4, 40)
        assert not tape.damage

    def wider(table: InputsTable) -> None:
        axis = the_kind(table).axes[0]
        assert axis is not None
        axis.sizes, axis.max = {9: 1, 50: 1}, 50

    with open_tape(change_table(path, wider), scan=True) as tape:
        assert tape.counters.complete
        assert not tape.damage
        (group,) = tape.counters.groups.values()
        assert group.leaves[0][0].max == 50


def test_calls_of_no_row_may_be_on_the_tape(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5])

    def summed_up(table: InputsTable) -> None:
        while table.coarsen():
            pass

    change_table(path, summed_up)
    for scan in (False, True):
        with open_tape(path, scan=scan) as tape:
            assert (tape.counters.calls, tape.counters.complete) == (2, True)
            assert len(tape.variants()[0]) == 2
            assert not tape.damage


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_accounts_that_do_not_add_up_are_damage(tmp_path: Path, kept: int) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])

    coverage = Coverage(seen=kept, kept=3, dropped={"policy": 2})
    change_end(path, lambda end: {"coverage": coverage})
    with open_tape(path, scan=True) as tape:
        assert f"the end says that {kept} calls were seen, but accounts for 5" in reasons(tape)
        assert (tape.coverage.seen, tape.coverage.kept) == (5, 3)


def shuffled_segments(folder: Path) -> list[Path]:
    """Of a recording that begins calls in one file and ends them in the next."""
    model = Add()
    recorder = Recorder(
        folder / "a.tape", flight_recorder=FlightRecorder(calls=3), keep=First(0)
    ).attach(model)
    for part in range(3):
        for size in range(3):
            model(torch.zeros(1 + part * 3 + size, 3))
        recorder.seal()  # the calls are counted here, and written to the next file
        recorder.dump("now")
        recorder.flush()
    recorder.close()
    return sorted(folder.glob("*.tape"), key=lambda path: (len(path.name), path.name))


def test_a_call_may_be_counted_in_the_file_before(tmp_path: Path) -> None:
    paths = shuffled_segments(tmp_path)
    assert len(paths) >= 3
    with open_tape(tmp_path) as tape:
        assert (tape.counters.calls, len(tape)) == (9, 9)
        assert tape.counters.complete
        assert not tape.damage
    for left_out in range(len(paths)):
        with open_tape(paths[:left_out] + paths[left_out + 1 :]) as tape:
            tape.counters.as_dict  # noqa: B018
            assert not tape.damage
    for number in range(len(paths)):
        with open_tape(paths[: number + 1]) as tape:
            # Of a recording that goes on, later files count more.
            assert tape.counters.complete == (number == len(paths) - 1)
            assert not tape.damage


def test_a_lie_in_one_of_several_files_is_found(tmp_path: Path) -> None:
    paths = shuffled_segments(tmp_path)

    def lie(table: InputsTable) -> None:
        for row in table.rows.values():
            row.leaves = row.leaves.replace(b"float32", b"float16")

    lied = next(path for path in paths if b"records/" in path.read_bytes())
    change_table(lied, lie)
    with open_tape(tmp_path, scan=True) as tape:
        assert tape.counters.missing == {str(lied)}
        (reason,) = reasons(tape)
        assert reason.startswith(FORGED)


def test_two_files_that_count_the_same_calls(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5])
    with open_tape(path) as tape:
        part = tape.only(calls="0")
        filter_tape(part, tmp_path / "b.tape")
    with open_tape([path, tmp_path / "b.tape"]) as tape:
        assert tape.counters.calls == 2
        assert len(tape) == 2
