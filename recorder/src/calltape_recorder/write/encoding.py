"""Encodes a captured call as bytes: its blob and its record."""

from __future__ import annotations

from typing import Any

from calltape_recorder.call import Call
from calltape_recorder.capture.withholding import FEWEST_RANGED
from calltape_recorder.remembered import Remembered
from calltape_recorder.snapshot.copies import data_of, joined, wait_for_copies
from calltape_recorder.snapshot.facts import DTYPES, Facts, is_plain, leaf_document
from calltape_recorder.snapshot.look import RANGE_BYTES
from calltape_recorder.snapshot.side import EncodedLeaves, Side
from calltape_recorder.write.checksum import Checksum, checksum
from calltape_recorder.write.encoded_call import EncodedCall
from calltape_recorder.write.ranges import has_many, range_of
from calltape_recorder.write.tape_writer import Late
from calltape_schema.blob import Stored, build_header, contiguous, stored_as
from calltape_schema.checksum import crc32
from calltape_schema.leaves import checked_leaves
from calltape_schema.packing import pack, pack_int, pack_text, seal_envelope
from calltape_schema.records import encode_call
from calltape_schema.summing import CallFacts

__all__ = ["Encoder"]

_MAX_LEAVES_KNOWN = 2048
_MAX_HEADERS_KNOWN = 512
_AT_ONCE_BYTES = 8 * 1024 * 1024
_WIDEST = 0xFFFFFFFF


class Encoder:
    """Encodes calls, and remembers what repeats. Only one thread at a time may use it.

    Args:
        tape: its id.
    """

    def __init__(self, tape: bytes) -> None:
        self._tape = tape
        self._leaves: Remembered[Any, EncodedLeaves] = Remembered(
            _MAX_LEAVES_KNOWN, lambda key, _: len(key[1])
        )
        self._headers: Remembered[Any, bytes] = Remembered(
            _MAX_HEADERS_KNOWN, lambda _, header: len(header) // 64
        )

    def encode(self, call: Call, *, others_wait: bool) -> EncodedCall:
        """A call as the bytes of its blob and its record.

        Args:
            others_wait: whether other calls wait to be written. If so, the checksum of a large call
                is computed while it is written. If not, there is time, and one thread less competes
                with the host's threads for cores and the interpreter lock.
        """
        assert call.inputs is not None
        sides = [call.inputs] if call.outputs is None else [call.inputs, call.outputs]
        for side in sides:
            wait_for_copies(side.pieces)
        known = [self._leaves_of(side) for side in sides]
        document = _document(self._tape, call)
        alike = _packed_sides(sides, known)
        if alike is not None:
            return _encoded_small(call, document, known[0], alike, call.inputs.repeat.ranges)  # type: ignore[union-attr]
        trees = [_tree(side, leaves) for side, leaves in zip(sides, known, strict=True)]
        ranges = _ranges_in(trees[0])
        if not any(leaves.stored for leaves in known):
            return _encoded_small(call, document, known[0], list(map(pack, trees)), ranges)
        document.update(zip(_SIDES, trees, strict=False))
        blob = [self._header(known), *_stored(sides, known)]
        length = sum([len(data) for data in blob])
        facts = _facts(call, known[0], length, ranges)
        if others_wait and length > _AT_ONCE_BYTES:
            return EncodedCall(blob, _late_record(document, blob, length), facts)
        document["blob"] = {"size": length, "crc32": checksum(blob)}
        return EncodedCall(blob, encode_call(document), facts)

    def _leaves_of(self, side: Side) -> EncodedLeaves:
        repeat = side.repeat
        if repeat is None:
            return self._known_leaves(side)
        if repeat.encoded is None:
            repeat.encoded = self._known_leaves(side)
        return repeat.encoded

    def _known_leaves(self, side: Side) -> EncodedLeaves:
        key = (side.structure, side.facts, side.same, side.storages, side.wanted)
        known = self._leaves.get(key)
        if known is None:
            known = self._build_leaves(side)
            self._leaves.keep(key, known)
        return known

    def _build_leaves(self, side: Side) -> EncodedLeaves:
        documents: list[dict[str, Any]] = []
        keys: dict[str, int] = {}
        ranged: list[int] = []
        for index, facts in enumerate(side.facts):
            alias = None if side.storages is None else side.storages[index]
            original = index if side.same is None else side.same[index]
            kept = side.wanted if isinstance(side.wanted, bool) else side.wanted[index]
            key = side.structure.keys[original] if kept else None
            document = leaf_document(facts, key, alias)
            documents.append(document)
            if original != index:
                continue
            known = DTYPES.get(facts.dtype)
            if facts.missing is not None:
                continue
            if known is not None and known.is_integer:
                ranged.append(index)
            if key is not None:
                keys[key] = index
        encoded, entries = _encoded(side.facts, documents)
        header: dict[str, Stored] = {}
        for key, index in keys.items():
            entry = entries[index]
            assert entry is not None  # facts.DTYPES has only what the format can store
            header[key] = entry
        return EncodedLeaves(encoded, header, tuple(keys.values()), tuple(ranged))

    def _header(self, known: list[EncodedLeaves]) -> bytes:
        key = tuple(leaves.encoded for leaves in known)
        header = self._headers.get(key)
        if header is None:
            entries = {name: stored for leaves in known for name, stored in leaves.header.items()}
            header = build_header(entries)
            self._headers.keep(key, header)
        return header


