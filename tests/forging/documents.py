"""A tape as plain documents, so that a test can put anything at any place of it.

It follows schema/FORMAT.md and checks nothing: every checksum, hash and size of the bytes that it
makes is right, whatever the documents say.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.redacting.redaction import BEGIN_NS
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.packing import pack, unpack
from calltape_schema.sections import Section
from calltape_schema.tar import ZEROS_AT_END, member_header, padding
from tests.forging.sections import table_entry
from tests.forging.structures import raw_structure

__all__ = ["ForgedTape"]

_TAPE = bytes(range(16))


def _tree(*, is_input: bool) -> dict[str, Any]:
    call = {"kind": "tuple", "children": [{"kind": "tensor", "leaf": 0}]}
    options = {
        "kind": "dict",
        "keys": ["size", "note"],
        "children": [{"kind": "int", "scalar": 0}, {"kind": "str", "scalar": 1}],
    }
    name = "t0" if is_input else "t1"
    return {
        "structure": {
            "root": {"kind": "tuple", "children": [call, options]},
            "leaves": 1,
            "scalars": 2,
        },
        "leaves": [{"dtype": "int64", "shape": [3], "key": name}],
        "scalars": [3, "plain"],
    }


def _documents(tree: dict[str, Any]) -> tuple[bytes, bytes]:
    return raw_structure(tree["structure"]), pack(tree["leaves"])


@dataclass
class ForgedTape:
    """One call ``forward(x, size=3, note="plain")``, as documents.

    Attributes:
        inputs, outputs: trees, with structure and leaves as documents.
        blob: by name dtype, shape and bytes of its tensors.
        header: further fields of the JSON of the blob.
        more: further elements of the envelope of the manifest, of the group, and of the end.
        shared: further shared parts of the group.
        deflated: further fields of the index and of the table of inputs.
        members: further members, by where they stand.
        tar: by the name of a member, bytes of its header to be changed, by their offset.
        fill: of the padding after each member.
        table: changes the document of the table of inputs.
    """

    manifest: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=lambda: _tree(is_input=True))
    outputs: dict[str, Any] = field(default_factory=lambda: _tree(is_input=False))
    record: dict[str, Any] = field(default_factory=dict)
    blob: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    coverage: dict[str, Any] = field(default_factory=lambda: {"seen": 1, "kept": 1, "dropped": {}})
    deflated: list[Any] = field(default_factory=list)
    more: list[Any] = field(default_factory=list)
    shared: list[bytes] = field(default_factory=list)
    members: list[tuple[str, bytes]] = field(default_factory=list)
    tar: dict[int, bytes] = field(default_factory=dict)
    fill: bytes = b"\0"
    table: Any = None
    has_outputs: bool = True

    def __post_init__(self) -> None:
        parameters = [
            {"name": name, "kind": "POSITIONAL_OR_KEYWORD", "has_default": False,
             "default_missing": False}
            for name in ("x", "size", "note")
        ]  # fmt: skip
        self.manifest = {
            "format": "calltape", "version": 1, "minor": 0, "tape": _TAPE, "created_ns": BEGIN_NS,
            "producer": {"calltape": "0.1.0"},
            "target": {
                "type": "app:M", "method": "forward", "via": "hook", "signature": parameters
            },
            "policy": {"outputs": True, "values": "all", "leaf_values": [], "write_ahead": False},
        }  # fmt: skip
        self.record = {"time_ns": BEGIN_NS, "duration_ns": 5, "thread": 7}
        elements = struct.pack("<3q", 1, 2, 3)
        self.blob = {name: ("I64", [3], elements) for name in ("t0", "t1")}

    def claims_to_be_redacted(self) -> None:
        """The last step of its history is a redaction."""
        source = {
            "tape": _TAPE, "files": [], "other_files": 1, "calls": 1, "left_out": 0, "first": 0
        }  # fmt: skip
        step = {
            "verb": "redact", "tool": "calltape", "version": "0.1.0", "tape": _TAPE,
            "options": [["keep", '["*"]']], "sources": [source],
        }  # fmt: skip
        self.manifest.setdefault("history", []).append(step)

    def to_bytes(self) -> bytes:
        """The file."""
        whole = bytearray(self._member("tape.msgpack", self._envelope(self.manifest)))
        blob = self._blob()
        begin = len(whole)
        whole += self._member("blobs/00000000.safetensors", blob)
        for name, content in self.members:
            whole += self._member(name, content)
        group = len(whole)
        whole += self._member("records/00000000.msgpack", self._group(blob, group, group - begin))
        whole += self._member("end.msgpack", self._end(group, len(whole), len(blob)))
        return bytes(whole + ZEROS_AT_END)

    def _member(self, name: str, content: bytes) -> bytes:
        header = bytearray(member_header(name, len(content)))
        for at, value in self.tar.items():
            header[at : at + len(value)] = value
        if self.tar:
            header[148:156] = b"%06o\0 " % (sum(header) - sum(header[148:156]) + 8 * 0x20)
        fill = (self.fill * 512)[: padding(len(content))]
        return bytes(header) + content + fill

    def _envelope(self, document: Any) -> bytes:
        payload = pack(document)
        return pack([zlib.crc32(payload), payload, *self.more])

    @property
    def _returns(self) -> bool:
        return self.has_outputs and "error" not in self.record

    def _blob(self) -> bytes:
        header, data = dict(self.header), b""
        for name, (dtype, shape, value) in self.blob.items():
            if name == "t1" and not self._returns:
                continue
            offsets = [len(data), len(data) + len(value)]
            facts = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
            header[name] = {**facts, **header.get(name, {})}
            data += value
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % 64)
        return len(text).to_bytes(8, "little") + text + data

    def _group(self, blob: bytes, here: int, back: int) -> bytes:
        parts: list[bytes] = []
        document = dict(self.record)
        document["blob"] = {"size": len(blob), "checksum": zlib.crc32(blob), "back": back}
        for side in ("inputs", "outputs"):
            if side == "outputs" and not self._returns:
                continue
            tree = dict(getattr(self, side))
            for name, data in zip(("structure", "leaves"), _documents(tree), strict=True):
                parts.append(data)
                tree[name] = len(parts) - 1
            document[side] = tree
        time = document.pop("time_ns", 0)
        shared, record = pack([*parts, *self.shared]), pack(document)
        flags = 4 + 2 * bool(self.inputs.get("ranges")) + ("error" in document)
        table = table_entry(0, self._signature(), time, len(shared), flags)
        sections = [Section.of(table), Section.of(shared + record)]
        return pack([_TAPE, struct.pack("<Q", here), len(table), *sections, *self.more])

    def _signature(self) -> int:
        tree = self.inputs
        scalars = pack(tree["scalars"])
        return signature_of(*_documents(tree), scalars)

    def _end(self, group: int, offset: int, blob_bytes: int) -> bytes:
        tree = self.inputs
        table = InputsTable()
        ranges = [(one["leaf"], one["min"], one["max"]) for one in tree.get("ranges", ())]
        table.add(
            *_documents(tree), pack(tree["scalars"]), 0, ranges=ranges,
            raised="error" in self.record,
        )  # fmt: skip
        inputs: Any = unpack(pack_inputs(table))
        if self.table is not None:
            inputs = self.table(inputs) or inputs
        index = struct.pack("<6Q", group, 1, 0, 0, BEGIN_NS, BEGIN_NS)
        document = {
            "tape": _TAPE, "manifest": pack(self.manifest), "closed_ns": BEGIN_NS + 10,
            "coverage": self.coverage, "dumps": [],
            "first_call": 0, "last_call": 0, "first_ns": BEGIN_NS, "last_ns": BEGIN_NS + 5,
            "raised": int("error" in self.record), "tensor_bytes": blob_bytes,
            "index": [*Section.of(index, 6), *self.deflated],
            "inputs": [*Section.of(pack(inputs), 6), *self.deflated], **self.end,
        }  # fmt: skip
        payload = pack(document)
        content = pack([zlib.crc32(payload), payload])[1:]
        size = 1 + len(content) + 2 + 24
        return b"\x93" + content + b"\xc4\x18" + struct.pack("<QQ8s", offset, size, b"calltape")
