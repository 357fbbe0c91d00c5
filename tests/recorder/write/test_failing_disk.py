"""A disk that fails, and a log that fails: the recording goes on, and the accounts hold."""

from __future__ import annotations

import errno
import logging
import os
import re
import time
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import segments
from tests.recorder import disks
from tests.recorder.calls import adds_up
from tests.recorder.logs import log_handler
from tests.recorder.models import Add, Echo
from tests.recorder.reading import read


@pytest.mark.parametrize(
    ("error", "reason"),
    [("ENOSPC", "disk_full"), ("EDQUOT", "disk_full"), ("EIO", "io"), ("EROFS", "io"),
     ("ESTALE", "io")],
)  # fmt: skip
def test_why_a_call_was_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: str, reason: str,
) -> None:  # fmt: skip
    """No space, or the quota is reached; or anything else."""
    model, number, before = Add(), getattr(errno, error), time.time_ns()
    with record(model, tmp_path / "t.tape") as recorder:
        with monkeypatch.context() as patch:
            disks.failing(patch, number)
            for _ in range(3):
                model(torch.ones(2), torch.ones(2))
                recorder.flush()
        stats = recorder.stats()
    assert stats.dropped == stats.lost == {reason: 3}
    assert os.strerror(number) in (stats.last_error or "")
    assert before <= (stats.last_error_ns or 0) <= time.time_ns()
    (said,) = caplog.messages
    assert said.startswith(f"calltape, process {os.getpid()}: ")
    assert os.strerror(number) in said


def test_trouble_is_one_line_and_its_traceback_is_for_debugging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "calltape")
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "t.tape"):
        disks.failing(monkeypatch, errno.ENOSPC)
        model(x, x)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 2  # not written, not sealed
    for warning in warnings:
        assert "No space left" in warning.getMessage()
        assert warning.exc_info is None
        assert "\n" not in warning.getMessage()
    details = [r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG]
    assert any(re.search(r"\n\S+disk_file\.py:\d+ write_at\n", text) for text in details)


def test_a_logging_handler_that_raises_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path, x = Echo(), tmp_path / "t.tape", torch.ones(2)
    with log_handler(lambda _: 1 / 0), record(model, path) as recorder:
        disks.failing(monkeypatch, errno.EIO, lambda number, _: number == 0)
        model(x)
        assert recorder.flush()
        with monkeypatch.context() as patch:
            patch.setattr(
                "calltape_recorder.snapshot.snapshots.capture_inputs", lambda *_, **__: 1 / 0
            )
            model([x])
        model(x)
        assert recorder.flush()
        stats = recorder.stats()
    assert (stats.kept, stats.queued, stats.dropped) == (1, 0, {"io": 1, "internal": 1})
    assert stats.queued_bytes == 0
    assert read(path).is_sealed


def test_whatever_the_writer_meets_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, path, x = Echo(), tmp_path / "t.tape", torch.ones(2)
    with record(model, path) as recorder:
        with monkeypatch.context() as patch:
            patch.setattr(segments, "planned", lambda *_: 1 / 0)
            model(x)
            assert recorder.flush()
        model(x)
        assert recorder.flush()
        assert recorder.stats().kept == 1
    assert adds_up(recorder.stats())
    assert read(path).numbers == [1]
    assert "division by zero" in caplog.text
