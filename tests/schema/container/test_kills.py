"""A writer that is killed at random moments loses nothing that it acknowledged."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.schema.container.tapes import read_all

WRITER = """
import os, sys
from calltape_schema.writer import TapeWriter
from tests.schema.container.tapes import MANIFEST, new_call

class File:
    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def write_at(self, offset, parts):
        os.pwritev(self.file, parts, offset)

writer = TapeWriter(File(sys.argv[1]), MANIFEST)
number = 0
while True:
    calls = [new_call(number + at, [number + at] * 300) for at in range(1 + number % 5)]
    writer.append(calls)
    number += len(calls)
    print(number, flush=True)
"""


@pytest.mark.chaos
def test_kills(tmp_path: Path) -> None:
    chance = random.Random(0)
    for turn in range(20):
        path = tmp_path / f"{turn}.tape"
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.random() * 0.3)
        child.kill()
        *_, last = ["1", *child.stdout.read().split()]
        child.wait()
        whole, errors = read_all(path.read_bytes())
        assert errors == []
        assert whole == list(range(len(whole)))
        assert len(whole) >= int(last)
