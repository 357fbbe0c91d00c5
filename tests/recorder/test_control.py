"""The control file: what it asks for, in the process that reads it and in its forks."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import First, Recorder, Stats, TapeError, record
from calltape_recorder.control import ControlFile
from calltape_recorder.keep.flight_recorder import FlightRecorder
from tests.recorder.controlled import Fake
from tests.recorder.logs import log_handler
from tests.recorder.models import Add
from tests.recorder.processes import in_a_fork


class Desk:
    """A control file, who writes it, and who follows it."""

    def __init__(self, path: Path, first: Any = None) -> None:
        self.path = path
        if first is not None:
            self.write(first)
        self.file = ControlFile(path)
        self.recorder = Fake()

    def write(self, wishes: Any) -> None:
        text = wishes if isinstance(wishes, str) else json.dumps(wishes)
        other = self.path.with_suffix(".new")
        other.write_text(text, encoding="utf-8")
        os.replace(other, self.path)

    def poll(self) -> list[Any]:
        self.file.poll(self.recorder)
        return self.recorder.take()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.json"


def test_a_control_file_acts_on_changes_only(path: Path) -> None:
    desk = Desk(path)
    assert desk.poll() == []
    desk.write({"paused": True, "rate": 0.1, "seal": 1, "dump": {"id": 1, "reason": "late"}})
    assert desk.poll() == ["pause", 0.1, "dump late", "seal"]
    assert desk.poll() == []
    desk.write({"paused": False, "rate": 0.1, "seal": 1, "dump": {"id": 1, "reason": "other"}})
    assert desk.poll() == ["resume"]
    desk.write({"rate": None, "seal": 0, "dump": "again"})
    assert desk.poll() == [None, "dump control file", "seal"]
    desk.write({})
    assert desk.poll() == []
    desk.write({"paused": True, "rate": 0.5})
    assert desk.poll() == ["pause", 0.5]
    desk.write({})  # what it does not say any more does not hold any more
    assert desk.poll() == ["resume", None]
    assert desk.poll() == []


def test_what_is_there_at_the_start_sets_states_and_triggers_nothing(path: Path) -> None:
    desk = Desk(path, {"paused": True, "rate": 0.5, "seal": 4, "dump": {"id": 2}})
    assert desk.poll() == ["pause", 0.5]
    desk.write({"paused": True, "rate": 0.5, "seal": 5, "dump": {"id": 3, "reason": "now"}})
    assert desk.poll() == ["dump now", "seal"]


def test_what_a_rejected_file_says_at_the_start_triggers_nothing_later(path: Path) -> None:
    path.touch()
    path.chmod(0o660)
    path.write_text('{"paused": true, "seal": 4, "dump": 2}', encoding="utf-8")
    desk = Desk(path)
    assert desk.poll() == []
    assert desk.file.trouble is not None
    path.chmod(0o600)
    assert desk.poll() == ["pause"]
    desk.write({"paused": True, "seal": 5, "dump": 3})
    assert desk.poll() == ["dump control file", "seal"]


def test_a_change_between_start_and_first_poll_is_a_change(path: Path) -> None:
    desk = Desk(path, {"seal": 1})
    desk.write({"seal": 2})
    assert desk.poll() + desk.poll() == ["seal"]


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"paused": fal', "[]", '{"paused": 1}', '{"rate": 1.5}', '{"rate": NaN}',
     '{"seal": 1.5}', '{"dump": {"reason": "no id"}}', "[" * 5000, "\0", " " * 70_000],
)  # fmt: skip
def test_a_broken_file_changes_nothing_and_is_said_once(
    path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(path, {"paused": False, "seal": 1})
    assert desk.poll() == ["resume"]
    desk.write(text)
    assert [desk.poll() for _ in range(4)] == [[]] * 4
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(path) in caplog.text
    desk.write({"paused": True, "seal": 2})
    assert desk.poll() == ["pause", "seal"]


def test_a_file_that_was_caught_half_written_is_not_worth_a_word(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(path)
    desk.write('{"paused": tr')
    assert desk.poll() == []
    desk.write({"paused": True})
    assert desk.poll() == ["pause"]
    assert not caplog.records


def test_a_control_file_that_comes_back_repeats_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(path, {"paused": True, "seal": 1})
    assert desk.poll() == ["pause"]
    path.unlink()
    assert desk.poll() + desk.poll() == []
    assert len(caplog.records) == 1
    desk.write({"paused": True, "seal": 1})
    assert desk.poll() == []
    desk.write({"paused": True, "seal": 2})
    assert desk.poll() == ["seal"]


def test_a_pipe_or_a_directory_is_not_waited_for(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(path)
    recorder = Fake()
    for odd in (path, tmp_path, tmp_path / "a\0b"):
        file = ControlFile(odd)
        file.poll(recorder)
        file.poll(recorder)
    assert recorder.told == []
    assert len(caplog.records) == 3


def test_nothing_is_read_while_nothing_changed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(path, {"paused": True})
    assert desk.poll() == ["pause"]

    def forbidden(*_: Any) -> int:
        raise AssertionError("the file was opened")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbidden)
        for _ in range(3):
            assert desk.poll() == []


def test_one_action_that_fails_does_not_stop_the_others(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(path)

    def fails(reason: str) -> int:
        raise TapeError("closed", "the recorder is closed")

    monkeypatch.setattr(desk.recorder, "dump", fails)
    desk.write({"dump": 1, "seal": 1, "coffee": 3})
    assert desk.poll() == ["seal"]
    assert "coffee" in caplog.text
    assert "the recorder is closed" in caplog.text


@pytest.mark.usefixtures("looks_always")
def test_a_recorder_follows_its_file(path: Path) -> None:
    desk, model, x = Desk(path), Add(), torch.ones(3)

    def wait_for(what: Callable[[Stats], bool]) -> None:
        pause = threading.Event()
        while not what(recorder.stats()):  # pytest-timeout ends what never is
            pause.wait(0.02)

    tape = path.with_name("t.tape")
    with record(
        model, tape, control=path, keep=First(1), flight_recorder=FlightRecorder(calls=2)
    ) as recorder:
        for _ in range(5):
            model(x, x)
        desk.write({"paused": True, "dump": {"id": 1, "reason": "latency alarm"}})
        wait_for(lambda stats: stats.paused and stats.kept == 3)
        model(x, x)
        desk.write({"paused": False, "seal": 1})
        wait_for(lambda stats: not stats.paused)  # the rest of that look ends before the writer
    assert recorder.stats().dropped == {"flight_recorder": 2, "paused": 1}
    assert recorder.stats().segments == 2
    assert tape.with_name("t-00001.tape").exists()


def test_a_file_that_says_paused_holds_from_the_first_call(path: Path) -> None:
    Desk(path, {"paused": True})
    model, x = Add(), torch.ones(3)
    with record(model, path.with_name("t.tape"), control=path) as recorder:
        model(x, x)
    assert (recorder.stats().kept, recorder.stats().dropped) == (0, {"paused": 1})


def test_a_control_file_written_before_attach_holds(path: Path) -> None:
    desk, model, x = Desk(path, {"paused": False}), Add(), torch.ones(3)
    recorder = Recorder(path.with_name("t.tape"), control=path)
    desk.write({"paused": True})
    with recorder.attach(model):
        model(x, x)
    assert recorder.stats().dropped == {"paused": 1}


def test_a_logging_handler_that_raises_keeps_nothing_from_being_followed(path: Path) -> None:
    with log_handler(lambda _: 1 / 0):
        desk = Desk(path)
        desk.write("{")
        assert desk.poll() + desk.poll() == []
        desk.write({"coffee": 3, "paused": True})
        assert desk.poll() == ["pause"]


# --- in a fork -----------------------------------------------------------------------------------


def test_a_fork_follows_the_file_anew(path: Path) -> None:
    desk = Desk(path, {"paused": False, "rate": 0.5, "seal": 1})
    assert desk.poll() == ["resume", 0.5]
    desk.file = desk.file.renewed()
    assert desk.poll() == []  # what somebody asked for in code since then holds
    desk.write({"paused": True, "rate": 0.5, "seal": 2})
    desk.file = desk.file.renewed()
    assert desk.poll() == ["pause"]
    desk.write({"paused": True, "rate": 0.5, "seal": 3})
    assert desk.poll() == ["seal"]


def in_child(recorder: Recorder, model: Add, dropped: dict[str, int]) -> None:
    """Calls the model three times in a fork; none is kept there, for these reasons."""

    def child() -> bool:
        for _ in range(3):
            model(torch.ones(3), torch.ones(3))
        stats = recorder.stats()
        recorder.close()
        return stats.kept + stats.queued == 0 and stats.dropped == dropped

    in_a_fork(child)


def test_what_was_asked_for_in_code_holds_in_a_fork(path: Path) -> None:
    model, x = Add(), torch.ones(3)
    with record(model, path.with_name("t.tape")) as recorder:
        model(x, x)
        recorder.pause()
        in_child(recorder, model, {"paused": 3})
        recorder.resume()
        recorder.set_rate(0)
        in_child(recorder, model, {"policy": 3})
        recorder.set_rate(None)
        assert in_a_fork(lambda: bool(model(x, x).sum()) and recorder.stats().dropped == {})


def test_what_a_fork_asks_for_before_its_first_call_holds_there(path: Path) -> None:
    model, x = Add(), torch.ones(3)
    with record(model, path.with_name("t.tape")) as recorder:

        def child() -> bool:
            recorder.pause()
            fine = recorder.stats().paused
            model(x, x)
            return fine and recorder.stats().dropped == {"paused": 1}

        in_a_fork(child)
        model(x, x)
    assert recorder.stats().kept == 1


def test_a_fork_follows_the_file_from_its_first_call(path: Path) -> None:
    desk, model, x = Desk(path, {"paused": True}), Add(), torch.ones(3)
    with record(model, path.with_name("t.tape"), control=path) as recorder:
        model(x, x)
        in_child(recorder, model, {"paused": 3})
        desk.write({"paused": False, "rate": 0})  # nobody waits until this process has seen it
        in_child(recorder, model, {"policy": 3})


def test_a_pause_in_code_outlasts_the_file_in_a_fork(path: Path) -> None:
    Desk(path, {"paused": False})
    model = Add()
    with record(model, path.with_name("t.tape"), control=path) as recorder:
        recorder.pause()
        in_child(recorder, model, {"paused": 3})
