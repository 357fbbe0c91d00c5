"""Leaves that have the same bytes: a file of a megabyte must not become gigabytes in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import Limits, TapeError, open_tape
from calltape_schema.end import Coverage
from calltape_schema.storage import BytesSink
from calltape_schema.tree import encode_leaves
from calltape_schema.writer import TapeWriter
from tests.analyzer.tapes import Recorded, new_call, reader_of, write_tape

MEBIBYTE = 2**20
MANY = 300


def repeated(path: Path, *, many: int, refers: bool) -> Path:
    """A tape with a tensor of a mebibyte, and a call of which all leaves have its bytes."""
    arguments = tuple(torch.ones(1) * number for number in range(many))
    write_tape(path, [Recorded((torch.ones(MEBIBYTE // 4),)), Recorded(arguments)])
    reader, sink = reader_of(path), BytesSink()
    writer = TapeWriter(sink, reader.manifest)
    found = reader.blob_member(reader.record(0))
    blob = bytes(reader.source.read_at(found.start, found.size))
    one, all_of_it = (
        {name: value for name, value in reader.document(number).items() if name != "blob"}
        for number in range(2)
    )
    keys = [f"args.{number}" if refers else "args.0" for number in range(many)]
    shape = [MEBIBYTE // 4]
    leaves = [{"dtype": "float32", "shape": shape, "key": key} for key in keys]
    all_of_it["inputs"] = all_of_it["inputs"] | {"leaves": encode_leaves(leaves)}
    if refers:
        all_of_it["at"] = [(key, 0, "args.0") for key in keys]
    writer.append([new_call(0, one, blob), new_call(1, all_of_it, b"" if refers else blob)])
    writer.seal(Coverage(seen=2, kept=2))
    path.write_bytes(sink.data)
    return path


@pytest.mark.integration
@pytest.mark.parametrize("refers", [False, True])
def test_many_leaves_with_the_bytes_of_one(tmp_path: Path, *, refers: bool) -> None:
    path = repeated(tmp_path / "a.tape", many=MANY, refers=refers)
    assert path.stat().st_size < 3 * MEBIBYTE
    with open_tape(path) as tape:
        (damage,) = tape.verify()
        assert f"the tensors of call 1 would take {MANY * MEBIBYTE:,} bytes" in str(damage)
        for read in (lambda: tape[1].inputs, lambda: tape[1].stored("inputs", 7)):
            with pytest.raises(TapeError) as caught:
                read()
            assert caught.value.kind == "limit"
        assert tape[0].inputs.args[0].numel() == MEBIBYTE // 4
    with open_tape(path) as tape, Limits(nbytes=2**30):
        assert tape.verify() == []
        assert tape[1].tensor("inputs", MANY - 1).numel() == MEBIBYTE // 4
        with (
            Limits(nbytes=2**20),
            pytest.raises(TapeError),
        ):  # the grant of before does not hold here
            tape[1].tensor("inputs", 0)


@pytest.mark.integration
@pytest.mark.parametrize("refers", [False, True])
def test_some_leaves_with_the_bytes_of_one(tmp_path: Path, *, refers: bool) -> None:
    path = repeated(tmp_path / "a.tape", many=20, refers=refers)
    with open_tape(path) as tape:
        assert tape.verify() == []
        assert len(tape[1].inputs.args) == 20