def _encoded_small(
    call: Call, document: dict[str, Any], leaves: EncodedLeaves, sides: list[bytes],
    ranges: tuple[tuple[int, int, int], ...],
) -> EncodedCall:  # fmt: skip
    """A call without a blob, with these packed sides."""
    payload = _payload(document, sides)
    return EncodedCall([], seal_envelope(payload), _facts(call, leaves, 0, ranges), payload)


def _encoded(
    facts: tuple[Facts, ...], documents: list[dict[str, Any]]
) -> tuple[bytes, list[Stored | None]]:
    """The leaf records, and how a blob would store each leaf.

    If all leaves are plain, nothing is validated. This saves time for a growing cache, which has
    new sizes in every call.
    """
    if all(map(is_plain, facts)):
        names = [document["dtype"] for document in documents]
        pairs = zip(names, facts, strict=True)
        return pack(documents), [contiguous(name, tuple(one.shape)) for name, one in pairs]
    encoded, decoded = checked_leaves(documents)
    return encoded, [stored_as(leaf) for leaf in decoded]


def _stored(sides: list[Side], known: list[EncodedLeaves]) -> list[Any]:
    pieces = zip(sides, known, strict=False)
    return joined([side.pieces[leaf] for side, leaves in pieces for leaf in leaves.stored])


def _packed_sides(sides: list[Side], known: list[EncodedLeaves]) -> list[bytes] | None:
    """The packed sides of a call that looks like earlier ones and of which no bytes are kept; None
    for other calls."""
    found: list[bytes] = []
    for side, leaves in zip(sides, known, strict=False):
        repeat = side.repeat
        if repeat is None or repeat.side is not side:
            return None
        if repeat.packed is None:
            tree = _tree(side, leaves)
            repeat.ranges = _ranges_in(tree)
            repeat.packed = pack(tree)
        found.append(repeat.packed)
    return found


def _payload(document: dict[str, Any], sides: list[bytes]) -> bytes:
    """The payload of the record of a document, to which these packed sides are added."""
    payload = pack(document)
    # The first byte of a map with fewer than 16 keys says how many keys there are.
    parts = [bytes((payload[0] + len(sides),)), payload[1:]]
    for name, side in zip(_PACKED_SIDES, sides, strict=False):
        parts += name, side
    return b"".join(parts)


_SIDES = "inputs", "outputs"
_PACKED_SIDES = tuple(map(pack, _SIDES))


def _late_record(document: dict[str, Any], blob: list[Any], length: int) -> Late:
    """The record of a large blob, whose checksum is computed while the blob is written."""
    sum_of_blob = Checksum(blob)
    # The checksum comes last and always takes 4 bytes, so the length is known before it is.
    document["blob"] = {"size": length, "crc32": _WIDEST}
    payload = pack(document)

    def make() -> bytes:
        return _sealed(payload[:-4] + sum_of_blob.value().to_bytes(4, "big"))

    return Late(len(_sealed(payload)), make)


def _sealed(payload: bytes) -> bytes:
    """The envelope of a payload. Its checksum always takes 4 bytes."""
    return b"\x92\xce" + crc32(payload).to_bytes(4, "big") + pack(payload)


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


def _tree(side: Side, known: EncodedLeaves) -> dict[str, Any]:
    tree: dict[str, Any] = {"structure": side.structure.encoded, "leaves": known.encoded}
    if side.scalars:
        tree["scalars"] = [_packed(value) for value in side.scalars]
    ranges = [_range(side, leaf, known) for leaf in known.ranged]
    if ranges:
        tree["ranges"] = [found for found in ranges if found is not None]
    return tree


def _ranges_in(tree: dict[str, Any]) -> tuple[tuple[int, int, int], ...]:
    found = tree.get("ranges")
    return tuple((one["leaf"], one["min"], one["max"]) for one in found) if found else ()


def _facts(
    call: Call, leaves: EncodedLeaves, blob: int, ranges: tuple[tuple[int, int, int], ...]
) -> CallFacts:
    inputs = call.inputs
    assert inputs is not None
    scalars = pack([_packed(value) for value in inputs.scalars]) if inputs.scalars else _NO_SCALARS
    return CallFacts(
        call.number, call.time_ns, call.time_ns + (call.duration_ns or 0), call.error is not None,
        blob, inputs.structure.encoded, leaves.encoded, scalars, ranges,
    )  # fmt: skip


_NO_SCALARS = pack([])


def _packed(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return pack_int(value)
    return pack_text(value) if kind is str else value


def _range(side: Side, leaf: int, known: EncodedLeaves) -> dict[str, int] | None:
    data, dtype = data_of(side.pieces[leaf]), side.facts[leaf].dtype
    if len(data) > RANGE_BYTES:
        return None
    found = range_of(data, dtype)
    if found is None or (leaf not in known.stored and _tells(found, data, dtype)):
        return None
    return {"leaf": leaf, "min": found[0], "max": found[1]}


def _tells(found: tuple[int, int], data: Any, dtype: Any) -> bool:
    """Whether a range tells what the elements are. The range of a few ids is these ids, and so is
    the range of one id among a thousand zeros. The range of a mask tells no more than a bool does,
    and bools are on the tape."""
    low, high = found
    if len(data) < FEWEST_RANGED * dtype.itemsize:
        return True
    if low >= 0 and high <= 1:
        return False
    return high - low < FEWEST_RANGED - 1 or not has_many(data, dtype, FEWEST_RANGED)
