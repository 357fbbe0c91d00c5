"""Tapes of strangers: sizes that lie, bombs, tables and ends that contradict the records."""

from __future__ import annotations

import random
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from calltape_schema.bounds import (
    GROUP_BYTES,
    MAX_GROUP_BYTES,
    MAX_GROUP_CALLS,
    MAX_INFLATION,
    allow,
)
from calltape_schema.end import Coverage, IndexEntry, decode_end, encode_end
from calltape_schema.errors import TapeError
from calltape_schema.groups import NewCall, group_of, member, planned
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.inputs_table import _begun, signature_of
from calltape_schema.packing import pack, unpack
from calltape_schema.recent import Interner
from calltape_schema.records import Manifest
from calltape_schema.sections import STORED, Section
from calltape_schema.storage import BytesSink
from calltape_schema.tar import ZEROS_AT_END, member_header, parse_header
from calltape_schema.tree import encode_leaves
from calltape_schema.writer import TapeWriter
from tests.schema.container.tapes import (
    MANIFEST,
    START_NS,
    TAPE,
    counted,
    new_call,
    opened,
    read_all,
    sharing,
    structure,
    tape,
)
from tests.schema.raising import raises as expected
from tests.sections import deflated, forged, placed, table_entry

HEAD = tape(seals=False)


def with_members(*found: tuple[str, bytes]) -> bytes:
    """A tape with members of any content."""
    data = HEAD
    for name, content in found:
        here = placed(content, len(data)) if name.startswith("records/") else content
        data += b"".join(member(name, [here], len(here)))
    return data


def content_of(*calls: Any, **changes: Any) -> bytes:
    """The content of a group, with other elements."""
    plan = planned(TAPE, calls)
    at = plan.groups[0].at
    data = b"".join(map(bytes, plan.parts))
    header = parse_header(data[at : at + 512], at)
    assert header is not None
    found = list(unpack(data[header.start : header.start + header.size]))
    names = ("tape", "place", "width", "table", "documents")
    size = changes.pop("size", None)  # what compressed documents say that they were
    if size is not None:
        data = changes.get("documents", found[4][3])
        changes["documents"] = forged(data, size)
    for name, value in changes.items():
        is_section = name in ("table", "documents") and isinstance(value, bytes)
        found[names.index(name)] = forged(value, len(value), STORED) if is_section else value
    return pack(found)


def section_in(content: bytes, name: str) -> Section:
    return Section(*unpack(content)[{"table": 3, "documents": 4}[name]])


def entry(call: int = 0, inputs: int = 0, offset: int = 1, flags: int = 0) -> bytes:
    return table_entry(call, inputs, START_NS, offset, flags)


DOCUMENT = new_call(7)
BEGINS = group_of(content_of(DOCUMENT), 0).places[0] & 0xFFFFFFFF
WHOLE = {name: section_in(content_of(DOCUMENT), name) for name in ("table", "documents")}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "damaged"),
        (b"\xc1", "damaged"),
        (pack([1] * 6), "damaged"),
        (pack({"a": 1}), "damaged"),
        (pack("abcdef"), "damaged"),
        (b"\xdd\xff\xff\xff\xff", "damaged"),
        (content_of(DOCUMENT)[:-9], "damaged"),
        (content_of(DOCUMENT, tape=b"0" * 16), "damaged"),
        (content_of(DOCUMENT, table=WHOLE["table"]._replace(crc32=1)), "damaged"),
        (content_of(DOCUMENT, documents=WHOLE["documents"]._replace(crc32=1)), "damaged"),
        (content_of(DOCUMENT, documents=["no", *WHOLE["documents"][1:]]), "damaged"),
        (content_of(DOCUMENT, table="no section"), "damaged"),
        (content_of(DOCUMENT, place=bytes(7)), "damaged"),
        (content_of(DOCUMENT, place=b"\1" + bytes(7)), "damaged"),
        (content_of(DOCUMENT, width=39), "invalid"),
        (content_of(DOCUMENT, width=64), "invalid"),
        (content_of(DOCUMENT, table=WHOLE["table"]._replace(codec=2)), "unsupported"),
        (content_of(DOCUMENT, table=b""), "invalid"),
        (content_of(DOCUMENT, table=bytes(39)), "invalid"),
        (content_of(DOCUMENT, table=entry(2**63)), "invalid"),
        (content_of(DOCUMENT, table=entry(1) + entry(2**63, offset=9)), "invalid"),
        (content_of(DOCUMENT, table=entry(offset=2**31)), "invalid"),
        (content_of(DOCUMENT, table=entry(1, offset=9) + entry(2, offset=9)), "invalid"),
        (content_of(DOCUMENT, table=entry(1, offset=9) + entry(2, offset=8)), "invalid"),
        (content_of(DOCUMENT, table=bytes(40 * (MAX_GROUP_CALLS + 1))), "limit"),
    ],
)
def test_a_group_that_is_none(content: bytes, kind: str) -> None:
    data = with_members(("records/00000007.msgpack", content))
    scan = opened(data).scan()
    assert (len(scan), [error.kind for error in scan.damage]) == (0, [kind])
    assert scan.damage[0].member == "records/00000007.msgpack"
    assert read_all(data)[0] == []


