"""Tapes in memory for the tests of the container."""

from __future__ import annotations

import hashlib
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from calltape_schema.blob import Stored, build_header, interleaved
from calltape_schema.end import Coverage
from calltape_schema.errors import TapeError
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import InputsTable, signature_of
from calltape_schema.packing import pack
from calltape_schema.reader import Holder, TapeReader
from calltape_schema.records import CallRecord, Manifest, Producer
from calltape_schema.sections import checksums_of
from calltape_schema.storage import BytesSink, BytesSource
from calltape_schema.tree import Leaf, encode_leaves, encode_structure
from calltape_schema.writer import TapeWriter

TAPE = bytes(range(16))
MANIFEST = Manifest(
    format="calltape", version=1, tape=TAPE, created_ns=1, producer=Producer(calltape="0.1.0")
)
START_NS = 1_700_000_000_000_000_000


def structure(leaves: int, scalars: int = 0, kind: str = "int") -> bytes:
    """Inputs with so many tensors, and so many scalars of a kind."""
    children: list[dict[str, Any]] = [{"kind": "tensor", "leaf": at} for at in range(leaves)]
    children += [{"kind": kind, "scalar": at} for at in range(scalars)]
    given = {"kind": "tuple", "children": children}
    root = [given, {"kind": "dict", "keys": [], "children": []}]
    return encode_structure(
        {"root": {"kind": "tuple", "children": root}, "leaves": leaves, "scalars": scalars}
    )


def new_call(
    number: int, *values: Sequence[float], scalars: Sequence[int] = (), shape: Sequence[int] = (),
    at: Sequence[tuple[Any, ...]] = (), ranges: Iterable[tuple[int, int, int]] = (),
    **record: Any,
) -> NewCall:  # fmt: skip
    """A call with float32 tensors ``x0``, ``x1``, ... of these values; without values it is one
    tensor of this shape whose bytes are not kept."""
    documents: list[dict[str, Any]] = []
    header, data = {}, bytearray()
    elsewhere = {one[0] for one in at}
    for index, elements in enumerate(values):
        key = f"x{index}"
        documents.append({"dtype": "float32", "shape": [len(elements)], "key": key})
        if key not in elsewhere:
            header[key] = Stored("F32", (len(elements),), 4 * len(elements))
            data += struct.pack(f"<{len(elements)}f", *elements)
    if not values:
        documents.append({"dtype": "int64", "shape": list(shape), "missing": "policy"})
    blob = [build_header(header), bytes(data)] if header else []
    tree: dict[str, Any] = {
        "structure": structure(len(documents), len(scalars)), "leaves": encode_leaves(documents)
    }  # fmt: skip
    tree |= {"scalars": list(scalars)} if scalars else {}
    found = [{"leaf": leaf, "min": low, "max": high} for leaf, low, high in ranges]
    tree |= {"ranges": found} if found else {}
    plain = {"time_ns": START_NS + number, "duration_ns": 10, "thread": 7, "inputs": tree}
    plain |= {"at": list(at)} if elsewhere else {}
    packed = pack(list(scalars))
    key = signature_of(tree["structure"], tree["leaves"], packed)
    return NewCall(number, plain | record, key, blob, checksums_of(blob), packed)


def tape(
    *groups: Sequence[NewCall], seals: bool = True, level: int = 1, seen: int | None = None,
    rows: int | None = None,
) -> bytes:  # fmt: skip
    """A tape with these groups, whose table has so many rows at most."""
    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST, level=level)
    writer.table = InputsTable() if rows is None else InputsTable(max_rows=rows)
    for calls in groups:
        writer.append(calls)
    if seals:
        seen = writer.calls if seen is None else seen
        dropped = {"policy": seen - writer.calls} if seen > writer.calls else {}
        writer.seal(Coverage(seen=seen, kept=writer.calls, dropped=dropped), closed_ns=START_NS)
    return bytes(sink.data)


def sharing(leaves: int) -> bytes:
    """A tape of a call with so many tensors that have the same bytes."""
    call = new_call(0, [1.0])
    facts = {"dtype": "float32", "shape": [1], "key": "x0"}
    tree = {"structure": structure(leaves, 0), "leaves": encode_leaves([facts] * leaves)}
    signature = signature_of(tree["structure"], tree["leaves"], pack([]))
    return tape([call._replace(record=call.record | {"inputs": tree}, signature=signature)])


def opened(data: Any) -> TapeReader:
    return TapeReader(BytesSource(data))


def hashed_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets how many bytes are hashed for signatures, each time that a hash is begun."""
    found: list[int] = []

    def begun(data: bytes, **options: int) -> hashlib.blake2b:
        found.append(len(data))
        return hashlib.blake2b(data, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("calltape_schema.inputs_table.blake2b", begun)
    return found


def peak_of(ask: Callable[[], object]) -> int:
    """How many bytes it takes at most."""
    tracemalloc.start()
    try:
        ask()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def raises(error: TapeError) -> None:
    raise error


def blob_of(reader: TapeReader, record: CallRecord | Holder) -> bytes:
    """The blob of a call, after a look at its checksum; empty without one."""
    if record.blob is None:
        return b""
    blob = reader.blob_member(record)
    content = reader.source.read_at(blob.start, blob.size)
    if zlib.crc32(content) != record.blob.checksum:
        reason = f"the tensors of call {record.call} do not match their checksum"
        raise TapeError("damaged", reason)
    return content


def tensor(reader: TapeReader, record: CallRecord, leaf: Leaf) -> bytes:
    """The bytes of a leaf, from a blob whose checksum holds."""
    assert leaf.key is not None
    for holder, _ in reader.holders(record, leaf.key).parts:
        blob_of(reader, holder)
    place = reader.place(record, leaf)
    read = reader.source.read_at  # but for what a compressed blob was inflated to
    parts = [read(*part[:2]) if part[2] is None else part[2] for part in place.parts]
    return bytes(interleaved(parts, place.strips))


def counted(reader: TapeReader, on_damage: Callable[[TapeError], None] = raises) -> InputsTable:
    """The inputs of all calls, counted one by one."""
    table = InputsTable()
    for at in range(len(reader.scan())):
        try:
            record = reader.record_at(at)
        except TapeError as error:
            on_damage(error)
            continue
        tree = record.inputs
        table.add(
            tree.structure, tree.leaves, pack(tree.scalars), record.call,
            raised=record.error is not None,
            ranges=[(one.leaf, one.min, one.max) for one in tree.ranges],
        )  # fmt: skip
    return table


def read_all(data: bytes) -> tuple[list[int], list[str]]:
    """Reads everything that a tape has, as a thorough reader would. Returns the numbers of the
    calls whose records and values are whole, and the kinds of all errors, each once.

    Raises:
        TapeError: it is no tape.
    """
    reader = opened(data)
    scan = reader.scan()
    whole, errors = [], [error.kind for error in scan.damage]
    for at in range(len(scan)):
        try:
            record = reader.record_at(at)
            for leaf in record.inputs.facts():
                if leaf.key is not None:
                    tensor(reader, record, leaf)
            record.inputs.spec()
            whole.append(record.call)
        except TapeError as error:
            errors.append(error.kind)
    broken: list[TapeError] = []
    counted(reader, broken.append)
    try:
        if reader.end is not None:
            reader.end.table()
    except TapeError as error:
        broken.append(error)
    return whole, sorted({*errors, *(error.kind for error in broken)})
