"""Large calls: the checksum is made while the blob is written, and what fails on the way is not on
the tape."""

from __future__ import annotations

import os
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from calltape_recorder.write.checksum import Checksum, checksum

from calltape_recorder import record
from calltape_recorder.write import disk_file, encoding
from calltape_recorder.write.encoding import Encoder
from calltape_schema.checksum import crc32
from calltape_schema.packing import open_envelope, unpack
from tests.recorder.models import Echo, Identity
from tests.recorder.reading import read

MIB = 1 << 20


def large() -> dict[str, torch.Tensor]:
    return {f"t{index}": torch.randn(MIB // 4) for index in range(10)}


def test_the_sums_are_those_of_the_standard_library() -> None:
    data = os.urandom(100_001)
    assert crc32(data) == zlib.crc32(data)
    assert checksum([data[:70_000], b"", memoryview(data)[70_000:]]) == zlib.crc32(data)


@pytest.fixture
def others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if more calls waited: a large one is checked while it is written."""

    def encode(self: Encoder, call: Any, *, others_wait: bool) -> Any:
        return real(self, call, others_wait=True)

    real = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", encode)


@pytest.mark.parametrize("at_once", [0, 8 * MIB, 64 * MIB])
@pytest.mark.usefixtures("others_wait")
def test_a_large_call_reads_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(encoding, "_AT_ONCE_BYTES", at_once)
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
        assert call.record.blob.crc32 == zlib.crc32(call.blob)
        for name, tensor in sent.items():
            assert torch.equal(call.input(call.kwargs[name].leaf), tensor)


@pytest.mark.usefixtures("others_wait")
def test_the_blob_is_written_while_its_checksum_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    waited = threading.Event()

    def pwritev(file: int, parts: list[Any], offset: int) -> int:
        done = write(file, parts, offset)
        if done > MIB:
            written.set()
        return done

    def slow(parts: list[Any]) -> int:
        if sum(map(len, parts)) > MIB and written.wait(30):
            waited.set()
        return checksum(parts)

    write = disk_file.pwritev
    monkeypatch.setattr(disk_file, "pwritev", pwritev)
    monkeypatch.setattr("calltape_recorder.write.checksum.checksum", slow)
    model = Echo()
    with record(model, tmp_path / "t.tape"):
        model(**large())
    assert waited.is_set()
    assert not read(tmp_path / "t.tape").damage


@pytest.mark.parametrize("value", [0, 1, 200, 70_000])
def test_a_checksum_of_few_digits_keeps_the_length(
    monkeypatch: pytest.MonkeyPatch, value: int
) -> None:
    monkeypatch.setattr(Checksum, "value", lambda self: value)
    late = encoding._late_record({"call": 1}, [b"abc"], 3)
    content = late.make()
    assert len(content) == len(late)
    assert unpack(open_envelope(content)) == {"call": 1, "blob": {"size": 3, "crc32": value}}


def test_only_where_others_wait_a_thread_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted(parts: Any) -> Checksum:
        made.append(1)
        return Checksum(parts)

    made: list[int] = []
    monkeypatch.setattr(encoding, "Checksum", noted)
    model, arguments = Echo(), large()
    with record(model, tmp_path / "t.tape") as recorder:
        for _ in range(3):
            model(**arguments)
            recorder.flush()  # waits as well, and is no call
        assert not made
        held, stuck = threading.Event(), threading.Event()
        pipeline: Any = recorder._handler.pipeline

        def stick() -> None:
            stuck.set()
            held.wait(60)

        asks = threading.Thread(target=pipeline.writer.ask, args=(stick, None))
        asks.start()
        assert stuck.wait(60)
        for _ in range(3):
            model(**arguments)
        held.set()
        asks.join()
        recorder.flush()
        assert len(made) == 2  # for the last one nobody waits
    tape = read(tmp_path / "t.tape")
    assert not tape.damage
    assert len(tape.calls) == 6


@pytest.mark.usefixtures("others_wait")
def test_without_a_thread_the_checksum_is_made_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    model = Identity()
    with record(model, tmp_path / "t.tape") as recorder:
        model(1)
        recorder.flush()  # its own thread is there
        monkeypatch.setattr(threading.Thread, "start", start)
        model(list(large().values()))
        recorder.flush()
    monkeypatch.undo()
    assert recorder.stats().kept == 2
    assert not read(tmp_path / "t.tape").damage


def test_a_large_call_that_cannot_be_written_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, parts: list[Any], offset: int) -> int:
        if sum(map(len, parts)) > MIB:
            raise OSError(28, "No space left on device")
        return write(file, parts, offset)

    write = disk_file.pwritev
    model = Echo()
    with record(model, tmp_path / "t.tape") as recorder:
        monkeypatch.setattr(disk_file, "pwritev", full)
        model(**large())
        model(torch.ones(1))
        recorder.flush()
        stats = recorder.stats()
        assert (stats.kept, stats.dropped, stats.queued_bytes) == (1, {"disk_full": 1}, 0)
    assert [call.record.call for call in read(tmp_path / "t.tape").calls] == [1]


@pytest.mark.usefixtures("others_wait")
def test_a_record_that_fails_after_its_blob_takes_the_blob_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, parts: list[Any], offset: int) -> int:
        sizes.append(sum(map(len, parts)))
        if len(sizes) == 2:
            raise OSError(28, "No space left on device")
        return write(file, parts, offset)

    sizes: list[int] = []
    write = disk_file.pwritev
    model, path = Echo(), tmp_path / "t.tape"
    with record(model, path) as recorder:
        before = path.stat().st_size
        monkeypatch.setattr(disk_file, "pwritev", full)
        model(**large())
        recorder.flush()
        assert sizes[0] > 10 * MIB
        assert path.stat().st_size == before
        model(torch.ones(1))
    tape = read(path)
    assert not tape.damage
    assert [call.record.call for call in tape.calls] == [1]


def test_many_parts_before_and_after_a_late_one(tmp_path: Path) -> None:
    writer = disk_file.TapeWriter(str(tmp_path / "t"), overwrite=False)
    late = disk_file.Late(4, lambda: b"late")
    parts: list[Any] = [*([b"ab"] * 1300), late, *([b"cd"] * 700), late]
    writer._append_parts(parts)
    writer.close()
    expected = b"ab" * 1300 + b"late" + b"cd" * 700 + b"late"
    assert (tmp_path / "t").read_bytes() == expected


def test_a_call_of_many_tensors_needs_many_parts(tmp_path: Path) -> None:
    model, path = Identity(), tmp_path / "t.tape"
    values = [torch.tensor([n]) for n in range(3000)]
    with record(model, path):
        model(values)
    call = read(path).calls[0]
    for n in (0, 511, 512, 2999):
        assert call.input(n).item() == call.output(n).item() == n