def shared(*parts: Any) -> bytes:
    return pack(list(parts))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"table": entry(7, 1, BEGINS)}, "invalid"),  # another hash
        ({"table": entry(7, DOCUMENT.signature, offset=3)}, "damaged"),  # within the shared parts
        ({"documents": shared(1, 2) + b"\x80", "table": entry(7, offset=3)}, "invalid"),
        ({"documents": b"\x90\x90", "table": entry(7)}, "invalid"),  # no map
        ({"documents": b"\x90\x81\xa1a\x01", "table": entry(7)}, "invalid"),
        ({"documents": b"\x90" + pack({"inputs": {"structure": 0, "leaves": 0}})}, "damaged"),
        ({"documents": bytes(500), "size": 600}, "damaged"),
        ({"documents": bytes(50), "size": -1}, "damaged"),
        ({"documents": WHOLE["documents"]._replace(codec=2)}, "unsupported"),
        ({"documents": WHOLE["documents"]._replace(size=1)}, "invalid"),
        ({"documents": bytes(50), "size": 2**63}, "limit"),
        ({"documents": zlib.compress(bytes(10**6)), "size": 10**6}, "limit"),  # a bomb
        ({"documents": zlib.compress(bytes(600)), "size": 599}, "damaged"),
        ({"documents": zlib.compress(bytes(600)), "size": 601}, "damaged"),
        ({"documents": zlib.compress(bytes(600)) + b"x", "size": 600}, "damaged"),
    ],
)
def test_a_record_that_is_none(changes: dict[str, Any], kind: str) -> None:
    """Its call is found by the table, and costs an error when it is asked for."""
    data = with_members(("records/00000007.msgpack", content_of(DOCUMENT, **changes)))
    reader = opened(data)
    if not len(reader.scan()):
        assert reader.scan().damage[0].kind in ("invalid", kind)
        return
    with pytest.raises(TapeError) as raised:
        reader.record(7)
    assert raised.value.kind == kind
    assert (len(reader.scan()), reader.scan().damage) == (1, [])


@pytest.mark.parametrize("flags", [1, 2, 4])
def test_flags_that_lie(flags: int) -> None:
    table = entry(7, DOCUMENT.signature, BEGINS, flags)
    data = with_members(("records/00000007.msgpack", content_of(DOCUMENT, table=table)))
    with pytest.raises(TapeError, match="not as the table"):
        opened(data).record(7)


def test_a_hash_that_lies_about_a_known_tree() -> None:
    """The record is whole elsewhere, and its tree is remembered."""
    good = with_members(("records/00000007.msgpack", content_of(DOCUMENT)))
    assert opened(good).record(7) == opened(good).record(7)
    table = entry(7, DOCUMENT.signature ^ 1, BEGINS, 0)
    data = with_members(("records/00000007.msgpack", content_of(DOCUMENT, table=table)))
    with pytest.raises(TapeError, match="not as the table"):
        opened(data).record(7)


def several(count: int, structure: bytes) -> bytes:
    """A tape of one group whose calls share a structure, and have other scalars each."""
    leaves, calls = encode_leaves([]), []
    for number in range(count):
        packed = pack([number])
        tree = {"structure": structure, "leaves": leaves, "scalars": [number]}
        key = signature_of(structure, leaves, packed)
        calls.append(NewCall(number, {"time_ns": 0, "inputs": tree}, key, (), 0, packed))
    return tape(calls)


