"""Blobs that another writer compressed: read, copied and compared like any other."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path

import pytest
import torch

from calltape_analyzer import Limits, TapeError, filter_tape, open_tape
from calltape_schema.blob import Stored, build_header
from calltape_schema.bounds import MAX_BLOB_INFLATED_BYTES
from calltape_schema.packing import pack
from tests.analyzer.cli.commands import run
from tests.fixture_files import FIXTURES

from attacks.attack import add_blob, one_tensor  # isort: skip
from tape_writing import TapeBytes, target  # isort: skip
from calltape_analyzer.reading.tape_file import TapeFile
from calltape_recorder import record
from calltape_schema.bounds import CHECKED_BYTES
from tests.forging.changes import member_list

sys.path.insert(0, str(FIXTURES))


COMPRESSED = FIXTURES / "v1" / "compressed.tape"


def test_a_copy_is_not_compressed_and_is_the_same_call(tmp_path: Path) -> None:
    with open_tape(COMPRESSED) as tape:
        filter_tape(tape, tmp_path / "copy.tape")
        with open_tape(tmp_path / "copy.tape", verify=True) as copy:
            assert copy.damage == []
            assert any(call.record.blob.codec for call in tape.calls if call.record.blob)
            assert not any(call.record.blob.codec for call in copy.calls if call.record.blob)
            for call, other in zip(tape.calls, copy.calls, strict=True):
                assert call.raw_record() == other.raw_record()
                for leaf in range(len(call.record.inputs.facts())):
                    one, two = (each.tensor("inputs", leaf) for each in (call, other))
                    assert torch.equal(one, two)


def test_bytes_are_those_of_the_tensors() -> None:
    """Not those of what was compressed, which nobody has in memory."""
    listed = json.loads(run("ls", COMPRESSED, "--json").out)
    with open_tape(COMPRESSED) as tape:
        blobs = [call.record.blob for call in tape.calls]
    sizes = [0 if one is None else one.length or one.size for one in blobs]
    assert any(one is not None and one.length and one.length > one.size for one in blobs)
    assert [one["tensor_bytes"] for one in listed] == sizes
    pytest.importorskip("pyarrow")
    with open_tape(COMPRESSED) as tape:
        assert tape.to_arrow().read_all()["bytes"].to_pylist() == sizes


def test_a_blob_may_inflate_to_no_more_than_is_allowed(tmp_path: Path) -> None:
    size = MAX_BLOB_INFLATED_BYTES
    plain = build_header({"x": Stored("U8", (size,), size)}) + bytes(size)
    leaf = {"dtype": "uint8", "shape": [size], "key": "x"}
    inputs = one_tensor("x", "uint8") | {"leaves": pack([leaf])}
    facts = {"codec": 1, "length": len(plain)}
    tape = TapeBytes(target("x"))
    add_blob(
        tape, zlib.compress(plain, 1), {"time_ns": 0, "inputs": inputs}, suffix=".zlib", **facts
    )
    path = tmp_path / "a.tape"
    path.write_bytes(bytes(tape.data))
    with open_tape(path) as stranger:
        call = stranger.calls[0]
        asked = (
            lambda: call.check(entries=True),
            lambda: call.stored("inputs", 0),
            lambda: [*call.raw_blob()],
        )
        for ask in asked:
            with pytest.raises(TapeError, match="inflates to"):
                ask()
    with open_tape(path, limits=Limits(format_times=2)) as known:
        call = known.calls[0]
        call.check(entries=True)
        assert len(call.stored("inputs", 0) or b"") == size
        assert b"".join(call.raw_blob()) == plain
        assert known.damage == []


LARGE = 3 * CHECKED_BYTES // 4  # float32: 3 MiB


class Model(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> None:
        """Takes anything."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = Model()
    with record(model, tmp_path / "a.tape", outputs=False):
        model(torch.zeros(LARGE), torch.arange(5.0))
        model(torch.ones(2))
    return tmp_path / "a.tape"


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def start_of_blob(path: Path) -> int:
    return next(member.start for member in member_list(path) if member.name.startswith("blobs/"))


def test_a_broken_part_costs_the_values_that_are_in_it(path: Path) -> None:
    flip(path, start_of_blob(path) + 2 * CHECKED_BYTES + 7)
    with open_tape(path) as tape:
        call = tape.calls[0]
        assert call.tensor("inputs", 1).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert tape.damage == []
        for _ in range(2):
            with pytest.raises(TapeError, match="the checksum of its tensors"):
                call.tensor("inputs", 0)
        assert [error.kind for error in tape.damage] == ["damaged"]
        assert call.tensor("inputs", 1).tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        with pytest.raises(TapeError, match="the checksum of its tensors"):
            call.check()
    with open_tape(path, verify=True) as tape:
        assert [error.kind for error in tape.damage] == ["damaged"]


def test_a_broken_header_costs_all_values(path: Path) -> None:
    flip(path, start_of_blob(path) + 9)
    with open_tape(path) as tape, pytest.raises(TapeError, match="the checksum of its tensors"):
        tape.calls[0].tensor("inputs", 1)


def test_no_more_is_read_than_what_was_asked_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    begin = start_of_blob(path)
    real = TapeFile.crc32

    def crc32(self: TapeFile, offset: int, size: int, found: int = 0) -> int:
        if offset >= begin:  # not of the head of the file, which is looked at if it is opened again
            read.append(size)
        return real(self, offset, size, found)

    monkeypatch.setattr(TapeFile, "crc32", crc32)
    with open_tape(path) as tape:
        for _ in range(2):
            tape.calls[0].tensor("inputs", 1)
        # The part of the header, and the last one, each once.
        assert len(read) == 2
        assert sum(read) < 2 * CHECKED_BYTES
        tape.calls[0].check()
        assert len(read) == 4
        tape.calls[1].check()
        assert len(read) == 5
