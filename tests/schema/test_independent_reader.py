"""FORMAT.md suffices to write a reader; that reader, ours and the fixtures agree."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from calltape_schema.blob import header_size
from calltape_schema.inputs_document import pack_inputs
from tests.fixture_files import FIXTURES
from tests.schema import independent_reader
from tests.schema.container.tapes import new_call, opened, tape, tensor

V1 = FIXTURES / "v1"
TAPES = sorted(V1.glob("*.tape"))
assert TAPES
CALLS = (
    [new_call(0, [1, 2]), new_call(1, scalars=[2**70, -5], shape=(2, 3), ranges=[(0, 4, 9)])],
    [new_call(number, [number], scalars=[number]) for number in range(2, 60)],
    [new_call(60, [5], [1, 2], at=[("x1", 0, "x0")], error={"type": "a:B", "message": "no"})],
)


def test_the_independent_reader_is_small_and_imports_nothing_of_ours() -> None:
    source = Path(independent_reader.__file__).read_text()
    assert len(source.splitlines()) <= 135
    imported = {
        name.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import)
        for name in node.names
    }  # fmt: skip
    assert imported == {"json", "math", "msgpack", "re", "struct", "zlib"}
    assert "from " not in {line[:5] for line in source.splitlines()}


def test_tensors_begin_at_multiples_of_64() -> None:
    for path in TAPES:
        for name, at, content in independent_reader.members(path.read_bytes()):
            if name.startswith("blobs/") and name.endswith(".safetensors"):
                assert (at + 512 + header_size(content, len(content))) % 64 == 0


@pytest.mark.parametrize("level", [0, 1])
def test_the_independent_reader_reads_what_our_writer_writes(level: int) -> None:
    """Also what zlib deflates: the fixtures have it only in fixed codes."""
    data = tape(*CALLS, level=level)
    _, calls, end = independent_reader.read_tape(data)
    reader = opened(data)
    assert sorted(calls) == list(reader.scan().numbers)
    for number, found in calls.items():
        record = reader.record(number)
        assert found["time_ns"] == record.time_ns
        for leaf in record.inputs.facts():
            if leaf.key is not None:
                assert found["tensors"][leaf.key][1] == tensor(reader, record, leaf)
    assert reader.end is not None
    table = reader.end.table()
    assert table is not None
    assert end["table"] == independent_reader.unpack(pack_inputs(table))


def test_the_independent_reader_reads_a_torn_tape() -> None:
    data = tape(*CALLS, seals=False)
    _, calls, end = independent_reader.read_tape(data[: len(data) - 700])
    assert (len(calls), end) == (60, None)
