"""Reads a tape: its manifest, its end, its calls, and their tensors.

A reader has two starts. From the end of a sealed tape it learns what the model was called with, in
two reads. From the front it walks over all members (:mod:`.scan`), which finds every call of any
tape. A record is decoded when somebody asks for it.
"""

from __future__ import annotations

import math
from itertools import count
from typing import Any, NamedTuple

from calltape_schema import blob
from calltape_schema.bounds import (
    MAX_BLOB_INFLATED_BYTES,
    MAX_MEMBER_BYTES,
    MAX_TAKEN,
    MAX_TAKEN_PARTS,
    TAIL_BYTES,
    most,
)
from calltape_schema.end import End, Index, decode_end, end_offset
from calltape_schema.errors import ErrorKind, TapeError
from calltape_schema.groups import Group, group_of, member_content
from calltape_schema.packing import open_envelope, pack
from calltape_schema.recent import Recent
from calltape_schema.records import (
    BlobFacts,
    CallRecord,
    Elsewhere,
    Manifest,
    manifest_of,
)
from calltape_schema.scan import Scan, Watch
from calltape_schema.sections import STORED, inflated
from calltape_schema.storage import Source, Window
from calltape_schema.tar import (
    BLOCK,
    COMPRESSED,
    END_MEMBER,
    MANIFEST,
    Member,
    blob_name,
    is_group,
    parse_header,
)
from calltape_schema.tree import Leaf, parts_of_inputs

_HEAD_BYTES = 16 * 1024  # of a tape or a blob: read at once
_ENTRY_COST = 300  # a tensor of a blob, as Python objects

_recent = Recent()  # of all readers of a process: each of a thousand files would keep its own
_readers = count()


class Extent(NamedTuple):
    """A part of the file.

    Attributes:
        offset, size: of the part.
        known: its bytes, if they were read with the header of their blob.
    """

    offset: int
    size: int
    known: bytes | None = None


class TensorPlace(NamedTuple):
    """Where the bytes of a tensor are.

    Attributes:
        parts: of the tensor, one after another along an axis. Nearly all tensors have one.
        strips: the product of the sizes before this axis; 1 for a tensor of one part.
    """

    parts: tuple[Extent, ...]
    strips: int

    @property
    def size(self) -> int:
        """How many bytes these are."""
        return sum(part.size for part in self.parts)


class Holder(NamedTuple):
    """A call that has bytes of a tensor, and the facts of its blob."""

    call: int
    blob: BlobFacts | None


class Chain(NamedTuple):
    """The calls that have the bytes of a tensor, each with the key there, the oldest first.

    Attributes:
        parts: one call, or those whose bytes follow along the axis.
        axis: None if there is one.
    """

    parts: list[tuple[Holder, str]]
    axis: int | None


class _Blob(NamedTuple):
    """The blob of a call.

    Attributes:
        entries: its tensors.
        first: where their bytes begin in its content.
        start: the same in the file.
        head: the first of these bytes; of a compressed blob all of them.
    """

    entries: dict[str, blob.Entry]
    first: int
    start: int
    head: bytes

    def extent(self, entry: blob.Entry) -> Extent:
        """Where the bytes of a tensor are."""
        begin, end = entry.begin, entry.end
        known = self.head[begin:end] if end <= len(self.head) else None
        return Extent(self.start + begin, end - begin, known)


