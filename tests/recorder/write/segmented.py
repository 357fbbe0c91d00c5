"""Recordings in segments, and their tapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_recorder import Recorder
from calltape_recorder.keep.ledger import Stats
from tests.recorder.reading import read

KIB = 1024


def block(value: float = 0.0, kib: int = 10) -> torch.Tensor:
    return torch.full((kib * KIB // 4,), value)


def call(recorder: Recorder, model: Any, count: int, start: int = 0) -> None:
    """Calls one by one: what is written together is in one segment."""
    for n in range(start, start + count):
        model(block(float(n)))
        assert recorder.flush()


def tapes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tape"))


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in tapes(folder))


def adds_up(stats: Stats, folder: Path) -> None:
    """Every call seen stands on a tape or among those dropped, in the files and in the stats."""
    found = [read(path) for path in tapes(folder)]
    coverage = [tape.end.coverage for tape in found if tape.end is not None]
    assert len(coverage) == len(found)
    assert sum(c.seen for c in coverage) == stats.seen
    assert sum(c.kept for c in coverage) == stats.kept == sum(len(t.numbers) for t in found)
    dropped: dict[str, int] = {}
    for part in coverage:
        for reason, calls in part.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + calls
    assert dropped == stats.dropped
    for tape in found:
        assert not tape.damage
        assert tape.table.totals().kept == len(tape.numbers)
    counted = sum(tape.table.totals().seen for tape in found)
    # Nothing is known of the inputs of calls that are only counted, or ended with the recording.
    unknown = ["paused", "max_calls", "max_seconds", "max_share", "tracing", "interrupted",
               "unfinished"]  # fmt: skip
    assert stats.seen - sum(dropped.get(reason, 0) for reason in unknown) <= counted <= stats.seen
