"""A small reader of tapes for these tests: framing and records from the schema, values by torch.

Not the analyzer: what the recorder writes is checked without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from calltape_schema import TapeError, framing
from calltape_schema.blob import header_size, parse_header, stored_as
from calltape_schema.endings import Trailer, decode_trailer
from calltape_schema.gathered import is_group, payload_of, places
from calltape_schema.locator import locator_of, summary_member
from calltape_schema.packing import seal_envelope
from calltape_schema.records import CallRecord, Manifest, Tree, decode_call, decode_manifest
from calltape_schema.summary import Summary, decode_summary
from calltape_schema.summing import CallFacts, SummaryBuilder, facts_of

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
    record: CallRecord
    blob: bytes

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

    def stored(self, tree: Tree, leaf: int) -> torch.Tensor:
        """The blob's entry of a leaf, as it is stored."""
        facts = tree.facts()[leaf]
        assert facts.key is not None, facts.missing
        start = header_size(self.blob[:8], len(self.blob))
        entry = parse_header(self.blob, len(self.blob))[facts.key]
        expected = stored_as(facts)
        assert expected is not None
        assert (entry.dtype, entry.shape) == (expected.dtype, expected.shape)
        data = bytearray(self.blob[start + entry.begin : start + entry.end])
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
    trailer: Trailer | None
    damage: list[TapeError]
    summary: Summary | None = None

    @property
    def numbers(self) -> list[int]:
        return [call.record.call for call in self.calls]


def read(path: Path | str) -> ReadTape:
    """The whole tape; calls without a valid record are damage."""
    data = Path(path).read_bytes()
    damage: list[TapeError] = []
    blobs: dict[int, bytes] = {}
    calls: list[ReadCall] = []
    manifest, trailer, summary = None, None, None
    facts: list[CallFacts] = []
    for member in framing.members(lambda at, n: data[at : at + n], len(data), damage.append):
        content = data[member.start : member.start + member.size]
        number = framing.call_number(member.name)
        if member.name == framing.MANIFEST:
            manifest = decode_manifest(content)
        elif member.name == framing.TRAILER:
            trailer = decode_trailer(content)
        elif member.name == framing.SUMMARY:
            summary = decode_summary(content)
        elif is_group(member.name):
            for record in records_in(content):
                calls.append(_call(record, b""))
                facts.append(facts_of(record))
        elif number is None:
            blobs[int(member.name.split("/")[1].split(".")[0])] = content
        else:
            calls.append(_call(content, blobs.get(number, b"")))
            facts.append(facts_of(content))
    assert manifest is not None
    if summary is not None:
        assert trailer is not None
        _check_summary(summary, trailer, facts, data)
    return ReadTape(manifest, calls, trailer, damage, summary)


def records_in(content: bytes) -> list[bytes]:
    """The records of a group, each in its envelope."""
    entries = {start - 4: content[start : start + size] for start, size in places(content)}
    return [seal_envelope(payload_of(one, at, entries.__getitem__)) for at, one in entries.items()]


def _check_summary(summary: Summary, trailer: Trailer, facts: list[CallFacts], data: bytes) -> None:
    """The summary says what the records say, and the locator leads to it."""
    made = SummaryBuilder()
    for one in facts:
        made.add(one)
    expected = made.summary(trailer)
    assert expected is not None
    if summary.inputs is not None and expected.inputs is not None:
        rows = sorted(summary.inputs.rows(), key=lambda row: row.first)
        assert rows == sorted(expected.inputs.rows(), key=lambda row: row.first)
    assert summary.model_dump(exclude={"inputs"}) == expected.model_dump(exclude={"inputs"})
    locator = locator_of(data[-4096:])
    assert locator is not None
    headers = (
        data[locator.trailer : locator.trailer + framing.BLOCK],
        data[locator.summary : locator.summary + framing.BLOCK],
    )
    assert summary_member(locator, headers, len(data)) is not None


def _call(content: bytes, blob: bytes) -> ReadCall:
    import zlib

    record = decode_call(content)
    assert record.inputs.spec()
    if record.outputs is not None:
        assert record.outputs.spec()
    if record.blob is not None:
        assert record.blob.size == len(blob)
        assert record.blob.crc32 == zlib.crc32(blob)
    return ReadCall(record, blob)
