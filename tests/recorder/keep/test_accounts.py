"""Every call is accounted for, and memory is bounded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from tests.recorder import disks
from tests.recorder.calls import adds_up
from tests.recorder.models import Add, Echo
from tests.recorder.parts import recording
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads

PAGE = (Path(__file__).resolve().parents[3] / "docs/production.md").read_text(encoding="utf-8")


def test_the_counts_add_up_while_many_threads_call(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    together = threading.Barrier(16)  # an ident is used again once its thread has ended

    def work(thread: int) -> None:
        together.wait()
        for n in range(100):
            x = torch.full((3,), float(thread * 1000 + n))
            assert torch.equal(model(x, x), x * 2)
            assert n % 10 or adds_up(recorder.stats())

    with record(model, path) as recorder:
        in_threads(work, range(16))
        assert recorder.flush()
        assert recorder.stats().queued == 0
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (1600, 1600, {})
    tape = read(path)
    assert sorted(tape.numbers) == list(range(1600))
    assert all(torch.equal(call.output(0), call.input(0) * 2) for call in tape.calls)
    assert len({call.record.thread for call in tape.calls}) == 16
    values = {call.input(0)[0].item() for call in tape.calls}
    assert values == {thread * 1000 + n for thread in range(16) for n in range(100)}


def test_structures_that_wait_count_for_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of calls whose keys are the ids of requests do. A known one is free."""
    model, x, bound = Echo(), torch.zeros(2), 2**19
    recorder = record(model, tmp_path / "t.tape", max_queue_bytes=bound, outputs=False)
    gate = disks.slow(monkeypatch)
    for n in range(30):
        model({f"request-{n}-{k}": x for k in range(1000)})
    stats = recorder.stats()
    assert stats.dropped == {"queue_full": 30 - stats.queued}
    assert stats.queued < bound // (2 * 1000 * len("request-00-000"))
    held = stats.queued_bytes
    model({f"request-0-{k}": x for k in range(1000)})
    assert recorder.stats().queued_bytes == held + x.nbytes  # one tensor, at all keys
    gate.set()
    recorder.close()
    assert adds_up(recorder.stats())
    assert recorder.stats().queued_bytes == 0


def test_idle_and_waiting_memory_are_at_most_twice_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large copies lie in the pool, which keeps their memory; small ones do not."""
    assert "2 × processes × recorders × (max_queue_bytes + FlightRecorder's bytes)" in PAGE
    model, mib = Echo(), 2**20
    with recording(model, tmp_path / "t.tape", max_queue_bytes=8 * mib, outputs=False) as parts:
        for kib in (1024, 32, 1024):
            gate = disks.slow(monkeypatch)
            for number in range(9 * 1024 // kib):
                model(torch.full((kib * 256,), float(number)))
            assert parts.buffers.nbytes <= 9 * mib  # sizes are rounded up
            assert parts.stats("recording").queued_bytes + parts.ledger.shared_bytes <= 8 * mib
            gate.set()
            assert parts.writer.flush(None)


def test_a_full_queue_drops_the_newest_call_without_copying(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = Echo(), tmp_path / "t.tape"
    recorder = record(model, path, max_queue_bytes=10 * 4000)
    gate = disks.slow(monkeypatch)
    for n in range(25):
        model(torch.full((1000,), float(n)))
        assert recorder.stats().queued_bytes <= 40_000
    assert recorder.stats().dropped == {"queue_full": 15}
    gate.set()
    assert recorder.flush()
    model(torch.zeros(1000))
    recorder.close()
    stats = recorder.stats()
    assert (stats.seen, stats.kept, stats.dropped) == (26, 11, {"queue_full": 15})
    assert stats.queued_bytes == 0
    tape = read(path)
    assert tape.numbers == [*range(10), 25]
    assert tape.end.coverage.dropped == {"queue_full": 15}
