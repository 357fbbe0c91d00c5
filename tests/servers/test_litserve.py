"""A LitServe service with two inference workers: recorded under load, stopped, and killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.servers.service import ROOT, Answer, Load, as_written, served, workers_of

pytest.importorskip("litserve")
recorded = pytest.importorskip("tests.servers.recorded", reason="needs transformers")
outside = pytest.importorskip("tests.servers.outside", reason="needs transformers")
pytestmark = pytest.mark.integration

FOLDER = ROOT / "examples" / "litserve_server"
EXAMPLE = FOLDER / "server.py"
WITH_FLUSH = "python -m tests.servers.acknowledging_litserve --workers 2 --port"
REQUESTS = 160


@pytest.mark.slow
def test_an_orderly_stop_under_load_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tapes"
    with served(as_written(EXAMPLE, "python", folder), tmp_path, tapes=folder) as service:
        load = Load(service, range(REQUESTS))
        load.start()
        load.wait_for(REQUESTS // 2)
        service.stop(signal.SIGTERM)
        load.stop()
    assert recorded.altered(load.answers) == []
    tape = recorded.tapes(folder)
    assert tape.sealed
    assert not tape.damage
    assert recorded.missing(tape, load.answers) == []
    assert tape.coverage.seen == tape.coverage.kept == len(tape)
    # LitServe may take a worker that it ended for one that died, and start another.
    assert len(tape.paths) >= 2
    variants = recorded.analysis(tape)
    with capsys.disabled():
        print(f"\nSIGTERM: {len(load.answers)} answers, {len(tape)} calls, 0 missing, {variants}")


@pytest.mark.slow
def test_one_worker_is_killed_and_replaced_then_all_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tapes"
    command = [*WITH_FLUSH.split(), "{port}"]
    with served(command, tmp_path, tapes=folder, imports=[FOLDER, ROOT]) as service:
        load = Load(service, range(20_000))
        load.start()
        service.wait_until(lambda: len(acknowledged(load.so_far())) == 2)
        killed = load.so_far()[0].worker
        known = set(acknowledged(load.so_far()))
        os.kill(killed, signal.SIGKILL)
        load.stop()  # who starts a worker needs the processor
        service.wait_until(lambda: workers_of(service, 4) - known, every=0.5)
        more = Load(service, range(20_000, 30_000))
        more.start()
        service.wait_until(lambda: len(acknowledged([*load.answers, *more.so_far()])) == 3)
        service.kill_all()
        more.stop()
    everything = [*load.answers, *more.answers]
    for worker, answers in acknowledged(everything).items():
        tape = recorded.tape_of(folder, worker)
        assert not tape.sealed
        assert tape.verify() == []
        assert recorded.missing(tape, answers) == []
        assert recorded.adds_up(tape)
        given = [answer for answer in everything if answer.worker == worker]
        with capsys.disabled():
            print(
                f"\nSIGKILL: {len(answers)} answers acknowledged, 0 missing; of all {len(given)}"
                f" that this worker gave, {len(recorded.missing(tape, given))}"
            )
    assert recorded.altered(everything) == []
    recorded.analysis(recorded.tapes(folder))


def acknowledged(answers: list[Answer]) -> dict[int, list[Answer]]:
    """By worker: what it says is in its file. It answers one request after the other, so a flush is
    for all its answers before that too."""
    last: dict[int, int] = {}
    for answer in answers:
        if answer.flushed:
            last[answer.worker] = max(answer.given, last.get(answer.worker, 0))
    return {
        worker: [answer for answer in answers if answer.worker == worker and answer.given <= most]
        for worker, most in last.items()
    }


@pytest.mark.slow
def test_a_server_that_nobody_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = as_written(EXAMPLE, "calltape-record", tmp_path / "tapes")
    with capsys.disabled():
        outside.check_sealed_from_outside(command, tmp_path)
