"""Encodes a captured call as bytes: its blob and its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from calltape_recorder.bounds import (
    MAX_HEADERS_KNOWN,
    MAX_LEAVES_KNOWN,
    MAX_RANGE_BYTES,
    Remembered,
)
from calltape_recorder.snapshot.buffers import data_of
from calltape_recorder.snapshot.call import EncodedLeaves, QueuedCall, Side, split
from calltape_recorder.snapshot.copies import joined, wait_for_copies
from calltape_recorder.snapshot.earlier_copies import Origin
from calltape_recorder.snapshot.facts import DTYPES, is_plain, leaf_document
from calltape_recorder.snapshot.grown_copies import Grown
from calltape_recorder.snapshot.look import Look
from calltape_schema.blob import Stored, build_header, by_width, contiguous, stored_as
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack, pack_int, pack_text, packing
from calltape_schema.privacy import FEWEST_RANGED
from calltape_schema.sections import checksums_of
from calltape_schema.tree import checked_leaves

# Finds the smallest and the largest element of integer leaves, in the writer's thread.

# Formats of memoryview, which is faster for the few elements of a decoding step.
_FORMATS = {
    torch.uint8: "B", torch.int8: "b", torch.int16: "h", torch.uint16: "H",
    torch.int32: "i", torch.uint32: "I", torch.int64: "q", torch.uint64: "Q",
}  # fmt: skip

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
    if len(data) <= _FEW * dtype.itemsize:
        values: Any = memoryview(data).cast(code)  # type: ignore[call-overload]  # pyright: ignore
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


_NO_SCALARS = pack([])
_SMALL_BYTES = 16 * 1024  # of a call: to join them takes less than a checksum and a write for each


SharedKeys: TypeAlias = tuple[str | None, ...] | None
"""Per leaf of the outputs the key of an input that is the same copy, or None; None if there is
none."""


_Header: TypeAlias = tuple[bytes, tuple[str, ...]]
"""Of a blob, and the names of its tensors in the order of their bytes."""
_AlikeSide: TypeAlias = "tuple[str, EncodedLeaves, Look, int]"
"""Its name, what was encoded of it, its look, and where it begins in the bytes of the call."""
_Alike: TypeAlias = "tuple[bytes, list[tuple[int, int]], list[_AlikeSide]]"
"""What calls with the same two sides share: the header of the blob, where the bytes behind it are
in those of the call, and the sides."""


class Encoder:
    """Encodes calls, and remembers what repeats. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self._pack = packing()
        self._leaves: Remembered[Any, EncodedLeaves] = Remembered(
            MAX_LEAVES_KNOWN, lambda key, _: len(key[1]) + key[0].parts
        )
        self._alike: Remembered[tuple[Side | None, Side | None], _Alike] = Remembered(
            MAX_LEAVES_KNOWN,
            lambda both, _: sum([len(one.look.facts) + one.structure.parts for one in both if one]),
        )
        self._headers: Remembered[Any, _Header] = Remembered(
            MAX_HEADERS_KNOWN, lambda _, found: len(found[0]) // 64
        )

    def encode(self, call: QueuedCall, file: int | None = None) -> NewCall:
        """A call as the bytes of its blob and the document of its record.

        Args:
            call: that ended.
            file: the number of the file that it is for. Bytes that are in this file already are
                referred to. None for a file of which no call may refer to another.
        """
        if call.joined is not None:
            return self._encode_alike(call, call.joined)
        inputs, outputs = call.inputs, call.outputs
        assert inputs is not None
        record: dict[str, Any] = {"time_ns": call.time_ns, "thread": call.thread}
        if call.duration_ns is not None:
            record["duration_ns"] = call.duration_ns
        if call.error is not None:
            record["error"] = {"type": call.error[0], "message": pack_text(call.error[1])}
        if call.outputs_missing is not None:
            record["outputs_missing"] = call.outputs_missing
        sides = [inputs] if outputs is None else [inputs, outputs]
        for side in sides:
            wait_for_copies(side.pieces)
        known = [self._leaves_of(inputs)]
        if outputs is not None:
            shared = None
            if inputs.origins is not None and outputs.origins is not None:
                shared = _shared_keys(inputs, inputs.origins, outputs.origins)
            known.append(self._leaves_of(outputs, shared))
        for name, side, leaves in zip(_SIDES, sides, known, strict=False):
            record[name] = _tree(leaves, side.look, side.scalars, side.pieces)
        scalars, key = _NO_SCALARS, known[0].inputs
        if inputs.scalars:
            scalars = self._pack(record["inputs"]["scalars"])
            key = signature_of(inputs.structure.encoded, known[0].encoded, scalars)
        stored, tails, at = _placed(call.number, sides, known, file)
        if at:
            record["at"] = list(at.values())
        if not stored:
            return NewCall(call.number, record, key, scalars=scalars)
        header, order = self._header(known, stored, tails)
        blob = [header, *joined([stored[name] for name in order])]
        if call.nbytes <= _SMALL_BYTES:
            blob = [b"".join(blob)]
        return NewCall(call.number, record, key, blob, checksums_of(blob), scalars)

    def _encode_alike(self, call: QueuedCall, data: bytes) -> NewCall:
        """A call with the bytes of all its leaves, and nothing else of its own but times."""
        both = call.inputs, call.outputs  # other calls have the same objects
        alike = self._alike.get(both)
        if alike is None:
            alike = self._new_alike(*both)
            self._alike.keep(both, alike)
        record: dict[str, Any] = {
            "time_ns": call.time_ns, "thread": call.thread, "duration_ns": call.duration_ns,
        }  # fmt: skip
        if call.outputs_missing is not None:
            record["outputs_missing"] = call.outputs_missing
        header, stored, sides = alike
        for name, leaves, look, begin in sides:
            if leaves.ranged:
                record[name] = _tree(leaves, look, (), split(data[begin:], look.sizes))
            else:
                record[name] = leaves.tree
        key = sides[0][1].inputs
        if not header:
            return NewCall(call.number, record, key)
        blob = b"".join([header, *[data[begin:end] for begin, end in stored]])
        return NewCall(call.number, record, key, (blob,), checksums_of((blob,)))

    def _new_alike(self, *both: Side | None) -> _Alike:
        known: list[EncodedLeaves] = []
        sides: list[_AlikeSide] = []
        stored: dict[str, tuple[int, int]] = {}
        begin = 0
        for name, side in zip(_SIDES, both, strict=True):
            if side is None:
                continue
            leaves, places = self._leaves_of(side), []
            known.append(leaves)
            sides.append((name, leaves, side.look, begin))
            for size in side.look.sizes:
                places.append((begin, begin + size))
                begin += size
            for key, leaf in zip(leaves.header, leaves.stored, strict=True):
                stored[key] = places[leaf]
        header, order = self._header(known, dict(stored), {}) if stored else (b"", ())
        runs: list[tuple[int, int]] = []  # the same bytes in fewer places
        for first, end in [stored[name] for name in order]:
            if runs and runs[-1][1] == first:
                first, _ = runs.pop()
            runs.append((first, end))
        return header, runs, sides

    def _leaves_of(self, side: Side, shared: SharedKeys = None) -> EncodedLeaves:
        look = side.look
        if shared is None and look.encoded is not None:
            encoded: EncodedLeaves = look.encoded
            return encoded
        key = (side.structure, look.facts, look.same, look.storages, side.wanted, shared)
        known = self._leaves.get(key)
        if known is None:
            known = self._build_leaves(side, shared)
            self._leaves.keep(key, known)
        if shared is None:
            look.encoded = known
        return known

    def _build_leaves(self, side: Side, shared: SharedKeys) -> EncodedLeaves:
        documents: list[dict[str, Any]] = []
        keys: dict[str, int] = {}
        ranged: list[int] = []
        look = side.look
        for index, facts in enumerate(look.facts):
            alias = None if look.storages is None else look.storages[index]
            original = index if look.same is None else look.same[index]
            kept = side.wanted if isinstance(side.wanted, bool) else side.wanted[index]
            key = side.structure.keys[original] if kept else None
            if key is not None and shared is not None:
                key = shared[original] or key
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
        entries: list[Stored | None]
        if all(map(is_plain, look.facts)):
            # Nothing is validated. This saves time for a growing cache, which has new sizes in
            # every call.
            encoded = pack(documents)
            pairs = zip(documents, look.facts, strict=True)
            entries = [contiguous(one["dtype"], tuple(facts.shape)) for one, facts in pairs]
        else:
            encoded, decoded = checked_leaves(documents)
            entries = [stored_as(leaf) for leaf in decoded]
        header: dict[str, Stored] = {}
        for key, index in keys.items():
            entry = entries[index]
            assert entry is not None  # facts.DTYPES has only what the format can store
            header[key] = entry
        inputs = signature_of(side.structure.encoded, encoded, _NO_SCALARS)
        tree = {"structure": side.structure.encoded, "leaves": encoded}
        return EncodedLeaves(encoded, header, tuple(keys.values()), tuple(ranged), inputs, tree)

    def _header(
        self, known: list[EncodedLeaves], stored: dict[str, Any], tails: dict[str, Stored]
    ) -> _Header:
        """The header of a blob, and the names of its tensors in the order of their bytes."""
        key = tuple(leaves.encoded for leaves in known), tuple(stored), tuple(tails.items())
        found = self._headers.get(key)
        if found is None:
            entries = {name: entry for leaves in known for name, entry in leaves.header.items()}
            entries |= tails
            order = by_width({name: entries[name] for name in stored})
            found = build_header({name: entries[name] for name in order}), tuple(order)
            self._headers.keep(key, found)
        return found