def test_a_structure_of_many_calls_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """334 KiB would have taken half an hour: 65,536 calls of a structure of 30 MiB."""
    hashed: list[int] = []

    def begun(structure: bytes, leaves: int) -> Any:
        hashed.append(len(structure))
        return _begun(structure, leaves)

    structure = pack({"leaves": 0, "scalars": 1, "pad": bytes(20_000)})
    reader = opened(several(500, structure))
    monkeypatch.setattr("calltape_schema.inputs_table._begun", begun)
    reader.scan()
    assert [reader.record_at(at).call for at in range(500)] == list(range(500))
    # Of the table for its rows, and of the records: not of each call.
    assert hashed == [len(structure)] * 2


def test_a_structure_of_many_calls_is_refused_once() -> None:
    decoded: list[bytes] = []

    def refuse(data: bytes) -> None:
        decoded.append(data)
        raise TapeError("invalid", "it is none")

    decode = Interner(refuse)
    errors = []
    for number in range(3):
        with pytest.raises(TapeError, match="it is none") as raised:
            decode(b"x")
        errors.append(raised.value.at(offset=number).offset)
    assert (decoded, errors) == ([b"x"], [0, 1, 2])  # each has its own place


def test_several_calls_share_a_mebibyte_at_most() -> None:
    table = entry(1) + entry(2, offset=9)
    assert len(group_of(content_of(DOCUMENT, size=GROUP_BYTES, table=table), 0)) == 2
    with pytest.raises(TapeError) as raised:
        group_of(content_of(DOCUMENT, size=GROUP_BYTES + 1, table=table), 0)
    assert raised.value.kind == "limit"


def test_a_range_without_an_element() -> None:
    """It would go into the table of a tape that is made of this one, which nobody reads then."""
    reader = opened(tape([new_call(0, shape=(2,), ranges=[(0, 5, 4)])], seals=False))
    with pytest.raises(TapeError, match="breaks the format"):
        reader.record(0)
    broken: list[TapeError] = []
    assert counted(reader, broken.append).totals().kept == 0
    assert [error.kind for error in broken] == ["invalid"]


@pytest.mark.parametrize("bit", range(3, 32))
def test_flags_of_a_later_version(bit: int) -> None:
    table = entry(7, DOCUMENT.signature, BEGINS, 1 << bit)
    data = with_members(("records/00000007.msgpack", content_of(DOCUMENT, table=table)))
    assert read_all(data) == (([7], []) if bit < 16 else ([], ["unsupported"]))


