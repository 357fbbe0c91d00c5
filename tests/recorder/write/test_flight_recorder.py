"""The flight recorder: calls held in memory until something asks for them. And write-ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, FlightRecorder, When, record
from calltape_recorder.write import disk_file
from tests.recorder.models import Add, Identity, Raises
from tests.recorder.reading import read

NEVER = First(0)
ROOT = Path(__file__).parents[3]


def test_the_last_calls_are_written_when_asked(tmp_path: Path) -> None:
    model = Identity()
    held = FlightRecorder(calls=3)
    with record(model, tmp_path / "t.tape", keep=NEVER, flight_recorder=held) as recorder:
        for n in range(10):
            model(torch.tensor([n]))
        assert recorder.flush()
        stats = recorder.stats()
        assert (stats.kept, stats.queued, stats.dropped) == (0, 3, {"flight_recorder": 7})
        assert recorder.dump("the latency alarm") == 3
        assert recorder.dump("again") == 0
        assert recorder.flush()
        assert recorder.stats().kept == 3
        model(torch.tensor([10]))
    stats = recorder.stats()
    assert (stats.kept, stats.dropped, stats.queued_bytes) == (3, {"flight_recorder": 8}, 0)
    assert (stats.unwanted, stats.lost) == ({"flight_recorder": 8}, {})  # aged out, as asked for
    tape = read(tmp_path / "t.tape")
    assert [call.input(0).item() for call in tape.calls] == [7, 8, 9]
    assert tape.manifest.policy.flight_recorder is not None
    assert [(d.reason, d.calls) for d in tape.end.dumps] == [
        ("the latency alarm", 3), ("again", 0),
    ]  # fmt: skip


def test_a_call_that_raises_brings_those_before_it(tmp_path: Path) -> None:
    model = Raises()
    held = FlightRecorder(calls=2)
    with record(model, tmp_path / "t.tape", keep=NEVER, flight_recorder=held) as recorder:
        for _ in range(5):
            model(None)
        with pytest.raises(ValueError, match="bad input"):
            model(ValueError("bad input"))
        model(None)
    tape = read(tmp_path / "t.tape")
    assert tape.numbers == [3, 4, 5]
    assert tape.calls[-1].record.error is not None
    assert recorder.stats().dropped == {"flight_recorder": 4}
    assert tape.end.dumps[0].reason == "a call raised builtins:ValueError"


def test_an_exception_that_ends_a_thread_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ended = Identity(), list[Any]()
    monkeypatch.setattr(threading, "excepthook", ended.append)

    def work() -> None:
        model(torch.ones(1))
        raise RuntimeError("not of the process")

    with record(model, tmp_path / "t.tape", keep=NEVER, flight_recorder=FlightRecorder()):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [one.exc_type for one in ended] == [RuntimeError]
    tape = read(tmp_path / "t.tape")
    assert (tape.numbers, tape.end.dumps) == ([], ())


def test_what_keep_takes_is_not_held(tmp_path: Path) -> None:
    model = Identity()
    keep = When(lambda args, kwargs: args[0].item() % 2 == 0)
    with record(model, tmp_path / "t.tape", keep=keep, flight_recorder=FlightRecorder(2)) as r:
        for n in range(10):
            model(torch.tensor(n))
        r.dump("end")
    assert sorted(read(tmp_path / "t.tape").numbers) == [0, 2, 4, 6, 7, 8, 9]


def test_memory_is_bounded_by_bytes(tmp_path: Path) -> None:
    model = Identity()
    held = FlightRecorder(calls=1000, bytes=100_000)
    with record(model, tmp_path / "t.tape", keep=NEVER, flight_recorder=held, outputs=False) as r:
        for n in range(50):
            model(torch.full((2500,), float(n)))  # 10,000 bytes
            assert r.stats().queued_bytes <= 100_000
        assert r.stats().queued == 10
        model(torch.ones(100_000))  # more than the bound: nothing is left
        assert r.stats().queued == 0


def test_with_that_ends_by_an_exception_dumps(tmp_path: Path) -> None:
    model = Identity()

    def interrupted() -> None:
        with record(model, tmp_path / "t.tape", keep=NEVER, flight_recorder=FlightRecorder()):
            model(torch.ones(1))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    tape = read(tmp_path / "t.tape")
    assert tape.numbers == [0]
    assert tape.end.dumps[0].reason == "the process died of KeyboardInterrupt"


# --- write-ahead -------------------------------------------------------------------------------

CRASHING = """
import ctypes, sys, torch
from calltape_recorder import record

class Model(torch.nn.Module):
    def forward(self, x, n):
        if n == 3:
            ctypes.string_at(0)
        return x + n

model = Model()
record(model, sys.argv[1], write_ahead=True)
for n in range(5):
    model(torch.full((2,), float(n)), n)
