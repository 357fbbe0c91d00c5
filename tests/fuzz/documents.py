"""A tape as plain data, and back to bytes whose checksums are right."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tests.fixture_files  # noqa: F401 - makes the writer of fixtures/ importable
from calltape_schema.blob import ALIGNMENT, Stored, build_header, contiguous, parse_header
from calltape_schema.errors import TapeError
from calltape_schema.packing import open_envelope, pack, seal_envelope, unpack
from calltape_schema.tar import (
    COMPRESSED,
    COUNTS_MEMBER,
    END_MEMBER,
    MANIFEST,
    blob_name,
    group_name,
    is_group,
)
from tests.fuzz.framing import Grouped, Listed, joined, split

from counted_inputs import Seen, counted_inputs, signature_of  # isort: skip

__all__ = ["CallDocument", "TapeDocument", "document_of", "encoded", "plain"]

_MOST_BYTES = 64 * 1024
"""Of the data that are made for one leaf, so that a mutant stays a small file."""


@dataclass
class CallDocument:
    """One call: its record with its number, in which the documents inside are decoded; the bytes by
    key; in which group it stands; and the entries of the tensors of which the blob has the tails.
    Neighbours with one number are in one group."""

    record: dict[str, Any]
    data: dict[str, bytes] = field(default_factory=dict)
    group: int = 0
    tails: dict[str, Stored] = field(default_factory=dict)


@dataclass
class TapeDocument:
    """A whole tape. ``end`` is None where it is unsealed; it is without index and table, which are
    made anew. Of a survey it has the table: its calls are on other tapes. ``counts`` are the
    interim counts, which are put behind the last call."""

    name: str
    manifest: dict[str, Any]
    calls: list[CallDocument]
    end: dict[str, Any] | None = None
    counts: list[dict[str, Any]] = field(default_factory=list)

    def copied(self) -> TapeDocument:
        return copy.deepcopy(self)


def plain(value: Any) -> Any:
    """With lists in place of tuples, so that everything can be changed."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def document_of(data: bytes, name: str) -> TapeDocument | None:
    """The documents of a tape; None where it has none to give."""
    try:
        return _parsed(data, name)
    except Exception:  # a golden tape may be damaged on purpose, and a mutant is anything
        return None


def _parsed(data: bytes, name: str) -> TapeDocument | None:
    manifest, end = None, None
    calls: list[CallDocument] = []
    blobs: dict[str, bytes] = {}
    counts: list[dict[str, Any]] = []
    for at, member in enumerate(split(data)):
        if member.name == MANIFEST:
            manifest = plain(unpack(open_envelope(member.content)))
        elif member.name == END_MEMBER:
            end = plain(unpack(open_envelope(member.content)))
            end["index"] = [0, 0, 0, b""]  # made anew
            if not end.get("elsewhere"):
                end.pop("inputs", None)
        elif member.name == COUNTS_MEMBER:
            with contextlib.suppress(TapeError):  # a reader skips what it cannot read, too
                counts.append(plain(unpack(open_envelope(member.content))))
        elif is_group(member.name):
            calls += _calls(Grouped.of(member.content), blobs, at)
        else:
            plain_name = member.name.removesuffix(COMPRESSED)
            is_whole = plain_name == member.name
            blobs[plain_name] = member.content if is_whole else zlib.decompress(member.content)
    return None if manifest is None else TapeDocument(name, manifest, calls, end, counts)


def _calls(group: Grouped, blobs: dict[str, bytes], at: int) -> Iterator[CallDocument]:
    parts = unpack(group.shared)
    for (number, _, _, packed), time in zip(group.records, group.times, strict=True):
        record = plain(unpack(packed)) | {"call": number, "time_ns": time}
        for side in ("inputs", "outputs"):
            for part in ("structure", "leaves") if side in record else ():
                record[side][part] = plain(unpack(parts[record[side][part]]))
        blob, data, tails = blobs.get(blob_name(number), b""), {}, {}
        if "blob" in record and blob:
            start = 8 + int.from_bytes(blob[:8], "little")
            entries = parse_header(blob[:start], len(blob))
            data = {key: blob[start + e.begin : start + e.end] for key, e in entries.items()}
            grew = {one[0] for one in record.get("at", ()) if len(one) == 4}
            tails = {
                key: Stored(e.dtype, e.shape, e.end - e.begin)
                for key, e in entries.items()
                if key in grew
            }
        yield CallDocument(record, data, at, tails)