def test_many_bombs_take_little() -> None:
    size = MAX_GROUP_BYTES
    bomb = zlib.compress(bytes(size), 9)
    assert len(bomb) * MAX_INFLATION < size
    bombs = [
        (
            f"records/{n:08d}.msgpack",
            content_of(DOCUMENT, documents=bomb, size=size, table=entry(n)),
        )
        for n in range(20)
    ]
    data = with_members(*bombs)
    tracemalloc.start()
    whole, errors = read_all(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert whole == []
    assert set(errors) == {"limit"}
    assert peak < 16 * 1024 * 1024


@pytest.mark.integration
def test_groups_that_are_as_large_as_they_may_be() -> None:
    """A reader holds one of them, and not the last eight."""
    size = 40 * 1024 * 1024
    documents = random.Random(0).randbytes(size // 120) + bytes(size - size // 120)
    packed = zlib.compress(documents)
    assert 100 < size / len(packed) < MAX_INFLATION
    contents = [
        content_of(DOCUMENT, documents=packed, size=size, table=entry(number))
        for number in range(10)
    ]
    data = with_members(*((f"records/{n:08d}.msgpack", one) for n, one in enumerate(contents)))
    reader = opened(data)
    tracemalloc.start()
    for at in range(10):
        with pytest.raises(TapeError):
            reader.record_at(at)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * size


@pytest.mark.parametrize("size", [2**26 + 2**17, 2**40, 2**62])
def test_sizes_of_members_that_are_not_there(size: int) -> None:
    data = HEAD + member_header("records/00000000.msgpack", size)
    scan = opened(data).scan()
    assert (len(scan), scan.unfinished, scan.damage) == (0, 512, [])
    plan = planned(TAPE, [new_call(1)])
    plan.groups[0].place(len(data))
    scan = opened(data + b"".join(map(bytes, plan.parts))).scan()
    assert (list(scan.numbers), [error.kind for error in scan.damage]) == ([1], ["damaged"])


class Holes:
    """A source with a terabyte of zeros that nobody stored."""

    size = 2**40

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.fetched = 0

    def read_at(self, offset: int, size: int) -> bytes:
        assert size <= 2**27
        found = self._data[offset : offset + size]
        self.fetched += size
        return found + bytes(min(size, self.size - offset) - len(found))

    def next_data(self, offset: int) -> int:
        return offset if offset < len(self._data) else self.size


@pytest.mark.parametrize(
    "data",
    [
        HEAD,
        HEAD + member_header("records/00000000.msgpack", 2**39),
        HEAD + member_header("blobs/00000000.safetensors", 2**39),
        HEAD + bytes(511) + b"x",
    ],
)
def test_a_terabyte_of_holes(data: bytes) -> None:
    from calltape_schema.reader import TapeReader

    source = Holes(data)
    scan = TapeReader(source).scan()
    assert len(scan) == 0
    assert source.fetched < 2**24


def test_a_manifest_that_is_too_large_or_none() -> None:
    for data, kind in (
        (member_header("tape.msgpack", 2**40), "limit"),
        (member_header("tape.msgpack", 2**20), "damaged"),
        (member_header("other", 5) + bytes(512), "not_a_tape"),
        (b"".join(member("tape.msgpack", [b"abc"], 3)), "damaged"),
        *((HEAD[:at] + b"?" + HEAD[at + 1 :], "damaged") for at in (0, 11, 100, 130, 150, 260)),
        (bytes(512) + HEAD[512:], "damaged"),
        (b"?" * 512, "not_a_tape"),
    ):
        with pytest.raises(TapeError) as raised:
            opened(data)
        assert raised.value.kind == kind


def ended(**facts: Any) -> bytes:
    """A tape of two groups whose end has other facts."""
    data = tape([new_call(0, [1])], [new_call(1), new_call(2)])
    at = data.index(b"end.msgpack")
    header = parse_header(data[at : at + 512], at)
    assert header is not None
    end = decode_end(data[header.start : header.start + header.size])
    content = encode_end(end.model_copy(update=facts), at)
    return data[:at] + b"".join(member("end.msgpack", [content], len(content))) + ZEROS_AT_END


def offsets() -> list[int]:
    return list(opened(ended()).scan().offsets)


INDEX = [
    IndexEntry(offsets()[0], 1, 0, 0, START_NS, START_NS),
    IndexEntry(offsets()[1], 2, 1, 2, START_NS + 1, START_NS + 2),
]


def index(*entries: IndexEntry) -> Any:
    return deflated(b"".join(one.pack() for one in entries))


@pytest.mark.parametrize(
    ("facts", "whole", "damage"),
    [
        ({}, [0, 1, 2], None),
        ({"index": index(*INDEX)}, [0, 1, 2], None),
        ({"index": index(INDEX[0], INDEX[1]._replace(offset=2**40))}, [0], "are lost"),
        ({"index": index(INDEX[0], INDEX[1]._replace(offset=512))}, [0, 1, 2], "cannot be"),
        ({"index": index(INDEX[0], INDEX[1]._replace(high=5))}, [0, 1, 2], "2 of the calls 1 to 5"),
        ({"index": index(INDEX[0], INDEX[1]._replace(calls=1))}, [0, 1, 2], "does not have"),
        ({"index": index(INDEX[0], INDEX[1]._replace(calls=0))}, [0, 1, 2], "cannot be"),
        ({"index": index(INDEX[0], INDEX[1]._replace(low=3))}, [0, 1, 2], "cannot be"),
        ({"index": index(INDEX[0], INDEX[1]._replace(first_ns=0))}, [0, 1, 2], "are here"),
        ({"index": index(INDEX[0], INDEX[1]._replace(last_ns=0))}, [0, 1, 2], "cannot be"),
        ({"index": deflated(bytes(47))}, [0, 1, 2], "47 bytes"),
        ({"index": deflated(bytes(96))._replace(size=2**40)}, [0, 1, 2], "at most"),
        ({"index": deflated(bytes(96))._replace(codec=7)}, [0, 1, 2], "codec 7"),
        ({"index_width": 96}, [0, 1, 2], "does not have the 3 calls"),
        ({"manifest": b"another"}, [0, 1, 2], "repeats another manifest"),
        ({"coverage": Coverage(seen=9, kept=3)}, [0, 1, 2], "accounts for 3"),
        ({"coverage": Coverage(seen=4, kept=4)}, [0, 1, 2], "does not have the 4 calls"),
        ({"first_call": None}, [0, 1, 2], "cannot be read"),
        ({"first_call": 1}, [0, 1, 2], "other first or last calls"),
        ({"last_call": 7}, [0, 1, 2], "other first or last calls"),
        ({"raised": 2}, [0, 1, 2], "how many raised"),
    ],
)
def test_an_end_that_contradicts_the_records(
    facts: dict[str, Any], whole: list[int], damage: str | None
) -> None:
    data = ended(**facts)
    found = [str(error) for error in opened(data).scan().damage]
    assert read_all(data)[0] == whole
    assert found == [] if damage is None else any(damage in text for text in found), found


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        (deflated(b"\xc1"), "damaged"),
        (deflated(pack({})), "invalid"),  # it counts no call
        (deflated(b"")._replace(size=2**40), "limit"),
        (deflated(bytes(2**20))._replace(size=5), "damaged"),
    ],
)
def test_a_table_that_is_none(inputs: Any, kind: str) -> None:
    reader = opened(ended(inputs=inputs))
    assert reader.end is not None
    with pytest.raises(TapeError) as raised:
        reader.end.table()
    assert raised.value.kind == kind
    assert counted(reader).totals().kept == 3  # the records tell


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + bytes(512),
        lambda data: data[:-1] + b"x",
        lambda data: data.replace(b"calltape\0", b"calltapX\0"),
        lambda data: data.replace(b"end.msgpack", b"eNd.msgpack"),
    ],
)
def test_an_end_that_is_not_at_the_end(change: Callable[[bytes], bytes]) -> None:
    """It is not believed without a walk; the calls are found all the same."""
    data = change(ended())
    reader = opened(data)
    assert reader.end is None
    assert any(
        "bytes were added" in str(one) or "cannot be read" in str(one) or "no member" in str(one)
        for one in reader.scan().damage
    )  # it is told
    assert read_all(data)[0] == [0, 1, 2]


