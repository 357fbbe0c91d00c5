"""Model and recorder made before the workers are forked: ``gunicorn --preload``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.servers import recorded
from tests.servers.service import ROOT, Load, integration_with, served, workers_of

pytestmark = integration_with("fastapi", "gunicorn")

FOLDER = ROOT / "examples" / "fastapi_server"
COMMAND = (
    "gunicorn tests.servers.preloaded:app --preload --worker-class asgi --workers 2"
    " --log-level warning --bind 127.0.0.1:{port}"
)


def test_each_worker_goes_on_in_its_own_file(tmp_path: Path) -> None:
    pytest.importorskip("gunicorn.workers.gasgi", reason="needs its ASGI worker")
    folder = tmp_path / "tapes"
    folder.mkdir()
    command = [*COMMAND.split(), "--env", f"PRELOADED={folder}"]
    with served(command, tmp_path, imports=[FOLDER, ROOT]) as service:
        before = workers_of(service, 16)
        load = Load(service, range(60))
        load.run()
        killed = load.answers[0].worker
        service.wait_until(lambda: service.post("/flush")["worker"] == killed)
        os.kill(killed, signal.SIGKILL)
        service.wait_until(lambda: workers_of(service, 8) - before, every=0.5)
        more = Load(service, range(60, 180))
        more.start()
        more.wait_for(40)
        accounts = [service.get("/accounts") for _ in range(8)]
        service.stop(signal.SIGTERM)
        more.stop()
    assert not load.failed
    assert {said["state"] for said in accounts} == {"recording"}
    answers = [*load.answers, *more.answers]
    assert recorded.altered(answers) == []
    workers = {answer.worker for answer in answers}
    assert {path.name for path in folder.iterdir()} >= {
        "llama.tape",
        *(f"llama-p{worker}.tape" for worker in workers),
    }
    tape = recorded.tapes(folder)
    assert recorded.missing(tape, answers) == []
    assert recorded.adds_up(tape)
    # The parent's and the survivors' are complete; of the killed one, what it had acknowledged.
    assert [path for path in tape.paths if not recorded.tapes(Path(path)).sealed] == [
        str(folder / f"llama-p{killed}.tape")
    ]
    recorded.analysis(tape)


def test_a_recorder_of_the_lifespan_is_closed_in_each_worker(tmp_path: Path) -> None:
    """The example as it is: the model is loaded before the workers are forked, and the recorder is
    made in each."""
    pytest.importorskip("gunicorn.workers.gasgi", reason="needs its ASGI worker")
    folder = tmp_path / "tapes"
    command = COMMAND.replace("tests.servers.preloaded", "server").split()
    with served(command, tmp_path, tapes=folder, imports=[FOLDER, ROOT]) as service:
        load = Load(service, range(60))
        load.run()
        service.stop(signal.SIGTERM)
    assert not load.failed
    recorded.check_stopped(folder, load.answers)
    assert {path.name for path in folder.iterdir()} == {
        f"LlamaForCausalLM-{worker}.tape" for worker in {answer.worker for answer in load.answers}
    }
