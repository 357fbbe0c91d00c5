"""A recorder from its beginning to its end: it attaches, flushes, detaches and closes."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_recorder import First, FlightRecorder, Recorder, TapeError, record
from calltape_recorder.keep.ledger import Stats
from tests.raising import raises
from tests.recorder import disks
from tests.recorder.calls import appearance_of
from tests.recorder.models import Add, Identity
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads


def test_flush_means_in_the_file(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        for n in range(1, 20):
            model(torch.ones(n), torch.ones(n))
            assert recorder.flush()
            tape = read(path)
            assert len(tape.calls) == n == recorder.stats().kept
            assert not tape.is_sealed
            assert recorder.stats().disk_bytes == path.stat().st_size


def test_flush_returns_false_on_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Add()
    recorder = record(model, tmp_path / "t.tape")
    gate = disks.slow(monkeypatch)
    model(torch.ones(1), torch.ones(1))
    assert not recorder.flush(timeout=0.05)
    gate.set()
    assert recorder.flush(timeout=30)
    recorder.close()


def test_flush_works_from_many_threads(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    counted: list[bool] = []

    def work(_: int) -> None:
        for _ in range(20):
            model(torch.ones(1), torch.ones(1))
            counted.append(recorder.flush())

    with record(model, path) as recorder:
        in_threads(work, range(4))
    assert counted == [True] * 80
    assert len(read(path).calls) == 80


def test_close_seals_once_and_ends_the_thread(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    others = set(threading.enumerate())
    recorder = record(model, path)
    (writer,) = set(threading.enumerate()) - others
    assert writer.name == "calltape-writer"
    assert recorder.stats().state == "recording"
    model(torch.ones(1), torch.ones(1))
    recorder.close()
    size = path.stat().st_size
    recorder.close()
    recorder.detach()
    model(torch.ones(1), torch.ones(1))
    assert path.stat().st_size == size
    assert (recorder.stats().state, recorder.stats().seen) == ("closed", 1)
    assert recorder.flush()
    writer.join(60)  # it said that it is done, and may have one step to go
    assert not writer.is_alive()
    with raises("closed"):
        recorder.attach(model)
    tape = read(path)
    assert list(tape.end.groups().lows) == [0]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are read from /proc")
def test_one_thread_writes_and_close_leaves_nothing(tmp_path: Path) -> None:
    """No hook, no thread, no file open; the model is as it was before."""

    others = set(threading.enumerate())

    def writers() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread not in others]

    def files() -> list[str]:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        paths = [os.readlink(link) for link in links if os.path.lexists(link)]
        return [path for path in paths if path.startswith(str(tmp_path))]

    model, x = Add(), torch.ones(1)
    looks = appearance_of(model)
    recorder = record(model, tmp_path / "t.tape", write_ahead=True, segment_bytes=1)
    for _ in range(5):
        model(x, x)
        assert recorder.flush()
    assert writers() == ["calltape-writer"]
    assert files()
    assert model._forward_hooks
    recorder.close()
    assert not files()
    while writers():  # it said that it is done, and has one step to go
        time.sleep(0.001)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert appearance_of(model) == looks


def test_a_recorder_goes_on_when_it_is_attached_again(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    recorder = record(model, path)
    with pytest.raises(TapeError, match="one module"):
        recorder.attach(Add())
    model(torch.ones(1), torch.ones(1))
    recorder.detach()
    model(torch.ones(1), torch.ones(1))
    with pytest.raises(TapeError, match="one class"):
        recorder.attach(Identity())
    recorder.attach(model)
    model(torch.ones(1), torch.ones(1))
    recorder.close()
    assert read(path).numbers == [0, 1]


def test_a_recorder_that_was_never_attached_seals_an_empty_tape(tmp_path: Path) -> None:
    with Recorder(tmp_path / "t.tape") as recorder:
        assert recorder.stats() == Stats(0, 0, segments=1, path=recorder.path)
        assert recorder.flush()
    tape = read(tmp_path / "t.tape")
    assert (tape.manifest.target, tape.calls) == (None, [])
    assert tape.is_sealed


@pytest.mark.parametrize("early", ["from the start", "later"])
def test_a_clock_before_1970_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, early: str
) -> None:
    model, x = torch.nn.Identity(), torch.ones(2)
    now = [-1 if early == "from the start" else 1]
    monkeypatch.setattr(time, "time_ns", lambda: now[0])
    held = FlightRecorder(calls=3)
    recorder = Recorder(tmp_path / "t.tape", keep=First(2), flight_recorder=held)
    recorder.attach(model, running=True)
    model(x)
    recorder.flush()
    now[0] = -1
    for _ in range(3):
        model(x)
    assert recorder.dump("alarm") == 2
    assert recorder.seal()  # the next call begins a file
    model(x)
    assert recorder.dump("again") == 1
    recorder.close()
    assert (recorder.stats().kept, recorder.stats().last_error) == (5, None)
    with open_tape(tmp_path) as tape:
        assert (len(tape), len(tape.paths), list(tape.damage)) == (5, 2, [])
        assert [(dump.time_ns, dump.calls) for dump in tape.dumps] == [(0, 2), (0, 1)]
        assert tape.coverage is not None


def test_nothing_keeps_the_host_s_tensors_or_the_model_alive(tmp_path: Path) -> None:
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    tensor = torch.randn(10)
    value = weakref.ref(tensor)
    model([tensor])
    recorder.flush()
    del tensor
    gc.collect()
    assert value() is None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    recorder.close()