def encoded(tape: TapeDocument, *, fits: bool = True) -> bytes:
    """The bytes of a tape, with checksums that hold.

    Args:
        fits: makes each blob what the leaves say, counts the calls in the end, and says in each
            structure how many leaves and scalars there are; else these stay as they are, which a
            reader must notice.
    """
    listed = [Listed(MANIFEST, seal_envelope(pack(tape.manifest)))]
    seen: list[Seen] = []
    for _, calls in itertools.groupby(tape.calls, lambda call: call.group):
        listed += _group([*calls], seen, fits)
    listed += [Listed(COUNTS_MEMBER, seal_envelope(pack(count))) for count in tape.counts]
    if tape.end is None:
        return joined(listed, sealed=False)
    end = dict(tape.end)
    if fits and not end.get("elsewhere"):
        coverage = end.get("coverage")
        dropped = coverage.get("dropped") if isinstance(coverage, dict) else None
        dropped = dropped if isinstance(dropped, dict) else {}
        lost = sum(n for n in dropped.values() if type(n) is int)
        kept = len(tape.calls)
        end["coverage"] = {"seen": kept + lost, "kept": kept, "dropped": dropped}
        with contextlib.suppress(Exception):  # an earlier change left no inputs to count
            table = pack(counted_inputs(seen))
            packed = zlib.compress(table)
            end["inputs"] = [1, len(table), zlib.crc32(packed), packed]
    if "manifest" in end:
        end["manifest"] = pack(tape.manifest)
    listed.append(Listed(END_MEMBER, seal_envelope(pack(end))))
    return joined(listed, sealed=True)


def _group(calls: list[CallDocument], seen: list[Seen], fits: bool) -> list[Listed]:
    """The blobs of calls, and the group of their records."""
    parts: dict[bytes, int] = {}
    listed: list[Listed] = []
    group = Grouped(b"", [], is_deflated=len(calls) > 5)
    for call in calls:
        number = call.record.get("call")
        number = number if type(number) is int and 0 <= number < 2**64 else 0
        record = {name: value for name, value in call.record.items() if name != "call"}
        time = record.pop("time_ns", 0)
        group.times.append(time if type(time) is int and 0 <= time < 2**64 else 0)
        blob = _blob(call, fits)
        told = record.pop("blob", None)
        if blob:
            record["blob"] = {"size": len(blob), "checksum": zlib.crc32(blob), "back": 0}
            listed.append(Listed(blob_name(number), blob))
        elif not fits and told is not None:
            record["blob"] = told
        key = 0
        for side in ("inputs", "outputs"):
            tree = record.get(side)
            if isinstance(tree, dict):
                record[side] = made = _tree(tree, fits)
                if side == "inputs":
                    key = _hash(made)
                    seen.append(Seen(number, {**record, "inputs": {"scalars": [], **made}}))
                record[side] = {
                    name: parts.setdefault(value, len(parts)) if type(value) is bytes else value
                    for name, value in made.items()
                }
        inputs = record.get("inputs")
        flags = ("error" in record) + 4 * ("blob" in record)
        flags += 2 * bool(isinstance(inputs, dict) and inputs.get("ranges"))
        group.records.append((number, key, flags, pack(record)))
    group.shared = pack(list(parts))
    return [*listed, Listed(group_name(min(group.records[0][0], 2**63 - 1)), group.content())]


def _hash(tree: dict[str, Any]) -> int:
    structure, leaves = tree.get("structure", b""), tree.get("leaves", b"")
    try:
        return signature_of(structure, leaves, pack(tree.get("scalars", [])))
    except TypeError:
        return 0


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
        stored = call.tails.get(key) or stored_form(leaf)
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


def stored_form(leaf: dict[str, Any]) -> Any:
    """The entry of a leaf in a blob; None for one that has none."""
    dtype, shape, expanded = leaf.get("dtype"), leaf.get("shape"), leaf.get("expanded") or []
    if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(expanded, list):
        return None
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        return None
    kept = tuple(1 if axis in expanded else size for axis, size in enumerate(shape))
    return contiguous(dtype, kept) if math.prod(max(n, 1) for n in kept) < 2**63 else None
