"""Surveys by processes: a pool of this machine, and a cluster of Dask, of which a worker is killed
in the middle. The bytes are those of a plain loop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, survey
from calltape_analyzer.surveying.executors import Loop
from calltape_analyzer.surveying.survey_file import survey_to_json
from tests.analyzer.cli.commands import run
from tests.analyzer.reading.test_summaries import Model, some
from tests.analyzer.surveying.test_hostile import fleet
from tests.analyzer.surveying.test_pieces import gathered
from tests.analyzer.tapes import write_tape


def mixed(folder: Path) -> list[Path]:
    """Sealed tapes, one without an end that is scanned in pieces, and what cannot be read."""
    broken = folder / "broken.tape"
    broken.write_bytes(b"no tape" * 99)
    return [*fleet(folder), gathered(folder / "long.tape", 600), broken]


class Failing(Executor):
    """Fails with every task that has one of these files."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.names & {Path(one).name for one in args[0] if isinstance(args[0], list)}:
            made: Future[Any] = Future()
            made.set_exception(RuntimeError("the worker is gone"))
            return made
        return Loop().submit(fn, *args, **kwargs)


def test_a_worker_that_fails_costs_its_tape_only(tmp_path: Path) -> None:
    good = fleet(tmp_path)
    found = survey(good, Failing({"3.tape"}))
    assert ["RuntimeError: the worker is gone" in str(error) for error in found.unreadable] == [
        True
    ]
    others = survey([path for path in good if path.name != "3.tape"], Loop())
    assert found.tape().paths == others.tape().paths
    assert len(found.tape()) == len(others.tape())


def test_progress_and_a_survey_to_add_to(tmp_path: Path) -> None:
    paths = mixed(tmp_path)
    told: list[tuple[int, int]] = []
    survey(paths, Loop(), progress=lambda done, total: told.append((done, total)), piece_bytes=8192)
    assert told == [(n + 1, len(paths)) for n in range(len(paths))]
    before = survey(paths[:4], Loop())
    assert survey(paths, Loop(), onto=before) is before
    assert survey_to_json(before) == survey_to_json(survey(paths, Loop()))


@pytest.mark.integration
def test_a_pool_of_processes(tmp_path: Path) -> None:
    paths = mixed(tmp_path)
    expected = survey_to_json(survey(paths, Loop()))
    assert survey_to_json(survey(paths, jobs=2, piece_bytes=16_384)) == expected
    assert survey_to_json(survey(paths, jobs=1)) == expected


class _Dies:
    """A guard that ends the process of the worker that reads a certain file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, paths: Any) -> Any:
        from contextlib import nullcontext

        if Path(paths[0]).name == self.name:
            os.kill(os.getpid(), signal.SIGKILL)
        return nullcontext()


@pytest.mark.integration
def test_a_pool_whose_process_dies_says_so(tmp_path: Path) -> None:
    paths = fleet(tmp_path)
    with pytest.raises(TapeError, match="a process that read tapes ended"):
        survey(paths, jobs=2, guard=_Dies("3.tape"))


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
            client.wait_for_workers(3, timeout=120)
            yield client, workers
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.wait()
        log.close()


@pytest.mark.integration
def test_dask(tmp_path: Path, cluster: Any) -> None:
    client, _ = cluster
    paths = mixed(tmp_path)
    expected = survey_to_json(survey(paths, Loop()))
    assert survey_to_json(survey(paths, client.get_executor(), piece_bytes=16_384)) == expected
    address = client.scheduler.address
    assert address.startswith("tcp://127.0.0.1:")
    ran = run("survey", *paths, "--dask", address, "-o", tmp_path / "s.json")
    assert ran.code == 3
    assert "broken.tape" in ran.err
    assert (tmp_path / "s.json").read_bytes() == expected


class _Slow:
    """A guard that lets a file take a while, so that a worker is killed while it reads."""

    def __call__(self, paths: Any) -> Any:
        from contextlib import nullcontext

        time.sleep(0.05)
        return nullcontext()


@pytest.mark.integration
def test_dask_with_a_worker_that_is_killed_in_the_middle(tmp_path: Path, cluster: Any) -> None:
    client, workers = cluster
    paths = [*mixed(tmp_path)]
    for n in range(60):
        made = some(3 + n % 7)
        made[0].kwargs["n"] = n
        name = tmp_path / f"more-{n:02d}.tape"
        paths.append(
            write_tape(name, made, target=Model(), table=n % 5 > 0, tape_id=bytes([99, n] * 8))
        )
    expected = survey_to_json(survey(paths, Loop()))
    killed = threading.Event()

    def progress(done: int, total: int) -> None:
        if done >= total // 4 and not killed.is_set():
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()
            killed.set()

    found = survey(
        paths, client.get_executor(), guard=_Slow(), progress=progress, piece_bytes=16_384
    )
    assert killed.is_set()
    assert len(client.scheduler_info()["workers"]) == 2
    assert survey_to_json(found) == expected


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
from calltape_analyzer.surveying import executors
{before}
print(executors._way_to_start(), flush=True)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [expected]
