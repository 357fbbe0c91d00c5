"""Groups of records: how calls are committed.

In come calls, and out goes what one append writes: the blobs of the calls, and one member with all
of their records. Or in comes the content of such a member, and out go its table, and its records.

FORMAT.md §5 has the bytes. The table of a group is all that a scan decodes. The documents are the
shared parts of the records (structures and leaves, each once), and then the records.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Sequence
from operator import lt
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import Field, TypeAdapter

from calltape_schema.bounds import (
    DEFLATE_FROM_BYTES,
    GROUP_BYTES,
    MAX_GROUP_BYTES,
    MAX_GROUP_CALLS,
    MAX_INFLATION,
    MAX_MEMBER_BYTES,
    MAX_NODES,
)
from calltape_schema.errors import TapeError
from calltape_schema.fields import Many, validated
from calltape_schema.inputs_table import InputsHashes
from calltape_schema.packing import crc32, is_array, is_map, pack, packing, u64s, unpack
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord, Range, Tree, decode_call
from calltape_schema.tar import BLOCK, Member, blob_name, group_name, member_header, padding

RAISED, HAS_RANGES, HAS_BLOB = 1, 2, 4
"""Flags in the table: the call raised, its inputs have ranges, it has a blob of its own."""

Columns: TypeAlias = tuple["array[int]", "array[int]", "array[int]"]
"""Of a table: per call its number, the hash of its inputs, and its place."""

_ENTRY = struct.Struct("<QQII")
_WORDS = struct.Struct("<QQQ")
CALL_BYTES = _ENTRY.size
"""How many bytes a call takes in a table, and so in a file at least."""
_MAX_TABLE_BYTES = MAX_GROUP_CALLS * CALL_BYTES
_LEVEL = 1  # level 6 makes groups a sixteenth smaller, and takes twice as long
_ZEROS = bytes(BLOCK)
_SIDES = "inputs", "outputs"
_SMALL_BYTES = 16 * 1024  # of a blob: to join it takes less than to write its parts

_ranges: TypeAdapter[tuple[Range, ...]] = TypeAdapter(
    Annotated[Many[Range], Field(max_length=MAX_NODES)]
)


class NewCall(NamedTuple):
    """A call to be written.

    Attributes:
        number: of the call.
        record: plain data in the form of :class:`CallRecord`, without ``tape``, ``call`` and
            ``blob``. Its trees hold the encoded structure and leaves, as everywhere.
        inputs: the hash of its inputs.
        blob: the content of its safetensors member, in parts; empty without a blob.
        crc32: the checksum of these.
        scalars: of the inputs, as one packed array, for the table of counted inputs.
    """

    number: int
    record: dict[str, Any]
    inputs: int
    blob: Sequence[Any] = ()
    crc32: int = 0
    scalars: bytes = b"\x90"


class Append(NamedTuple):
    """What one append writes.

    Attributes:
        calls: that are in it.
        parts: the bytes, whole members.
        size: of all parts.
        groups: per group where its header is, from the beginning of the append, and the numbers of
            its calls.
        blob_bytes: the size of all blobs.
    """

    calls: Sequence[NewCall]
    parts: list[Any]
    size: int
    groups: list[tuple[int, list[int]]]
    blob_bytes: int


def member(name: str, content: Sequence[Any], size: int) -> list[Any]:
    """Header, content and padding of one member, as parts for one write."""
    fill = padding(size)
    return [member_header(name, size), *content, *((_ZEROS[:fill],) if fill else ())]


def member_content(read: Callable[[int, int], bytes], found: Member) -> bytes:
    """The content of a msgpack member.

    Args:
        read: ``read(offset, size)``.
        found: the member.

    Raises:
        TapeError: ``limit`` if it is too large, before it is read; ``damaged`` if it is not whole.
    """
    _, offset, size = found
    if size > MAX_MEMBER_BYTES:
        reason = f"a member has {size} bytes (at most {MAX_MEMBER_BYTES})"
        raise TapeError("limit", reason)
    content = read(offset + BLOCK, size)
    if len(content) != size:
        raise TapeError("damaged", "the file ends before the member does")
    return content


def planned(tape: bytes, calls: Sequence[NewCall], level: int = _LEVEL) -> Append:
    """The bytes of an append, which do not depend on where it goes. Nearly always it is one group;
    more if the records are large.

    Args:
        tape: its id.
        calls: at least one.
        level: of zlib; 0 for documents that are not deflated.

    Raises:
        TapeError: ``limit`` for a record that no reader would take.
    """
    numbers = [call.number for call in calls]
    sizes = [sum(map(len, call.blob)) for call in calls]
    blobs = sum(BLOCK + size + padding(size) for size in sizes if size)
    content = _content(tape, calls, sizes, blobs, level) if len(calls) <= MAX_GROUP_CALLS else None
    if content is None:
        half = len(calls) // 2
        if not half:
            raise TapeError("limit", f"the record of call {numbers[0]} is too large")
        return _joined(planned(tape, calls[:half], level), planned(tape, calls[half:], level))
    parts: list[Any] = []
    for call, size in zip(calls, sizes, strict=True):
        if size:
            blob = member(blob_name(call.number), call.blob, size)
            if size > _SMALL_BYTES:
                parts += blob
            else:
                parts.append(b"".join(blob))
    parts += member(group_name(numbers[0]), [content], len(content))
    size = blobs + BLOCK + len(content) + padding(len(content))
    return Append(calls, parts, size, [(blobs, numbers)], sum(sizes))


def _joined(one: Append, two: Append) -> Append:
    groups = one.groups + [(one.size + at, numbers) for at, numbers in two.groups]
    return Append(
        [*one.calls, *two.calls], one.parts + two.parts, one.size + two.size, groups,
        one.blob_bytes + two.blob_bytes,
    )  # fmt: skip


def _content(
    tape: bytes, calls: Sequence[NewCall], sizes: Sequence[int], back: int, level: int
) -> bytes | None:
    """The content of a group; None if it has to be parted. ``back`` is the size of all blobs, which
    stand before it."""
    known: dict[bytes, int] = {}
    placed: dict[int, dict[str, Any]] = {}  # by the identity of a tree: calls may share one
    records: list[bytes] = []
    pack = packing()
    for call, size in zip(calls, sizes, strict=True):
        document = call.record.copy()
        for side in _SIDES:
            tree = document.get(side)
            if tree is None:
                continue
            if id(tree) not in placed:  # with the positions of its parts among the shared ones
                structure = known.setdefault(tree["structure"], len(known))
                leaves = known.setdefault(tree["leaves"], len(known))
                placed[id(tree)] = {**tree, "structure": structure, "leaves": leaves}
            document[side] = placed[id(tree)]
        if size:
            document["blob"] = {"back": back, "size": size, "crc32": call.crc32}
            back -= BLOCK + size + padding(size)
        records.append(pack(document))
    shared = pack(list(known))
    total = len(shared) + sum(map(len, records))
    if total > MAX_GROUP_BYTES or (total > GROUP_BYTES and len(calls) > 1):
        return None
    table, offset = bytearray(), len(shared)
    for call, record in zip(calls, records, strict=True):
        document = call.record
        flags = (
            (RAISED if "error" in document else 0)
            | (HAS_RANGES if document["inputs"].get("ranges") else 0)
            | (HAS_BLOB if call.blob else 0)
        )
        table += _ENTRY.pack(call.number, call.inputs, offset, flags)
        offset += len(record)
    documents, size = b"".join((shared, *records)), 0  # a size if they are deflated
    if level and len(documents) >= DEFLATE_FROM_BYTES:
        packed = zlib.compress(documents, level)
        if len(packed) < len(documents) <= len(packed) * MAX_INFLATION:
            documents, size = packed, len(documents)
    return pack([tape, crc32(table), bytes(table), crc32(documents), documents, size])


def inflated(data: bytes, size: int, most: int, what: str) -> bytes:
    """What was deflated in the format of zlib. It is never more than was announced.

    Args:
        data: the deflated bytes.
        size: how many bytes they were.
        most: how many they may be.
        what: the name for errors.

    Raises:
        TapeError: ``limit`` or ``damaged``.
    """
    if not 0 <= size <= most:
        raise TapeError("limit", f"{what}: {size} bytes (at most {most})")
    inflater = zlib.decompressobj()
    try:
        found = inflater.decompress(data, size + 1)
    except zlib.error as error:
        raise TapeError("damaged", f"{what} cannot be inflated: {error}") from None
    if len(found) != size or not inflater.eof or inflater.unused_data:
        raise TapeError("damaged", f"{what}: not {size} bytes")
    return found


class Group:
    """A group of records whose table was checked. Documents are inflated when the first is asked
    for.

    Attributes:
        tape: the id of the tape that it says it belongs to.
        numbers, inputs: per call its number, and the hash of its inputs.
        places: per call where its record begins (32 bits), and above it its flags.
        size: of the documents, inflated.
    """

    def __init__(self, tape: bytes, columns: Columns, stored: bytes, size: int) -> None:
        self.tape = tape
        self.numbers, self.inputs, self.places = columns
        self._stored = stored
        self.size = size or len(stored)
        self._documents: bytes | None = None if size else stored
        self._parts: tuple[bytes, ...] | None = None
        self._hashes = InputsHashes()

    def __len__(self) -> int:
        return len(self.numbers)

    def documents(self) -> bytes:
        """The bytes of the shared parts and of all records, inflated.

        Raises:
            TapeError: ``damaged`` or ``limit``.
        """
        if self._documents is None:
            most = min(MAX_GROUP_BYTES, MAX_INFLATION * len(self._stored))
            self._documents = inflated(self._stored, self.size, most, "the records of a group")
            self._stored = b""
        return self._documents

    def document(self, at: int) -> dict[str, Any]:
        """The record of a call as plain data, in the form of :class:`NewCall`, and with its
        ``blob``. It is not validated.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        begin = self.places[at] & _LOW
        end = self.places[at + 1] & _LOW if at + 1 < len(self.places) else self.size
        document = unpack(self.documents()[begin:end])
        if not is_map(document):
            raise TapeError("invalid", "a record is not a map")
        for side in _SIDES:
            if side in document:
                document[side] = self._tree(document[side])
        return document

    def record(self, at: int) -> CallRecord:
        """The record of a call.

        Raises:
            TapeError: ``unsupported``, ``damaged``, ``invalid`` or ``limit``.
        """
        if self.places[at] >> 32 & _REQUIRED_FLAGS:
            raise TapeError("unsupported", "a call has a flag that this reader does not know")
        document = self.document(at)
        document["tape"], document["call"] = self.tape, self.numbers[at]
        key = self._share(document, "inputs")
        self._share(document, "outputs")
        found = decode_call(document)
        self._check(found, at, key)
        return found

    def ranges_of(self, at: int) -> list[tuple[int, int, int]]:
        """Leaf, smallest and largest element of the ranges of the inputs of a call.

        Raises:
            TapeError: as :meth:`record`.
        """
        document = self.document(at)
        if "inputs" not in document:
            raise TapeError("invalid", "a record without inputs")
        found = validated(_ranges, document["inputs"].get("ranges", ()), "the ranges of a call")
        return [(one.leaf, one.min, one.max) for one in found]

    def _check(self, record: CallRecord, at: int, key: int | None) -> None:
        """Compares a record with what the table says of it. ``key`` is the hash of its inputs, if
        that is known."""
        tree = record.inputs
        flags = (
            (RAISED if record.error is not None else 0)
            | (HAS_RANGES if tree.ranges else 0)
            | (HAS_BLOB if record.blob is not None else 0)
        )
        if key is None:
            key = self._hashes.of(tree.structure, tree.leaves, pack(tree.scalars))
        if (key, flags) != (self.inputs[at], self.places[at] >> 32 & _KNOWN_FLAGS):
            raise _forged()
        if record.at and len(record.elsewhere) != len(record.at):
            raise TapeError("invalid", "an earlier call has the bytes of a key twice")

    def _share(self, document: dict[str, Any], side: str) -> int | None:
        """Puts the tree that calls which are alike share into a document, if it has no scalars.
        Gives the hash of inputs that are so."""
        tree = document.get(side)
        if tree is None or len(tree) > len(_TREE):
            return None
        key = tree["structure"], tree["leaves"]
        found: tuple[Tree, int] | None = _trees.get(key)
        if found is None:
            found = Tree(**tree), self._hashes.of(*key, _NO_SCALARS)
            _trees.keep(key, found, sum(map(len, key)))
        document[side] = found[0]
        return found[1]

    def _tree(self, tree: Any) -> dict[str, Any]:
        if not is_map(tree):
            raise TapeError("invalid", "a tree is not a map")
        parts = self._shared()
        found: dict[str, Any] = tree  # decoded for this call
        for name in _TREE:
            at = tree.get(name)
            if type(at) is not int or not 0 <= at < len(parts):
                raise TapeError("invalid", f"the {name} of a tree are no part of the group")
            found[name] = parts[at]
        return found

    def _shared(self) -> tuple[bytes, ...]:
        if self._parts is None:
            # A view: the shared parts may be 64 MiB, and they are copied once when they are parted.
            found = unpack(memoryview(self.documents())[: self.places[0] & _LOW])
            if not is_array(found) or any(type(part) is not bytes for part in found):
                raise TapeError("invalid", "the shared parts of a group are no array of bytes")
            self._parts = found
        return self._parts


