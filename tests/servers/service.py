"""A served model in processes of its own, and clients that load it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "NEW_TOKENS", "ROOT", "Answer", "Load", "Service", "acknowledged", "as_written",
    "integration_with", "prompt", "served", "workers_of",
]  # fmt: skip

ROOT = Path(__file__).resolve().parents[2]

NEW_TOKENS = 4


def integration_with(*libraries: str) -> list[pytest.MarkDecorator]:
    """The marks of tests that need these libraries, and transformers. None is imported for that: it
    would take seconds, also of a run that leaves these tests out."""
    missing = [one for one in (*libraries, "transformers") if find_spec(one) is None]
    return [pytest.mark.integration, pytest.mark.skipif(bool(missing), reason=f"needs {missing}")]


_START = 240  # seconds that a server may take to start on a machine that is busy
_END = 120


def prompt(number: int) -> list[int]:
    """The token ids of request ``number``: no two requests have the same, lengths vary."""
    return [2 + number % 200, 2 + number // 200 % 200, *range(3, 4 + number % 9)]


@dataclass(frozen=True)
class Answer:
    """What came back for one prompt.

    Attributes:
        number: the request.
        ids: the tokens that were generated.
        worker: the process that did it.
        given: which of its worker's answers this is, where the worker says so.
        flushed: the worker says that its tape has everything up to here.
    """

    number: int
    ids: tuple[int, ...]
    worker: int
    given: int = 0
    flushed: bool = False


@dataclass
class Service:
    """A server process with its workers, all of one process group."""

    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def post(self, path: str, body: object | None = None) -> Any:
        """The decoded answer; each request has a connection of its own, so that any worker may
        take it.

        Raises:
            OSError, http.client.HTTPException: no answer, or one that is not 200.
        """
        return self._ask("POST", path, body)

    def get(self, path: str) -> Any:
        return self._ask("GET", path, None)

    def _ask(self, method: str, path: str, body: object | None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(
                method, path, json.dumps(body or {}), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            content = response.read()
            if response.status != 200:
                raise http.client.HTTPException(f"{response.status}: {content[:200]!r}")
            return json.loads(content)
        finally:
            connection.close()

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signals the server as who runs it would, and returns its exit status."""
        self.process.send_signal(number)
        return self.process.wait(_END)

    def kill_all(self) -> None:
        """SIGKILL to the server and all its workers at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(_END)

    def wait_until(self, what: Callable[[], object], every: float = 0.05) -> None:
        """Until ``what()``, asked ``every`` so many seconds, is true; a connection that is refused
        counts as not yet."""
        deadline = time.monotonic() + _START
        while True:
            try:
                if what():
                    return
            except (OSError, http.client.HTTPException):
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not do it:\n{self.log.read_text()[-4000:]}")
            time.sleep(every)


@contextmanager
def served(
    command: Sequence[str],
    folder: Path,
    *,
    tapes: Path | None = None,
    imports: Sequence[Path] = (),
    workers: int = 2,
) -> Iterator[Service]:
    """Starts a command (``{port}`` in it is filled in) in the repository's root, waits until
    ``workers`` of its processes have answered, and leaves nothing of it running.

    Args:
        folder: where its log goes.
        tapes: where an example is to record; None for not at all.
        imports: folders that the server imports from, before those of this process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [part.replace("{port}", str(port)) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            env=_environment(folder, tapes, imports),
        )
    service = Service(port, process, log)
    try:
        service.wait_until(lambda: len(workers_of(service, 8 * workers)) >= workers)
        yield service
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END)


def _environment(folder: Path, tapes: Path | None, imports: Sequence[Path]) -> dict[str, str]:
    paths = [*map(str, imports), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "TRANSFORMERS_VERBOSITY": "error",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TAPES": str(tapes or ""),
    }
    if sys.dont_write_bytecode:
        # Some twenty processes import transformers here: compiled once, not in each.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment["PYTHONPYCACHEPREFIX"] = str(folder.parent / "bytecode")
    return environment


def as_written(example: Path, program: str, tapes: Path) -> list[str]:
    """The command in the example's header that begins with this program, on a port of the test's
    own, and with this folder for the one that is written there."""
    pattern = rf"^(?:TAPES=\S+ )?({program} (?:.*\\\n)*.*)$"
    (line,) = re.findall(pattern, example.read_text(), re.MULTILINE)
    words = shlex.split(line.replace("\\\n", " "))
    return [*(str(tapes) if word == "runs/served" else word for word in words), "--port", "{port}"]


# Requests that find out which workers there are have numbers that no load has.
_PROBES = 30_000


def workers_of(service: Service, requests: int) -> set[int]:
    """The workers that answer to a few requests at once."""
    load = Load(service, range(_PROBES, _PROBES + requests), clients=4)
    load.run()
    return {answer.worker for answer in load.answers}


@dataclass
class Load:
    """Requests from several clients at once. What is refused or cut off is ``failed``."""

    service: Service
    numbers: Sequence[int]
    clients: int = 6
    answers: list[Answer] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = iter(self.numbers)
        self._lock = threading.Lock()
        self._enough = threading.Condition(self._lock)
        self._stopped = False
        self._threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        """No new requests; those under way end."""
        self._stopped = True
        self.join()

    def run(self) -> None:
        self.start()
        self.join()

    def wait_for(self, answers: int) -> None:
        """Until so many requests were answered."""
        with self._enough:
            if not self._enough.wait_for(lambda: len(self.answers) >= answers, _START):
                raise AssertionError(f"{len(self.answers)} answers, {len(self.failed)} failures")

    def so_far(self) -> list[Answer]:
        with self._lock:
            return list(self.answers)

    def _ask(self) -> None:
        while not self._stopped:
            with self._lock:
                number = next(self._next, None)
            if number is None:
                return
            body = {"ids": prompt(number), "new_tokens": NEW_TOKENS}
            try:
                said = self.service.post("/generate", body)
            except (OSError, http.client.HTTPException):
                with self._lock:
                    self.failed.append(number)
                time.sleep(0.02)  # a server that is gone refuses at once
                continue
            with self._enough:
                self.answers.append(Answer(number, tuple(said.pop("ids")), **said))
                self._enough.notify_all()


def acknowledged(answers: Sequence[Answer]) -> dict[int, list[Answer]]:
    """By worker: what it says is in its file. An answer is given when its calls are over, so a
    flush is for all that were given before, too."""
    last: dict[int, int] = {}
    for answer in answers:
        if answer.flushed:
            last[answer.worker] = max(answer.given, last.get(answer.worker, 0))
    return {
        worker: [answer for answer in answers if answer.worker == worker and answer.given <= most]
        for worker, most in last.items()
    }
