"""Whatever a recorder does, its counters agree with its calls."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import Every, First, FlightRecorder, Novelty, Rate, Recorder, record
from calltape_recorder.write import writer
from tests.analyzer.observing.counters import Add, reasons
from tests.forging.changes import member_list
from tests.recorder.waiting import looked

SEEDS = int(os.environ.get("CALLTAPE_ACCOUNT_SEEDS", "12"))


def unusual() -> list[Any]:
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    return [
        nested, torch.zeros(3).to_sparse(), torch.nn.Parameter(torch.zeros(2)),
        np.zeros((2, 3), dtype=np.float32), np.zeros(4, dtype="U3"), 2**70, True, "text", None,
        torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        torch.zeros(2, device="meta"), [torch.zeros(1), {"k": torch.zeros(0, 4)}],
        torch.zeros(3, 4).T, np.int64(4), 1.5,
    ]  # fmt: skip


@pytest.mark.parametrize("values", ["all", "none"])
@pytest.mark.parametrize("write_ahead", [False, True])
def test_no_recorder_is_accused(tmp_path: Path, values: str, write_ahead: bool) -> None:
    model = Add()
    options: dict[str, Any] = {"values": values, "write_ahead": write_ahead}
    with record(model, tmp_path / "a.tape", **options) as recorder:
        for _ in range(3):
            for value in unusual():
                model(value)
            for n in (3, -(2**63), 2**63, 2**80):
                model(torch.zeros(2, 1), n)
        for size in range(80):
            model(torch.zeros(size % 40, 1))
    assert recorder.stats().dropped == {}
    with open_tape(tmp_path) as tape:
        assert tape.counters.calls == len(tape) == 3 * 19 + 80
        assert tape.counters.complete
        assert not tape.damage


def test_many_kinds_have_rows_each(tmp_path: Path) -> None:
    model = Add()
    with record(model, tmp_path / "a.tape"):
        for number in range(300):
            model({f"k{number}": torch.zeros(2)})
    with open_tape(tmp_path) as tape:
        assert len(tape.counters.groups) == 300
        assert tape.counters.calls == 300
        assert not tape.damage


def test_a_call_that_is_lost_accuses_nobody(tmp_path: Path) -> None:
    model = Add()
    with record(model, path := tmp_path / "a.tape") as recorder:
        for size in (2, 5, 9):
            model(torch.zeros(size, 3))
            recorder.flush()  # a group of its own
    data = bytearray(path.read_bytes())
    (lost,) = [m for m in member_list(path) if m.name == "records/00000001.msgpack"]
    data[lost.start + 60] ^= 1
    path.write_bytes(data)
    with open_tape(path, scan=True) as tape:
        assert len(tape) == 2
        assert tape.counters.calls == 3
        assert len(tape.damage) == 1


class Raises(Add):
    def forward(self, x: Any, n: int = 0) -> Any:
        if n == 13:
            raise ValueError("13")
        return x


def _options(draw: random.Random, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "keep": draw.choice([Every(), First(3), Novelty(), Rate(0.3), First(0)]),
        "values": draw.choice(["all", "none"]),
        "write_ahead": draw.random() < 0.3,
        "outputs": draw.random() < 0.8,
        "max_calls": draw.choice([None, None, 20]),
        "max_queue_bytes": draw.choice([2**26, 2**26, 4000]),
        "flight_recorder": draw.choice([None, None, FlightRecorder(calls=4)]),
        "segment_bytes": draw.choice([None, 8192, 40_000]),
    }
    if found["segment_bytes"] and draw.random() < 0.5:
        found.update(max_disk_bytes=draw.choice([140_000, 400_000]), when_full="delete_oldest")
    return found


def _calls(model: Any, draw: random.Random, calls: int) -> None:
    for _ in range(calls):
        size, n = draw.randrange(draw.choice([3, 90])), draw.choice([0, 1, 13, 2**70, -5])
        given: Any = torch.zeros(size, 2)
        if draw.random() < 0.2:
            given = {f"k{draw.randrange(4)}": given}
        with contextlib.suppress(ValueError):
            model(given, n) if draw.random() < 0.7 else model(torch.zeros(2, 2))


def _record_anyhow(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    model, options = Raises(), _options(draw, folder)
    recorder = Recorder(folder / "a.tape", **options).attach(model)
    for _ in range(draw.randrange(1, 5)):
        threads = [
            threading.Thread(target=_calls, args=(model, random.Random(draw.random()), 15))
            for _ in range(draw.randrange(1, 4))
        ]
        for thread in threads:
            thread.start()
        action = draw.choice([
            recorder.seal, recorder.pause, recorder.resume, recorder.flush,
            lambda: recorder.dump("now"), lambda: recorder.set_rate(0.5),
            lambda: recorder.set_rate(None),
        ])  # fmt: skip
        action()
        for thread in threads:
            thread.join()
        if draw.random() < 0.1:
            recorder.flush()
            (folder / "a.tape").unlink(missing_ok=True)
            with monkeypatch.context() as patch:
                patch.setattr(writer, "LOOK_SECONDS", 0.0)
                assert looked(recorder)
    if draw.random() < 0.7:
        recorder.close()
        return
    recorder.flush()
    killed = folder / "killed"  # what would be there if the process died now
    killed.mkdir()
    for path in folder.glob("*.tape"):
        shutil.copy(path, killed)
    recorder.close()


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(n, marks=pytest.mark.integration) for n in range(3, SEEDS))]
)
def test_no_recorder_is_accused_whatever_it_does(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Policies, segments, deleted files, threads, pauses, dumps and the death of the process; all
    files together, the first of them, and each by itself."""
    _record_anyhow(tmp_path, seed, monkeypatch)
    for folder in (tmp_path, tmp_path / "killed"):
        paths = sorted(folder.glob("*.tape"), key=lambda path: (len(path.name), path.name))
        sets = [paths, paths[:2], paths[1:], *([path] for path in paths)]
        for some in filter(None, sets):
            with open_tape(some) as tape:
                tape.counters  # noqa: B018
                assert reasons(tape) == [], (seed, some)
