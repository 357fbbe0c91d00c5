"""Large calls: what fails on the way is not on the tape, and takes no other call along."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import disk_file
from calltape_schema import groups
from tests.recorder import disks
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import read
from tests.recorder.waiting import in_threads

MIB = 1 << 20


def large() -> dict[str, torch.Tensor]:
    return {f"t{index}": torch.randn(MIB // 4) for index in range(6)}


def test_a_large_call_reads_back(tmp_path: Path) -> None:
    model = Echo()
    sent = large() | {"strided": torch.randn(1000, 700).t(), "few": torch.arange(3)}
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(3):
            model(**sent)
            recorder.flush()
    tape = read(tmp_path / "t.tape")
    assert not tape.damage
    assert len(tape.calls) == 3
    for call in tape.calls:
        assert call.record.blob is not None
        assert call.record.blob.checksum == zlib.crc32(call.blob)
        for name, tensor in sent.items():
            assert torch.equal(call.input(call.kwargs[name].leaf), tensor)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_what_fails_after_its_blob_takes_the_blob_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(file: int, parts: list[Any], offset: int) -> int:
        sizes.append(sum(map(len, parts)))
        if len(sizes) == 1:
            return write(file, [b"".join(parts)[: 5 * MIB]], offset)
        raise OSError(code, os.strerror(code))

    sizes: list[int] = []
    write = disk_file.pwritev
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        model(torch.zeros(1))
        recorder.flush()
        before = path.read_bytes()
        monkeypatch.setattr(disk_file, "pwritev", full)
        model(**large())
        recorder.flush()
        assert len(sizes) == 2
        assert path.read_bytes() == before
        monkeypatch.setattr(disk_file, "pwritev", write)
        model(torch.ones(1))
    tape = read(path)
    assert not tape.damage
    assert [call.record.call for call in tape.calls] == [0, 2]


def test_a_record_that_is_too_large_takes_no_other_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one that is only too large for its group."""
    monkeypatch.setattr(groups, "MAX_GROUP_BYTES", 100_000)
    monkeypatch.setattr(groups, "GROUP_BYTES", 20_000)
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        gate = disks.slow(monkeypatch)
        model("first")
        assert gate.reached.wait(60)
        for length in (10, 30_000, 60_000, 20, 15_000, 15_000):  # they are one batch
            model(os.urandom(length // 2).hex())
        gate.set()
        recorder.flush()
    stats = recorder.stats()
    assert (stats.kept, stats.dropped) == (6, {"internal": 1})
    tape = read(path)
    assert not tape.damage
    assert tape.numbers == [0, 1, 2, 4, 5, 6]


def test_a_call_of_many_tensors_needs_many_parts(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    values = [torch.tensor([n]) for n in range(3000)]
    with record(model, path):
        model(values)
    call = read(path).calls[0]
    for n in (0, 511, 512, 2999):
        assert call.input(n).item() == call.output(n).item() == n


@pytest.mark.parametrize("most", [1, 3])
def test_what_docs_production_says_is_enough(tmp_path: Path, most: int) -> None:
    """Twice the calls at the same time, where the disk takes what comes."""
    under_way = threading.Barrier(most)

    class Together(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            under_way.wait()
            return x + 1

    def call(at: int) -> None:
        model(torch.full((MIB // 4,), float(at)))

    model = Together()
    with record(model, tmp_path / "t.tape", max_queue_bytes=2 * most * 2 * MIB) as recorder:
        for turn in range(8):
            in_threads(call, range(turn * most, turn * most + most))
            assert recorder.flush()
    assert (recorder.stats().kept, recorder.stats().dropped) == (8 * most, {})
