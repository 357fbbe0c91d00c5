"""Whether every call is on the tapes of a folder or counted as dropped, whatever the disk did."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from calltape_recorder import Recorder
from calltape_recorder.keep.ledger import Stats
from tests.recorder.reading import ReadTape, read

KIB = 1024


OPTIONS: dict[str, dict[str, Any]] = {
    "one file": {},
    "segments": {"segment_bytes": 30 * KIB},
    "oldest deleted": {
        "segment_bytes": 30 * KIB, "max_disk_bytes": 160 * KIB, "when_full": "delete_oldest",
    },
    "write-ahead": {"write_ahead": True},
}  # fmt: skip
# Nothing is known of the inputs of calls that are only counted, or ended with the recording.
_WITHOUT_INPUTS = (
    "paused", "max_calls", "max_seconds", "max_share", "tracing", "interrupted", "unfinished",
)  # fmt: skip


def tensor_of(number: int) -> torch.Tensor:
    return torch.full((3000 if number % 4 == 1 else 50,), float(number))


def block(value: float = 0.0, kib: int = 10) -> torch.Tensor:
    return torch.full((kib * KIB // 4,), value)


def call(recorder: Recorder, model: Any, count: int, start: int = 0) -> None:
    """Calls one by one: what is written together is in one segment."""
    for n in range(start, start + count):
        model(block(float(n)))
        assert recorder.flush()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def tapes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tape"))


def tapes_in(folder: Path) -> list[ReadTape]:
    """The tapes of calls that ended."""
    return [read(path) for path in tapes(folder) if ".ahead" not in path.name]


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in tapes(folder))


def check_accounts(stats: Stats, tapes: list[ReadTape]) -> None:
    """Every call seen is kept, and reads back, or stands among those dropped."""
    assert stats.seen == stats.kept + sum(stats.dropped.values())
    assert (stats.queued, stats.queued_bytes) == (0, 0)
    numbers = [number for tape in tapes for number in tape.numbers]
    assert len(numbers) == len(set(numbers)) == stats.kept
    for tape in tapes:
        for call in tape.calls:
            for tensor in (call.input(0), call.output(0)):
                assert torch.equal(tensor, tensor_of(call.record.call))


def check_ends(stats: Stats, tapes: list[ReadTape]) -> None:
    """Sealed tapes tell of every call, and their tables count the kept ones and no others twice."""
    coverage = [tape.end.coverage for tape in tapes]
    assert sum(part.seen for part in coverage) == stats.seen
    assert sum(part.kept for part in coverage) == stats.kept
    dropped: Counter[str] = Counter()
    for part in coverage:
        dropped.update(part.dropped)
    assert dropped == Counter(stats.dropped)
    assert not any(tape.damage for tape in tapes)
    counted = [tape.table.totals() for tape in tapes]
    assert [totals.kept for totals in counted] == [len(tape.numbers) for tape in tapes]
    with_inputs = stats.seen - sum(dropped[reason] for reason in _WITHOUT_INPUTS)
    assert with_inputs <= sum(totals.seen for totals in counted) <= stats.seen
