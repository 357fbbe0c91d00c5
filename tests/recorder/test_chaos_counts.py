"""SIGKILL at random moments: the counts on the disk are right, or say that they may be too small.

A server tells of each call when it begins and when it ended. Counts that are 'until a moment' have
every call that had ended by then, and none that had not begun when the process died.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import struct
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, open_tape
from calltape_analyzer.surveying.survey import survey
from calltape_recorder import Novelty, Rate, record
from calltape_recorder.write import segments, writer
from tests.recorder.killed import Killed, in_daemon
from tests.recorder.models import Identity

pytestmark = pytest.mark.chaos

KIB = 1024
KILLS = 15  # per kind
_SAID = struct.Struct("<qq")  # the process, and when a call ended; 0 when one begins
DELETES: dict[str, Any] = {
    "segment_bytes": 20 * KIB, "max_disk_bytes": 256 * KIB, "when_full": "delete_oldest",
}  # fmt: skip


@dataclass
class Server:
    """What runs until it is killed.

    Attributes:
        options: of the recorder.
        forks: processes besides the first one.
        threads: of each.
        elements: of what the calls are given.
        latest: seconds until it is killed.
    """

    options: dict[str, Any] = field(default_factory=dict)
    forks: int = 0
    threads: int = 1
    elements: int = 4
    latest: float = 0.3

    def serve(self, path: Path, pipe: int) -> None:
        torch.set_num_threads(1)
        writer.LOOK_SECONDS = segments.LOOK_SECONDS = 0.005
        segments.COUNT_SECONDS = 0.02
        model = Identity()
        recorder = record(model, path, **self.options)
        assert recorder.stats().state == "recording"
        for _ in range(self.forks):
            if os.fork() == 0:
                break
        for _ in range(self.threads):
            in_daemon(self.work, model, pipe)
        time.sleep(600)

    def work(self, model: Identity, pipe: int) -> None:
        for number in itertools.count(1):
            os.write(pipe, _SAID.pack(os.getpid(), 0))
            model(torch.ones(self.elements + number % 3))
            os.write(pipe, _SAID.pack(os.getpid(), time.time_ns()))
            if number % 50 == 0:
                time.sleep(0.001)


SERVERS = {
    "new calls only": Server({"keep": Novelty()}),
    "new calls only, files in turn": Server({"keep": Novelty(), "segment_seconds": 0.02}),
    "every call": Server(),
    "files in turn": Server({"segment_bytes": 20 * KIB}, threads=3),
    "oldest deleted": Server(DELETES, elements=400),
    "oldest deleted, a sample": Server({**DELETES, "keep": Rate(0.2)}, elements=2000),
    "old ones deleted": Server({"segment_seconds": 0.02, "max_age_seconds": 0.05}),
    "two processes": Server({"segment_bytes": 20 * KIB}, forks=1),
}


def process_of(path: Path, first: int) -> int:
    """Whose recording a file belongs to, by its name."""
    _, is_fork, rest = path.stem.partition("-p")
    return int(rest.split("-")[0]) if is_fork else first


def check(server: Server, folder: Path, one: Killed, counts: Counter[str]) -> None:
    begun = Counter(pid for pid, ended in one.said if not ended)
    recordings: dict[int, list[Path]] = {}
    for path in sorted(folder.glob("*.tape")):
        if path.stat().st_size:
            pid = process_of(path, one.pid)
            recordings.setdefault(pid, []).append(path)
    for pid, paths in recordings.items():
        try:
            tape = open_tape(paths)
        except TapeError:
            assert len(paths) == 1, "it was killed within its manifest"
            continue
        with tape:
            coverage = tape.coverage
            ended = [moment for of, moment in one.said if of == pid and moment]
            # A file whose manifest was being written has nothing yet.
            torn = [error for error in tape.damage if error.member == "tape.msgpack"]
            assert len(torn) == len(tape.damage) <= 1
            assert coverage.at_least, "it was killed"
            assert coverage.kept == len(tape)
            assert coverage.seen == coverage.kept + sum(coverage.dropped.values())
            assert coverage.seen <= begun[pid]
            until = coverage.counted_ns
            assert until is not None or not coverage.seen
            # Of threads, one may be stopped between the number of its call and the time.
            if server.threads == 1:
                assert sum(moment <= (until or 0) for moment in ended) <= coverage.seen
            assert tape.missing_files == {}
            counts["calls"] += len(ended)
            counts["counted"] += coverage.seen
            counts["kept"] += coverage.kept
            counts["deleted"] += coverage.dropped.get("deleted", 0) + coverage.dropped.get(
                "expired", 0
            )
        if not torn:
            (surveyed,) = survey(paths).targets.values()
            assert surveyed.coverage.seen == coverage.seen
            assert surveyed.coverage.kept == coverage.kept
            assert (surveyed.coverage.at_least, surveyed.coverage.counted_ns) == (True, until)
    counts["recordings"] += len(recordings)


@pytest.mark.parametrize("kind", SERVERS)
def test_counts_are_right_or_say_at_least(tmp_path: Path, kind: str) -> None:
    torch.set_num_threads(1)  # a forked child has no thread pool
    server, counts = SERVERS[kind], Counter[str]()
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        one = Killed(functools.partial(server.serve, folder / "t.tape"), _SAID)
        one.wait(random.uniform(0.01, server.latest))
        one.kill()
        check(server, folder, one, counts)
        for path in folder.iterdir():
            path.unlink()
    assert counts["counted"]
    assert counts["recordings"] > KILLS // 2
    assert counts["kept"] or "max_age_seconds" in server.options
    if "keep" in server.options:
        assert counts["kept"] < counts["counted"] // 2
