"""Exceptions and signals that arrive between any two steps, and disks that never answer: the host
goes on, and the accounts hold."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from calltape_recorder import (
    First,
    FlightRecorder,
    Novelty,
    Rate,
    Recorder,
    When,
    buffers,
    record,
    tape_writer,
    writer,
)
from calltape_recorder.buffers import Buffers
from calltape_recorder.calltree import node_of
from tests.recorder.models import Add, Identity, Raises
from tests.recorder.reading import read


class Interrupt(BaseException):
    """Raised by a signal handler, anywhere."""


def balanced(recorder: Recorder) -> bool:
    stats = recorder.stats()
    return stats.seen == stats.kept + sum(stats.dropped.values()) + stats.queued


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Takes nothing until the event is set."""
    answers = threading.Event()
    real = tape_writer.pwritev

    def wait(*arguments: Any) -> int:
        answers.wait()
        return real(*arguments)

    monkeypatch.setattr(tape_writer, "pwritev", wait)
    yield answers
    answers.set()


def interrupted_in(name: str, run: Any) -> int:
    """How often ``run`` was interrupted: at each line of the function ``name``, one by one."""
    found = 0
    for line in range(200):
        met = [line]

        def trace(frame: FrameType, event: str, _: Any, met: list[int] = met) -> Any:
            if frame.f_code.co_qualname != name:
                return trace if event == "call" else None
            if event == "line":
                met[0] -= 1
                if met[0] == -1:
                    raise Interrupt
            return trace

        sys.settrace(trace)
        try:
            run()
        except Interrupt:
            found += 1
        finally:
            sys.settrace(None)
        if met[0] >= 0:
            return found
    raise AssertionError(f"{name} never ended")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names of code before 3.11")
@pytest.mark.parametrize(
    "name",
    [
        "Tap.begin", "Tap._begun", "Tap._seen_inputs", "Tap.finish", "_snapshot", "take", "_pooled",
        "Buffers.take", "Ledger._admit", "Ledger._take_back", "Ledger.reserve", "Ledger.settle",
        "HookPair.matching", "HookPair.take", "_run_before", "_run_after", "Pipeline._take",
        "Writer.put", "TrafficCounter.count", "Likeness.holds", "Likeness.is_of", "node_of",
        "leave", "Tap._outputs_of", "Gate.follow.<locals>.by_number", "_Sparse.gap",
    ],
)  # fmt: skip
def test_an_interrupt_at_any_line_leaks_nothing(name: str, tmp_path: Path) -> None:
    found = 0
    for number, options in enumerate(INTERRUPTED):
        found += interrupted_within(name, tmp_path / f"{number}.tape", options)
    assert found


INTERRUPTED: list[dict[str, Any]] = [
    {},
    {"keep": First(0), "max_calls": 10**6},
    {"values": "none"},
    {"keep": Rate(0.05)},
    {"write_ahead": True},
    {"max_queue_bytes": 100_000},
]


def interrupted_within(name: str, path: Path, options: dict[str, Any]) -> int:
    model, x, small = Identity(), torch.ones(40_000), torch.ones(3)
    with record(model, path, **options) as recorder:
        for _ in range(30):  # small calls become familiar
            model(small)
        if name == "HookPair.matching":  # a hook of the host's that comes after ours
            model.register_forward_pre_hook(lambda _, args, kwargs: (args, {}), with_kwargs=True)

        def run() -> None:
            recorder.set_rate(None)  # what is known ahead of a sample is forgotten
            model(x)
            model(small)

        found = interrupted_in(name, run)
        gc.collect()
        assert node_of(b"", 0).parent is None
        assert recorder.flush()
        stats = recorder.stats()
        assert balanced(recorder)
        assert stats.queued_bytes == 0
        assert stats.queued <= 20  # of one that was not counted yet nothing is held
        pipeline: Any = recorder._tap.pipeline
        pool = pipeline.buffers
        pool._count_lost()
        assert pool._bytes == sum(size * len(idle) for size, idle in pool._idle.items())
        run()
        recorder.flush()
    final = recorder.stats()
    assert final.queued == 0
    assert balanced(recorder)
    tape = read(path)
    assert not tape.damage
    assert len(tape.calls) == final.kept
    return found


def test_a_signal_handler_that_closes_while_its_thread_holds_a_lock(tmp_path: Path) -> None:
    model, x = Identity(), torch.ones(40_000)
    recorder = record(model, tmp_path / "t.tape")
    pipeline: Any = recorder._tap.pipeline
    locks = {
        "buffers": pipeline.buffers._lock,
        "ledger": pipeline.ledger._lock,
        "traffic": pipeline.traffic._lock,
    }
    for _ in range(50):
        model(x)
    for lock in locks.values():
        lock.acquire()
    try:  # as a handler would that runs in here
        assert recorder.flush(30)
        recorder.close()
    finally:
        for lock in locks.values():
            lock.release()
    assert len(read(tmp_path / "t.tape").calls) == 50


