"""News of the accounts: what the log says when a recording ends, pauses, loses calls and writes
again, and ``stats().losing``."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import disk_file, writer
from tests.recorder.models import Add


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A recorder that looks all the time, and a log that has all it says."""
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.01)
    caplog.set_level("INFO", "calltape")


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_only_the_tape_is_in_the_folder(tmp_path: Path) -> None:
    """While it records, and afterwards."""
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        assert recorder.flush()
        time.sleep(0.3)
        assert [path.name for path in tmp_path.iterdir()] == ["a.tape"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.tape"]


def test_a_pause_is_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Add()
    with record(model, tmp_path / "a.tape") as recorder:
        recorder.pause()
        until(lambda: "paused recording calls of tests.recorder.models:Add.forward" in caplog.text)
        recorder.resume()
        until(lambda: "resumed recording calls of tests.recorder.models:Add.forward" in caplog.text)


@pytest.mark.parametrize("bound", [{"max_calls": 1}, {"max_seconds": 0.02}])
def test_a_recording_that_is_over_has_ended(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bound: dict[str, Any]
) -> None:
    model, x = Add(), torch.ones(2)
    (name,) = bound
    with record(model, tmp_path / "a.tape", **bound):
        model(x, x)
        until(lambda: f"recording stopped: it reached {name}" in caplog.text)
        time.sleep(0.3)
    assert caplog.text.count("recording stopped") == 1


def test_a_disk_that_is_full_and_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Add(), torch.ones(2)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        assert recorder.flush()
        assert recorder.stats().losing is None
        with monkeypatch.context() as patch:
            patch.setattr(disk_file, "pwritev", full)
            for _ in range(3):
                model(x, x)
                recorder.flush()
            until(lambda: recorder.stats().losing == "disk_full")
        model(x, x)
        until(lambda: recorder.stats().losing is None)
    assert recorder.stats().dropped == {"disk_full": 3}
    assert caplog.text.count("No space left on device") == 1
    assert caplog.text.count("writing calls to") == 1
    assert "3 were lost" in caplog.text
    levels = [entry.levelname for entry in caplog.records if " again: " in entry.message]
    assert levels == ["WARNING"]
