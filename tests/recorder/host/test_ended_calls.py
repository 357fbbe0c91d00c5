"""Calls that end without a hook: they are handed over, and hold nothing."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import Recorder, record
from tests.recorder.reading import read


class CancelledError(BaseException):
    """What hooks are not told of."""


def _cancelled(model: Any, size: int) -> weakref.ref[torch.Tensor]:
    """A call in a thread of its own that ends by a BaseException; the input it had."""
    inputs: list[weakref.ref[torch.Tensor]] = []

    def request() -> None:
        x = torch.zeros(size)
        inputs.append(weakref.ref(x))
        with contextlib.suppress(CancelledError):
            model(x)

    thread = threading.Thread(target=request)
    thread.start()
    thread.join()
    return inputs[0]


class Cancels(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.numel() > 1:
            raise CancelledError
        return x


def _until(condition: Any) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def test_cancelled_calls_of_ended_threads_hold_nothing_for_long(tmp_path: Path) -> None:
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        inputs = [_cancelled(model, 1000) for _ in range(5)]
        # Nobody calls the model again, flushes or closes.
        assert _until(lambda: recorder.stats().kept == 5)
        gc.collect()
        assert all(value() is None for value in inputs)
        pair: Any = recorder._attachment
        assert not pair.under_way
    types = [call.record.error.type for call in read(tmp_path / "t.tape").calls]  # type: ignore[union-attr]
    assert types == ["builtins:BaseException"] * 5


END: dict[str, Callable[[Recorder, Any], object]] = {
    "calls again": lambda recorder, model: model(torch.zeros(1)),
    "flushes": lambda recorder, model: recorder.flush(),
    "detaches": lambda recorder, model: recorder.detach(),
    "closes": lambda recorder, model: recorder.close(),
}


@pytest.mark.parametrize("how", END)
def test_a_cancelled_call_is_handed_over_when_its_thread(how: str, tmp_path: Path) -> None:
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        with contextlib.suppress(CancelledError):
            model(torch.zeros(1000))
        pair: Any = recorder._attachment
        assert len(pair.under_way) == 1
        END[how](recorder, model)
        assert not pair.under_way
    first = min(read(tmp_path / "t.tape").calls, key=lambda call: call.record.call).record
    assert first.error is not None
    assert first.error.type == "builtins:BaseException"
    assert recorder.stats().dropped == {}


@pytest.mark.parametrize("again", [True, False])
def test_a_cancelled_call_of_a_thread_that_lives_on(again: bool, tmp_path: Path) -> None:
    """Other threads cannot know that it ended: they do not look at the frames of that one."""
    model = Cancels()
    go, cancelled = threading.Event(), threading.Event()

    def work() -> None:
        with contextlib.suppress(CancelledError):
            model(torch.zeros(1000))
        cancelled.set()
        go.wait(60)
        if again:
            model(torch.zeros(1))
            done.set()
            end.wait(60)

    done, end = threading.Event(), threading.Event()
    thread = threading.Thread(target=work)
    with record(model, tmp_path / "t.tape", max_queue_bytes=6000) as recorder:
        thread.start()
        assert cancelled.wait(60)
        model(torch.zeros(1))
        assert recorder.flush()
        assert recorder.stats().queued == 1
        if again:
            go.set()
            assert done.wait(60)
        assert recorder.flush()
        assert recorder.stats().queued == (0 if again else 1)
    go.set()
    end.set()
    thread.join()
    assert recorder.stats().dropped == ({} if again else {"unfinished": 1})


def test_a_greenlet_that_was_killed_in_a_call_holds_nothing(tmp_path: Path) -> None:
    greenlet = pytest.importorskip("greenlet")

    class Switches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            greenlet.getcurrent().parent.switch()
            return x

    model = Switches()
    with record(model, tmp_path / "t.tape") as recorder:
        killed = greenlet.greenlet(model)
        killed.switch(torch.zeros(1000))
        assert recorder.flush()
        assert recorder.stats().queued == 1
        killed.throw(greenlet.GreenletExit)
        assert killed.dead
        assert recorder.flush()
        assert recorder.stats().queued == 0
    (call,) = read(tmp_path / "t.tape").calls
    assert call.record.error is not None


def test_threads_that_take_each_other_s_number(tmp_path: Path) -> None:
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(200):
            thread = threading.Thread(target=model, args=(torch.zeros(1),))
            thread.start()
            thread.join()
        pair: Any = recorder._attachment
        assert not pair.under_way
    assert recorder.stats().kept == 200


def test_looking_for_ended_calls_takes_none_that_runs(tmp_path: Path) -> None:
    class Mixed(torch.nn.Module):
        def forward(self, depth: int) -> int:
            if depth == 0:
                raise CancelledError
            with contextlib.suppress(CancelledError):
                self(depth - 1)
            return depth

    model, done = Mixed(), threading.Event()
    recorder = record(model, tmp_path / "t.tape")
    pair: Any = recorder._attachment

    def look() -> None:
        while not done.is_set():
            pair.hand_over_ended(None)

    def work() -> None:
        for _ in range(150):
            model(3)

    looking = [threading.Thread(target=look) for _ in range(2)]
    working = [threading.Thread(target=work) for _ in range(3)]
    for thread in looking + working:
        thread.start()
    for thread in working:
        thread.join()
    done.set()
    for thread in looking:
        thread.join()
    recorder.close()
    calls = read(tmp_path / "t.tape").calls
    assert sorted(call.record.call for call in calls) == list(range(3 * 150 * 4))
    for call in calls:
        assert (call.record.error is not None) == (call.scalar(call.args[0]) == 0)