_TREE = ("structure", "leaves")
_NO_SCALARS = pack(())
_trees = Recent(4 * 1024 * 1024)
_LOW = 2**32 - 1
_KNOWN_FLAGS = RAISED | HAS_RANGES | HAS_BLOB
_REQUIRED_FLAGS = 0xFFFF0000 & ~_KNOWN_FLAGS
"""A reader that does not know one of these cannot read the call; one that does not know another
one can."""
_CONTRADICTION = "the table of a group contradicts itself"


def _forged() -> TapeError:
    return TapeError("invalid", "a record is not as the table of its group says")


def opened(content: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Tape id, table, documents as they stand there, and their size after they are inflated (0 if
    they are not deflated), from the content of a group. Both checksums are compared.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    try:
        found = unpack(content, MAX_MEMBER_BYTES)
        tape, sum_of_table, table, sum_of_documents, documents, size = found[:6]
        is_whole = crc32(table) == sum_of_table and crc32(documents) == sum_of_documents
    except (TypeError, ValueError, LookupError):  # another form, such as text in place of bytes
        raise TapeError(
            "damaged", "not a group [tape, crc32, table, crc32, documents, size]"
        ) from None
    if not is_whole or type(size) is not int:
        raise TapeError("damaged", "the checksum of a group does not match its bytes")
    if not table or len(table) % CALL_BYTES:
        raise TapeError("invalid", f"the table of a group has {len(table)} bytes")
    if len(table) > _MAX_TABLE_BYTES:
        raise TapeError("limit", f"a group has more than {MAX_GROUP_CALLS} calls")
    return tape, table, documents, size


def group_of(content: bytes) -> Group:
    """The group in the content of its member. Its documents are neither inflated nor decoded.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    tape, table, documents, size = opened(content)
    return Group(tape, columns_of(table, size or len(documents)), documents, size)


def columns_of(table: bytes, size: int) -> Columns:
    """The columns of a table, which are sound for documents of so many bytes.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    words = u64s(table)
    numbers, places = words[::3], words[2::3]
    if len(numbers) > 1 and size > GROUP_BYTES:  # each of its records could ask for all of them
        reason = f"a group of several calls has {size} bytes (at most {GROUP_BYTES})"
        raise TapeError("limit", reason)
    begins = [place & _LOW for place in places]
    if not all(map(lt, begins, begins[1:])) or begins[-1] >= size or max(numbers) >= 2**63:
        raise TapeError("invalid", _CONTRADICTION)
    if len({*numbers}) != len(numbers):
        raise TapeError("damaged", "a call stands twice in a group")
    return numbers, words[1::3], places


def only_entry(table: bytes, size: int) -> tuple[int, int, int]:
    """The columns of the table of a single call, as :func:`columns_of`."""
    number, inputs, place = _WORDS.unpack(table)
    if number >= 2**63 or place & _LOW >= size:
        raise TapeError("invalid", _CONTRADICTION)
    return number, inputs, place
