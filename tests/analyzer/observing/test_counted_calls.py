"""How many calls were seen, against the calls on the tape."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, FlightRecorder, Recorder
from tests.analyzer.observing.forging import (
    CONTRADICTS,
    Add,
    axis,
    forge,
    more_seen,
    reasons,
    recorded,
)
from tests.analyzer.observing.test_trusted_counters import CONTRADICTS_ITSELF
from tests.analyzer.tape.changes import member_list


def test_calls_that_were_looked_at_are_counted(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9], keep=First(1))
    forge(path, lambda document: more_seen(document, 1000))
    with open_tape(path) as tape:
        assert not tape.counters.complete
        assert reasons(tape) == [CONTRADICTS]

    def paused(document: dict[str, Any]) -> None:
        document["coverage"]["dropped"] = {"policy": 2, "paused": 1000}

    with open_tape(forge(path, paused)) as tape:
        assert tape.counters.complete
        assert not tape.damage


def test_calls_beyond_the_last_that_was_seen(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 2])

    def from_7_on(document: dict[str, Any]) -> None:
        document["coverage"] = {"seen": 2, "kept": 2, "dropped": {}}
        document["index"] = document["index"][32:]
        (group,) = document["traffic"]["groups"]
        group["calls"] = 2
        axis(document).update(sizes=((2, 1), (9, 1)))
        axis(document, 1).update(sizes=((3, 2),))
        group["scalars"][0].update(sizes=((2, 1), (9, 1)))

    with open_tape(forge(path, from_7_on)) as tape:
        assert not tape.counters.complete
        assert CONTRADICTS in reasons(tape)


def test_the_last_file_counts_no_more_than_it_saw(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])
    forge(path, lambda document: document["traffic"].update(other_calls=1), number=5)
    with open_tape(path) as tape:
        assert not tape.counters.complete
        assert reasons(tape) == [f"{CONTRADICTS_ITSELF}: 4 calls are counted, of 3 seen"]


def test_what_nobody_can_refute_stands(tmp_path: Path) -> None:
    """Sizes that no call on the tape has are those of calls that were not kept."""
    path = recorded(tmp_path / "a.tape", [2, 5, 9, 40], keep=First(2))
    with open_tape(path) as tape:
        (group,) = tape.counters.groups.values()
        assert (group.calls, group.leaves[0][0].max) == (4, 40)
        assert not tape.damage

    def wider(document: dict[str, Any]) -> None:
        axis(document).update(max=50, sizes=((2, 1), (5, 1), (9, 1), (50, 1)))

    with open_tape(forge(path, wider)) as tape:
        assert tape.counters.complete
        assert not tape.damage


def test_calls_of_no_group_may_be_on_the_tape(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5])

    def summed_up(document: dict[str, Any]) -> None:
        document["traffic"] = {"groups": (), "other_calls": 2}

    with open_tape(forge(path, summed_up)) as tape:
        assert (tape.counters.calls, tape.counters.complete) == (2, True)
        assert not tape.damage


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_accounts_that_do_not_add_up_are_damage(tmp_path: Path, kept: int) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5, 9])

    def contradict(document: dict[str, Any]) -> None:
        document["coverage"] = {"seen": kept, "kept": 3, "dropped": {"policy": 2}}

    with open_tape(forge(path, contradict)) as tape:
        assert f"the trailer says that {kept} calls were seen, but accounts for 5" in reasons(tape)
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
            assert tape.counters.complete
            assert not tape.damage


def test_a_lie_in_one_of_several_files_is_found(tmp_path: Path) -> None:
    paths = shuffled_segments(tmp_path)

    def lie(document: dict[str, Any]) -> None:
        for group in document["traffic"]["groups"]:
            for leaf in group["leaves"]:
                leaf[0].update(min=1000, max=2000, sizes=((1000, 1), (2000, 2)))

    forge(paths[0], lie)
    with open_tape(tmp_path) as tape:
        assert not tape.counters.complete
        assert set(reasons(tape)) == {CONTRADICTS}


def test_two_files_that_count_the_same_calls(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.tape", [2, 5])
    other = Path(shutil.copy(path, tmp_path / "b.tape"))
    (record_of_5,) = [m for m in member_list(other) if m.name == "calls/00000001.msgpack"]

    def cut(document: dict[str, Any]) -> None:
        document["index"] = document["index"][:16]
        document["coverage"] = {"seen": 2, "kept": 1, "dropped": {"policy": 1}}

    assert record_of_5.size
    forge(other, cut)
    with open_tape([path, other]) as tape:
        assert tape.counters.calls == 2
