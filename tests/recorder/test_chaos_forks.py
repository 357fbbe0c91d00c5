"""Forks at the worst moments: the child records into a tape of its own, and nothing hangs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import FlightRecorder, Novelty, PerSecond, Rate, Recorder, record, threads
from calltape_recorder.launch import attaching
from tests.recorder.calls import adds_up, appearance_of
from tests.recorder.models import Add
from tests.recorder.processes import in_a_fork
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads

pytestmark = pytest.mark.chaos

FORKS = 100
CALLS = 3  # of each child
ROUNDS = 10  # of forks with locks held
LONGEST = 60  # seconds; then the child is taken for stuck, and ends
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"max_queue_bytes": 100_000},
    "everything": {
        "keep": Novelty() | Rate(0.5) & PerSecond(1000.0),
        "flight_recorder": FlightRecorder(calls=20),
        "segment_bytes": 100_000, "write_ahead": True, "max_queue_bytes": 100_000,
    },
}  # fmt: skip


def inputs_of(number: int) -> torch.Tensor:
    return torch.full((number + 1,), float(number))


def calls_in_child(recorder: Recorder, model: torch.nn.Module) -> bool:
    looks = appearance_of(model)
    fine = recorder.stats().state == "forked"
    for n in range(CALLS):
        x = inputs_of(n)
        fine &= torch.equal(model(x, x), x * 2)
    fine &= appearance_of(model) == looks
    recorder.dump("in the child")
    return fine and recorder.flush(LONGEST) and recorder.stats().kept == CALLS


def check_child(path: Path, pid: int) -> None:
    tape = read(path.with_name(f"{path.stem}-p{pid}.tape"))
    assert sorted(tape.numbers) == list(range(CALLS))
    for call in tape.calls:
        x = inputs_of(call.record.call)
        assert torch.equal(call.input(0), x)
        assert torch.equal(call.output(0), x * 2)


@pytest.mark.parametrize("kind", OPTIONS)
def test_forks_while_threads_call_lose_nothing(tmp_path: Path, kind: str) -> None:
    torch.set_num_threads(1)  # a forked child has no thread pool
    model, path, stop = Add(), tmp_path / "t.tape", threading.Event()
    pids: list[int] = []

    def work(calls: bool) -> None:
        number = 0
        while calls and not stop.is_set():
            x = torch.full((1 + number % 50,), float(number))
            assert torch.equal(model(x, x), x * 2)
            number += 1
        if not calls:
            pids.extend(in_a_fork(lambda: calls_in_child(recorder, model)) for _ in range(FORKS))
            stop.set()

    with record(model, path, **OPTIONS[kind]) as recorder:
        in_threads(work, [False, *[True] * 4])
    stats = recorder.stats()
    assert adds_up(stats)
    names = [name for name in os.listdir(tmp_path) if "-p" not in name]
    own = [read(tmp_path / name) for name in names]
    assert all(tape.is_sealed and not tape.damage for tape in own)
    numbers = [number for tape in own for number in tape.numbers]
    assert len(numbers) == len(set(numbers)) == stats.kept
    for pid in set(pids):
        check_child(path, pid)


@contextmanager
def noted_locks() -> Iterator[list[Any]]:
    """Gets every lock that the recorder makes within."""
    made: list[Any] = []

    def noting() -> Any:
        made.append(threads.RLock())
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        for name, module in list(sys.modules.items()):
            has_locks = vars(module).get("RLock") is threads.RLock and module is not threads
            if has_locks and name.startswith("calltape_recorder."):
                patch.setattr(module, "RLock", noting)
        yield made


def test_forks_while_a_lock_is_held(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model, path, x = Add(), tmp_path / "t.tape", torch.ones(2)
    with noted_locks() as locks:
        recorder = record(model, path, **OPTIONS["everything"])
        model(x, x)
        assert recorder.flush()
    assert len(locks) >= 9
    every = [*([lock] for lock in locks), locks] * ROUNDS
    for held in every:
        pid = while_held(held, lambda: calls_in_child(recorder, model))
        check_child(path, pid)
        model(x, x)
    recorder.close()
    assert adds_up(recorder.stats())
    assert recorder.stats().seen == len(every) + 1


def test_forks_before_anything_is_attached(tmp_path: Path) -> None:
    """A server that loads first, forks then, and attaches in each worker."""
    torch.set_num_threads(1)
    model, path = Add(), tmp_path / "t.tape"
    recorder = Recorder(path)

    def work() -> bool:
        recorder.attach(model)
        fine = all(torch.equal(model(x, x), x * 2) for x in map(inputs_of, range(CALLS)))
        recorder.close()
        return fine and recorder.stats().kept == CALLS

    for pid in [in_a_fork(work) for _ in range(5)]:
        check_child(path, pid)
    recorder.attach(model)
    model(inputs_of(1), inputs_of(1))
    recorder.close()
    assert (read(path).numbers, read(path).damage) == ([0], [])


def test_forks_while_a_class_is_being_instantiated(tmp_path: Path) -> None:
    """``calltape-record`` follows the instances of a class under a lock."""

    class Served(Add):
        pass

    with noted_locks() as locks:
        attaching.attach({"tape": str(tmp_path)}, None, "Served", Served)
    assert locks

    def work() -> bool:
        x = torch.ones(2)
        return torch.equal(Served()(x, x), x * 2)

    for _ in range(ROUNDS):
        while_held(locks, work)


def while_held(locks: list[Any], work: Callable[[], bool]) -> int:
    """Forks while another thread holds these."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        go.wait()
        for lock in reversed(locks):
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(LONGEST)
        return in_a_fork(work)
    finally:
        go.set()
        thread.join()
