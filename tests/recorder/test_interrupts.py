"""Exceptions and signals that arrive between any two steps: the host goes on, and the accounts
hold."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from calltape_recorder import First, FlightRecorder, Novelty, Rate, record
from calltape_recorder.snapshot.buffers import Buffer
from tests.recorder.accounts import adds_up
from tests.recorder.models import Add, Identity
from tests.recorder.processes import in_a_fork
from tests.recorder.reading import read


class Interrupt(BaseException):
    """Raised by a signal handler, anywhere."""


class TimeLimitError(Exception):
    """The same, as Celery and others bound the time of a request."""


def interrupted_in(name: str, run: Any, kind: type[BaseException] = Interrupt) -> int:
    """How often ``run`` was interrupted: at each line of the function ``name``, one by one. The
    host sees each of them."""
    found = 0
    for line in range(200):
        met = [line]

        def trace(frame: FrameType, event: str, _: Any, met: list[int] = met) -> Any:
            if frame.f_code.co_qualname != name:
                return None  # the lines of other functions cost nothing
            if event == "line":
                met[0] -= 1
                if met[0] == -1:
                    raise kind
            return trace

        sys.settrace(trace)
        try:
            run()
        except kind:
            found += 1
        else:
            assert met[0] >= 0, f"line {line} of {name}: an interrupt was swallowed"
        finally:
            sys.settrace(None)
        if met[0] >= 0:
            return found
    raise AssertionError(f"{name} never ended")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names of code before 3.11")
@pytest.mark.parametrize(
    "name",
    [
        "CallHandler.begin", "CallHandler._begun", "CallHandler._decided",
        "CallHandler.finish", "copied", "copy_leaves", "_pooled", "Buffers.acquire",
        "Ledger._admit", "Ledger._take_back", "Ledger.reserve", "Ledger.account",
        "HookPair.matching", "HookPair.remove", "_run_before", "_run_after", "Pipeline._hand_over",
        "CallQueue.put", "UnkeptCounter.count", "Alike.has_memory_of", "Alike.is_like_single",
        "seen", "seen_inputs", "Seen.count_unkept", "KnownCalls._new",
        "Admission.follow.<locals>.by_number", "_Sparse.gap",
        "EarlierCopies.find", "EarlierCopies.keep", "EarlierCopies._add", "EarlierCopies._drop",
        "Ledger.let_go", "Ledger.hold",
    ],
)  # fmt: skip
def test_an_interrupt_at_any_line_leaks_nothing(name: str, tmp_path: Path) -> None:
    def is_interrupted() -> bool:
        found = 0
        for number, options in enumerate(INTERRUPTED):
            found += interrupted_within(name, tmp_path / f"{number}.tape", options)
        return found > 0

    # Python 3.11 can take an exception of a trace function for one that is still being handled, to
    # the end of the process.
    in_a_fork(is_interrupted)


X = torch.ones(3)
INTERRUPTED: list[dict[str, Any]] = [
    {},
    {"keep": First(0), "max_calls": 10**6},
    {"values": "none"},
    {"keep": Rate(0.05)},
    {"keep": Novelty()},
    {"write_ahead": True},
    {"max_queue_bytes": 100_000},
]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no qualified names of code before 3.11")
@pytest.mark.parametrize(
    "name",
    [
        "CallHandler.begin", "CallHandler._begun", "CallHandler.finish", "copied", "look_at",
        "_plain_facts", "outline_of", "Known.learn", "_run_before", "_run_after",
        "WriteAhead.write", "WriteAhead.done", "_File.write",
    ],
)  # fmt: skip
@pytest.mark.parametrize("via", ["hook", "method"])
def test_a_time_limit_reaches_the_host(name: str, via: Any, tmp_path: Path) -> None:
    """Such as Celery's SoftTimeLimitExceeded, which is an Exception."""

    if via == "method" and name in ("_run_before", "_run_after"):
        name = "tell"  # without hooks, this tells of the begin and the end of a call

    def reaches_it() -> bool:
        model, sizes = Identity(), itertools.count(4)
        with record(model, tmp_path / "t.tape", via=via, write_ahead=True) as recorder:

            def run() -> None:
                model([torch.ones(next(sizes)), torch.ones(3).neg(), torch.nn.Parameter(X)])

            run()
            found = interrupted_in(name, run, TimeLimitError)
            gc.collect()
            assert recorder.flush()
            stats = recorder.stats()
            assert adds_up(stats)
            assert "internal" not in stats.dropped
            ahead: Any = recorder._handler.pipeline.write_ahead  # type: ignore[union-attr]
            if name == "WriteAhead.done":
                assert len(ahead._idle) == len(ahead._files) == 1
        return found > 0

    in_a_fork(reaches_it)