def test_a_disk_that_never_answers_does_not_keep_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: threading.Event
) -> None:
    monkeypatch.setattr(writer, "_STUCK_SECONDS", 0.2)
    disk.set()
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    disk.clear()
    for _ in range(5):
        model(torch.ones(3))
    recorder.close()
    stats = recorder.stats()
    assert stats.dropped == {"unfinished": 5}
    assert stats.queued_bytes == 0
    assert balanced(recorder)


def test_what_waits_is_bounded_also_where_it_has_no_bytes(
    tmp_path: Path, disk: threading.Event
) -> None:
    disk.set()
    model, fails = Identity(), Raises()
    bound = 2**20
    with (
        record(model, tmp_path / "a.tape", max_queue_bytes=bound, values="none") as shapes,
        record(fails, tmp_path / "b.tape", max_queue_bytes=bound) as raising,
    ):
        disk.clear()
        for _ in range(3000):
            model(torch.ones(3))
        for _ in range(200):
            with pytest.raises(ValueError, match="long"):
                fails(ValueError("long" * 16_000))
        assert shapes.stats().queued < 1100
        assert raising.stats().queued_bytes <= bound
        disk.set()
    assert shapes.stats().dropped["queue_full"] > 1900
    assert raising.stats().kept == 200
    messages = [call.record.error.message for call in read(tmp_path / "b.tape").calls]  # type: ignore[union-attr]
    assert {len(str(message)) for message in messages} == {64_000, 500}


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


def test_an_interrupted_close_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    for _ in range(100):
        model(torch.ones(3))
    pipeline: Any = recorder._tap.pipeline
    wait = pipeline.writer._over.wait

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline.writer._over, "wait", interrupted)
    try:
        recorder.close()
    except KeyboardInterrupt:
        monkeypatch.setattr(pipeline.writer._over, "wait", wait)
        recorder.close()
    assert recorder.stats().state == "closed"
    tape = read(tmp_path / "t.tape")
    assert tape.trailer is not None
    assert len(tape.calls) == 100


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


def test_memory_that_is_not_to_be_had_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Buffers(2**24)

    def no_memory(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(buffers.mmap, "mmap", no_memory)
        for _ in range(10):
            with pytest.raises(OSError, match="Cannot"):
                pool.take(2**20)
    kept = pool.take(2**20)
    assert pool._bytes == kept.size
    del kept  # nobody gave it back
    pool.give_back(pool.take(2**20))
    assert pool._bytes == 2**20


def test_a_view_that_reaches_beyond_its_storage_is_not_read(tmp_path: Path) -> None:
    model = Identity()
    size = 2**16
    view = torch.ones(2 * size, dtype=torch.uint8)[size:]
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(4):
            model(torch.ones(2 * size, dtype=torch.uint8)[size:])
        view.untyped_storage().resize_(size)
        model(view)
    assert recorder.stats().kept == 5
    facts = read(tmp_path / "t.tape").calls[-1].record.inputs.facts()
    assert facts[0].missing == "its storage was freed"


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


def test_inference_tensors_below_autograd(tmp_path: Path) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape", outputs=False):

        @torch.library.custom_op("calltape_tests::below", mutates_args=())
        def below(x: torch.Tensor) -> torch.Tensor:
            model(x)
            return x.clone()

        below.register_autograd(lambda ctx, grad: grad)
        for _ in range(4):
            below(torch.zeros(3))
        with torch.inference_mode():
            inference = torch.zeros(3)
        below(inference)
    calls = read(tmp_path / "t.tape").calls
    assert [call.record.inputs.facts()[0].inference for call in calls] == [False] * 4 + [True]


def test_the_host_s_own_signals_work_as_before(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with record(Add(), tmp_path / "t.tape", flight_recorder=FlightRecorder()) as recorder:
        recorder.flush()
        assert [signal.getsignal(number) for number in signal.valid_signals()] == before


def test_evidence_that_did_not_fit_is_gathered_again(tmp_path: Path, disk: threading.Event) -> None:
    disk.set()
    model = Identity()
    options: dict[str, Any] = {"keep": Novelty(), "outputs": False, "max_queue_bytes": 2**20}
    with record(model, tmp_path / "t.tape", **options) as recorder:
        disk.clear()
        model(torch.zeros(200_000))
        model(torch.zeros(100_000, dtype=torch.int32))
        assert recorder.stats().dropped == {"queue_full": 1}
        disk.set()
        assert recorder.flush()
        for _ in range(3):
            model(torch.zeros(100_000, dtype=torch.int32))
    dtypes = [call.record.inputs.facts()[0].dtype for call in read(tmp_path / "t.tape").calls]
    assert dtypes == ["float32", "int32"]
