"""Encodes a captured call as bytes: its blob and its record."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from calltape_recorder.bounds import (
    MAX_HEADERS_KNOWN,
    MAX_LEAVES_KNOWN,
    MAX_ORIGINS,
    MAX_RANGE_BYTES,
    BoundedDict,
)
from calltape_recorder.snapshot.call import QueuedCall
from calltape_recorder.snapshot.copies import joined, wait_for_copies
from calltape_recorder.snapshot.facts import INTEGERS, is_plain, leaf_document
from calltape_recorder.snapshot.grown_copies import Grown
from calltape_recorder.snapshot.side import Side, split
from calltape_recorder.snapshot.side_facts import SideFacts
from calltape_schema.blob import (
    INTEGER_FORMATS,
    Stored,
    build_header,
    by_width,
    contiguous,
    stored_as,
)
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack, pack_int, pack_text, packing
from calltape_schema.privacy import FEWEST_RANGED
from calltape_schema.sections import checksums_of
from calltape_schema.tree import checked_leaves

_FORMATS: dict[Any, Any] = {getattr(torch, name): code for name, code in INTEGER_FORMATS.items()}

# aminmax takes no unsigned types wider than a byte. They are read as signed ones, shifted by half
# of the range.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}

_FEW = 512
# With more elements at once, an operator would start a thread pool of its own for this thread.
_CHUNK = 16 * 1024


def range_of(data: Any, dtype: torch.dtype) -> tuple[int, int] | None:
    """``(min, max)`` of the integers in ``data``; None for other dtypes and for no elements."""
    code = _FORMATS.get(dtype)
    if code is None or not len(data):
        return None
    if len(data) <= _FEW * dtype.itemsize:  # faster, as in a decoding step
        values: Any = memoryview(data).cast(code)
        return min(values), max(values)
    signed = _SIGNED.get(dtype, dtype)
    lows, highs = [], []
    elements: Any = torch.frombuffer(data, dtype=signed)
    half = 0 if signed is dtype else 1 << (8 * dtype.itemsize - 1)
    for chunk in elements.split(_CHUNK):
        low, high = torch.aminmax(chunk ^ -half if half else chunk)
        lows.append(int(low) + half)
        highs.append(int(high) + half)
    return min(lows), max(highs)


# The leaves of a cache have one entry: what is remembered of a call is not an object for each.
_contiguous = functools.lru_cache(maxsize=MAX_LEAVES_KNOWN)(contiguous)

_NO_SCALARS = pack([])
_SMALL_BYTES = 16 * 1024  # of a call: to join them takes less than a checksum and a write for each


SharedKeys: TypeAlias = tuple[str | None, ...] | None
"""Per leaf of the outputs the key of an input that is the same copy, or None; None if there is
none."""


@dataclass(frozen=True, eq=False)
class EncodedLeaves:
    """What follows from the structure and the facts of a side.

    Attributes:
        encoded: the leaves, as a record has them.
        entries: by key, the entry of the blob of each leaf that the blob has.
        stored: the numbers of these leaves, in the same order.
        ranged: the numbers of the leaves that get a range.
        signature: of inputs with these leaves and no scalars.
        tree: the side in the form of a record, without scalars and ranges.
    """

    encoded: bytes
    entries: dict[str, Stored]
    stored: tuple[int, ...]
    ranged: tuple[int, ...]
    signature: int
    tree: dict[str, Any]


_Header: TypeAlias = tuple[bytes, tuple[str, ...]]
"""Of a blob, and the names of its tensors in the order of their bytes."""
_TemplateSide: TypeAlias = tuple[str, EncodedLeaves, SideFacts, int]
"""Its name, what was encoded of it, its facts, and where it begins in the bytes of the call."""
_Template: TypeAlias = tuple[bytes, list[tuple[int, int]], list[_TemplateSide]]
"""What calls with the same two sides share: the header of the blob, where the bytes after it are
in those of the call, and the sides."""


class Encoder:
    """Encodes calls, and remembers what repeats. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._pack = packing()
        self._file_serial: int | None = None
        self._place_of: dict[int, tuple[int, str]] = {}  # by origin: its call, and the key
        self._leaves: BoundedDict[Any, EncodedLeaves] = BoundedDict(
            MAX_LEAVES_KNOWN, lambda key, _: len(key[1]) + key[0].weight
        )
        # Calls that look the same share their facts. To hash all facts takes longer.
        self._by_facts: BoundedDict[SideFacts, EncodedLeaves] = BoundedDict(
            MAX_LEAVES_KNOWN, lambda facts, _: len(facts.per_leaf)
        )
        self._templates: BoundedDict[tuple[Side | None, Side | None], _Template] = BoundedDict(
            MAX_LEAVES_KNOWN,
            lambda sides, _: sum(
                [len(side.facts.per_leaf) + side.structure.weight for side in sides if side]
            ),
        )
        self._headers: BoundedDict[Any, _Header] = BoundedDict(
            MAX_HEADERS_KNOWN, lambda _, found: len(found[0]) // 64
        )

    def encode(self, call: QueuedCall, file_serial: int | None = None) -> NewCall:
        """A call as the bytes of its blob and the document of its record.

        Args:
            call: that ended.
            file_serial: the file that it is for, by its serial number. Bytes that are in this file
                already are referred to. None if no call of the file may refer to another.
        """
        record: dict[str, Any] = {"time_ns": call.time_ns, "thread": call.thread}
        if call.duration_ns is not None:
            record["duration_ns"] = call.duration_ns
        if call.outputs_missing is not None:
            record["outputs_missing"] = call.outputs_missing
        if call.joined is not None:
            return self._encode_joined(call, record, call.joined)
        inputs, outputs = call.inputs, call.outputs
        assert inputs is not None
        if call.error is not None:
            record["error"] = {"type": call.error[0], "message": pack_text(call.error[1])}
        sides = [inputs] if outputs is None else [inputs, outputs]
        for side in sides:
            wait_for_copies(side.places)
        encoded = [self._leaves_of(inputs)]
        if outputs is not None:
            shared = None
            if inputs.origins and outputs.origins:
                shared = _shared_keys(inputs, outputs)
            encoded.append(self._leaves_of(outputs, shared))
        pieces = [side.pieces() for side in sides]
        for name, side, leaves, copies in zip(_SIDES, sides, encoded, pieces, strict=False):
            record[name] = _document_of(leaves, side.facts, side.scalars, copies)
        scalars, signature = _NO_SCALARS, encoded[0].signature
        if inputs.scalars:
            scalars = self._pack(record["inputs"]["scalars"])
            signature = signature_of(inputs.structure.encoded, encoded[0].encoded, scalars)
        stored, tails, at = self._placed(call.number, sides, encoded, pieces, file_serial)
        if at:
            record["at"] = list(at.values())
        if not stored:
            return NewCall(call.number, record, signature, scalars=scalars)
        header, order = self._header(encoded, stored, tails)
        blob = [header, *joined([stored[name] for name in order])]
        if call.nbytes <= _SMALL_BYTES:
            blob = [b"".join(blob)]
        return NewCall(call.number, record, signature, blob, checksums_of(blob), scalars)

    def _encode_joined(self, call: QueuedCall, record: dict[str, Any], data: bytes) -> NewCall:
        """A call with the bytes of all its leaves, and nothing else of its own but times."""
        both = call.inputs, call.outputs  # other calls have the same objects
        template = self._templates.get(both)
        if template is None:
            template = self._new_template(*both)
            self._templates.keep(both, template)
        header, stored, sides = template
        for name, leaves, facts, begin in sides:
            if leaves.ranged:
                record[name] = _document_of(leaves, facts, (), split(data[begin:], facts.sizes))
            else:
                record[name] = leaves.tree
        signature = sides[0][1].signature
        if not header:
            return NewCall(call.number, record, signature)
        blob = b"".join([header, *[data[begin:end] for begin, end in stored]])
        return NewCall(call.number, record, signature, (blob,), checksums_of((blob,)))

    def _new_template(self, *both: Side | None) -> _Template:
        encoded: list[EncodedLeaves] = []
        sides: list[_TemplateSide] = []
        stored: dict[str, tuple[int, int]] = {}
        begin = 0
        for name, side in zip(_SIDES, both, strict=True):
            if side is None:
                continue
            leaves, places = self._leaves_of(side), []
            encoded.append(leaves)
            sides.append((name, leaves, side.facts, begin))
            for size in side.facts.sizes:
                places.append((begin, begin + size))
                begin += size
            for key, leaf in zip(leaves.entries, leaves.stored, strict=True):
                stored[key] = places[leaf]
        header, order = self._header(encoded, dict(stored), {}) if stored else (b"", ())
        runs: list[tuple[int, int]] = []  # the same bytes in fewer places
        for first, end in [stored[name] for name in order]:
            if runs and runs[-1][1] == first:
                first, _ = runs.pop()
            runs.append((first, end))
        return header, runs, sides

    def _leaves_of(self, side: Side, shared: SharedKeys = None) -> EncodedLeaves:
        facts = side.facts
        encoded = None if shared else self._by_facts.get(facts)
        if encoded is not None:
            return encoded
        key = (
            side.structure,
            facts.per_leaf,
            facts.shapes,
            facts.same,
            facts.storages,
            side.wanted,
            shared,
        )
        encoded = self._leaves.get(key)
        if encoded is None:
            encoded = self._build_leaves(side, shared)
            self._leaves.keep(key, encoded)
        if shared is None:
            self._by_facts.keep(facts, encoded)
        return encoded

    def _build_leaves(self, side: Side, shared: SharedKeys) -> EncodedLeaves:
        documents: list[dict[str, Any]] = []
        keys: dict[str, int] = {}
        ranged: list[int] = []
        facts = side.facts
        for index, fact in enumerate(facts.per_leaf):
            alias = None if facts.storages is None else facts.storages[index]
            original = index if facts.same is None else facts.same[index]
            kept = side.wanted if isinstance(side.wanted, bool) else side.wanted[index]
            key = side.structure.keys[original] if kept else None
            if key is not None and shared is not None:
                key = shared[original] or key
            document = leaf_document(fact, facts.shapes[index], key, alias)
            documents.append(document)
            if original != index:
                continue
            if fact.missing is not None:
                continue
            if fact.dtype in INTEGERS:
                ranged.append(index)
            if key is not None:
                keys[key] = index
        stored: list[Stored | None]
        if all(map(is_plain, facts.per_leaf)):
            # Nothing is validated. This saves time for a growing cache, which has new sizes in
            # every call.
            encoded = pack(documents)
            pairs = zip(documents, facts.shapes, strict=True)
            stored = [_contiguous(document["dtype"], shape) for document, shape in pairs]
        else:
            encoded, decoded = checked_leaves(documents)
            stored = [stored_as(leaf) for leaf in decoded]
        entries: dict[str, Stored] = {}
        for key, index in keys.items():
            entry = stored[index]
            assert entry is not None  # facts.DTYPES has only what the format can store
            entries[key] = entry
        signature = signature_of(side.structure.encoded, encoded, _NO_SCALARS)
        tree = {"structure": side.structure.encoded, "leaves": encoded}
        return EncodedLeaves(encoded, entries, tuple(keys.values()), tuple(ranged), signature, tree)

    def _placed(
        self, call: int, sides: list[Side], encoded: list[EncodedLeaves],
        pieces: list[Sequence[Any]], file_serial: int | None,
    ) -> tuple[dict[str, Any], dict[str, Stored], dict[str, Any]]:  # fmt: skip
        """Per key the bytes that go into the blob; the entries of those that are the tails of
        tensors; and the references to tensors of earlier calls."""
        stored: dict[str, Any] = {}
        tails: dict[str, Stored] = {}
        at: dict[str, Any] = {}
        # By origin of a tail in this call: the origin of its prefix, how many bytes of a strip the
        # prefix has, and the length of the tail along the axis.
        tails_here: dict[int, tuple[int, int, int]] = {}
        if (
            file_serial is not None and file_serial != self._file_serial
        ):  # no call refers to another file
            self._file_serial = file_serial
            self._place_of.clear()
        for side, leaves, copies in zip(sides, encoded, pieces, strict=True):
            origins = memoryview(side.origins).cast("q")
            for leaf, (key, entry) in zip(leaves.stored, leaves.entries.items(), strict=True):
                if key in stored or key in at:
                    continue
                origin, prefix_origin = 0, 0
                if origins and file_serial is not None:
                    origin, prefix_origin = origins[2 * leaf : 2 * leaf + 2]
                if (place := self._earlier_place(origin, call)) is not None:
                    at[key] = key, *place
                    continue
                stored[key] = piece = copies[leaf]
                if not origin:
                    continue
                if len(self._place_of) >= MAX_ORIGINS:
                    del self._place_of[next(iter(self._place_of))]
                self._place_of[origin] = call, key
                if type(piece) is not Grown or not prefix_origin:
                    continue
                prefix, shape, axis = piece.prefix, entry.shape, piece.axis
                length = shape[axis] - shape[axis] * prefix // piece.strip
                if prefix_origin in tails_here:
                    # An argument grew since an earlier call, and the model made it grow again. A
                    # reference leads to an earlier call, so the tail is that of both.
                    prefix_origin, prefix, length_before = tails_here[prefix_origin]
                    length += length_before
                if (place := self._earlier_place(prefix_origin, call)) is not None:
                    at[key] = key, *place, axis
                    stored[key] = piece.tail(prefix)
                    nbytes = entry.nbytes // shape[axis] * length
                    cut = (*shape[:axis], length, *shape[axis + 1 :])
                    tails[key] = Stored(entry.dtype, cut, nbytes)
                    tails_here[origin] = prefix_origin, prefix, length
        return stored, tails, at

    def _earlier_place(self, origin: int, call: int) -> tuple[int, str] | None:
        """The earlier call of this file that has the bytes of this origin, and their key there."""
        place = self._place_of.get(origin)
        if place is None or place[0] >= call:
            return None
        self._place_of[origin] = self._place_of.pop(origin)  # it is forgotten last
        return place

    def forget(self, call: QueuedCall) -> None:
        """Notes that the bytes of a call are on no tape: it could not be written."""
        for side in (call.inputs, call.outputs):
            for origin in () if side is None else memoryview(side.origins).cast("q")[::2]:
                if self._place_of.get(origin, (None,))[0] == call.number:
                    del self._place_of[origin]

    def _header(
        self, encoded: list[EncodedLeaves], stored: dict[str, Any], tails: dict[str, Stored]
    ) -> _Header:
        """The header of a blob, and the names of its tensors in the order of their bytes."""
        cut = tuple([tail.shape for tail in tails.values()])
        key = tuple([leaves.encoded for leaves in encoded]), tuple(stored), tuple(tails), cut
        header = self._headers.get(key)
        if header is None:
            entries = {name: entry for leaves in encoded for name, entry in leaves.entries.items()}
            entries |= tails
            order = by_width({name: entries[name] for name in stored})
            header = build_header({name: entries[name] for name in order}), tuple(order)
            self._headers.keep(key, header)
        return header