"""


@pytest.mark.integration
def test_a_segmentation_fault_leaves_the_call_that_caused_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHING, str(tmp_path / "t.tape")], cwd=ROOT, check=False,
        capture_output=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == -signal.SIGSEGV
    ahead = read(tmp_path / "t.ahead-0.tape")
    assert ahead.numbers == [3]
    assert ahead.calls[0].input(0).tolist() == [3.0, 3.0]
    assert ahead.calls[0].record.outputs_missing == "under way"
    with open_tape(tmp_path) as tape:
        found = {call.number: call for call in tape}
        assert 3 in found
        (args, _) = found[3].inputs
        assert args[1] == 3


def test_what_ended_is_in_no_file_of_its_own(tmp_path: Path) -> None:
    seen: list[list[int]] = []

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            if depth:
                return self(x, depth - 1) + 1
            files = sorted(tmp_path.glob("*.ahead-*.tape"))
            seen.append([number for path in files for number in read(path).numbers])
            return x

    model, x = Model(), torch.ones(2)
    with record(model, tmp_path / "t.tape", write_ahead=True) as recorder:
        for _ in range(3):
            model(x, 2)
        assert all(read(path).numbers == [] for path in tmp_path.glob("*.ahead-*.tape"))
    assert [sorted(found) for found in seen] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert sorted(os.listdir(tmp_path)) == ["t.tape"]
    assert recorder.stats().kept == 9
    assert read(tmp_path / "t.tape").manifest.policy.write_ahead


def test_a_full_disk_costs_only_the_write_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = disk_file.pwritev
    model, x = Add(), torch.ones(2)
    with record(model, tmp_path / "t.tape", write_ahead=True) as recorder:
        main = threading.get_ident()

        def fails(*args: Any) -> int:
            if threading.get_ident() == main:
                raise OSError(28, "No space left on device")
            return real(*args)

        monkeypatch.setattr(disk_file, "pwritev", fails)
        assert torch.equal(model(x, x), x + x)
        assert torch.equal(model(x, x), x + x)
        monkeypatch.undo()
    assert recorder.stats().kept == 2
    assert caplog.text.count("written ahead") == 1


@pytest.mark.parametrize("under_way", ["ftruncate", "pwritev"])
def test_a_file_number_in_use_is_not_given_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, under_way: str
) -> None:
    model, x = Add(), torch.ones(2)
    recorder = record(model, tmp_path / "t.tape", write_ahead=True)
    model(x, x)
    there, go_on = threading.Event(), threading.Event()
    real = getattr(os, under_way)
    files: list[int] = []

    def waits(file: int, *args: Any) -> Any:
        if threading.current_thread().name == "host":
            files.append(file)
            there.set()
            assert go_on.wait(60)
        return real(file, *args)

    owner = os if under_way == "ftruncate" else disk_file
    monkeypatch.setattr(owner, under_way, waits)
    thread = threading.Thread(target=model, args=(x, x), name="host")
    thread.start()
    assert there.wait(60)
    recorder.close()
    hosts = [(tmp_path / f"host{n}").open("w") for n in range(5)]
    for host in hosts:
        host.write("precious")
        host.flush()
    go_on.set()
    thread.join()
    assert [Path(host.name).read_text() for host in hosts] == ["precious"] * 5
    for host in hosts:
        host.close()
    assert not list(tmp_path.glob("*.ahead-*"))
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(files[0])


def test_what_a_crash_left_is_kept(tmp_path: Path) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            names.append([path.name for path in sorted(tmp_path.glob("*.ahead-*"))])
            return x

    names: list[list[str]] = []
    model, x = Model(), torch.ones(2)
    left = tmp_path / "t.ahead-0.tape"
    left.write_text("the last call")
    with record(model, tmp_path / "t.tape", write_ahead=True):
        model(x)
    assert names.pop() == [left.name, "t.ahead-1.tape"]
    assert left.read_text() == "the last call"
    with record(model, tmp_path / "t.tape", write_ahead=True, overwrite=True):
        model(x)
    assert names.pop() == [left.name]
    assert not left.exists()


@pytest.mark.parametrize("left", ["-00012", "-123456", ".ahead-0", ""])
def test_a_restart_with_the_same_number_takes_another_name(tmp_path: Path, left: str) -> None:
    own = f"Add-{os.getpid()}"
    (tmp_path / f"{own}{left}.tape").write_text("of a process before")
    (tmp_path / f"{own}.2{left}.tape").write_text("of another")
    (tmp_path / f"{own}.3-p7.tape").write_text("of a fork")
    with record(Add(), tmp_path) as recorder:
        assert Path(recorder.path).name == f"{own}.3.tape"
