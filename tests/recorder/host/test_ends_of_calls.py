"""Calls that end without a hook, calls that the end of the recording cuts off, and calls within
each other: each is accounted for once, and holds nothing."""

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

from calltape_recorder import Every, Recorder, When, record
from calltape_recorder.write import writer
from tests.recorder.models import Add, Nested
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads, until


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


def test_cancelled_calls_of_ended_threads_hold_nothing_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOOK_SECONDS", 0.01)
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        inputs = [_cancelled(model, 1000) for _ in range(5)]
        # Nobody calls the model again, flushes or closes.
        until(lambda: recorder.stats().kept == 5)
        gc.collect()
        assert all(value() is None for value in inputs)
    assert [call.error.type for call in read(tmp_path / "t.tape").calls] == [
        "builtins:BaseException"
    ] * 5


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
        assert recorder.stats().queued == 1
        END[how](recorder, model)
    first = min(read(tmp_path / "t.tape").calls, key=lambda call: call.record.call)
    assert first.error.type == "builtins:BaseException"
    assert (recorder.stats().queued, recorder.stats().dropped) == (0, {})


@pytest.mark.parametrize("again", [True, False])
def test_a_cancelled_call_is_noticed_at_the_next_call_of_its_thread(
    again: bool, tmp_path: Path
) -> None:
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


class Switches(torch.nn.Module):
    """Lets another greenlet go on within each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from greenlet import getcurrent

        getcurrent().parent.switch()
        return x


def test_a_greenlet_that_was_killed_in_a_call_holds_nothing(tmp_path: Path) -> None:
    greenlet = pytest.importorskip("greenlet")

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


def test_threads_that_take_each_other_s_number_are_told_apart(tmp_path: Path) -> None:
    model = Cancels()
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(200):
            thread = threading.Thread(target=model, args=(torch.zeros(1),))
            thread.start()
            thread.join()
    assert recorder.stats().kept == 200


def test_looking_for_ended_calls_takes_none_that_runs(tmp_path: Path) -> None:
    class Mixed(torch.nn.Module):
        def forward(self, depth: int) -> int:
            if depth == 0:
                raise CancelledError
            with contextlib.suppress(CancelledError):
                self(depth - 1)
            return depth

    def work(looks: bool) -> None:
        if looks:
            while not done.is_set():
                recorder.flush()
            return
        try:
            for _ in range(150):
                model(3)
        finally:
            left.append(1)
            if len(left) == 3:
                done.set()

    model, done, left = Mixed(), threading.Event(), []
    with record(model, tmp_path / "t.tape") as recorder:
        in_threads(work, (True, True, False, False, False))
    calls = read(tmp_path / "t.tape").calls
    assert sorted(call.record.call for call in calls) == list(range(3 * 150 * 4))
    for call in calls:
        assert (call.record.error is not None) == (call.scalar(call.args[0]) == 0)


# --- a recorder that detaches or closes while a call runs ----------------------------------------


class Waits(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inside.set()
        self.go.wait(60)
        return x


@pytest.mark.parametrize(
    ("ends", "in_predicate"),
    [(Recorder.detach, False), (Recorder.close, False), (Recorder.close, True)],
)
def test_a_call_under_way_is_counted_and_holds_nothing(
    tmp_path: Path, ends: Callable[[Recorder], None], in_predicate: bool
) -> None:
    """Also one of which a predicate has not decided yet whether it is kept."""
    waits = Waits()
    model = torch.nn.Identity() if in_predicate else waits
    keep = When(lambda args, kwargs: bool(waits(*args) is args[0])) if in_predicate else Every()
    recorder = record(model, tmp_path / "t.tape", keep=keep, write_ahead=True)
    thread = threading.Thread(target=model, args=(torch.ones(1000),))
    thread.start()
    assert waits.inside.wait(60)
    ends(recorder)
    assert recorder.stats().queued_bytes == 0
    waits.go.set()
    thread.join()
    assert recorder.stats().dropped == {"unfinished": 1}
    if ends is Recorder.detach:
        recorder.attach(model)
        model(torch.ones(1000))
        recorder.close()
    stats, end = recorder.stats(), read(tmp_path / "t.tape").end
    assert (stats.seen - stats.kept, stats.queued, stats.queued_bytes) == (1, 0, 0)
    assert end is not None
    assert end.coverage.dropped == {"unfinished": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["t.tape"]


# --- calls within each other, or at the same time: each end belongs to its own beginning ----------


def test_greenlets_are_told_apart(tmp_path: Path) -> None:
    greenlet = pytest.importorskip("greenlet")

    model = Switches()
    with record(model, tmp_path / "t.tape") as recorder:
        both = [greenlet.greenlet(lambda: model(torch.zeros(3))) for _ in range(2)]
        for one in (*both, *both):
            one.switch()
            recorder.flush()
    assert [call.record.error for call in read(tmp_path / "t.tape").calls] == [None, None]


def test_nested_calls_of_one_module_are_paired(tmp_path: Path) -> None:
    model, path = Nested(), tmp_path / "t.tape"
    with record(model, path):
        model(torch.zeros(1), 3)
    by_number = sorted(read(path).calls, key=lambda call: call.record.call)
    assert [call.input(0).item() for call in by_number] == [0, 1, 2, 3]
    assert [call.output(0).item() for call in by_number] == [6, 6, 6, 6]
    durations = [call.record.duration_ns or 0 for call in by_number]
    assert durations == sorted(durations, reverse=True)


def test_an_interrupted_inner_call_does_not_take_the_outer_one_s_place(tmp_path: Path) -> None:
    class Retry(torch.nn.Module):
        def forward(self, x: torch.Tensor, again: bool) -> torch.Tensor:
            if again:
                raise KeyboardInterrupt
            with contextlib.suppress(KeyboardInterrupt):
                self(x + 10, True)
            return x + 1

    model, path = Retry(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        for value in (1.0, 2.0):
            assert model(torch.tensor([value]), False).item() == value + 1
        assert recorder.flush()
        assert recorder.stats().queued == 0
    calls = {call.record.call: call for call in read(path).calls}
    assert [calls[n].input(0).item() for n in range(4)] == [1, 11, 2, 12]
    assert [calls[n].record.error is None for n in range(4)] == [True, False, True, False]
    assert calls[2].output(0).item() == 3


def test_a_result_is_recorded_before_the_hooks_of_others_change_it(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        model.register_forward_pre_hook(lambda m, a, k: (a, dict(k)), with_kwargs=True)
        model.register_forward_hook(lambda m, a, out: out * 10)
        assert model(torch.ones(1), y=torch.ones(1)).item() == 20
    assert recorder.stats().kept == 1
    assert read(path).calls[0].output(0).item() == 2


def test_a_call_has_its_duration_thread_and_time(tmp_path: Path) -> None:

    class Slow(torch.nn.Module):
        def forward(self) -> None:
            time.sleep(0.02)

    model, path = Slow(), tmp_path / "t.tape"
    begun = time.time_ns()
    with record(model, path):
        before = time.perf_counter_ns()
        model()
        most = time.perf_counter_ns() - before
    call = read(path).calls[0].record
    assert 20_000_000 <= (call.duration_ns or 0) <= most
    assert begun <= call.time_ns <= time.time_ns()
    assert call.thread == threading.get_ident()
