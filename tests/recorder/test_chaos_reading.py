"""A folder is read while its recorder goes on in other files and deletes old ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.editing.diagnosis import symptoms_of
from calltape_recorder import record
from tests.recorder.models import Identity

pytestmark = pytest.mark.chaos

KIB = 1024
READINGS = 150


def test_a_rotating_recording_is_read_while_it_is_written(tmp_path: Path) -> None:
    """Nothing is missing, nothing is damaged, and no call counts twice."""
    model, stopped, failed = Identity(), threading.Event(), []
    options: Any = {"segment_bytes": 20 * KIB, "max_disk_bytes": 300 * KIB}
    begun = [0]

    def serve() -> None:
        try:
            while not stopped.is_set():
                begun[0] += 1
                model(torch.ones(500 + begun[0] % 7))
        except BaseException as error:
            failed.append(error)

    deleted = before = 0
    with record(model, tmp_path / "a.tape", when_full="delete_oldest", **options) as recorder:
        server = threading.Thread(target=serve)
        server.start()
        try:
            for _ in range(READINGS):
                with open_tape(tmp_path) as tape:
                    coverage = tape.coverage
                    assert coverage.at_least
                    assert before <= coverage.seen <= begun[0], "none twice, and none forgotten"
                    before = coverage.seen
                    assert tape.missing_files == {}
                    assert tape.damage == []
                    kinds = {one.kind for one in symptoms_of(tape, None)}
                    assert not kinds & {"missing_files", "damage"}
                    for runs in tape.deleted_files.values():
                        deleted = max(deleted, sum(last - first + 1 for first, last in runs))
        finally:
            stopped.set()
            server.join()
    assert not failed
    assert deleted
    with open_tape(tmp_path) as tape:
        assert (tape.coverage.seen, tape.coverage.at_least) == (begun[0], None)
        assert tape.coverage.kept == recorder.stats().kept
        assert tape.missing_files == {}
