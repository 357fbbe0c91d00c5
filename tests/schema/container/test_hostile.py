"""What tapes of strangers cost: bombs, terabytes of holes, what many calls share. What breaks a
rule of the format is in ``fixtures/hostile/``."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import Any

import pytest

from calltape_schema.bounds import MAX_GROUP_BYTES, MAX_INFLATION
from calltape_schema.errors import TapeError
from calltape_schema.groups import NewCall, member, planned
from calltape_schema.inputs_table import signature_of
from calltape_schema.packing import pack
from calltape_schema.reader import TapeReader
from calltape_schema.sections import Section
from calltape_schema.tar import group_name, member_header
from calltape_schema.tree import encode_leaves
from tests.forging.sections import forged, placed, table_entry
from tests.schema.container.tapes import (
    START_NS,
    TAPE,
    hashed_bytes,
    new_call,
    opened,
    peak_of,
    read_all,
    structure,
    tape,
)

HEAD = tape(seals=False)


def group_with(number: int, documents: bytes, size: int) -> bytes:
    """The content of a group of one call whose documents say that they inflate to this size."""
    table = Section.of(table_entry(number, 0, START_NS, 1, 0))
    return pack([TAPE, bytes(8), 40, table, forged(documents, size)])


def with_groups(contents: Sequence[bytes]) -> bytes:
    """A tape with these groups."""
    data = HEAD
    for number, content in enumerate(contents):
        here = placed(content, len(data))
        data += b"".join(member(group_name(number), [here], len(here)))
    return data


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
    hashed = hashed_bytes(monkeypatch)
    structure = pack({"leaves": 0, "scalars": 1, "pad": bytes(20_000)})
    reader = opened(several(500, structure))
    hashed.clear()
    reader.scan()
    assert [reader.record_at(at).call for at in range(500)] == list(range(500))
    # Of the table for its rows, and of the records: not of each call.
    assert len([size for size in hashed if size > 20_000]) == 2


def test_many_bombs_take_little() -> None:
    bomb = zlib.compress(bytes(MAX_GROUP_BYTES), 9)
    assert len(bomb) * MAX_INFLATION < MAX_GROUP_BYTES
    data = with_groups([group_with(number, bomb, MAX_GROUP_BYTES) for number in range(20)])
    found: list[Any] = []
    assert peak_of(lambda: found.extend(read_all(data))) < 16 * 1024 * 1024
    assert found == [[], ["limit"]]


@pytest.mark.integration
def test_groups_that_are_as_large_as_they_may_be() -> None:
    """A reader holds one of them, and not the last eight."""
    size = 40 * 1024 * 1024
    documents = random.Random(0).randbytes(size // 120) + bytes(size - size // 120)
    packed = zlib.compress(documents)
    assert 100 < size / len(packed) < MAX_INFLATION
    reader = opened(with_groups([group_with(number, packed, size) for number in range(10)]))

    def ask() -> None:
        for at in range(10):
            with pytest.raises(TapeError):
                reader.record_at(at)

    assert peak_of(ask) < 4 * size


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
def test_a_terabyte_of_holes_is_skipped_with_few_reads(data: bytes) -> None:
    source = Holes(data)
    scan = TapeReader(source).scan()
    assert len(scan) == 0
    assert source.fetched < 2**24


def test_calls_that_share_much_are_parted() -> None:
    """A reader refuses such a group: 278 KB took 38 s, 10,000 calls of a structure of 10,000
    tensors."""
    many = structure(5000, 0)
    leaves = encode_leaves([{"dtype": "int8", "shape": [], "missing": "policy"}] * 5000)
    tree = {"structure": many, "leaves": leaves}
    call = new_call(0)._replace(record={"time_ns": 0, "inputs": tree})
    append = planned(bytes(16), [call._replace(number=number) for number in range(2000)])
    assert len(append.groups) > 1
    assert [n for group in append.groups for n in group.numbers] == list(range(2000))