def test_the_end_of_another_tape() -> None:
    sink = BytesSink()
    TapeWriter(sink, Manifest(**{**dict(MANIFEST), "tape": b"x" * 16})).seal(Coverage())
    end = opened(sink.data).end
    assert end is not None
    content = encode_end(end, len(HEAD))
    data = HEAD + b"".join(member("end.msgpack", [content], len(content))) + ZEROS_AT_END
    reader = opened(data)
    assert reader.end is None
    assert [error.member for error in reader.scan().damage] == ["end.msgpack"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda row: setattr(row, "first", 0), "as the first and the last"),
        (lambda row: setattr(row, "last", 2**63 - 1), "as the first and the last"),
        (lambda row: setattr(row, "example", 5), "another call as the first"),
        (lambda row: setattr(row, "raised", 1), "other calls raised"),
        (lambda row: setattr(row, "seen", 4), "3 kept calls of 4"),
    ],
)
def test_a_row_that_names_other_calls(change: Callable[[Any], None], told: str) -> None:
    data = tape([new_call(number) for number in (3, 5, 8)])
    end = opened(data).end
    table = None if end is None else end.table()
    assert end is not None
    assert table is not None
    [row] = table.rows.values()
    change(row)
    at = data.index(b"end.msgpack")
    made = end.model_copy(update={"inputs": deflated(pack_inputs(table))})
    content = encode_end(made, at)
    lying = data[:at] + b"".join(member("end.msgpack", [content], len(content))) + ZEROS_AT_END
    scan = opened(lying).scan()
    assert [told in str(error) for error in scan.damage] == [True], scan.damage
    assert scan.table is None