def interrupted_within(name: str, path: Path, options: dict[str, Any]) -> int:
    model, x, small = Identity(), torch.ones(40_000), torch.ones(3)
    sizes = itertools.count(4)
    with record(model, path, **options) as recorder:
        model(x)  # it is remembered
        for _ in range(30):  # small calls are repeats
            model(small)
        if name == "HookPair.matching":  # a hook of the host's that comes after ours
            model.register_forward_pre_hook(lambda _, args, kwargs: (args, {}), with_kwargs=True)

        def run() -> None:
            recorder.set_rate(None)  # what is known ahead of a sample is forgotten
            x.add_(1)  # what is remembered of it is dropped
            model(x)
            model(small)
            if name in ("KnownCalls._new", "UnkeptCounter.count"):
                model([torch.ones(next(sizes)), 3])  # of a new size

        found = interrupted_in(name, run)
        gc.collect()
        assert recorder.flush()
        stats = recorder.stats()
        assert adds_up(recorder.stats())
        assert stats.queued_bytes == 0
        assert stats.queued <= 20  # of one that was not counted yet nothing is held
        pipeline: Any = recorder._handler.pipeline
        pool, earlier = pipeline.buffers, pipeline.earlier_copies._known
        internal = stats.dropped.get("internal", 0)
        pool._count_lost()
        held = {one.place for one in earlier.values() if isinstance(one.place, Buffer)}
        in_use = sum(buffer.size for buffer in held)
        assert pool._bytes == in_use + sum(size * len(idle) for size, idle in pool._idle.items())
        run()
        recorder.flush()
        assert recorder.stats().dropped.get("internal", 0) == internal
        pipeline.earlier_copies.clear()
        assert pipeline.ledger.held == 0
    final = recorder.stats()
    assert final.queued == 0
    assert adds_up(recorder.stats())
    tape = read(path)
    assert not tape.damage
    assert len(tape.calls) == final.kept
    return found


@contextlib.contextmanager
def handled(action: Callable[[], object]) -> Iterator[None]:
    """What happens in here is interrupted by a signal handler that does this."""
    before = signal.signal(signal.SIGUSR1, lambda *_: action())
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("twice", [False, True])
def test_a_signal_handler_flushes_and_closes_while_its_thread_holds_a_lock(
    tmp_path: Path, twice: bool
) -> None:
    model, x = Identity(), torch.ones(40_000)
    recorder = record(model, tmp_path / "t.tape", flight_recorder=FlightRecorder())
    pipeline: Any = recorder._handler.pipeline
    owners = pipeline.writer.waits_with
    assert len(owners) == 7
    flushed: list[bool] = []
    for owner in owners:
        for _ in range(10):
            model(x)
        with owner.lock, owner.lock if twice else contextlib.nullcontext():
            with handled(lambda: flushed.append(recorder.flush(30))):
                signal.raise_signal(signal.SIGUSR1)
            assert owner.lock._is_owned()
        assert not owner.lock._is_owned()
    assert flushed == [True] * 7
    model(x)
    with contextlib.ExitStack() as stack:
        for owner in owners:
            stack.enter_context(owner.lock)
        with handled(recorder.close):
            signal.raise_signal(signal.SIGUSR1)
    assert recorder.stats().state == "closed"
    assert len(read(tmp_path / "t.tape").calls) == 71


@pytest.mark.parametrize("what", ["flush", "close"])
def test_a_signal_handler_at_any_lock_of_a_call(tmp_path: Path, what: str) -> None:
    """The handler comes when a call has just taken a lock."""
    model, done = Identity(), 0
    for number in range(200):
        recorder = record(model, tmp_path / f"{number}.tape", max_calls=1000)
        model(torch.ones(40_000))
        left = number
        owners = recorder._handler.pipeline.writer.waits_with  # type: ignore[union-attr]

        class Interrupted:
            def __init__(self, lock: Any) -> None:
                self.own = lock

            def __enter__(self) -> None:
                nonlocal left
                self.own.acquire()
                left -= 1
                if left == -1 and threading.current_thread() is threading.main_thread():
                    signal.raise_signal(signal.SIGUSR1)

            def __exit__(self, *_: object) -> None:
                self.own.release()

            def __getattr__(self, name: str) -> Any:
                return getattr(self.own, name)

        for owner in owners:
            owner.lock = Interrupted(owner.lock)
        with handled(getattr(recorder, what)):
            model(torch.ones(40_001 + number))
        is_over = left >= 0
        left = -2  # no handler is left for a lock that this thread takes from here on
        recorder.close()
        stats = recorder.stats()
        assert stats.queued == 0
        assert adds_up(recorder.stats())
        assert not read(tmp_path / f"{number}.tape").damage
        if is_over:
            break
        done += 1
    assert 2 <= done < 200


def test_an_interrupted_close_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Identity()
    recorder = record(model, tmp_path / "t.tape")
    for _ in range(100):
        model(torch.ones(3))

    def interrupted(*_: Any) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("calltape_recorder.write.writer.wait_for", interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            recorder.close()
    recorder.close()
    assert recorder.stats().state == "closed"
    tape = read(tmp_path / "t.tape")
    assert tape.end is not None
    assert len(tape.calls) == 100


def test_the_host_s_own_signals_work_as_before(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with record(Add(), tmp_path / "t.tape", flight_recorder=FlightRecorder()) as recorder:
        recorder.flush()
        assert [signal.getsignal(number) for number in signal.valid_signals()] == before


def sends(error: type[BaseException]) -> Callable[..., None]:
    """What another thread does to this one in the midst of the recorder."""

    def send(*_: Any) -> None:
        ident = ctypes.c_ulong(threading.get_ident())
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(error)) == 1
        for _ in range(1000):
            pass  # it comes here

    return send


def test_an_exception_that_another_thread_sends_is_logged_and_the_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot be told from a fault of the recorder, as docs/production.md says."""
    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr("calltape_recorder.handler.look_at", sends(TimeLimitError))
        assert model(X) is X
        monkeypatch.undo()
    assert recorder.stats().dropped == {"internal": 1}
    assert "TimeLimitError" in caplog.text


def test_an_interrupt_that_another_thread_sends_reaches_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr("calltape_recorder.handler.look_at", sends(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model(X)
        monkeypatch.undo()
    assert recorder.stats().dropped == {"interrupted": 1}