def _shared_keys(
    inputs: Side, before: Sequence[Origin | None], after: Sequence[Origin | None]
) -> SharedKeys:
    """Keys of outputs that are inputs which the model did not change, such as a cache. ``before``
    and ``after`` are the origins of both."""
    wanted, keys = inputs.wanted, inputs.structure.keys
    known = {
        id(origin): keys[at]
        for at, origin in enumerate(before)
        if origin is not None and (wanted if isinstance(wanted, bool) else wanted[at])
    }
    found = tuple([known.get(id(origin)) for origin in after])
    return found if any(found) else None


def _placed(
    call: int, sides: list[Side], known: list[EncodedLeaves], file: int | None
) -> tuple[dict[str, Any], dict[str, Stored], dict[str, Any]]:
    """Per key the bytes that go into the blob; the entries of those that are the tails of tensors;
    and the references to tensors of earlier calls."""
    stored: dict[str, Any] = {}
    tails: dict[str, Stored] = {}
    at: dict[str, Any] = {}
    # By origin of a tail in this call: what has the first part, which bytes of a row these are, and
    # the length of the tail.
    here: dict[int, tuple[Origin, int, int]] = {}
    for side, leaves in zip(sides, known, strict=True):
        for leaf, (key, entry) in zip(leaves.stored, leaves.header.items(), strict=True):
            origin = None if side.origins is None or file is None else side.origins[leaf]
            if key in stored or key in at:
                continue
            if origin is not None and origin.is_before(call, file):
                at[key] = key, origin.call, origin.key
                continue
            piece = side.pieces[leaf]
            stored[key] = piece
            if origin is None or file is None:
                continue
            first = origin.first
            origin.file, origin.call, origin.key = file, call, key
            if type(piece) is not Grown or first is None:
                continue
            begin, length = piece.first, piece.length
            if id(first) in here:
                # An argument grew since an earlier call, and the model made it grow again. A
                # reference leads to an earlier call, so the tail is that of both.
                first, begin, more = here[id(first)]
                length += more
            if first.is_before(call, file):
                at[key] = key, first.call, first.key, piece.axis
                stored[key] = piece.tail(begin)
                shape, axis = entry.shape, piece.axis
                nbytes = entry.nbytes // shape[axis] * length
                cut = (*shape[:axis], length, *shape[axis + 1 :])
                tails[key] = Stored(entry.dtype, cut, nbytes)
                here[id(origin)] = first, begin, length
    return stored, tails, at


def forget(call: QueuedCall) -> None:
    """Notes that the bytes of a call are on no tape: it could not be written."""
    for side in (call.inputs, call.outputs):
        for origin in () if side is None else side.origins or ():
            if origin is not None and origin.call == call.number:
                origin.file = None


_SIDES = "inputs", "outputs"


def _tree(
    leaves: EncodedLeaves, look: Look, scalars: Sequence[Any], pieces: Sequence[Any]
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
            piece, dtype = pieces[leaf], look.facts[leaf].dtype
            if type(piece) is Grown and piece.size > MAX_RANGE_BYTES:
                continue
            data = data_of(piece)
            found = range_of(data, dtype) if len(data) <= MAX_RANGE_BYTES else None
            if found is not None and (leaf in leaves.stored or not _tells(found, data, dtype)):
                ranges.append({"leaf": leaf, "min": found[0], "max": found[1]})
        tree["ranges"] = ranges
    return tree


def _tells(found: tuple[int, int], data: Any, dtype: torch.dtype) -> bool:
    """Whether a range tells what the elements are. The range of a few ids is these ids, and so is
    the range of one id among a thousand zeros. The range of a mask tells no more than a bool does,
    and bools are on the tape."""
    low, high = found
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