class TapeReader:
    """One tape. It does not close the source.

    Attributes:
        source: of its bytes.
        manifest: of the tape.
        start: where the member after the manifest begins.
        manifest_damage: what is wrong with the first member of a sealed tape, if the manifest was
            taken from its end.
        end: what the end of a sealed tape says; None if the tape is not sealed, or if its end
            cannot be read. Nothing of it was compared with the records, unless there is a scan.
        end_at: where its member begins.

    Raises:
        TapeError: ``io``, ``not_a_tape``, ``version``, ``unsupported``, ``damaged`` or ``invalid``.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.manifest_damage: TapeError | None = None
        self._document = b""
        try:
            self._document, self.start = _manifest_in(source)
            self.manifest = _decoded(self._document)
            self.end, self.end_at = _end_of(source, self.start, self.manifest.tape)
        except TapeError as error:
            is_replaced = error.kind in ("damaged", "not_a_tape")
            end, self.end_at = _end_of(source, 0, None) if is_replaced else (None, None)
            if end is None:
                raise
            self.manifest, self.start, self.end = manifest_of(end.manifest), 0, end
            if self.manifest.tape != end.tape:
                raise _torn_manifest("the end repeats the manifest of another tape") from None
            self.manifest_damage = TapeError(
                "damaged", error.reason, member=MANIFEST, offset=0,
                advice="the copy of it in the end of the tape is used",
            )  # fmt: skip
        self._name = next(_readers)
        self._scan: Scan | None = None
        self._index: Index | None = None
        self._chains: tuple[int, dict[str, Chain | TapeError]] = (-1, {})  # of the last call asked

    def scan(self, watch: Watch = lambda found, size: found) -> Scan:
        """Walks over the tape, once. ``watch`` sees the members as the walk comes to them."""
        if self._scan is None:
            where = self.manifest.tape, self.start
            self._scan = Scan(self.source, *where, self.end, self.end_at, watch)
            wrong = self._wrong_manifest()
            if wrong is not None:
                self._scan.report(wrong)
        return self._scan

    def _wrong_manifest(self) -> TapeError | None:
        """What is wrong with the manifest, of which the end has another copy."""
        if self.manifest_damage is not None or self.end is None:
            return self.manifest_damage
        if self.end.manifest == self._document:
            return None
        return TapeError("damaged", "the end repeats another manifest", member=END_MEMBER)

    def record(self, number: int) -> CallRecord:
        """The record of a call.

        Raises:
            TapeError: ``usage`` if there is no such call; ``damaged``, ``invalid`` or ``limit``.
        """
        offset, at = self._place_of(number)
        return self._record(offset, at)

    def record_at(self, at: int) -> CallRecord:
        """The record of a call, by its position in the scan.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        return self._record(*self.scan().place(at))

    def document(self, at: int) -> dict[str, Any]:
        """The document of a record, by its position in the scan: it is as the checksum says, and
        was not compared with the format.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        offset, place = self.scan().place(at)
        return self.group(offset).document(place)

    def place(self, record: CallRecord, leaf: Leaf) -> TensorPlace:
        """Where the bytes of a leaf are: in the blob of its call, or of those that ``at`` names.
        The headers of the blobs tell, which are not compared with the checksums here.

        Raises:
            TapeError: ``no_value`` if they are not on the tape; ``damaged``, ``invalid`` or
                ``limit``.
        """
        if leaf.key is None:
            raise TapeError("no_value", f"the value is not on the tape: {leaf.missing}")
        holders, axis = self.holders(record, leaf.key)
        wanted = blob.stored_as(leaf)
        # Of a compressed blob what is inflated is not held until the next one is.
        found = [
            (entry, there.extent(entry))
            for entry, there in (self._entry(holder, key) for holder, key in holders)
        ]
        unknown = [one.dtype for one, _ in found if not blob.is_known(one.dtype)]
        if wanted is None or unknown:
            dtype = unknown[0] if unknown else leaf.dtype
            reason = f"tensor {leaf.key[:80]!r} of call {record.call} is of the dtype {dtype!r}"
            raise TapeError("unsupported", reason)
        if any(one.dtype != wanted.dtype for one, _ in found) or (
            not _make_up([one.shape for one, _ in found], axis, wanted.shape)
        ):  # fmt: skip
            reason = f"tensor {leaf.key[:80]!r} of call {record.call} is not as its leaf says"
            raise TapeError("invalid", reason)
        parts = tuple([extent for _, extent in found])
        return TensorPlace(parts, math.prod(wanted.shape[: axis or 0]))

    def tail(self, record: CallRecord, key: str) -> tuple[blob.Stored, Extent]:
        """What the own blob of a call has for a key, and where.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        found, there = self._entry(Holder(record.call, record.blob), key)
        return blob.Stored(found.dtype, found.shape, found.end - found.begin), there.extent(found)

    def _entry(self, holder: Holder, key: str) -> tuple[blob.Entry, _Blob]:
        """The entry of a key in the blob of a call, and this blob."""
        if holder.blob is None:
            raise TapeError("invalid", f"call {holder.call} has no blob for its leaves")
        there = self._blob(holder)
        if key not in there.entries:
            reason = f"the blob of call {holder.call} has no tensor {key[:80]!r}"
            raise TapeError("invalid", reason)
        return there.entries[key], there

    def blob_member(self, record: CallRecord | Holder) -> Member:
        """The member with the tensors of a call.

        Raises:
            TapeError: ``damaged``, ``unsupported``; ``no_value`` if it has none.
        """
        return self._begun_blob(record)[0]

    def header_size(self, holder: Holder) -> int:
        """How many bytes the header of a blob has, as its first bytes say.

        Raises:
            TapeError: as :meth:`blob_member`, and ``limit``.
        """
        found, head = self._begun_blob(holder)
        return blob.header_size(head, found.size)

    def span(self, holder: Holder, key: str) -> tuple[int, int]:
        """Where a tensor begins and ends in the content of a blob that nothing compressed.

        Raises:
            TapeError: ``damaged``, ``invalid``, ``limit`` or ``unsupported``.
        """
        entry, there = self._entry(holder, key)
        return there.first + entry.begin, there.first + entry.end

    def inflated_blob(self, record: CallRecord | Holder) -> bytes:
        """The file of the safetensors format in a compressed blob.

        Raises:
            TapeError: as :meth:`span`.
        """
        member, facts = self.blob_member(record), record.blob
        assert facts is not None
        allowed = most(MAX_BLOB_INFLATED_BYTES)
        if (facts.length or 0) > allowed:
            reason = f"a blob inflates to {facts.length} bytes (at most {allowed})"
            raise TapeError("limit", reason)
        data = self.source.read_at(member.start, member.size)
        return inflated(data, facts.length or 0, "a blob")

    def group(self, offset: int) -> Group:
        """The group whose header is at this offset.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        return _recent.once(
            (self._name, "group", offset),
            lambda: self._read_group(offset),
            lambda found: 2 * found.size + 24 * len(found),  # its shared parts are in memory twice
        )

    def _read_group(self, offset: int) -> Group:
        read = Window(self.source).read  # header and content at once, if these are short
        member = None if offset % BLOCK else parse_header(read(offset, BLOCK), offset)
        if member is None or not is_group(member.name):
            raise TapeError("damaged", "no group of records begins here", offset=offset)
        group = group_of(member_content(read, member), offset)
        if group.tape != self.manifest.tape:
            raise TapeError("damaged", "a group belongs to another tape", offset=offset)
        return group

    def _record(self, offset: int, at: int) -> CallRecord:
        try:
            return self.group(offset).record(at)
        except TapeError as error:
            raise error.at(offset=offset) from None

    def _place_of(self, number: int) -> tuple[int, int]:
        """The offset of the group of a call, and its position there. Without a scan, the index of a
        sealed tape tells. A damaged group costs its own calls only."""
        if self._scan is None and self.end is not None and self._index is None:
            try:
                self._index = self.end.groups()
            except TapeError:
                self.scan()
        trouble = TapeError("usage", f"there is no call {number}")
        if self._scan is None and self._index is not None:
            index = self._index
            for offset, low, high in zip(index.offsets, index.lows, index.highs, strict=True):
                if low <= number <= high:
                    try:
                        numbers = self.group(offset).numbers
                    except TapeError as error:
                        if error.kind in ("closed", "io"):
                            raise  # it says nothing about the tape
                        trouble = error
                        continue
                    if number in numbers:
                        return offset, numbers.index(number)
        else:
            at = self.scan().position(number)
            if at is not None:
                return self.scan().place(at)
        raise trouble

    def holders(self, record: CallRecord, key: str) -> Chain:
        """The calls whose blobs have the bytes of a key of this call: its own one, or the earlier
        ones that ``at`` names.

        Raises:
            TapeError: ``invalid`` or ``limit``, or as :meth:`record` for an earlier call.
        """
        if key not in record.elsewhere:
            return Chain([(Holder(record.call, record.blob), key)], None)
        call, chains = self._chains
        if call != record.call:
            chains = self._followed(record)
            self._chains = record.call, chains
        found = chains[key]
        if isinstance(found, TapeError):
            raise TapeError(found.kind, found.reason)
        return found

    def _followed(self, record: CallRecord) -> dict[str, Chain | TapeError]:
        """The chains of all keys of a call that earlier calls have, or why there is none. From call
        to call downwards, so that no record is decoded twice, and one is at hand at a time."""
        found: dict[str, Chain | TapeError] = {}
        call, parts = record.call, 0
        waiting = {call: [(key, key, Chain([], None), 0) for key in record.elsewhere]}
        while waiting:
            number = max(waiting)
            walks = waiting.pop(number)
            try:
                holder = record if number == call else self._earlier(number)
            except TapeError as error:
                # If there is no such call, its group may be lost.
                kind: ErrorKind = "damaged" if error.kind == "usage" else error.kind
                reason = f"call {call} has tensors of call {number}: {error.reason}"
                found |= {own: TapeError(kind, reason) for own, _, _, _ in walks}
                continue
            holding, steps = Holder(number, holder.blob), holder.elsewhere
            parts += sum([key in steps for _, key, _, _ in walks])
            if parts > most(MAX_TAKEN_PARTS):
                reason = f"call {call} has more than {most(MAX_TAKEN_PARTS)} parts of tensors"
                return dict.fromkeys(record.elsewhere, TapeError("limit", reason))
            for own, key, chain, taken in walks:
                step = steps.get(key)
                trouble = step and _trouble_of(call, number, step, chain, taken)
                if trouble is not None:
                    found[own] = trouble
                    continue
                if step is None or step[2] is not None:
                    chain.parts.append((holding, key))
                if step is None:
                    chain.parts.reverse()
                    found[own] = chain
                    continue
                if step[2] not in (None, chain.axis):
                    chain = Chain(chain.parts, step[2])
                waiting.setdefault(step[0], []).append((own, step[1], chain, taken + 1))
        return found

    def _earlier(self, number: int) -> CallRecord:
        """The record of a call that has tensors for other ones. It is asked for with each of these,
        and decoded once."""
        key = self._name, "record", number
        found: CallRecord | None = _recent.get(key)
        if found is None:
            found = self.record(number)
            for tree in (found.inputs, found.outputs):
                if tree is not None:
                    tree.spec()  # of a call that breaks the format nothing is given out
            if parts_of_inputs(found.inputs.spec().root) is None:
                raise TapeError("invalid", "the inputs are not (args, kwargs)")
            leaves = len(found.inputs.leaves) + len(found.outputs.leaves if found.outputs else b"")
            _recent.keep(key, found, 8 * leaves + 250 * len(found.at))
        return found

    def _blob(self, record: CallRecord | Holder) -> _Blob:
        return _recent.once(
            (self._name, "blob", record.call),
            lambda: self._read_blob(record),
            lambda found: _ENTRY_COST * len(found.entries) + len(found.head),
        )

    def _begun_blob(self, record: CallRecord | Holder) -> tuple[Member, bytes]:
        """The member with the tensors of a call, and the first bytes of its content."""
        return _recent.once(
            (self._name, "begun", record.call),
            lambda: self._find_blob(record),
            lambda found: len(found[1]),
        )

    def _find_blob(self, record: CallRecord | Holder) -> tuple[Member, bytes]:
        if record.blob is None:
            raise TapeError("no_value", f"call {record.call} has no blob")
        name = blob_name(record.call) + (COMPRESSED if record.blob.codec != STORED else "")
        if not record.blob.is_supported:
            reason = f"the tensors of call {record.call} need a later version to be read"
            raise TapeError("unsupported", reason, member=name)
        group, _ = self._place_of(record.call)
        offset, size = group - record.blob.back, record.blob.size
        head = b""
        if self.start <= offset < group and offset % BLOCK == 0:
            head = self.source.read_at(offset, BLOCK + min(_HEAD_BYTES, size))
        member = parse_header(head[:BLOCK], offset)
        if (
            member is None or member.size != size or member.end > group
            or member.name != name
        ):  # fmt: skip
            reason = f"the tensors of call {record.call} are not there"
            raise TapeError("damaged", reason, member=name, offset=offset)
        return member, head[BLOCK:]

    def _read_blob(self, record: CallRecord | Holder) -> _Blob:
        member, head = self._begun_blob(record)
        if record.blob is not None and record.blob.codec != STORED:
            whole = self.inflated_blob(record)
            first = blob.header_size(whole, len(whole))
            return _Blob(blob.parse_header(whole[:first], len(whole)), first, 0, whole[first:])
        length = blob.header_size(head, member.size)
        if length > len(head):
            head += self.source.read_at(member.start + len(head), length - len(head))
        entries = blob.parse_header(head[:length], member.size)
        return _Blob(entries, length, member.start + length, head[length:])


def _trouble_of(
    call: int, number: int, step: Elsewhere, chain: Chain, taken: int
) -> TapeError | None:
    """Why a chain of a call cannot go on from the call of this number; None if it can."""
    if taken >= most(MAX_TAKEN):
        reason = f"a tensor of call {call} is taken from more than {most(MAX_TAKEN)} calls"
        return TapeError("limit", reason)
    there, _, axis = step
    if there >= number:
        reason = f"call {number} has tensors of call {there}, which is not an earlier call"
        return TapeError("invalid", reason)
    if axis is not None and chain.axis not in (None, axis):
        return TapeError("invalid", f"a tensor of call {call} grew along two axes")
    return None


def _make_up(shapes: list[tuple[int, ...]], axis: int | None, expected: tuple[int, ...]) -> bool:
    """Whether tensors of these shapes, one after another along an axis, have this shape. Without an
    axis there is one."""
    if axis is None:
        return shapes == [expected]
    if axis >= len(expected):
        return False
    others = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    lengths = [shape[axis] for shape in shapes if len(shape) == len(expected)]
    is_one_form = others == {(*expected[:axis], *expected[axis + 1 :])}
    return is_one_form and sum(lengths) == expected[axis]


def _decoded(document: bytes) -> Manifest:
    try:
        return manifest_of(document)
    except TapeError as error:
        if error.kind == "damaged":
            raise _torn_manifest(error.reason) from None
        raise error.at(member=MANIFEST, offset=0) from None


def _manifest_in(source: Source) -> tuple[bytes, int]:
    """The document of the manifest, and where the next member begins."""
    head = source.read_at(0, _HEAD_BYTES)
    member = parse_header(head[:BLOCK], 0)
    if member is None or member.name != MANIFEST:
        if head.startswith(MANIFEST.encode()) or _FORMAT in head[BLOCK : BLOCK + 32]:
            raise _torn_manifest("its header is corrupted" if len(head) >= BLOCK else _CUT_SHORT)
        raise TapeError("not_a_tape", "the file does not start with the manifest of a tape")
    if source.size < member.start + member.size <= BLOCK + most(MAX_MEMBER_BYTES):
        raise _torn_manifest(_CUT_SHORT)
    if len(head) < member.start + member.size <= min(source.size, BLOCK + most(MAX_MEMBER_BYTES)):
        head += source.read_at(len(head), member.start + member.size - len(head))
    try:
        content = member_content(lambda offset, size: head[offset : offset + size], member)
        return open_envelope(content), member.end
    except TapeError as error:
        if error.kind == "damaged":
            raise _torn_manifest(error.reason) from None
        raise error.at(member=MANIFEST, offset=0) from None


_FORMAT = pack({"format": "calltape"})[1:]
"""How the document of a manifest begins, in a second block whose header is none."""
_CUT_SHORT = "the file ends within its manifest"


def _torn_manifest(reason: str) -> TapeError:
    advice = (
        "without its manifest, or an end that repeats it, nothing here can be read; copy the file "
        "again from where it came"
    )
    return TapeError("damaged", reason, member=MANIFEST, offset=0, advice=advice)


def _end_of(source: Source, first: int, tape: bytes | None) -> tuple[End | None, int | None]:
    """What the end of a sealed tape says, and where it begins; None if the tape is not sealed, or
    if it cannot be read, or is of another tape."""
    start = max(source.size - TAIL_BYTES, 0)
    tail = source.read_at(start, TAIL_BYTES)
    offset = end_offset(tail, source.size)
    if offset is None or offset < first:
        return None, None
    if offset < start:
        tail = source.read_at(offset, start - offset) + tail
        start = offset
    data = tail[offset - start :]
    member = parse_header(data[:BLOCK], offset)
    if member is None or member.name != END_MEMBER or member.size > len(data):
        return None, None
    try:
        end = decode_end(data[BLOCK : BLOCK + member.size])
    except TapeError:
        return None, None  # a scan reports it
    return (end, offset) if tape in (None, end.tape) else (None, None)
