"""The few fields of a call record that a walk over a tape needs, without making a model.

In come the bytes of a record. Out go the tape id, the call's number, the size of its blob, the
inputs, and the ranges of their integer leaves. The whole record must be valid, because one that
breaks the format is no call. Parts that are equal in many records are checked once. A record in the
form that a recorder writes is checked field by field here. Every other record goes to
:func:`calltape_schema.records.decode_call`, so that no record is accepted here that it would
refuse, and all errors come from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

from msgpack import unpackb

from calltape_schema.checksum import crc32
from calltape_schema.interning import MAX_NODES
from calltape_schema.packing import seal_envelope, unpack_plain
from calltape_schema.records import decode_call

__all__ = ["RangesBytes", "Skimmed", "Skimmer", "TreeBytes", "ranges_of"]

T = TypeVar("T")

TreeBytes: TypeAlias = tuple[bytes, bytes, tuple[Any, ...]]
"""``structure``, ``leaves`` and ``scalars`` of a tree, the first two still encoded."""

RangesBytes: TypeAlias = bytes | tuple[Any, ...]
"""The ``ranges`` of a tree, encoded or unpacked; :func:`ranges_of` tells them."""

Skimmed: TypeAlias = tuple[bytes, int, int | None, T, RangesBytes]
"""``tape``, ``call`` and ``blob.size`` of a record, what was made of its inputs, and the ranges of
these."""

# The facts of a record: tape, call, blob.size, whether there is an error, the parts of the inputs
# and their ranges. Plain tuples, because named tuples would take a tenth of the time.
_Facts: TypeAlias = tuple[bytes, int, int | None, bool, TreeBytes, RangesBytes]

_Body: TypeAlias = bytes | tuple[bytes, ...]

# A record is a head, a body and a blob. The numbers in head and blob differ from call to call; many
# calls have equal bodies. These patterns match whole fields with values that are in range.
_UP_TO_63_BITS = rb"[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf[\x00-\x7f].{7}"
_UP_TO_64_BITS = rb"[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}|\xcf.{8}"
_UP_TO_32_BITS = rb"[\x00-\x7f]|\xcc.|\xcd..|\xce.{4}"
_HEAD_FIELDS = 5
_match_head = re.compile(
    rb"[\x80-\x8f]\xa4tape\xc4\x10(.{16})\xa4call(%b)\xa7time_ns(?:%b)\xa6thread(?:%b)"
    rb"\xabduration_ns(?:%b)" % (_UP_TO_63_BITS, _UP_TO_63_BITS, _UP_TO_64_BITS, _UP_TO_63_BITS),
    re.DOTALL,
).match
_BLOB = b"\xa4blob\x82\xa4size"
_match_blob = re.compile(
    _BLOB + rb"(%b)\xa5crc32(?:%b)\Z" % (_UP_TO_63_BITS, _UP_TO_32_BITS), re.DOTALL
).match
_RANGES = b"\xa6ranges"
_RANGE = rb"\x83\xa4leaf(?:[\x00-\x7f]|\xcc.|\xcd[\x00-\xc2].)\xa3min(?:%b)\xa3max(?:%b)" % (
    (rb"[\x00-\x7f\xe0-\xff]|[\xcc\xd0].|[\xcd\xd1]..|[\xce\xd2].{4}|[\xcf\xd3].{8}",) * 2
)
_match_ranges = re.compile(
    b"|".join(b"%b(?:%b){%d}" % (bytes([0x90 + n]), _RANGE, n) for n in range(1, 5)), re.DOTALL
).match
_NO_RANGES = _RANGES + b"\x90"
_NIL = b"\xc0"
_BODY_NAMES = frozenset(("outputs_missing", "inputs", "outputs"))
_MAX_BODY_BYTES = 4 * 1024 * 1024
_BODY_COST = 1024

_MAX_COUNT = 2**63 - 1
_MAX_CRC32 = 2**32 - 1
_MAX_SHORT = 1024
_SCALAR_TYPES = frozenset((int, float, str, bytes))


class Skimmer(Generic[T]):
    """Reads the needed fields of the records of one tape, and remembers the bodies that many of
    them share.

    Args:
        reduce: makes from a record's inputs, and from whether it has an ``error``, what is to be
            kept. It is called once for records with equal bodies.
    """

    def __init__(self, reduce: Callable[[TreeBytes, bool], T]) -> None:
        self._reduce = reduce
        self._bodies: dict[_Body, tuple[int, T, RangesBytes | None]] = {}
        self._room = _MAX_BODY_BYTES
        self._ranged = False

    def __call__(self, data: bytes) -> Skimmed[T]:
        """The needed fields of one call's record, and what ``reduce`` made of its inputs.

        Raises:
            TapeError: as :func:`calltape_schema.records.decode_call`.
        """
        envelope = unpack_plain(data)
        if type(envelope) is not tuple or len(envelope) != 2:
            return self._thorough(data)
        checksum, payload = envelope
        if type(checksum) is not int or type(payload) is not bytes or crc32(payload) != checksum:
            return self._thorough(data)
        return self._skimmed(payload) or self._thorough(data)

    def payload(self, payload: bytes) -> Skimmed[T]:
        """As :meth:`__call__`, of the payload of a record whose checksum was compared."""
        return self._skimmed(payload) or self._thorough(seal_envelope(payload))

    def _skimmed(self, payload: bytes) -> Skimmed[T] | None:
        """None for a record in another form, which may be valid too."""
        head = _match_head(payload)
        if head is None:
            facts = _by_hand(payload)
            return None if facts is None else self._reduced(facts)
        start, end = head.end(), payload.rfind(_BLOB)
        blob = _match_blob(payload, end) if end >= start else None
        if blob is None:
            body, size_, fields = payload[start:], _NIL, payload[0] - 0x80 - _HEAD_FIELDS
        else:
            body, size_, fields = payload[start:end], blob[1], payload[0] - 0x81 - _HEAD_FIELDS
        key, first = _without_ranges(body) if self._ranged else (body, b"")
        known = self._bodies.get(key)
        if known is not None and known[0] == fields:
            call, size = unpackb(b"\x92" + head[2] + size_)  # two numbers, as the patterns have it
            ranges = first if known[2] is None else known[2]
            return head[1], call, size, known[1], ranges
        found = _by_hand(payload)
        if found is None:
            return None
        reduced = self._reduced(found)
        # Searching for ranges takes time, and most tapes have them in all records or in none.
        self._ranged = self._ranged or _RANGES in body
        self._remember(key, fields, body, reduced)
        return reduced

    def _thorough(self, data: bytes) -> Skimmed[T]:
        return self._reduced(_thoroughly(data))

    def _reduced(self, found: _Facts) -> Skimmed[T]:
        tape, call, size, raised, tree, ranges = found
        return tape, call, size, self._reduce(tree, raised), ranges

    def _remember(
        self, key: _Body, fields: int, body: bytes,
        reduced: Skimmed[T],
    ) -> None:  # fmt: skip
        """Remembers the body of a valid record. Another record with this body is valid too,
        whatever its numbers are, because no field of a record is valid only because of another
        field.

        This is true if the body, and each part of it between ranges, ends where a field ends. Bytes
        that look like a blob or like ranges may be inside something else. So the body must decode
        by itself, and without its ranges to the same; and it must not hold a blob in another form.
        """
        cost = len(body) + _BODY_COST
        if cost > self._room:
            return
        count = bytes([0x80 + fields])
        bare = key if isinstance(key, bytes) else _NO_RANGES.join(key)
        trees = _trees_of(unpack_plain(count + bare))
        if trees is not None and trees == _trees_of(unpack_plain(count + body)):
            *_, made, ranges = reduced
            # Inputs come before outputs. So if the inputs have ranges, the first ones are theirs.
            differ = bool(ranges) and not isinstance(key, bytes)
            self._bodies[key] = (fields, made, None if differ else ranges)
            self._room -= cost


def ranges_of(ranges: RangesBytes) -> list[tuple[int, int, int]]:
    """Leaf, smallest and largest element of each range."""
    pairs = unpack_plain(ranges) if isinstance(ranges, bytes) else ranges
    return [(leaf, low, high) for (_, leaf), (_, low), (_, high) in pairs]


def _without_ranges(body: bytes) -> tuple[_Body, bytes]:
    """The parts of a body between its ranges, because ranges differ from call to call too, and the
    first of the ranges. The whole body if a range is not in the common form."""
    begin, *others = body.split(_RANGES)
    parts, first = [begin], b""
    for part in others:
        ranges = _match_ranges(part)
        if ranges is None:
            return body, b""
        first = first or ranges[0]
        parts.append(part[ranges.end() :])
    return tuple(parts), first


def _trees_of(pairs: Any) -> list[Any] | None:
    """The fields of a body, without the ranges in them."""
    if type(pairs) is not list or not all(name in _BODY_NAMES for name, _ in pairs):
        return None
    return [
        [part for part in value if part[0] != "ranges"] if type(value) is list else value
        for _, value in pairs
    ]


def _thoroughly(data: bytes) -> _Facts:
    record = decode_call(data)
    tree = (record.inputs.structure, record.inputs.leaves, record.inputs.scalars)
    size = None if record.blob is None else record.blob.size
    ranges = tuple(
        [("leaf", one.leaf), ("min", one.min), ("max", one.max)] for one in record.inputs.ranges
    )
    return record.tape, record.call, size, record.error is not None, tree, ranges


def _by_hand(payload: bytes) -> _Facts | None:
    """The facts of a record in the common form. None for another form, which may be valid too."""
    pairs = unpack_plain(payload)
    # A map comes as a list of pairs. Names are compared in the order in which a recorder writes
    # them, so that no name can stand there twice.
    if type(pairs) is not list or len(pairs) < 6:
        return None
    size = None
    # From the end, because there fields may be absent.
    name, value = pairs.pop()
    if name == "blob":
        size = _blob_size(value)
        if size is None:
            return None
        name, value = pairs.pop()
    if name == "outputs":
        if _tree(value) is None:
            return None
        name, value = pairs.pop()
    inputs = _tree(value)
    if name != "inputs" or inputs is None:
        return None
    tree, ranges = inputs
    if len(pairs) == 6:
        name, value = pairs.pop()
        if name != "outputs_missing" or type(value) is not str or len(value) > _MAX_SHORT:
            return None
    if len(pairs) != 5:
        return None
    (name, tape), (call_, call), (time_, time), (thread_, thread), (duration_, duration) = pairs
    if (
        name == "tape" and call_ == "call" and time_ == "time_ns"
        and thread_ == "thread" and duration_ == "duration_ns"
        and type(tape) is bytes and len(tape) == 16
        and type(call) is type(time) is type(thread) is type(duration) is int
        and 0 <= call <= _MAX_COUNT and 0 <= time <= _MAX_COUNT and 0 <= duration <= _MAX_COUNT
        # A thread is at most 2**64 - 1, as is every int of msgpack without an extension type.
        and thread >= 0
    ):  # fmt: skip
        return tape, call, size, False, tree, ranges
    return None


def _blob_size(pairs: Any) -> int | None:
    if type(pairs) is list and len(pairs) == 2:
        (size_, size), (crc32_, crc32) = pairs
        if (
            size_ == "size" and crc32_ == "crc32" and type(size) is type(crc32) is int
            and 0 <= size <= _MAX_COUNT and 0 <= crc32 <= _MAX_CRC32
        ):  # fmt: skip
            return size
    return None


def _tree(pairs: Any) -> tuple[TreeBytes, RangesBytes] | None:
    if type(pairs) is not list or len(pairs) < 2:
        return None
    scalars: Any = ()
    ranges: Any = ()
    if len(pairs) > 2:
        name, value = pairs.pop()
        if name == "ranges":
            if not _are_ranges(value):
                return None
            ranges = value
            name, value = pairs.pop() if len(pairs) > 2 else ("scalars", ())
        if name != "scalars" or not _are_plain(value) or len(pairs) > 2:
            return None
        scalars = value
    (structure_, structure), (leaves_, leaves) = pairs
    if (
        structure_ == "structure" and leaves_ == "leaves"
        and type(structure) is type(leaves) is bytes
    ):  # fmt: skip
        return (structure, leaves, scalars), ranges
    return None


def _are_plain(scalars: Any) -> bool:
    """Whether all scalars are of the common types: complex numbers and large ints are not."""
    return (
        type(scalars) is tuple
        and len(scalars) <= MAX_NODES
        and _SCALAR_TYPES.issuperset(map(type, scalars))
    )


def _are_ranges(ranges: Any) -> bool:
    if type(ranges) is not tuple or len(ranges) > MAX_NODES:
        return False
    for pairs in ranges:
        if type(pairs) is not list or len(pairs) != 3:
            return False
        (leaf_, leaf), (min_, low), (max_, high) = pairs
        if not (
            leaf_ == "leaf" and min_ == "min" and max_ == "max"
            and type(leaf) is type(low) is type(high) is int and 0 <= leaf < MAX_NODES
        ):  # fmt: skip
            return False
    return True
