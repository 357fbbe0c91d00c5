"""Groups of records: how calls are committed.

Takes calls, and returns what one append writes: the blobs of the calls, and one member with all of
their records (:func:`planned`). Or takes the content of such a member, and returns its table and
its records: :func:`opened` checks the checksums and inflates the table; :func:`columns_of`, or
:func:`only_entry` for a single call, checks what stands in it; :func:`group_of` does both for a
:class:`Group`, which reads the records.

FORMAT.md §5 has the bytes. The table of a group is all that a scan decodes. The documents are the
shared parts of the records (structures and leaves, each once), and then the records.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from operator import lt
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter

from calltape_schema.bounds import (
    DEFLATE_FROM_BYTES,
    GROUP_BYTES,
    MAX_GROUP_BYTES,
    MAX_GROUP_CALLS,
    MAX_INFLATION,
    MAX_MEMBER_BYTES,
    MAX_NODES,
    MAX_SHARING,
    MAX_TABLE_INFLATION,
    MAX_WIDTH,
    most,
)
from calltape_schema.errors import TapeError
from calltape_schema.fields import Many, expect_known, validated
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import is_array, is_map, pack, packing, u32s, u64s, unpack
from calltape_schema.recent import Recent
from calltape_schema.records import CallRecord, Range, Tree, decode_call
from calltape_schema.sections import NO_CHECKSUMS, Checksums, Section, section_of
from calltape_schema.tar import BLOCK, Member, blob_name, group_name, member_header, padding

RAISED, HAS_RANGES, HAS_BLOB = 1, 2, 4
"""Flags in the table: the call raised, its inputs have ranges, it has a blob of its own."""
_KNOWN_FLAGS = RAISED | HAS_RANGES | HAS_BLOB
_REQUIRED_FLAGS = 0xFFFF0000 & ~_KNOWN_FLAGS
"""A reader that does not know one of these cannot read the call; one that does not know another
one can."""

ENTRY = struct.Struct("<QQII16s")
CALL_BYTES = ENTRY.size
"""How many bytes a call takes in a table."""
_SIGNATURE = 24  # where it begins in an entry
_WORDS = struct.Struct("<QQQQQ")
_NUMBERS, _TIMES, _PLACES, _LOWS, _HIGHS = (slice(at, None, 5) for at in range(5))  # of the words
_BEGINS = slice(4, None, 10)  # of the half words: the lower halves of the places
_NUMBER_TOPS, _TIME_TOPS = slice(7, None, CALL_BYTES), slice(15, None, CALL_BYTES)  # highest bytes
_BEGIN_MASK = 2**32 - 1  # of a place: above it are flags
_HEAD = b"\x95"  # an array of five
_OFFSET = struct.Struct("<Q")
_OFFSET_HEAD = b"\xc4" + bytes([_OFFSET.size])
_LEVEL = 1  # level 6 makes groups a sixteenth smaller, and takes twice as long
_ZEROS = bytes(BLOCK)
_SIDES, _TREE = ("inputs", "outputs"), ("structure", "leaves")
_NO_SCALARS = pack(())
_SMALL_BYTES = 16 * 1024  # of a blob: to join it takes less than to write its parts
_CONTRADICTION = "the table of a group contradicts itself"
_PARTS, _NO_GROUP = 5, "not a group [tape, place, width, table, documents]"

_ranges: TypeAdapter[tuple[Range, ...]] = TypeAdapter(
    Annotated[Many[Range], Field(max_length=MAX_NODES)]
)
_trees = Recent(4 * 1024 * 1024)


class Columns(NamedTuple):
    """The columns of a table.

    Attributes:
        numbers, times: per call its number, and when it began.
        places: per call where its record begins (32 bits), and above it its flags.
        lows, highs: the halves of the signature of its inputs.
        ascends: whether the numbers do.
    """

    numbers: array[int]
    times: array[int]
    places: array[int]
    lows: array[int]
    highs: array[int]
    ascends: bool


class NewCall(NamedTuple):
    """A call to be written.

    Attributes:
        number: of the call.
        record: plain data in the form of :class:`CallRecord`, without ``tape``, ``call`` and
            ``blob``. Its trees hold the encoded structure and leaves, as everywhere.
        signature: of its inputs.
        blob: the content of its safetensors member, in parts; empty without a blob.
        checksums: of these.
        scalars: of the inputs, as one packed array, for the table of counted inputs.
    """

    number: int
    record: dict[str, Any]
    signature: int
    blob: Sequence[Any] = ()
    checksums: Checksums = NO_CHECKSUMS
    scalars: bytes = b"\x90"


class NewGroup(NamedTuple):
    """A group of an append.

    Attributes:
        at: where its header is, from the beginning of the append.
        numbers: of its calls.
        times: when they began.
        head: the beginning of its content, which says where it is in the file.
    """

    at: int
    numbers: list[int]
    times: list[int]
    head: bytearray

    def place(self, begin: int) -> int:
        """Notes where the append begins in the file; gives the offset of the header."""
        offset = begin + self.at
        self.head[-_OFFSET.size :] = _OFFSET.pack(offset)
        return offset


class Append(NamedTuple):
    """What one append writes.

    Attributes:
        calls: that are in it.
        parts: the bytes, whole members. Its groups say where they are once they are placed.
        size: of all parts.
        groups: of the append.
        blob_bytes: the size of all blobs.
    """

    calls: Sequence[NewCall]
    parts: list[Any]
    size: int
    groups: list[NewGroup]
    blob_bytes: int


def member(name: str, content: Sequence[Any], size: int) -> list[Any]:
    """Header, content and padding of one member, as parts for one write."""
    fill = padding(size)
    return [member_header(name, size), *content, *((_ZEROS[:fill],) if fill else ())]


def member_content(read: Callable[[int, int], bytes], member: Member) -> bytes:
    """The content of a msgpack member, as ``read(offset, size)`` gives it.

    Raises:
        TapeError: ``limit`` if it is too large, before it is read; ``damaged`` if it is not whole.
    """
    _, offset, size = member
    if size > most(MAX_MEMBER_BYTES):
        reason = f"a member has {size} bytes (at most {most(MAX_MEMBER_BYTES)})"
        raise TapeError("limit", reason)
    content = read(offset + BLOCK, size)
    if len(content) != size:
        raise TapeError("damaged", "the file ends before the member does")
    return content


def planned(tape: bytes, calls: Sequence[NewCall], level: int = _LEVEL) -> Append:
    """The bytes of an append, but for the places of its groups. Nearly always it is one group; more
    if the records are large.

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
    content = _content(calls, sizes, blobs, level) if len(calls) <= MAX_GROUP_CALLS else None
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
    head = bytearray(b"".join((_HEAD, pack(tape), _OFFSET_HEAD, bytes(_OFFSET.size))))
    length = len(head) + len(content)
    parts += member(group_name(numbers[0]), [head, content], length)
    size = blobs + BLOCK + length + padding(length)
    times = [call.record["time_ns"] for call in calls]
    return Append(calls, parts, size, [NewGroup(blobs, numbers, times, head)], sum(sizes))