def _shared_keys(inputs: Side, outputs: Side) -> SharedKeys:
    """Keys of outputs that are inputs which the model did not change, such as a cache."""
    before, after = memoryview(inputs.origins).cast("q"), memoryview(outputs.origins).cast("q")
    wanted, keys = inputs.wanted, inputs.structure.keys
    key_of = {
        origin: keys[at]
        for at, origin in enumerate(before[::2])
        if origin and (wanted if isinstance(wanted, bool) else wanted[at])
    }
    shared = tuple(map(key_of.get, after[::2]))
    return shared if any(shared) else None


_SIDES = "inputs", "outputs"


def _document_of(
    leaves: EncodedLeaves, facts: SideFacts, scalars: Sequence[Any], pieces: Sequence[Any]
) -> dict[str, Any]:
    """The inputs or outputs in the form of a record. Sides without scalars and ranges share it."""
    if not scalars and not leaves.ranged:
        return leaves.tree
    tree = dict(leaves.tree)
    if scalars:
        tree["scalars"] = [
            pack_int(value) if type(value) is int else
            pack_text(value) if type(value) is str else value
            for value in scalars
        ]  # fmt: skip
    if leaves.ranged:
        ranges: list[dict[str, int]] = []
        for leaf in leaves.ranged:
            piece, dtype = pieces[leaf], facts.per_leaf[leaf].dtype
            if type(piece) is Grown and piece.size > MAX_RANGE_BYTES:
                continue
            data = piece if type(piece) is bytearray else piece.data if piece else b""
            bounds = range_of(data, dtype) if len(data) <= MAX_RANGE_BYTES else None
            if bounds is not None and (leaf in leaves.stored or not _reveals(bounds, data, dtype)):
                ranges.append({"leaf": leaf, "min": bounds[0], "max": bounds[1]})
        tree["ranges"] = ranges
    return tree


def _reveals(bounds: tuple[int, int], data: Any, dtype: torch.dtype) -> bool:
    """Whether a range reveals elements. The range of a few ids is these ids, and so is the range of
    one id among a thousand zeros. The range of a mask reveals no more than a bool does,
    and bools are on the tape."""
    low, high = bounds
    if len(data) < FEWEST_RANGED * dtype.itemsize:
        return True
    if low >= 0 and high <= 1:
        return False
    if high - low < FEWEST_RANGED - 1:
        return True
    # Padded data has few different integers, however long it is.
    different: set[int] = set()
    elements: Any = torch.frombuffer(data, dtype=_SIGNED.get(dtype, dtype))
    for chunk in elements.split(_CHUNK):
        different.update(torch.unique(chunk).tolist())
        if len(different) >= FEWEST_RANGED:
            return False
    return True
