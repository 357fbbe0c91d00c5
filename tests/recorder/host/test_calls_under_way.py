"""A recorder that detaches or closes while a call runs: the call is counted, and holds nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import When, record
from calltape_recorder.snapshot.call import Call
from calltape_recorder.write.write_ahead import WriteAhead
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import read


def test_a_call_under_way_when_the_recorder_detaches(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    class Waits(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            inside.set()
            go.wait()
            return x

    model = Waits()
    recorder = record(model, tmp_path / "t.tape")
    thread = threading.Thread(target=model, args=(torch.ones(1000),))
    thread.start()
    inside.wait()
    recorder.detach()
    assert recorder.stats().dropped == {"unfinished": 1}
    assert recorder.stats().queued_bytes == 0
    go.set()
    thread.join()
    recorder.attach(model)
    model(torch.ones(1000))
    recorder.close()
    assert (recorder.stats().kept, recorder.stats().queued) == (1, 0)


def test_a_call_whose_inputs_are_written_ahead_holds_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Call] = []
    monkeypatch.setattr(WriteAhead, "write", _noting(calls, WriteAhead.write))
    model = Echo()
    with record(model, tmp_path / "t.tape", write_ahead=True):
        for n in range(5):
            model(torch.full((500,), float(n)), n)
        assert calls[-1].inputs is not None
        assert calls[-1].inputs.joined is not None  # alike calls wait as bytes
    found = [call.input(0) for call in read(tmp_path / "t.tape").calls]
    assert torch.equal(torch.stack(found), torch.arange(5.0)[:, None].expand(5, 500))


def _noting(calls: list[Call], write: Any) -> Any:
    def noting(self: WriteAhead, call: Call) -> None:
        write(self, call)
        assert call.inputs is not None
        assert (call.inputs.joined is not None) != bool(call.inputs.places)  # one copy of each
        calls.append(call)

    return noting


def test_a_recorder_that_closes_while_a_predicate_runs(tmp_path: Path) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(args: Any, kwargs: Any) -> bool:
        inside.set()
        go.wait()
        return True

    model = Identity()
    recorder = record(model, tmp_path / "t.tape", keep=When(slow), write_ahead=True)
    thread = threading.Thread(target=model, args=(torch.ones(1000),))
    thread.start()
    inside.wait()
    recorder.close()
    go.set()
    thread.join()
    stats = recorder.stats()
    assert (stats.seen, stats.dropped, stats.queued, stats.queued_bytes) == (
        1, {"unfinished": 1}, 0, 0,
    )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["t.tape"]


def test_a_call_under_way_at_close_is_counted(tmp_path: Path) -> None:
    class Slow(torch.nn.Module):
        def forward(self) -> int:
            inside.set()
            go.wait()
            return 1

    inside, go = threading.Event(), threading.Event()
    model = Slow()
    recorder = record(model, tmp_path / "t.tape")
    thread = threading.Thread(target=model)
    thread.start()
    inside.wait()
    assert recorder.stats().queued == 1
    recorder.close()
    go.set()
    thread.join()
    assert recorder.stats().dropped == {"unfinished": 1}
    end = read(tmp_path / "t.tape").end
    assert end is not None
    assert end.coverage.dropped == {"unfinished": 1}
