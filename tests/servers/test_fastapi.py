"""A FastAPI service under uvicorn with two workers: recorded under load, stopped, and killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.servers.acknowledging import Acknowledged
from tests.servers.service import NEW_TOKENS, ROOT, Load, as_written, served

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
recorded = pytest.importorskip("tests.servers.recorded", reason="needs transformers")
outside = pytest.importorskip("tests.servers.outside", reason="needs transformers")
pytestmark = pytest.mark.integration

FOLDER = ROOT / "examples" / "fastapi_server"
EXAMPLE = FOLDER / "server.py"
WITH_FLUSH = "python -m uvicorn tests.servers.flushing:app --workers 2 --log-level warning --port"
REQUESTS = 240


def test_an_orderly_stop_under_load_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tapes"
    with served(as_written(EXAMPLE, "uvicorn", folder), tmp_path, tapes=folder) as service:
        assert service.get("/recorder")["state"] == "recording"
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
    workers = {answer.worker for answer in load.answers}
    assert len(tape.paths) == len(workers) == 2
    variants = recorded.analysis(tape)
    assert variants["prefill"] * (NEW_TOKENS - 1) == variants["decode"]
    with capsys.disabled():
        print(f"\nSIGTERM: {len(load.answers)} answers, {len(tape)} calls, 0 missing, {variants}")


def test_one_worker_is_killed_and_replaced_then_all_are_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tapes"
    command = [*WITH_FLUSH.split(), "{port}"]
    with served(command, tmp_path, tapes=folder, imports=[FOLDER, ROOT]) as service:
        load = Load(service, range(20_000))
        acknowledged = Acknowledged(service, load)
        load.start()
        acknowledged.start()
        service.wait_until(lambda: len(acknowledged.answers) == 2 and acknowledged.count > 60)
        killed = next(iter(acknowledged.answers))
        known = set(acknowledged.answers)
        os.kill(killed, signal.SIGKILL)
        load.stop()  # who starts a worker needs the processor
        service.wait_until(lambda: service.get("/recorder")["worker"] not in known)
        acknowledged.load = more = Load(service, range(20_000, 30_000))
        more.start()
        service.wait_until(lambda: sum(map(bool, list(acknowledged.answers.values()))) == 3)
        service.kill_all()
        more.stop()
        acknowledged.stop()
    everything = [*load.answers, *more.answers]
    for worker, answers in acknowledged.answers.items():
        tape = recorded.tape_of(folder, worker)
        assert not tape.sealed
        assert tape.verify() == []
        assert recorded.missing(tape, answers) == []
        assert len(tape) >= acknowledged.kept.get(worker, 0)
        assert recorded.adds_up(tape)
        given = [answer for answer in everything if answer.worker == worker]
        with capsys.disabled():
            print(
                f"\nSIGKILL: {len(answers)} answers acknowledged, 0 missing; of all {len(given)}"
                f" that this worker gave, {len(recorded.missing(tape, given))}"
            )
    assert recorded.altered(everything) == []
    recorded.analysis(recorded.tapes(folder))


@pytest.mark.slow
def test_a_server_that_nobody_touched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = as_written(EXAMPLE, "calltape-record", tmp_path / "tapes")
    with capsys.disabled():
        outside.check_sealed_from_outside(command, tmp_path)
