"""What people who run servers are told: logs and accounts."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Recorder, record
from calltape_recorder.write import disk_file


def test_a_recording_says_what_it_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "calltape")
    model, path = torch.nn.Linear(2, 3), tmp_path / "a.tape"
    recorder = record(model, path)
    model(torch.zeros(1, 2))
    recorder.detach()
    recorder.attach(model)
    for _ in range(3):  # of news of one kind, once a minute
        model(torch.zeros(1, 2))
        recorder.seal()
    recorder.close()
    name = "torch.nn.modules.linear:Linear.forward"
    last = tmp_path / "a-00003.tape"
    assert caplog.messages == [
        f"calltape, process {os.getpid()}: records {name} to {path}",
        f"calltape, process {os.getpid()}: sealed {path}: the next calls go to another file",
        f"calltape, process {os.getpid()}: sealed {last}: 4 of 4 calls are on the tape",
    ]
    assert all(record.levelno == logging.INFO for record in caplog.records)


def test_accounts_say_where_and_when_was_written(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    recorder = record(model, tmp_path / "a.tape")
    stats = recorder.stats()
    assert stats.path == str(tmp_path / "a.tape")
    assert (stats.last_write_ns, stats.last_error, stats.last_error_ns) == (None, None, None)
    assert stats.target == "torch.nn.modules.linear:Identity.forward"
    before = time.time_ns()
    model(torch.zeros(1))
    recorder.flush()
    assert before <= (recorder.stats().last_write_ns or 0) <= time.time_ns()
    recorder.seal()
    model(torch.zeros(1))
    recorder.flush()
    assert recorder.stats().path == str(tmp_path / "a-00001.tape")
    recorder.close()


def test_accounts_have_the_last_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Identity()
    recorder = Recorder(tmp_path / "a.tape").attach(model)

    def refuses(*_: object) -> int:
        raise OSError(5, os.strerror(5))

    with monkeypatch.context() as patch:
        patch.setattr(disk_file, "pwritev", refuses)
        before = time.time_ns()
        for _ in range(3):
            model(torch.zeros(1))
            recorder.flush()
    recorder.close()
    stats = recorder.stats()
    assert stats.dropped == {"io": 3}
    assert "Input/output error" in (stats.last_error or "")
    assert before <= (stats.last_error_ns or 0) <= time.time_ns()
    assert [f"calltape, process {os.getpid()}: " in text for text in caplog.messages] == [True]


@pytest.mark.parametrize(
    "name", ["../../x", "/x", "a/b", "..", ".x", "", "-x", "x" * 300, "\x1b[2J"]
)
def test_the_name_of_a_class_leads_nowhere(name: str, tmp_path: Path) -> None:
    """In a directory a tape has the name of the class, which may be any text."""
    model: Any = type("Model", (torch.nn.Identity,), {})()
    type(model).__name__ = name
    with record(model, f"{tmp_path}/a/b/") as recorder:
        model(torch.ones(1))
    made = Path(recorder.path)
    assert made.parent == tmp_path / "a/b"
    assert made.name[0] not in ".-"
    assert made.name.isprintable()
    assert made.exists()
