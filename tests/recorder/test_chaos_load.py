"""Many threads and many calls: every call accounted for, every output untouched, flat memory."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import FlightRecorder, Novelty, Rate, record
from calltape_recorder.keep.ledger import Stats
from tests.recorder import disks, long_run
from tests.recorder.calls import appearance_of
from tests.recorder.reading import ReadTape, read
from tests.recorder.waiting import in_threads

pytestmark = pytest.mark.chaos

ROOT = Path(__file__).parents[2]
THREADS, EACH = 64, 1000


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor, tag: int) -> torch.Tensor:
        return x * 2


def tensor_of(tag: int) -> torch.Tensor:
    return torch.full((1 + tag % 19,), float(tag))


class Crowd:
    """64 threads that call a model 1,000 times each. When each of them has made ``half`` its calls
    they wait for one another, and ``then`` something is done."""

    def __init__(self, model: torch.nn.Module, then: Any = None) -> None:
        self.model = model
        self.wrong: list[int] = []
        self.looks = appearance_of(model)
        self.returned = [0] * THREADS
        self._half = threading.Barrier(THREADS, action=then)

    def run(self) -> None:
        in_threads(self._work, range(THREADS))
        assert appearance_of(self.model) == self.looks

    def _work(self, thread: int) -> None:
        for number in range(EACH):
            if number == EACH // 2:
                self._half.wait()
            tag = thread * EACH + number
            x = tensor_of(tag)
            output = self.model(x, tag)
            self.returned[thread] += 1
            if not torch.equal(output, tensor_of(tag) * 2) or not torch.equal(x, tensor_of(tag)):
                self.wrong.append(tag)


def check(tape: ReadTape, stats: Stats) -> None:
    """The accounts agree with the tape, and every kept call reads back."""
    assert stats.seen == stats.kept + sum(stats.dropped.values()) == THREADS * EACH
    assert (stats.queued, stats.queued_bytes) == (0, 0)
    assert len(set(tape.numbers)) == len(tape.calls) == stats.kept
    assert len({call.record.inputs.scalars[0] for call in tape.calls}) == stats.kept
    for call in tape.calls:
        expected = tensor_of(call.record.inputs.scalars[0])
        assert torch.equal(call.input(0), expected)
        if call.record.outputs is None:
            assert call.record.outputs_missing == "queue_full"
        else:
            assert torch.equal(call.output(0), expected * 2)
    coverage = tape.end.coverage
    assert (coverage.seen, coverage.kept, coverage.dropped) == (
        stats.seen, stats.kept, stats.dropped,
    )  # fmt: skip


def counted(tape: ReadTape) -> int:
    """Calls in the counters over all calls."""
    return tape.table.totals().seen


def test_a_crowd_is_not_held_up_by_a_full_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Double()
    with record(model, tmp_path / "t.tape", max_queue_bytes=100_000) as recorder:
        gate = disks.slow(monkeypatch)
        # The disk stands still until half of all calls have returned.
        crowd = Crowd(model, gate.set)
        crowd.run()
        assert recorder.flush()
    stats, tape = recorder.stats(), read(tmp_path / "t.tape")
    assert not crowd.wrong
    assert crowd.returned == [EACH] * THREADS
    assert set(stats.dropped) == {"queue_full"}
    assert stats.dropped["queue_full"] > THREADS * EACH // 4
    check(tape, stats)
    assert counted(tape) == stats.seen


def test_policies_and_dumps_are_exact_in_a_crowd(tmp_path: Path) -> None:
    model, dumped = Double(), []
    keep, held = Novelty() | Rate(0.01), FlightRecorder(calls=500)
    with record(model, tmp_path / "t.tape", keep=keep, flight_recorder=held) as recorder:
        crowd = Crowd(model, lambda: dumped.append(recorder.dump("half")))
        crowd.run()
        dumped.append(recorder.dump("the end"))
    stats, tape = recorder.stats(), read(tmp_path / "t.tape")
    assert not crowd.wrong
    assert crowd.returned == [EACH] * THREADS
    assert dumped == [500, 500]
    assert set(stats.dropped) == {"flight_recorder"}
    check(tape, stats)
    decide = Rate(0.01).decider()
    sampled = {number for number in range(THREADS * EACH) if decide(number, None)}
    assert sampled <= set(tape.numbers)
    assert counted(tape) == stats.seen
    assert [dump.calls for dump in tape.end.dumps] == dumped


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_hour_of_calls_stays_within_memory_and_disk(tmp_path: Path) -> None:
    work = [sys.executable, "-m", "tests.recorder.long_run", str(tmp_path)]
    done = subprocess.run(work, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(": recording " in line for line in done.stderr.splitlines())
    said = json.loads(done.stdout)
    quarters, dropped = said["quarters"], said["dropped"]
    assert said["seen"] == said["kept"] + sum(dropped.values())
    assert said["seen"] == long_run.QUARTER * long_run.QUARTERS
    assert dropped["deleted"] > 1000
    for quarter in quarters:
        assert quarter["disk"] <= long_run.DISK_BYTES
        # Some files are shorter than a segment: each quarter ends one, and the last one begins.
        assert quarter["files"] <= long_run.DISK_BYTES // long_run.SEGMENT_BYTES + 2
        assert quarter["queued"] <= long_run.FLIGHT.calls
        assert quarter["classes"] == 0
    second, last = quarters[1], quarters[-1]
    # Once every cache is full only what waits, or is held, may differ from one moment to another;
    # the allocator's gaps may take as much again.
    bound = 2 * (long_run.QUEUE_BYTES + long_run.FLIGHT.bytes)
    growth = last["resident"] - second["resident"]
    assert growth <= bound
    calls = long_run.QUARTER * (long_run.QUARTERS - 2)
    # One object or block of memory for every twentieth call would be a leak.
    for kind in ("objects", "blocks"):
        assert last[kind] - second[kind] < calls // 20
    assert last["descriptors"] <= second["descriptors"]
