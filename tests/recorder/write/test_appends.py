"""What one append puts into the file: whole members, small, and there when a flush returns."""

from __future__ import annotations

import os
import random
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from calltape_recorder.write import disk_file, writer
from tests.recorder import disks
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import read

MEMBERS = [("blobs", "safetensors"), ("records", "msgpack")]


@pytest.mark.parametrize("batch", [1, 32])
def test_calls_in_any_batches_keep_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(writer, "BATCH_CALLS", batch)
    chance = random.Random(batch)
    model, path = Echo(), tmp_path / "t.tape"
    sent: list[Any] = []
    with record(model, path) as recorder:
        for number in range(200):
            sizes = [chance.choice((0, 1, 600, 5000)) for _ in range(chance.randrange(4))]
            sent.append([torch.full((size,), float(number)) for size in sizes])
            model(sent[-1], name="n" * chance.choice((1, 1, 1, 9000)))
            if not chance.randrange(20):
                recorder.flush()
    tape = read(path)
    assert not tape.damage
    assert tape.numbers == list(range(200))
    for call, tensors in zip(tape.calls, sent, strict=True):
        for leaf, tensor in enumerate(tensors):
            assert torch.equal(call.input(leaf), tensor)


def test_tar_reads_a_file_that_is_not_sealed(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        for number in range(3):
            model(torch.ones(number))
            assert recorder.flush()
        with tarfile.open(path) as tar:
            names = tar.getnames()
    members = [f"{kind}/0000000{n}.{end}" for n in range(3) for kind, end in MEMBERS]
    assert names == ["tape.msgpack", *members]


def test_an_append_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a process that dies leaves all calls of it or none, and a busy host is asked once."""
    model, path, sizes = Identity(), tmp_path / "t.tape", []
    with record(model, path) as recorder:
        gate = disks.slow(monkeypatch)
        model(torch.ones(1))
        assert gate.reached.wait(60)
        for n in range(20):  # they wait together
            model(torch.ones(n))
        disks.failing(monkeypatch, 0, lambda _, nbytes: bool(sizes.append(nbytes)))
        gate.set()
        assert recorder.flush()
        assert len(sizes) == 1
    assert read(path).numbers == list(range(21))


def test_a_call_does_no_io(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are begun, written, looked for and deleted by the recorder's thread."""
    used: list[tuple[str, str]] = []
    model = Identity()
    options: Any = {"max_disk_bytes": 200_000, "when_full": "delete_oldest", "min_free_bytes": 1}
    with record(model, tmp_path / "t.tape", segment_bytes=10_000, **options) as recorder:
        for owner, name in (
            (disk_file, "pwritev"), (os, "open"), (os, "fstat"), (os, "stat"), (os, "statvfs"),
            (os, "unlink"), (os, "close"),
        ):  # fmt: skip
            real = getattr(owner, name)

            def noting(*args: Any, name: str = name, real: Any = real, **options: Any) -> Any:
                used.append((threading.current_thread().name, name))
                return real(*args, **options)

            monkeypatch.setattr(owner, name, noting)
        for number in range(60):
            model(torch.full((2000,), float(number)))
            assert recorder.flush()
        monkeypatch.undo()
        assert recorder.stats().dropped["deleted"] > 0
    assert {thread for thread, _ in used} == {"calltape-writer"}
    assert {"pwritev", "open", "statvfs", "unlink"} <= {name for _, name in used}


def test_shapes_only_calls_take_at_most_256_bytes_each(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path, values="none") as recorder:
        for number in range(2000):
            model(torch.empty(2, 3 + number % 50))
            if number % 50 == 0:
                recorder.flush()
    assert len(read(path).calls) == 2000
    assert path.stat().st_size <= 256 * 2000


@pytest.mark.integration
@pytest.mark.parametrize("flushes", [True, False])
def test_decode_steps_of_a_large_cache_take_little(tmp_path: Path, flushes: bool) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    with record(model, path, values="none") as recorder:
        for step in range(200):
            cache = [torch.empty(1, 4, 5 + step, 2, device="meta") for _ in range(48)]
            model({"past": cache, "ids": torch.empty(1, 1, device="meta")})
            assert not flushes or recorder.flush()
    tape = read(path)
    assert len(tape.calls) == 200
    assert path.stat().st_size <= 2000 * 200  # a record has about 15,000 bytes
