"""A client that asks which answers are surely on the tapes."""

from __future__ import annotations

import http.client
import threading
import time

from tests.servers.service import Answer, Load, Service

__all__ = ["Acknowledged"]


class Acknowledged:
    """What the workers' recorders said is in their files, while a load ran.

    Attributes:
        load: whose answers it asks about; may be replaced.
        answers: by worker: the answers that were given before a flush of that worker's recorder
            began which then succeeded.
        kept: by worker: the most calls that ``Recorder.stats()`` counted as kept.
    """

    def __init__(self, service: Service, load: Load) -> None:
        self.answers: dict[int, set[Answer]] = {}
        self.kept: dict[int, int] = {}
        self._service = service
        self.load = load
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    @property
    def count(self) -> int:
        return sum(map(len, list(self.answers.values())))

    def _watch(self) -> None:
        while not self._stopped.is_set():
            try:
                self._flush()
                self._count()
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)  # that worker is gone

    def _flush(self) -> None:
        answered = self.load.so_far()
        said = self._service.post("/flush")
        if said["flushed"]:
            worker = said["worker"]
            self.answers.setdefault(worker, set()).update(
                answer for answer in answered if answer.worker == worker
            )

    def _count(self) -> None:
        said = self._service.get("/recorder")
        self.kept[said["worker"]] = max(said["kept"], self.kept.get(said["worker"], 0))
