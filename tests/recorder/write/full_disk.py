"""A recording on a file system of 1 MiB that others fill: ``python -m ... FOLDER KIND``, where
mounting is allowed. Prints what became of the calls, as JSON."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import torch

from calltape_recorder import Recorder, record
from calltape_recorder.write import writer
from tests.recorder.calls import appearance_of
from tests.recorder.models import Identity
from tests.recorder.write.accounts import OPTIONS, check_accounts, check_ends, tapes_in

ROUNDS = 3
SIZE = 1024 * 1024


class Said(logging.Handler):
    """Which warnings there were."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.args, tuple)
        self.texts.append(str(record.args[1]))  # what the warning is about


def fill(path: Path) -> None:
    """Somebody else's file takes all that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            while _is_written(file, bytes(size)):
                pass


def _is_written(file: BinaryIO, data: bytes) -> bool:
    try:
        file.write(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def until(recorder: Recorder, losing: str | None) -> None:
    """Waits until the accounts tell why calls are lost, or that none is."""
    deadline = time.monotonic() + 60
    while (found := recorder.stats()).losing != losing:
        assert time.monotonic() < deadline, found
        time.sleep(0.01)


def main(folder: Path, kind: str) -> None:
    writer.LOOK_SECONDS = 0.05
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True)
    said = Said()
    logging.getLogger("calltape").addHandler(said)
    model, number = Identity(), 0
    looks = appearance_of(model)
    recorder = record(model, folder / "t.tape", **OPTIONS[kind])
    for done in range(ROUNDS):
        fill(folder / "other")
        for _ in range(20):
            number = call(model, number)
            assert recorder.flush()
        full = recorder.stats()
        assert full.dropped["disk_full"] > 5 * (done + 1)
        until(recorder, "disk_full")
        os.unlink(folder / "other")
        for _ in range(8):
            number = call(model, number)
            assert recorder.flush()
        # It takes calls again, and drops none of them.
        assert recorder.stats().dropped == full.dropped
        assert recorder.stats().kept == full.kept + 8
        until(recorder, None)
        assert appearance_of(model) == looks
    recorder.close()
    stats, tapes = recorder.stats(), tapes_in(folder)
    check_accounts(stats, tapes)
    check_ends(stats, tapes)
    assert not list(folder.glob("*.ahead*"))
    # Once, and once more after the disk had room again; not in each round.
    assert all(said.texts.count(text) <= 2 for text in said.texts)
    counts = {"seen": stats.seen, "kept": stats.kept, **stats.dropped}
    print(json.dumps({**counts, "rounds": ROUNDS, "warnings": len(said.texts)}))


def call(model: torch.nn.Module, number: int) -> int:
    """One call; the next number."""
    value = torch.full((3000 if number % 4 == 1 else 50,), float(number))
    assert model(value) is value
    assert bool((value == number).all())
    return number + 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
