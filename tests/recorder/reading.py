"""A small reader of tapes for these tests: framing and records from the schema, values by torch.

Not the analyzer: what the recorder writes is checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calltape_schema import TapeError
from calltape_schema.blob import stored_as
from calltape_schema.end import End
from calltape_schema.inputs_table import InputsTable
from calltape_schema.reader import TapeReader
from calltape_schema.records import CallRecord, Manifest, ModelError, Target, Tree
from calltape_schema.storage import BytesSource
from tests.schema.container.tapes import blob_of, counted, tensor

_BY_NAME = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16,
    "U16": torch.uint16, "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64,
    "U64": torch.uint64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}  # fmt: skip


@dataclass
class ReadCall:
    """A call. ``blob`` is its own one."""

    record: CallRecord
    blob: bytes
    reader: TapeReader

    @property
    def args(self) -> tuple[Any, ...]:
        return self.record.inputs.spec().root.children[0].children

    @property
    def kwargs(self) -> dict[str, Any]:
        node = self.record.inputs.spec().root.children[1]
        return dict(zip(node.keys, node.children, strict=False))

    @property
    def outputs(self) -> Any:
        assert self.record.outputs is not None
        return self.record.outputs.spec().root

    @property
    def error(self) -> ModelError:
        """What a call that raised says."""
        assert self.record.error is not None
        return self.record.error

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """By leaf of the inputs, its smallest and its largest element."""
        return {one.leaf: (one.min, one.max) for one in self.record.inputs.ranges}

    def stored(self, tree: Tree, leaf: int) -> torch.Tensor:
        """The blob's entry of a leaf, as it is stored."""
        facts = tree.facts()[leaf]
        assert facts.key is not None, facts.missing
        entry = stored_as(facts)
        assert entry is not None
        data = bytearray(tensor(self.reader, self.record, facts))
        if not data:
            return torch.empty(entry.shape, dtype=_BY_NAME[entry.dtype])
        return torch.frombuffer(data, dtype=_BY_NAME[entry.dtype]).reshape(entry.shape)

    def value(self, tree: Tree, leaf: int) -> torch.Tensor:
        """The leaf's value, in its own dtype and shape, contiguous."""
        facts = tree.facts()[leaf]
        dtype = getattr(torch, facts.dtype)
        stored = self.stored(tree, leaf)
        if facts.quantizer is None and stored.dtype != dtype:
            kept = [1 if i in facts.expanded else n for i, n in enumerate(facts.shape)]
            stored = stored.view(dtype).reshape(kept)
        return stored.expand(facts.shape) if facts.expanded else stored

    def input(self, leaf: int) -> torch.Tensor:
        return self.value(self.record.inputs, leaf)

    def output(self, leaf: int) -> torch.Tensor:
        assert self.record.outputs is not None
        return self.value(self.record.outputs, leaf)

    def scalar(self, node: Any, side: str = "inputs") -> Any:
        value = getattr(self.record, side).scalars[node.scalar]
        return complex(*value) if node.kind == "complex" else value


@dataclass
class ReadTape:
    manifest: Manifest
    calls: list[ReadCall]
    damage: list[TapeError]
    own_end: End | None

    @property
    def is_sealed(self) -> bool:
        return self.own_end is not None

    @property
    def end(self) -> End:
        """The end of a sealed tape."""
        assert self.own_end is not None
        return self.own_end

    @property
    def numbers(self) -> list[int]:
        return [call.record.call for call in self.calls]

    @property
    def table(self) -> InputsTable:
        """The table of counted inputs of a sealed tape."""
        table = self.end.table()
        assert table is not None
        return table

    @property
    def target(self) -> Target:
        assert self.manifest.target is not None
        return self.manifest.target


def read(path: Path | str) -> ReadTape:
    """The whole tape; calls without a valid record are damage."""
    reader = TapeReader(BytesSource(Path(path).read_bytes()))
    scan = reader.scan()
    calls = [_call(reader, reader.record_at(at)) for at in range(len(scan))]
    tape = ReadTape(reader.manifest, calls, scan.damage, reader.end)
    if reader.end is not None and reader.end.inputs is not None:
        _check_table(tape, reader)
    return tape


def _check_table(tape: ReadTape, reader: TapeReader) -> None:
    """The table at the end says of the calls on the tape what their records say."""
    told = {
        key: (row.kept, row.first, row.last, row.ranges)
        for key, row in tape.table.rows.items()
        if row.kept
    }
    there = {
        key: (row.kept, row.first, row.last, row.ranges)
        for key, row in counted(reader, tape.damage.append).rows.items()
    }
    assert told == there


def _call(reader: TapeReader, record: CallRecord) -> ReadCall:
    assert record.inputs.spec()
    if record.outputs is not None:
        assert record.outputs.spec()
    assert all(number < record.call for number, _, _ in record.elsewhere.values())
    return ReadCall(record, blob_of(reader, record), reader)