def _joined(first: Append, second: Append) -> Append:
    groups = first.groups + [group._replace(at=first.size + group.at) for group in second.groups]
    return Append(
        [*first.calls, *second.calls], first.parts + second.parts, first.size + second.size, groups,
        first.blob_bytes + second.blob_bytes,
    )  # fmt: skip


def _content(calls: Sequence[NewCall], sizes: Sequence[int], back: int, level: int) -> bytes | None:
    """The content of a group after its place; None if it has to be parted. ``back`` is the size of
    all blobs, which stand before it."""
    shared_at: dict[bytes, int] = {}
    placed: dict[int, dict[str, Any]] = {}  # by the identity of a tree: calls may share one
    records: list[bytes] = []
    pack = packing()
    for call, size in zip(calls, sizes, strict=True):
        document = call.record.copy()
        del document["time_ns"]  # the table has it
        for side in _SIDES:
            tree = document.get(side)
            if tree is None:
                continue
            if id(tree) not in placed:  # with the positions of its parts among the shared ones
                structure = shared_at.setdefault(tree["structure"], len(shared_at))
                leaves = shared_at.setdefault(tree["leaves"], len(shared_at))
                placed[id(tree)] = {**tree, "structure": structure, "leaves": leaves}
            document[side] = placed[id(tree)]
        if size:
            whole, steps = call.checksums
            document["blob"] = {
                "back": back, "size": size, "checksum": whole, **({"steps": steps} if steps else {})
            }  # fmt: skip
            back -= BLOCK + size + padding(size)
        records.append(pack(document))
    shared = pack(list(shared_at))
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
        signature = call.signature.to_bytes(16, "little")
        table += ENTRY.pack(call.number, document["time_ns"], offset, flags, signature)
        offset += len(record)
    documents = b"".join((shared, *records))
    level = level if len(documents) >= DEFLATE_FROM_BYTES else 0
    # A walk reads each table: to inflate them takes half as long as the rest of it.
    sections = Section.of(bytes(table)), Section.of(documents, level, MAX_INFLATION)
    stored = sum(len(section.data) for section in sections)
    if len(calls) > 1 and len(calls) * len(shared) > MAX_SHARING * stored:
        return None
    return b"".join(map(pack, (CALL_BYTES, *sections)))


