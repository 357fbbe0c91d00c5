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

sys.path.insert(0, str(FIXTURES))

from attacks.attack import add_blob, one_tensor  # isort: skip
from tape_writing import TapeBytes, target  # isort: skip

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
        told = tape.to_arrow().read_all()["bytes"].to_pylist()
    sizes = [0 if one is None else one.length or one.size for one in blobs]
    assert any(one is not None and one.length and one.length > one.size for one in blobs)
    assert [one["tensor_bytes"] for one in listed] == told == sizes


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
