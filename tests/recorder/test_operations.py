"""What people who run servers are told: logs and accounts."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest
import torch

from calltape_recorder import Recorder, record
from calltape_recorder.write import tape_writer


def test_a_recording_says_once_what_it_records_and_where(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "calltape")
    model = torch.nn.Linear(2, 3)
    recorder = record(model, tmp_path / "a.tape")
    model(torch.zeros(1, 2))
    recorder.detach()
    recorder.attach(model)
    recorder.close()
    (line,) = caplog.messages
    path = tmp_path / "a.tape"
    type_name = "torch.nn.modules.linear:Linear"
    assert line == f"process {os.getpid()}: records {type_name}.forward to {path}"


def test_accounts_say_where_and_when_was_written(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    recorder = record(model, tmp_path / "a.tape")
    stats = recorder.stats()
    assert (stats.path, stats.last_write_ns, stats.last_error) == (
        str(tmp_path / "a.tape"), None, None,
    )  # fmt: skip
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
        patch.setattr(tape_writer, "pwritev", refuses)
        for _ in range(3):
            model(torch.zeros(1))
            recorder.flush()
    recorder.close()
    stats = recorder.stats()
    assert stats.dropped == {"io": 3}
    assert "Input/output error" in (stats.last_error or "")
    assert [f"process {os.getpid()}: " in text for text in caplog.messages] == [True]
