"""A tape as plain data, and back to bytes whose checksums are right."""

from __future__ import annotations

import copy
import math
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

from calltape_schema.blob import ALIGNMENT, build_header, contiguous, parse_header
from calltape_schema.framing import (
    END,
    MANIFEST,
    TRAILER,
    blob_name,
    call_member,
    member_header,
    members,
    padding,
    record_name,
)
from calltape_schema.gathered import is_group
from calltape_schema.packing import open_envelope, pack, unpack
from tests.fuzz.framing import payloads_in

__all__ = ["CallDocument", "TapeDocument", "document_of", "encoded"]

_MOST_BYTES = 64 * 1024
"""Of the data that are made for one leaf, so that a mutant stays a small file."""


@dataclass
class CallDocument:
    """One call: its record, in which the documents inside are decoded, and the bytes by key."""

    record: dict[str, Any]
    data: dict[str, bytes] = field(default_factory=dict)


@dataclass
class TapeDocument:
    """A whole tape. ``trailer`` is None where it is unsealed."""

    name: str
    manifest: dict[str, Any]
    calls: list[CallDocument]
    trailer: dict[str, Any] | None = None

    def copied(self) -> TapeDocument:
        return copy.deepcopy(self)


def _plain(value: Any) -> Any:
    """With lists in place of tuples, so that everything can be changed."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value


def document_of(data: bytes, name: str) -> TapeDocument | None:
    """The documents of a tape; None where it has none to give."""
    try:
        return _parsed(data, name)
    except Exception:  # a golden tape may be damaged on purpose, and a mutant is anything
        return None


def _parsed(data: bytes, name: str) -> TapeDocument | None:
    manifest, trailer = None, None
    calls: list[CallDocument] = []
    blob = b""
    for member in members(lambda at, size: data[at : at + size], len(data), lambda error: None):
        content = data[member.start : member.start + member.size]
        if member.name == MANIFEST:
            manifest = _plain(unpack(open_envelope(content)))
        elif member.name == TRAILER:
            trailer = _plain(unpack(open_envelope(content)))
        elif (call := call_member(member.name)) is not None and not call[1]:
            blob = content
        elif call is not None:
            calls.append(_call(open_envelope(content), blob))
            blob = b""
        elif is_group(member.name):
            calls += [_call(payload, b"") for payload in payloads_in(content)]
    return None if manifest is None else TapeDocument(name, manifest, calls, trailer)


def _call(payload: bytes, blob: bytes) -> CallDocument:
    record = _plain(unpack(payload))
    for side in ("inputs", "outputs"):
        for part in ("structure", "leaves") if side in record else ():
            record[side][part] = _plain(unpack(record[side][part]))
    data = {}
    if blob:
        start = 8 + int.from_bytes(blob[:8], "little")
        entries = parse_header(blob[:start], len(blob))
        data = {key: blob[start + e.begin : start + e.end] for key, e in entries.items()}
    return CallDocument(record, data)


def encoded(tape: TapeDocument, *, fits: bool = True) -> bytes:
    """The bytes of a tape, with checksums that hold.

    Args:
        fits: makes each blob what the leaves say, counts the calls in the trailer, and says in each
            structure how many leaves and scalars there are; else these stay as they are, which a
            reader must notice.
    """
    data = bytearray(_member(MANIFEST, _sealed(tape.manifest)))
    index = b""
    for call in tape.calls:
        number = call.record.get("call")
        number = number if type(number) is int and 0 <= number < 2**63 else 0
        index += struct.pack("<QQ", number, len(data))
        data += _call_members(call, number, fits)
    if tape.trailer is not None:
        trailer = dict(tape.trailer)
        if fits:
            coverage = trailer.get("coverage")
            dropped = coverage.get("dropped") if isinstance(coverage, dict) else None
            dropped = dropped if isinstance(dropped, dict) else {}
            lost = sum(n for n in dropped.values() if type(n) is int)
            kept = len(tape.calls)
            trailer["coverage"] = {"seen": kept + lost, "kept": kept, "dropped": dropped}
            trailer["index"] = index
        data += _member(TRAILER, _sealed(_with_packed_groups(trailer))) + END
    return bytes(data)


def _sealed(document: Any) -> bytes:
    payload = pack(document)
    return pack([zlib.crc32(payload), payload])


def _member(name: str, content: bytes) -> bytes:
    return member_header(name, len(content)) + content + bytes(padding(len(content)))


def _with_packed_groups(trailer: dict[str, Any]) -> dict[str, Any]:
    traffic = trailer.get("traffic")
    groups = traffic.get("groups") if isinstance(traffic, dict) else None
    if not isinstance(groups, list):
        return trailer
    packed = [
        {**group, "structure": pack(group["structure"])}
        if isinstance(group, dict) and isinstance(group.get("structure"), dict)
        else group
        for group in groups
    ]
    return {**trailer, "traffic": {**traffic, "groups": packed}}


def _call_members(call: CallDocument, number: int, fits: bool) -> bytes:
    record = dict(call.record)
    blob = _blob(call, fits)
    for side in ("inputs", "outputs"):
        tree = record.get(side)
        if isinstance(tree, dict):
            record[side] = _tree(tree, fits)
    found = b""
    if blob:
        record["blob"] = {"size": len(blob), "crc32": zlib.crc32(blob)}
        found = _member(blob_name(number), blob)
    elif fits:
        record.pop("blob", None)
    return found + _member(record_name(number), _sealed(record))


def _tree(tree: dict[str, Any], fits: bool) -> dict[str, Any]:
    made = dict(tree)
    structure, leaves = tree.get("structure"), tree.get("leaves")
    if fits and isinstance(structure, dict):
        structure = dict(structure)
        if isinstance(leaves, list):
            structure["leaves"] = len(leaves)
        structure["scalars"] = len(tree.get("scalars") or [])
    for name, part in (("structure", structure), ("leaves", leaves)):
        if not isinstance(part, bytes):
            made[name] = pack(part)
    return made


def _blob(call: CallDocument, fits: bool) -> bytes:
    """The blob of a call: by what its leaves say, or by what was there."""
    entries: dict[str, Any] = {}
    data: dict[str, bytes] = {}
    for leaf in _leaves(call):
        key = leaf.get("key")
        if not isinstance(key, str) or not key or key in entries:
            continue
        stored = _stored(leaf)
        given = call.data.get(key, b"")
        if stored is None or stored.nbytes > _MOST_BYTES or (not fits and not given):
            continue
        entries[key] = stored
        data[key] = (given * (stored.nbytes // max(len(given), 1) + 1))[: stored.nbytes]
        data[key] = data[key].ljust(stored.nbytes, b"\1")
    try:
        return build_header(entries) + b"".join(data.values()) if entries else b""
    except UnicodeEncodeError:  # JSON has no lone surrogates
        return bytes(ALIGNMENT)


def _leaves(call: CallDocument) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for side in ("inputs", "outputs"):
        tree = call.record.get(side)
        leaves = tree.get("leaves") if isinstance(tree, dict) else None
        found += [leaf for leaf in leaves or () if isinstance(leaf, dict)]
    return found


def _stored(leaf: dict[str, Any]) -> Any:
    dtype, shape, expanded = leaf.get("dtype"), leaf.get("shape"), leaf.get("expanded") or []
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(expanded, list):
        return None
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        return None
    kept = tuple(1 if axis in expanded else size for axis, size in enumerate(shape))
    return contiguous(dtype, kept) if math.prod(max(n, 1) for n in kept) < 2**63 else None
