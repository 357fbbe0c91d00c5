"""Exceptions and signals that arrive between any two steps: the host goes on, and the accounts
hold."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

import calltape_recorder
from calltape_recorder import First, FlightRecorder, Novelty, Rate, record
from calltape_recorder.keep import policies
from tests.recorder.calls import Via, adds_up, both
from tests.recorder.lines import at_each_line
from tests.recorder.models import Add, Identity
from tests.recorder.parts import recording
from tests.recorder.processes import in_a_fork
from tests.recorder.reading import read


class Interrupt(BaseException):
    """Raised by a signal handler, anywhere."""


class TimeLimitError(Exception):
    """The same, as Celery and others bound the time of a request."""


X = torch.ones(3)
READ_FACTS = "calltape_recorder.snapshot.snapshots.read_facts"
HERE = str(Path(calltape_recorder.__file__).parent)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"keep": First(0), "max_calls": 10**6},
    {"values": "none"},
    {"keep": Rate(0.05)},
    {"keep": Novelty()},
    {"write_ahead": True},
    {"max_queue_bytes": 100_000},
]


def interrupted(run: Callable[[], object], kind: type[BaseException], step: int) -> int:
    """How often this was interrupted: at each line of the recorder, one by one, or at some of them.
    The host sees each of them."""
    reached: list[bool] = []

    def act() -> None:
        raise kind

    def runs() -> None:
        reached.append(False)
        try:
            run()
        except kind:
            reached[-1] = True

    def is_ours(code: CodeType) -> bool:
        return code.co_filename.startswith(HERE)

    lines = list(at_each_line(is_ours, runs, act, step))
    assert reached == [True] * len(lines) + [False]
    return len(lines)


# Of 1,000 lines that run for a call.
some_or_all = pytest.mark.parametrize(
    "step", [41, pytest.param(1, marks=pytest.mark.integration)], ids=["some", "all"]
)


@some_or_all
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_interrupt_at_any_line_leaks_nothing(
    options: dict[str, Any], step: int, tmp_path: Path
) -> None:
    def is_interrupted() -> bool:
        model, x, small = Identity(), torch.ones(40_000), torch.ones(3)
        sizes = itertools.count(4)
        # A hook of the host's that comes after ours.
        model.register_forward_pre_hook(lambda _, args, kwargs: (args, {}), with_kwargs=True)
        with recording(model, tmp_path / "t.tape", **options) as parts:
            model(x)  # it is remembered
            for _ in range(30):  # small calls are repeats
                model(small)

            def run() -> None:
                parts.set_rate(None)  # what is known ahead of a sample is forgotten
                x.add_(1)  # what is remembered of it is dropped
                model(x)
                model(small)
                model([torch.ones(next(sizes)), 3])  # of a new size

            found = interrupted(run, Interrupt, step)
            gc.collect()
            assert parts.writer.flush(None)
            stats = parts.stats("recording")
            assert adds_up(stats)
            assert stats.queued_bytes == 0
            run()
            assert parts.writer.flush(None)
            after = parts.stats("recording")
            assert after.dropped.get("internal", 0) == stats.dropped.get("internal", 0)
            parts.snapshots.earlier.clear()
            parts.buffers.clear()
            assert parts.ledger.shared_bytes == parts.buffers.nbytes == 0
        final, tape = parts.stats("closed"), read(tmp_path / "t.tape")
        assert final.queued == 0
        assert adds_up(final)
        assert not tape.damage
        assert len(tape.calls) == final.kept
        return found > 300 // step

    # Python 3.11 can take an exception of a trace function for one that is still being handled, to
    # the end of the process.
    in_a_fork(is_interrupted)


@some_or_all
@both
def test_a_time_limit_reaches_the_host(via: Via, step: int, tmp_path: Path) -> None:
    """Such as Celery's SoftTimeLimitExceeded, which is an Exception."""

    def reaches_it() -> bool:
        model, sizes = Identity(), itertools.count(4)
        with record(model, tmp_path / "t.tape", via=via, write_ahead=True) as recorder:

            def run() -> None:
                model([torch.ones(next(sizes)), torch.ones(3).neg(), torch.nn.Parameter(X)])

            run()
            found = interrupted(run, TimeLimitError, step)
            gc.collect()
            assert recorder.flush()
            stats = recorder.stats()
            assert adds_up(stats)
            assert "internal" not in stats.dropped
        # No file tells of a call under way.
        files = [path for path in tmp_path.glob("*.ahead-*") if path.stat().st_size]
        assert not any(read(path).numbers for path in files)
        return found > 300 // step

    in_a_fork(reaches_it)