class Group:
    """A group of records whose table was checked. Documents are inflated when the first is asked
    for.

    Attributes:
        tape: the id of the tape that it says it belongs to.
        numbers, times: per call its number, and when it began.
        places: per call where its record begins (32 bits), and above it its flags.
        size: of the documents, inflated.
    """

    def __init__(self, tape: bytes, table: bytes, columns: Columns, stored: Section) -> None:
        self.tape = tape
        self._table = table
        self.numbers, self.times, self.places = columns.numbers, columns.times, columns.places
        self._stored = stored
        self.size = stored.size
        self._documents: bytes | None = None
        self._parts: tuple[bytes, ...] | None = None
        self._digests: dict[tuple[bytes, int], blake2b] = {}  # of structures

    def __len__(self) -> int:
        return len(self.numbers)

    def documents(self) -> bytes:
        """The bytes of the shared parts and of all records, inflated.

        Raises:
            TapeError: ``damaged``, ``limit`` or ``unsupported``.
        """
        if self._documents is None:
            allowed = min(most(MAX_GROUP_BYTES), most(MAX_INFLATION) * len(self._stored.data))
            self._documents = self._stored.content(allowed, "the records of a group")
            self._stored = self._stored._replace(data=b"")
        return self._documents

    def document(self, at: int) -> dict[str, Any]:
        """The record of a call as plain data, in the form of :class:`NewCall`, and with its
        ``blob``. It is not validated.

        Raises:
            TapeError: ``unsupported``, ``damaged``, ``invalid`` or ``limit``.
        """
        begin = self.places[at] & _BEGIN_MASK
        end = self.places[at + 1] & _BEGIN_MASK if at + 1 < len(self.places) else self.size
        document = unpack(self.documents()[begin:end])
        if not is_map(document):
            raise TapeError("invalid", "a record is not a map")
        if "requires" in document:
            expect_known(document, "the record of a call")
        document["time_ns"] = self.times[at]
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
        record = decode_call(document)
        tree = record.inputs
        flags = (
            (RAISED if record.error is not None else 0)
            | (HAS_RANGES if tree.ranges else 0)
            | (HAS_BLOB if record.blob is not None else 0)
        )
        if key is None:
            key = signature_of(tree.structure, tree.leaves, pack(tree.scalars), self._digests)
        begin = at * CALL_BYTES + _SIGNATURE
        stated = int.from_bytes(self._table[begin : begin + 16], "little")
        if (key, flags) != (stated, self.places[at] >> 32 & _KNOWN_FLAGS):
            raise TapeError("invalid", "a record is not as the table of its group says")
        if record.at and len(record.elsewhere) != len(record.at):
            raise TapeError("invalid", "an earlier call has the bytes of a key twice")
        return record

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

    def _share(self, document: dict[str, Any], side: str) -> int | None:
        """Puts the tree that calls which are alike share into a document, if it has no scalars.
        Gives the signature of inputs that are so."""
        tree = document.get(side)
        if tree is None or len(tree) > len(_TREE):
            return None
        key = tree["structure"], tree["leaves"]
        found: tuple[Tree, int] | None = _trees.get(key)
        if found is None:
            found = Tree(**tree), signature_of(*key, _NO_SCALARS, self._digests)
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
                raise TapeError("invalid", f"the {name} of a tree are not part of the group")
            found[name] = parts[at]
        return found

    def _shared(self) -> tuple[bytes, ...]:
        if self._parts is None:
            # A view: the shared parts may be 64 MiB, and they are copied once when they are parted.
            found = unpack(memoryview(self.documents())[: self.places[0] & _BEGIN_MASK])
            if not is_array(found) or any(type(part) is not bytes for part in found):
                raise TapeError("invalid", "the shared parts of a group are not an array of bytes")
            self._parts = found
        return self._parts


class Opened(NamedTuple):
    """A group whose checksums hold.

    Attributes:
        tape: the id of the tape that it belongs to.
        table: of its calls, of entries that this reader knows.
        documents: its records.
        stored: how many bytes both have as they stand in the file.
    """

    tape: bytes
    table: bytes
    documents: Section
    stored: int