def test_unknown_members_and_fields_are_skipped() -> None:
    call = new_call(0, [1], future={"more": [1, 2]})
    plan = planned(TAPE, [call])
    unknown = (*member("records/0.msgpack", [b"x"], 1), *member("future", [b"xyz"], 3))
    data = HEAD + b"".join(unknown)
    plan.groups[0].place(len(data))
    data += b"".join(plan.parts)
    assert read_all(data) == ([0], [])


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({}, None),
        ({"back": 0}, "damaged"),
        ({"back": 512}, "damaged"),
        ({"back": 2**62}, "damaged"),
        ({"back": -1}, "invalid"),
        ({"size": 139}, "damaged"),
        ({"size": 2**62}, "damaged"),
        ({"checksum": 0}, "damaged"),
        ({"checksum": 2**32}, "invalid"),
        ({"size": True}, "invalid"),
    ],
)
def test_a_blob_that_is_somewhere_else(changes: dict[str, Any], kind: str | None) -> None:
    """What a record says of its blob is compared with what is there."""
    call = new_call(7, [1, 2])
    content = b"".join(call.blob)
    told = {"back": 1024, "size": len(content), "checksum": call.checksums.whole} | changes
    bare = call._replace(blob=[], record={**call.record, "blob": told})
    begins = group_of(content_of(bare), 0).places[0] & 0xFFFFFFFF
    group = content_of(bare, table=entry(7, call.signature, begins, 4))
    data = with_members(
        ("blobs/00000007.safetensors", content), ("records/00000007.msgpack", group)
    )
    whole, errors = read_all(data)
    assert (whole, errors) == (([7], []) if kind is None else ([], [kind]))


def test_a_table_that_lies() -> None:
    """The table of the end is compared with the calls that a walk finds, and the calls count."""
    calls = [new_call(number, shape=(number,)) for number in range(3)]
    other = opened(tape([*calls[:2], calls[1]._replace(number=2)])).end
    assert other is not None
    data = tape(calls)
    end = opened(data).end
    assert end is not None
    at = data.index(b"end.msgpack")
    content = encode_end(end.model_copy(update={"inputs": other.inputs}), at)
    lying = data[:at] + b"".join(member("end.msgpack", [content], len(content))) + ZEROS_AT_END
    reader = opened(lying)
    assert reader.end is not None
    assert ["table of inputs" in str(one) for one in reader.scan().damage] == [True]
    assert [row.seen for row in counted(reader).rows.values()] == [1, 1, 1]
    assert opened(data).scan().damage == []


def test_leaves_that_share_bytes() -> None:
    """1,024 for a stranger, and more for whoever allows more."""
    assert opened(sharing(1024)).record(0).inputs.spec().leaves == 1024
    tree = opened(sharing(1025)).record(0).inputs
    with expected("limit", "more than 1024 leaves"):
        tree.spec()
    allow(2)
    try:
        assert tree.spec().leaves == 1025
    finally:
        allow(1)
    with expected("limit", "more than 1024 leaves"):  # it fitted, under other limits
        tree.spec()


def test_calls_that_share_much() -> None:
    """278 KB took 38 s: 10,000 calls of a structure of 10,000 tensors. A writer parts such a
    group."""
    many = structure(5000, 0)
    parts = [b"", many, encode_leaves([{"dtype": "int8", "shape": [], "missing": "policy"}] * 5000)]
    table, documents = b"", pack(parts)
    begin = len(documents)
    record = pack({"inputs": {"structure": 1, "leaves": 2}})
    for number in range(2000):
        table += table_entry(number, 0, 0, begin + number * len(record), 0)
    documents += record * 2000
    stored = [len(table) // 2000, Section.of(table), Section.of(documents, 9)]
    content = pack([bytes(16), bytes(8), *stored])
    with expected("limit", "2000 calls share"):
        group_of(content, 0)
    tree = {"structure": many, "leaves": parts[2]}
    call = new_call(0)._replace(record={"time_ns": 0, "inputs": tree})
    append = planned(bytes(16), [call._replace(number=number) for number in range(2000)])
    assert len(append.groups) > 1
    assert [n for group in append.groups for n in group.numbers] == list(range(2000))
