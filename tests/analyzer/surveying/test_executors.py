"""Surveys by processes: a pool of this machine, and a cluster of Dask, of which a worker is killed
in the middle. The bytes are those of a plain loop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, survey
from calltape_analyzer.surveying.survey import Loop
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import fleet, of, tape_of


def mixed(folder: Path) -> list[Path]:
    """Sealed tapes, one without an end that is scanned, and what cannot be read."""
    broken = folder / "broken.tape"
    broken.write_bytes(b"no tape" * 99)
    long = tape_of(folder / "long.tape", 600, recording=99, sealed=False)
    return [*fleet(folder), long, broken]


class Failing(Executor):
    """Fails with every task that has one of these files."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if Path(args[0]).name in self.names:
            made: Future[Any] = Future()
            made.set_exception(RuntimeError("the worker is gone"))
            return made
        return Loop().submit(fn, *args, **kwargs)


def test_a_worker_that_fails_costs_its_tape_only(tmp_path: Path) -> None:
    good = fleet(tmp_path)
    surveyed = survey(good, Failing({"3.tape"}))
    (error,) = surveyed.unreadable
    assert "RuntimeError: the worker is gone" in str(error)
    assert error.path == str(good[3])
    others = of(*(path for path in good if path.name != "3.tape"))
    assert surveyed.target().to_bytes() == others.to_bytes()


def test_progress_is_told_per_file(tmp_path: Path) -> None:
    paths = mixed(tmp_path)
    told: list[tuple[int, int]] = []
    survey(paths, Loop(), progress=lambda done, total: told.append((done, total)))
    assert told == [(n + 1, len(paths)) for n in range(len(paths))]


@pytest.mark.integration
def test_a_survey_by_processes_has_the_same_bytes(tmp_path: Path) -> None:
    paths = mixed(tmp_path)
    expected = of(*paths).to_bytes()
    assert survey(paths, processes=2).target().to_bytes() == expected
    assert survey(paths, processes=1).target().to_bytes() == expected


class Before(Executor):
    """Lets the workers of another executor do something with each path before they read it."""

    def __init__(self, executor: Executor, act: Callable[[str], None]) -> None:
        self.executor = executor
        self.act = act

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self.executor.submit(_act_first, self.act, fn, *args, **kwargs)


def _act_first(act: Callable[[str], None], fn: Any, path: str, *args: Any) -> Any:
    act(path)
    return fn(path, *args)


def _die_of_the_third(path: str) -> None:
    if Path(path).name == "3.tape":
        os.kill(os.getpid(), signal.SIGKILL)


def _take_a_while(path: str) -> None:
    time.sleep(0.05)


@pytest.mark.integration
def test_a_pool_whose_process_dies_says_so(tmp_path: Path) -> None:
    paths = fleet(tmp_path)
    with (
        ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool,
        pytest.raises(TapeError, match="a process that read tapes ended"),
    ):
        survey(paths, Before(pool, _die_of_the_third))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A scheduler and three workers, each a process, which talk over TCP on loopback."""
    folder = tmp_path_factory.mktemp("dask")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    started: list[subprocess.Popen[bytes]] = []
    log = (folder / "log").open("wb")

    def start(*command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], env=environment, stdout=log, stderr=log, cwd=folder
        )
        started.append(process)
        return process

    where = folder / "scheduler.json"
    start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
          "--no-dashboard", "--scheduler-file", str(where))  # fmt: skip
    workers = [
        start("distributed.cli.dask_worker", "--scheduler-file", str(where), "--nthreads", "1",
              "--no-nanny", "--no-dashboard", "--memory-limit", "0", "--host", "127.0.0.1")
        for _ in range(3)
    ]  # fmt: skip
    try:
        from distributed import Client

        deadline = time.monotonic() + 120
        while not where.exists():
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        with Client(scheduler_file=str(where)) as client:
            client.wait_for_workers(3, timeout=250)
            yield client, workers
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
        log.close()


@pytest.mark.integration
def test_a_survey_by_dask_has_the_same_bytes(tmp_path: Path, cluster: Any) -> None:
    client, _ = cluster
    paths = mixed(tmp_path)
    expected = of(*paths).to_bytes()
    assert survey(paths, client.get_executor()).target().to_bytes() == expected
    address = client.scheduler.address
    assert address.startswith("tcp://127.0.0.1:")
    ran = run("survey", *paths, "--dask", address, "-o", tmp_path / "s.tape")
    assert ran.code == 3
    assert "broken.tape" in ran.err
    assert (tmp_path / "s.tape").read_bytes() == expected


@pytest.mark.integration
def test_a_killed_worker_of_dask_does_not_change_the_survey(tmp_path: Path, cluster: Any) -> None:
    client, workers = cluster
    paths = [*mixed(tmp_path)]
    for n in range(60):
        name = tmp_path / f"more-{n:02d}.tape"
        paths.append(tape_of(name, 3 + n % 7, recording=100 + n, table=n % 5 > 0))
    expected = of(*paths).to_bytes()
    killed = threading.Event()

    def progress(done: int, total: int) -> None:
        if done >= total // 4 and not killed.is_set():
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()
            killed.set()

    # each file takes a while, so that the worker is killed while it reads
    surveyed = survey(paths, Before(client.get_executor(), _take_a_while), progress=progress)
    assert killed.is_set()
    assert len(client.scheduler_info()["workers"]) == 2
    assert len(surveyed.unreadable) == 1, surveyed.unreadable  # broken.tape
    assert surveyed.target().to_bytes() == expected


@pytest.mark.integration
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="nobody counts threads here")
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", "fork"),
        ("from threading import *; Thread(target=Event().wait, daemon=True).start()", "forkserver"),
        ("from torch import *; set_num_threads(2); ones(999, 999) @ ones(999, 999)", "forkserver"),
    ],
    ids=["alone", "a thread", "torch"],
)
def test_a_process_with_threads_is_not_forked(before: str, expected: str) -> None:
    """A fork copies the locks that other threads hold."""
    code = f"""
from calltape_analyzer.surveying import survey as surveying
{before}
print(surveying.start_method(), flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [expected]
