"""Calls that run within each other, or at the same time: each end belongs to its own beginning."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from tests.recorder.models import Add, Nested, Two
from tests.recorder.reading import read


def test_greenlets_are_told_apart(tmp_path: Path) -> None:
    greenlet = pytest.importorskip("greenlet")

    class Switches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            greenlet.getcurrent().parent.switch()
            return x

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


def test_hooks_of_others_that_change_arguments_and_results(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        model.register_forward_pre_hook(lambda m, a, k: (a, dict(k)), with_kwargs=True)
        model.register_forward_hook(lambda m, a, out: out * 10)
        assert model(torch.ones(1), y=torch.ones(1)).item() == 20
    assert recorder.stats().kept == 1
    assert read(path).calls[0].output(0).item() == 2


def test_coroutines_and_threads_interleave(tmp_path: Path) -> None:
    model, path = Add(), tmp_path / "t.tape"

    async def one(n: int) -> None:
        for step in range(5):
            await asyncio.sleep(0)
            value = torch.tensor([float(n * 10 + step)])
            assert (await asyncio.to_thread(model, value, value)).item() == value.item() * 2

    async def all_of_them() -> None:
        await asyncio.gather(*(one(n) for n in range(8)))

    with record(model, path):
        asyncio.run(all_of_them())
    calls = read(path).calls
    assert len(calls) == 40
    assert all(call.output(0).item() == 2 * call.input(0).item() for call in calls)


def test_recording_two_modules_of_one_model_to_two_tapes(tmp_path: Path) -> None:
    model = Two()
    with record(model, tmp_path / "o.tape"), record(model.middle, tmp_path / "i.tape"):
        model(torch.ones(2, 4))
    for name in ("o", "i"):
        assert len(read(tmp_path / f"{name}.tape").calls) == 1


def test_duration_thread_and_time(tmp_path: Path) -> None:

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
