"""A disk that answers late or never: the process ends, and what waits is bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from calltape_recorder import Novelty, record
from calltape_recorder.bounds import STUCK_SECONDS
from calltape_recorder.write import writer
from tests.recorder import disks
from tests.recorder.calls import adds_up
from tests.recorder.models import Identity, Raises
from tests.recorder.reading import read


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Takes nothing until the event is set."""
    gate = disks.slow(monkeypatch)
    yield gate
    gate.set()


def test_a_disk_that_never_answers_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: threading.Event
) -> None:
    monkeypatch.setattr(writer, "STUCK_SECONDS", 0.01)
    disk.set()
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    disk.clear()
    for _ in range(5):
        model(torch.ones(3))
    recorder.close()
    stats = recorder.stats()
    assert stats.dropped == {"unfinished": 5}
    assert stats.queued_bytes == 0
    assert adds_up(recorder.stats())


def test_a_process_that_is_paused_while_it_closes_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: threading.Event
) -> None:
    """SIGSTOP, or docker pause: the clock runs on meanwhile, and the disk is not to blame."""
    disk.set()
    model, waits, wait_for = Identity(), [0], writer.wait_for
    recorder = record(model, tmp_path / "t.tape")
    disk.clear()
    for _ in range(5):
        model(torch.ones(3))

    def paused(event: Any, seconds: float) -> bool:
        waits[0] += 1
        if waits[0] == 5:
            disk.set()
        return wait_for(event, seconds if disk.is_set() else 0.01)

    clock = SimpleNamespace(
        monotonic=lambda: time.monotonic() + 2 * STUCK_SECONDS * waits[0],
        thread_time_ns=time.thread_time_ns,
        time_ns=time.time_ns,
    )
    monkeypatch.setattr(writer, "time", clock)
    monkeypatch.setattr(writer, "wait_for", paused)
    recorder.close()
    assert (recorder.stats().kept, recorder.stats().dropped) == (5, {})
    assert read(tmp_path / "t.tape").is_sealed


def test_what_waits_is_bounded_also_where_it_has_no_bytes(
    tmp_path: Path, disk: threading.Event
) -> None:
    disk.set()
    model, fails = Identity(), Raises()
    bound = 2**20
    with (
        record(model, tmp_path / "a.tape", max_queue_bytes=bound, values="none") as shapes,
        record(fails, tmp_path / "b.tape", max_queue_bytes=bound) as raising,
    ):
        disk.clear()
        for _ in range(3000):
            model(torch.ones(3))
        for _ in range(200):
            with pytest.raises(ValueError, match="long"):
                fails(ValueError("long" * 16_000))
        assert shapes.stats().queued < 1100
        assert raising.stats().queued_bytes <= bound
        disk.set()
    assert shapes.stats().dropped["queue_full"] > 1900
    assert raising.stats().kept == 200
    messages = [call.error.message for call in read(tmp_path / "b.tape").calls]
    assert {len(str(message)) for message in messages} == {64_000, 500}


def test_evidence_that_did_not_fit_is_gathered_again(tmp_path: Path, disk: threading.Event) -> None:
    disk.set()
    model = Identity()
    options: dict[str, Any] = {"keep": Novelty(), "outputs": False, "max_queue_bytes": 2**20}
    with record(model, tmp_path / "t.tape", **options) as recorder:
        disk.clear()
        model(torch.zeros(200_000))
        model(torch.zeros(100_000, dtype=torch.int32))
        assert recorder.stats().dropped == {"queue_full": 1}
        disk.set()
        assert recorder.flush()
        for _ in range(3):
            model(torch.zeros(100_000, dtype=torch.int32))
    dtypes = [call.record.inputs.facts()[0].dtype for call in read(tmp_path / "t.tape").calls]
    assert dtypes == ["float32", "int32"]
