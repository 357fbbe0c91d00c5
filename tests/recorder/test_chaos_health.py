"""Health checks while recorders are killed, fork, and have no room: the answer is true."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import heartbeat, writer
from calltape_schema.health import health_of
from calltape_schema.status import read_status
from tests.recorder.models import Add

pytestmark = pytest.mark.chaos

ONE = torch.ones(2)


@pytest.fixture(autouse=True)
def _restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorder that writes its status hundreds of times a second."""
    monkeypatch.setattr(writer, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(writer, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.0)


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def forked(work: Callable[[], None]) -> int:
    """The number of a child that works, and ends with 0 if nothing is raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def serve_for_ever(folder: Path) -> None:
    model = Add()
    recorder = record(model, f"{folder}/")
    while True:
        model(ONE, ONE)
        recorder.flush()


def test_killed_at_any_moment_it_is_gone_and_its_status_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(7)
    written = halves = 0
    for round_ in range(40):
        folder = tmp_path / str(round_)
        folder.mkdir()
        child = forked(lambda folder=folder: serve_for_ever(folder))  # type: ignore[misc]
        until(lambda folder=folder: health_of(str(folder)).state == "recording")
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = health_of(str(folder))
        assert (found.state, found.code) == ("stale", 12), found
        assert f"process {child} is gone" in found.reason
        (path,) = folder.glob("*.status.json")
        status = read_status(str(path))
        assert status.kept <= status.seen
        written += status.seen
        halves += len(list(folder.glob("*.new")))
        assert len(list(folder.iterdir())) <= 3  # a tape, a status, and a part of the next one
    with capsys.disabled():
        print(f"\n40 recorders killed after {written} calls, {halves} within a new status")


def test_while_it_is_written_it_is_always_whole(tmp_path: Path) -> None:
    model = Add()
    with record(model, f"{tmp_path}/") as recorder:
        until(lambda: health_of(str(tmp_path)).state == "recording")
        (path,) = tmp_path.glob("*.status.json")
        beats = set()
        for _ in range(2000):
            beats.add(read_status(str(path)).beat_ns)
            model(ONE, ONE)
        assert recorder.flush()
        assert len(beats) > 20
    assert [one.suffix for one in tmp_path.iterdir()] == [".tape"]


def test_forks_while_the_status_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(7)
    model = Add()
    killed = 0
    with record(model, tmp_path / "a.tape") as recorder:
        until(lambda: health_of(str(tmp_path)).state == "recording")

        def work() -> None:
            until(lambda: model(ONE, ONE) is not None and recorder.stats().kept)
            mine = f"-p{os.getpid()}"
            until(lambda: any(mine in p.name for p in tmp_path.glob("*.status.json")))
            time.sleep(chance.uniform(0, 0.02))
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            recorder.close()

        for number in range(30):
            is_killed = number % 3 == 0
            killed += is_killed
            status = os.waitpid(forked(work), 0)[1]
            assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if is_killed else 0)
            assert health_of(str(tmp_path)).state == "stale"  # the first was killed
            model(ONE, ONE)
        found = health_of(str(tmp_path))
        states = [(one.state, one.replaced) for one in found.recorders]
        # A killed fork is replaced by the next one, but for the last.
        assert sorted(states).count(("recording", False)) == 1
        assert sum(state == "stale" for state, _ in states) == killed
        assert sum(not replaced for state, replaced in states if state == "stale") == 1
        mine = [one for one in found.recorders if one.state == "recording"]
        assert mine[0].status is not None
        assert mine[0].status.process.pid == os.getpid()
    assert len(list(tmp_path.glob("*.status.json"))) == killed
    with capsys.disabled():
        print(f"\n30 forks, {killed} of them killed: {len(found.recorders)} statuses, all whole")
