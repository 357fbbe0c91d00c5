"""A call on a tape, taken apart and put together differently."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer.reading.tape_file import crc32_after_zeros
from calltape_schema.groups import HAS_BLOB, HAS_RANGES, RAISED
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack, unpack
from calltape_schema.records import Manifest, encode_manifest
from calltape_schema.sections import Section
from calltape_schema.tar import BLOCK, MANIFEST, blob_name, group_name, member_header, padding
from tests.analyzer.tapes import reader_of, write_tape
from tests.forging.sections import forged, member, table_entry
from tests.forging.structures import raw_structure

__all__ = ["NO_KWARGS", "TENSOR", "Forged", "forged_arguments", "inputs_of"]


class Forged:
    """A tape of one call, taken apart to be put together differently, with valid checksums.

    Attributes:
        record: its document, with the trees as they are.
        entry: changes to its entry in the table: ``number``, ``key``, ``offset``, ``flags``.
        stored: changes to the blob's place: ``size``, ``checksum``, ``back``.
        tape: the id that the group has.
        shared: in place of the shared parts.
        deflated: in place of the documents, and of their size.
        hole: how many zeros follow the bytes of the blob, which are not stored.
    """

    def __init__(self, path: Path, args: tuple[Any, ...]) -> None:
        self.path = path
        reader = reader_of(write_tape(path, [(args, {})], sealed=False))
        record = reader.record(0)
        blob = reader.blob_member(record)
        self.manifest: Manifest = reader.manifest
        self.tape = self.manifest.tape
        self.blob = reader.source.read_at(blob.start, blob.size)
        self.record: dict[str, Any] = reader.document(0)
        self.inputs: dict[str, Any] = self.record["inputs"]
        self.entry: dict[str, int] = {}
        self.stored: dict[str, int] = {}
        self.shared: Any = None
        self.deflated: Callable[[bytes], tuple[bytes, int]] = lambda documents: (documents, 0)
        self.hole = 0

    @property
    def header(self) -> dict[str, Any]:
        length = int.from_bytes(self.blob[:8], "little")
        header: dict[str, Any] = json.loads(self.blob[8 : 8 + length])
        return header

    def set_header(self, text: str | bytes, length: int | None = None) -> None:
        data = self.blob[8 + int.from_bytes(self.blob[:8], "little") :]
        encoded = text.encode() if isinstance(text, str) else text
        size = len(encoded) if length is None else length
        self.blob = size.to_bytes(8, "little") + encoded + data

    def leaves(self) -> list[dict[str, Any]]:
        return [dict(leaf) for leaf in unpack(self.inputs["leaves"])]

    def set_leaf(self, **facts: Any) -> None:
        leaves = self.leaves()
        leaves[0] = {k: v for k, v in (leaves[0] | facts).items() if v is not None}
        self.inputs["leaves"] = pack(leaves)

    def set_root(self, root: Any, leaves: int = 1, scalars: int = 0) -> None:
        structure = {"root": root, "leaves": leaves, "scalars": scalars}
        self.inputs["structure"] = raw_structure(structure)

    def write(self) -> Path:
        size = len(self.blob) + self.hole
        crc32 = crc32_after_zeros(zlib.crc32(self.blob), self.hole)
        facts = {"back": BLOCK + size + padding(size), "size": size, "checksum": crc32}
        record = {**self.record, "blob": {**facts, **self.stored}, "inputs": dict(self.inputs)}
        parts = [self.inputs[name] for name in ("structure", "leaves") if name in self.inputs]
        if len(parts) == 2:
            record["inputs"] |= {"structure": 0, "leaves": 1}
        shared = pack(parts if self.shared is None else self.shared)
        time = record.pop("time_ns", 0)
        documents, inflated = self.deflated(shared + pack(record))
        entry = {
            "number": 0, "key": self._key(), "time": time, "offset": len(shared),
            "flags": self._flags(),
        }  # fmt: skip
        known = entry | self.entry
        table = table_entry(*(known[name] for name in ("number", "key", "time", "offset", "flags")))
        stored = forged(documents, inflated or len(documents), int(bool(inflated)))
        place = struct.pack("<Q", BLOCK + size + padding(size) + len(self._head()))
        group = [self.tape, place, len(table), Section.of(table), stored]
        with self.path.open("wb") as file:
            file.write(self._head())
            file.write(member_header(blob_name(0), size) + self.blob)
            file.seek(self.hole + padding(size), 1)
            file.write(member(group_name(0), pack(group)))
        return self.path

    def _head(self) -> bytes:
        return member(MANIFEST, encode_manifest(self.manifest))

    def _key(self) -> int:
        scalars = pack(self.inputs.get("scalars", ()))
        given = (self.inputs.get(name, b"") for name in ("structure", "leaves"))
        return signature_of(*given, scalars)

    def _flags(self) -> int:
        flags = HAS_RANGES if self.inputs.get("ranges") else 0
        return flags | HAS_BLOB | (RAISED if "error" in self.record else 0)


TENSOR = {"kind": "tensor", "leaf": 0}
NO_KWARGS = {"kind": "dict", "keys": [], "children": []}


def inputs_of(*children: Any) -> dict[str, Any]:
    args = {"kind": "tuple", "children": list(children)}
    return {"kind": "tuple", "children": [args, NO_KWARGS]}


def forged_arguments(
    folder: Path, *nodes: Any, leaves: int = 1, scalars: tuple[Any, ...] = ()
) -> Path:
    """A tape of one call with these arguments."""
    call = Forged(folder / "a.tape", (torch.ones(2),))
    call.set_root(inputs_of(*nodes), leaves=leaves, scalars=len(scalars))
    call.inputs["scalars"] = list(scalars)
    return call.write()