def opened(content: bytes, offset: int, tape: bytes | None = None) -> Opened:
    """The parts of a group, from its content. Its documents are not inflated.

    Args:
        content: of the member.
        offset: of its header.
        tape: the id of the tape that it has to belong to; None for any.

    Raises:
        TapeError: ``damaged``, ``invalid``, ``limit`` or ``unsupported``.
    """
    found = unpack(content, MAX_MEMBER_BYTES)
    if not is_array(found) or len(found) < _PARTS:
        raise TapeError("damaged", _NO_GROUP)
    tape_id, place, width, table, documents = found[:_PARTS]
    is_form = type(tape_id) is type(place) is bytes and len(place) == _OFFSET.size
    if not is_form or type(width) is not int:
        raise TapeError("damaged", _NO_GROUP)
    (stated,) = _OFFSET.unpack(place)
    if tape not in (None, tape_id):
        raise TapeError("damaged", "a group belongs to another tape")
    if stated != offset:
        reason = f"a group of byte {stated} is here: a copy of it, or bytes within a tensor"
        raise TapeError("damaged", reason)
    table = section_of(table, "the table of a group")
    documents = section_of(documents, "the records of a group")
    if not CALL_BYTES <= width <= MAX_WIDTH:
        raise TapeError("invalid", f"the entries of a table have {width} bytes")
    allowed = min(most(MAX_GROUP_CALLS) * width, most(MAX_TABLE_INFLATION) * len(table.data))
    entries = table.content(allowed, "the table of a group")
    if not entries or len(entries) % width:
        raise TapeError("invalid", f"the table of a group has {len(entries)} bytes")
    if width > CALL_BYTES:  # a later version has more columns
        starts = range(0, len(entries), width)
        entries = b"".join([entries[at : at + CALL_BYTES] for at in starts])
    return Opened(tape_id, entries, documents, len(table.data) + len(documents.data))


def group_of(content: bytes, offset: int) -> Group:
    """The group in the content of its member, whose header is at this offset. Its documents are
    neither inflated nor decoded.

    Raises:
        TapeError: ``damaged``, ``invalid``, ``limit`` or ``unsupported``.
    """
    found = opened(content, offset)
    columns = columns_of(found.table, found.documents.size, found.stored)
    return Group(found.tape, found.table, columns, found.documents)


def columns_of(table: bytes, size: int, stored: int) -> Columns:
    """The columns of a table, which are sound for documents of so many bytes. In the file, table
    and documents have ``stored`` bytes.

    Raises:
        TapeError: ``damaged``, ``invalid`` or ``limit``.
    """
    words = u64s(table)
    numbers = words[_NUMBERS]
    # Each of several records could ask for all of them.
    if len(numbers) > 1 and size > most(GROUP_BYTES):
        reason = f"a group of several calls has {size} bytes (at most {most(GROUP_BYTES)})"
        raise TapeError("limit", reason)
    begins = u32s(table)[_BEGINS]
    # The highest bytes alone: a walk looks at each.
    are_sound = max(max(table[_NUMBER_TOPS]), max(table[_TIME_TOPS])) < 0x80
    if not all(map(lt, begins, begins[1:])) or begins[-1] >= size or not are_sound:
        raise TapeError("invalid", _CONTRADICTION)
    ascends = all(map(lt, numbers, numbers[1:]))
    if not ascends and len({*numbers}) != len(numbers):
        raise TapeError("damaged", "a call stands twice in a group")
    # To read them all would take far more than their bytes: thousands may share a mebibyte.
    if len(numbers) > 1 and len(numbers) * begins[0] > most(MAX_SHARING) * stored:
        reason = (
            f"{len(numbers)} calls share {begins[0]} bytes in a group of {stored} (together at "
            f"most {most(MAX_SHARING)} times its bytes)"
        )
        raise TapeError("limit", reason)
    return Columns(numbers, words[_TIMES], words[_PLACES], words[_LOWS], words[_HIGHS], ascends)


def only_entry(table: bytes, size: int) -> tuple[int, int, int, int, int]:
    """The columns of the table of a single call, as :func:`columns_of`."""
    found: tuple[int, int, int, int, int] = _WORDS.unpack(table)
    number, time, place, _, _ = found
    if number >= 2**63 or time >= 2**63 or place & _BEGIN_MASK >= size:
        raise TapeError("invalid", _CONTRADICTION)
    return found
