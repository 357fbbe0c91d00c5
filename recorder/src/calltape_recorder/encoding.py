"""A captured call to the bytes of its two members."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from calltape_recorder.facts import DTYPES, Facts, leaf_document
from calltape_recorder.ranges import range_of
from calltape_recorder.snapshot import RANGE_BYTES, data_of
from calltape_recorder.structures import Structure
from calltape_recorder.tape_writer import member
from calltape_schema.blob import Stored, build_header, stored_as
from calltape_schema.framing import BLOCK, blob_name, padding, record_name
from calltape_schema.leaves import decode_leaves, encode_leaves
from calltape_schema.packing import pack_int, pack_text
from calltape_schema.records import encode_call

__all__ = ["Call", "Encoder", "Side"]

_MAX_LEAVES_KNOWN = 2048
_MAX_HEADERS_KNOWN = 512


class Side:
    """Inputs or outputs of a call, snapshotted."""

    # Plain slots: building a dataclass or a named tuple would cost as much as copying a tensor.
    __slots__ = ("facts", "pieces", "same", "scalars", "storages", "structure")

    def __init__(
        self,
        structure: Structure,
        scalars: list[Any],
        facts: tuple[Facts, ...],
        same: tuple[int, ...] | None,
        storages: tuple[int | None, ...] | None,
        pieces: list[Any],
    ) -> None:
        self.structure = structure
        self.scalars = scalars
        self.facts = facts
        self.same = same
        self.storages = storages
        self.pieces = pieces


class Call:
    """One call on its way to the tape; times in nanoseconds."""

    __slots__ = (
        "duration_ns", "error", "inputs", "nbytes", "number", "outputs", "outputs_missing",
        "started", "thread", "time_ns",
    )  # fmt: skip

    def __init__(self, number: int, time_ns: int, thread: int) -> None:
        self.number = number
        self.time_ns = time_ns
        self.thread = thread
        self.inputs: Side | None = None
        self.started = 0
        self.duration_ns: int | None = None
        self.outputs: Side | None = None
        self.outputs_missing: str | None = None
        self.error: tuple[str, str] | None = None
        self.nbytes = 0


@dataclass(frozen=True, eq=False)
class _Leaves:
    """What follows from structure and facts: the encoded leaf records, which leaves stand in the
    blob (in order, by key) and which get a range."""

    encoded: bytes
    header: dict[str, Stored]
    stored: tuple[int, ...]
    ranged: tuple[int, ...]


class Encoder:
    """Remembers what repeats from call to call; used by the writer's thread alone."""

    def __init__(self, tape: bytes, values: bool) -> None:
        self._tape = tape
        self._values = values
        self._leaves: dict[Any, _Leaves] = {}
        self._headers: dict[Any, bytes] = {}

    def encode(self, call: Call) -> tuple[int, list[Any], int]:
        """Number, parts and size in bytes of both members of a call."""
        assert call.inputs is not None
        sides = [call.inputs] if call.outputs is None else [call.inputs, call.outputs]
        known = [self._leaves_of(side) for side in sides]
        document = _document(self._tape, call)
        document["inputs"] = _tree(call.inputs, known[0])
        if call.outputs is not None:
            document["outputs"] = _tree(call.outputs, known[1])
        parts: list[Any] = []
        size = 0
        if any(leaves.stored for leaves in known):
            blob = [self._header(known)]
            for side, leaves in zip(sides, known, strict=False):
                blob += [data_of(side.pieces[leaf]) for leaf in leaves.stored]
            crc = length = 0
            for data in blob:
                crc = zlib.crc32(data, crc)
                length += len(data)
            document["blob"] = {"size": length, "crc32": crc}
            parts = member(blob_name(call.number), blob, length)
            size = BLOCK + length + padding(length)
        record = encode_call(document)
        parts += member(record_name(call.number), [record], len(record))
        return call.number, parts, size + BLOCK + len(record) + padding(len(record))

    def _leaves_of(self, side: Side) -> _Leaves:
        key = (side.structure.encoded, side.structure.keys, side.facts, side.same, side.storages)
        known = self._leaves.get(key)
        if known is None:
            if len(self._leaves) >= _MAX_LEAVES_KNOWN:
                del self._leaves[next(iter(self._leaves))]
            known = self._leaves[key] = self._build_leaves(side)
        return known

    def _build_leaves(self, side: Side) -> _Leaves:
        documents: list[dict[str, Any]] = []
        keys: dict[str, int] = {}
        ranged: list[int] = []
        for index, facts in enumerate(side.facts):
            storage = None if side.storages is None else side.storages[index]
            original = index if side.same is None else side.same[index]
            key = side.structure.keys[original] if self._values else None
            document = leaf_document(facts, key, storage)
            documents.append(document)
            if original != index:
                continue
            known = DTYPES.get(facts.dtype)
            if known is not None and known.is_integer and facts.missing is None:
                ranged.append(index)
            if key is not None and facts.missing is None:
                keys[key] = index
        encoded = encode_leaves(documents)
        decoded = decode_leaves(encoded) if keys else ()
        header: dict[str, Stored] = {}
        for key, index in keys.items():
            entry = stored_as(decoded[index])
            assert entry is not None  # facts.DTYPES holds only what the format can store
            header[key] = entry
        return _Leaves(encoded, header, tuple(keys.values()), tuple(ranged))

    def _header(self, known: list[_Leaves]) -> bytes:
        key = tuple(leaves.encoded for leaves in known)
        header = self._headers.get(key)
        if header is None:
            if len(self._headers) >= _MAX_HEADERS_KNOWN:
                del self._headers[next(iter(self._headers))]
            entries = {name: stored for leaves in known for name, stored in leaves.header.items()}
            header = self._headers[key] = build_header(entries)
        return header


def _document(tape: bytes, call: Call) -> dict[str, Any]:
    document: dict[str, Any] = {
        "tape": tape,
        "call": call.number,
        "time_ns": call.time_ns,
        "thread": call.thread,
    }
    if call.duration_ns is not None:
        document["duration_ns"] = call.duration_ns
    if call.error is not None:
        document["error"] = {"type": call.error[0], "message": pack_text(call.error[1])}
    if call.outputs_missing is not None:
        document["outputs_missing"] = call.outputs_missing
    return document


def _tree(side: Side, known: _Leaves) -> dict[str, Any]:
    tree: dict[str, Any] = {"structure": side.structure.encoded, "leaves": known.encoded}
    if side.scalars:
        tree["scalars"] = [_packed(value) for value in side.scalars]
    ranges = [_range(side, leaf) for leaf in known.ranged]
    if ranges:
        tree["ranges"] = [found for found in ranges if found is not None]
    return tree


def _packed(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return pack_int(value)
    return pack_text(value) if kind is str else value


def _range(side: Side, leaf: int) -> dict[str, int] | None:
    data = data_of(side.pieces[leaf])
    if len(data) > RANGE_BYTES:
        return None
    found = range_of(data, side.facts[leaf].dtype)
    return None if found is None else {"leaf": leaf, "min": found[0], "max": found[1]}
