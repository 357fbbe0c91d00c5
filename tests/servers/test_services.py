"""A FastAPI service under uvicorn, and one of LitServe, with two workers each: recorded under load,
stopped, and killed."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers import outside, recorded
from tests.servers.service import (
    NEW_TOKENS,
    ROOT,
    Load,
    acknowledged,
    as_written,
    integration_with,
    served,
    workers_of,
)


@dataclass(frozen=True)
class Example:
    """An example of a service.

    Attributes:
        folder: of ``server.py``, below ``examples/``.
        program: that begins its command.
        flushing: a command of the same service, whose workers say what is in their files.
    """

    folder: str
    program: str
    flushing: str

    @property
    def server(self) -> Path:
        return ROOT / "examples" / self.folder / "server.py"


FASTAPI = Example(
    "fastapi_server", "uvicorn",
    "python -m uvicorn tests.servers.flushing:app --workers 2 --log-level warning --port {port}",
)  # fmt: skip
LITSERVE = Example(
    "litserve_server", "python",
    "python -m tests.servers.acknowledging_litserve --workers 2 --port {port}",
)  # fmt: skip
EXAMPLES = [
    pytest.param(FASTAPI, marks=integration_with("fastapi", "uvicorn"), id="fastapi"),
    pytest.param(LITSERVE, marks=[*integration_with("litserve"), pytest.mark.slow], id="litserve"),
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_orderly_stop_under_load_loses_nothing(example: Example, tmp_path: Path) -> None:
    folder = tmp_path / "tapes"
    command = as_written(example.server, example.program, folder)
    with served(command, tmp_path, tapes=folder) as service:
        load = Load(service, range(200))
        load.start()
        load.wait_for(100)
        if example is FASTAPI:
            assert service.get("/recorder")["state"] == "recording"
        service.stop(signal.SIGTERM)
        load.stop()
    tape, variants = recorded.check_stopped(folder, load.answers)
    # LitServe may take a worker that it ended for one that died, and start another.
    assert len(tape.paths) >= 2
    if example is FASTAPI:
        assert len(tape.paths) == len({answer.worker for answer in load.answers}) == 2
        assert variants["prefill"] * (NEW_TOKENS - 1) == variants["decode"]


@pytest.mark.parametrize("example", EXAMPLES)
def test_one_worker_is_killed_and_replaced_then_all_are_killed(
    example: Example, tmp_path: Path
) -> None:
    folder = tmp_path / "tapes"
    imports = [example.server.parent, ROOT]
    with served(example.flushing.split(), tmp_path, tapes=folder, imports=imports) as service:
        load = Load(service, range(20_000))
        load.start()
        service.wait_until(lambda: len(acknowledged(load.so_far())) == 2)
        known = set(acknowledged(load.so_far()))
        os.kill(min(known), signal.SIGKILL)
        load.stop()  # who starts a worker needs the processor
        service.wait_until(lambda: workers_of(service, 4) - known, every=0.5)
        more = Load(service, range(20_000, 30_000))
        more.start()
        service.wait_until(lambda: len(acknowledged([*load.answers, *more.so_far()])) == 3)
        service.kill_all()
        more.stop()
    recorded.check_killed(folder, [*load.answers, *more.answers])


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_a_server_is_recorded_and_sealed_from_outside(example: Example, tmp_path: Path) -> None:
    command = as_written(example.server, "calltape-record", tmp_path / "tapes")
    outside.check_sealed_from_outside(command, tmp_path)
