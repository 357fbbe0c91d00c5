"""A disk that fails, and a log that fails: the recording goes on, and the accounts hold."""

from __future__ import annotations

import errno
import logging
import os
import re
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import segments
from tests.recorder import disks
from tests.recorder.calls import adds_up
from tests.recorder.models import Add, Echo
from tests.recorder.reading import read


@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("after", [0, 0.5])
@pytest.mark.parametrize("truncates", [True, False])
def test_every_write_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    error: str, after: float, truncates: bool,
) -> None:  # fmt: skip
    model = Add()
    writes = 40
    for failing in range(0, writes, 3):
        path = tmp_path / f"{failing}.tape"
        recorder = record(model, path)
        bad = (failing, failing + 1)
        disks.failing(
            monkeypatch, getattr(errno, error), lambda number, _, bad=bad: number in bad,
            after=after, most=1000,
        )  # fmt: skip
        if not truncates:
            _refuses_once(monkeypatch)
        for n in range(8):
            x = torch.full((500,), float(n))
            assert torch.equal(model(x, x), x * 2)
            recorder.flush()
        recorder.close()
        monkeypatch.undo()
        stats = recorder.stats()
        assert adds_up(stats)
        assert stats.queued == 0
        tape = read(path)
        assert len(tape.calls) == stats.kept
        assert not tape.damage
        for call in tape.calls:
            assert torch.equal(call.input(0), torch.full((500,), float(call.record.call)))
        if failing < 8 * 8 and stats.kept < 8:
            assert set(stats.dropped) == {"disk_full" if error == "ENOSPC" else "io"}
    assert "cannot be" in caplog.text
    assert all(record.levelno == logging.WARNING for record in caplog.records)


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
    model, number = Add(), getattr(errno, error)
    with record(model, tmp_path / "t.tape") as recorder:
        with monkeypatch.context() as patch:
            disks.failing(patch, number)
            model(torch.ones(2), torch.ones(2))
            recorder.flush()
        assert recorder.stats().dropped == recorder.stats().lost == {reason: 1}
    assert [entry.name for entry in caplog.records] == ["calltape"]
    assert os.strerror(number) in caplog.text


def _refuses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, refusals = os.ftruncate, [1]

    def ftruncate(file: int, length: int) -> None:
        if refusals:
            refusals.pop()
            raise OSError(5, "no")
        plain(file, length)

    monkeypatch.setattr(os, "ftruncate", ftruncate)


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


class BrokenHandler(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        raise RuntimeError("broken handler")


def test_a_logging_handler_that_raises_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path, x = Echo(), tmp_path / "t.tape", torch.ones(2)
    handler, logger = BrokenHandler(), logging.getLogger("calltape")
    logger.addHandler(handler)
    try:
        with record(model, path) as recorder:
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
    finally:
        logger.removeHandler(handler)
    assert (stats.kept, stats.queued, stats.dropped) == (1, 0, {"io": 1, "internal": 1})
    assert stats.queued_bytes == 0
    assert read(path).end is not None


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
