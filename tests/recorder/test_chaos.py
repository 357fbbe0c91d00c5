"""SIGKILL at random moments: every acknowledged call reads back bit-identical."""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from pathlib import Path

import pytest
import torch

from calltape_recorder import record
from tests.recorder.models import Identity
from tests.recorder.reading import ReadCall, read

pytestmark = pytest.mark.chaos

KILLS = 120
_NUMBER = struct.Struct("<q")


def tensor_of(number: int) -> torch.Tensor:
    """What call ``number`` is given: small, and now and then large enough for the pool."""
    size = 60_000 if number % 17 == 3 else 5 + number % 7
    return torch.arange(size, dtype=torch.float32) * (number + 1)


def serve(path: Path, acknowledge: int) -> None:
    """A server that says how many calls are in the file, until it is killed."""
    model = Identity()
    recorder = record(model, path)
    number = 0
    while True:
        for _ in range(1 + number % 5):
            model([tensor_of(number), number])
            number += 1
        if number % 3:
            recorder.flush()
            acknowledged = number
        else:
            acknowledged = recorder.stats().kept
        os.write(acknowledge, _NUMBER.pack(acknowledged))


def killed(path: Path, after: float) -> int:
    """Forks a server (importing torch once), kills it, and returns what it acknowledged last."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            serve(path, writing)
        finally:
            os._exit(1)
    os.close(writing)
    time.sleep(after)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    said = b""
    while chunk := os.read(reading, 1 << 16):
        said += chunk
    os.close(reading)
    whole = len(said) // _NUMBER.size * _NUMBER.size
    return int(_NUMBER.unpack(said[whole - 8 : whole])[0]) if whole else 0


def check(call: ReadCall) -> None:
    number = call.record.inputs.scalars[0]
    assert number == call.record.call
    for tensor in (call.input(0), call.output(0)):
        assert torch.equal(tensor.view(torch.int32), tensor_of(number).view(torch.int32))


def test_no_acknowledged_call_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)  # a forked child has no thread pool
    acknowledged = recovered = cut = 0
    for kill in range(KILLS):
        path = tmp_path / f"{kill}.tape"
        said = killed(path, random.uniform(0.005, 0.12))
        if not path.exists() or not path.stat().st_size:
            assert said == 0
            continue
        tape = read(path)
        numbers = set(tape.numbers)
        assert set(range(said)) <= numbers
        assert all(error.offset is not None for error in tape.damage)
        for call in tape.calls:
            check(call)
        acknowledged += said
        recovered += len(numbers)
        cut += bool(tape.damage)
        path.unlink()
    with capsys.disabled():
        print(
            f"\n{KILLS} kills: {acknowledged} calls acknowledged, 0 lost,"
            f" {recovered} recovered, {cut} tapes with a torn end"
        )
    assert acknowledged > KILLS