def test_a_rate_may_be_taken_back_at_any_line(tmp_path: Path) -> None:
    """By another thread, or by a signal handler, while its sample is drawn."""
    model, kept, calls = Identity(), list[int](), list[bool]()
    with record(model, tmp_path / "t.tape") as recorder:

        def run() -> None:
            recorder.set_rate(0.001)
            before = recorder.stats().dropped.get("policy", 0)
            calls.append(True)
            for _ in range(5):
                model(X)
            calls.clear()
            kept.append(5 - recorder.stats().dropped.get("policy", 0) + before)

        def is_policy(code: CodeType) -> bool:
            return bool(calls) and code.co_filename == policies.__file__

        lines = list(at_each_line(is_policy, run, lambda: recorder.set_rate(None)))
    assert len(lines) > 10
    assert kept[0] >= 4  # later ones come when some calls are over
    assert kept == sorted(kept, reverse=True)


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
    flight = FlightRecorder()
    with recording(model, tmp_path / "t.tape", flight_recorder=flight) as parts:
        owners = parts.writer.waits_with
        assert len(owners) >= 6
        flushed: list[bool] = []
        for owner in owners:
            for _ in range(10):
                model(x)
            with owner.lock, owner.lock if twice else contextlib.nullcontext():
                with handled(lambda: flushed.append(parts.writer.flush(30))):
                    signal.raise_signal(signal.SIGUSR1)
                assert owner.lock._is_owned()
            assert not owner.lock._is_owned()
        assert flushed == [True] * len(owners)
        model(x)
        with contextlib.ExitStack() as stack:
            for owner in owners:
                stack.enter_context(owner.lock)
            with handled(parts.close):
                signal.raise_signal(signal.SIGUSR1)
        assert parts.stats("closed").queued == 0
    assert len(read(tmp_path / "t.tape").calls) == 10 * len(owners) + 1


@pytest.mark.parametrize("what", ["flush", "close"])
def test_a_signal_handler_at_any_lock_may_flush_or_close(tmp_path: Path, what: str) -> None:
    """The handler comes when a call has just taken a lock."""
    model, done = Identity(), 0
    for number in range(200):
        left = number

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

        with recording(model, tmp_path / f"{number}.tape", max_calls=1000) as parts:
            model(torch.ones(40_000))
            for owner in parts.writer.waits_with:
                owner.lock = Interrupted(owner.lock)  # type: ignore[misc]
            with handled(parts.close if what == "close" else lambda: parts.writer.flush(None)):
                model(torch.ones(40_001 + number))
            is_over = left >= 0
            left = -2  # no handler is left for a lock that this thread takes from here on
        stats = parts.stats("closed")
        assert stats.queued == 0
        assert adds_up(stats)
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
    assert tape.is_sealed
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
        monkeypatch.setattr(READ_FACTS, sends(TimeLimitError))
        assert model(X) is X
        monkeypatch.undo()
    assert recorder.stats().dropped == {"internal": 1}
    assert "TimeLimitError" in caplog.text


def test_an_interrupt_that_another_thread_sends_reaches_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr(READ_FACTS, sends(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            model(X)
        monkeypatch.undo()
    assert recorder.stats().dropped == {"interrupted": 1}
