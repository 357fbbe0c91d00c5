"""News of the accounts: what the log says when a recording ends, pauses, loses calls and writes
again, and ``stats().losing``."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_recorder import record, recording
from tests.recorder import disks
from tests.recorder.models import Add
from tests.recorder.waiting import looked


@pytest.fixture(autouse=True)
def _news(looks_always: None, caplog: pytest.LogCaptureFixture) -> None:
    """A recorder that looks all the time, and a log that has all it says."""
    caplog.set_level("INFO", "calltape")


def test_a_pause_is_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Add()
    with record(model, tmp_path / "a.tape") as recorder:
        recorder.pause()
        assert looked(recorder)
        assert "paused recording calls of tests.recorder.models:Add.forward" in caplog.text
        recorder.resume()
        assert looked(recorder)
        assert "resumed recording calls of tests.recorder.models:Add.forward" in caplog.text


def test_a_recording_that_is_over_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x, now = Add(), torch.ones(2), [0.0]
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for name, most in (("max_calls", 2), ("max_seconds", 5)):
        caplog.clear()
        bound: Any = {name: most}
        with record(model, tmp_path / f"{name}.tape", **bound) as recorder:
            for _ in range(2):
                model(x, x)
            assert looked(recorder)
            now[0] += 5
            assert looked(recorder)
            model(x, x)
            assert looked(recorder)
        assert (recorder.stats().kept, recorder.stats().dropped) == (2, {name: 1})
        assert caplog.text.count(f"recording stopped: it reached {name}") == 1
        assert caplog.text.count("recording stopped") == 1


def test_a_disk_that_is_full_and_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "a.tape") as recorder:
        model(x, x)
        assert looked(recorder)
        assert recorder.stats().losing is None
        with monkeypatch.context() as patch:
            disks.failing(patch, errno.ENOSPC)
            for _ in range(3):
                model(x, x)
                assert looked(recorder)
            assert recorder.stats().losing == "disk_full"
        model(x, x)
        assert looked(recorder)
        assert recorder.stats().losing is None
    assert recorder.stats().dropped == {"disk_full": 3}
    assert caplog.text.count("No space left on device") == 1
    assert caplog.text.count("writing calls to") == 1
    assert "3 were lost" in caplog.text
    levels = [entry.levelname for entry in caplog.records if " again: " in entry.message]
    assert levels == ["WARNING"]
