"""The writer and a disk that refuses, and how much a reader fetches."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import pytest

from calltape_schema.end import Coverage
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSink, BytesSource
from calltape_schema.writer import TapeWriter
from tests.raising import raises
from tests.schema.container.tapes import MANIFEST, new_call, opened, read_all, tape, tensor


class Full(BytesSink):
    """A sink that takes so many bytes; it cuts only if it is told to. As in a file, bytes behind
    those that are written stay."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.cuts = room, True

    def write_at(self, offset: int, parts: Sequence[Any]) -> None:
        whole = b"".join(parts)
        taken = whole[: max(self.room - offset, 0)]
        self.data[offset : offset + len(taken)] = taken
        if offset + len(whole) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def cut(self, size: int) -> None:
        if not self.cuts:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().cut(size)


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("more", [0, 100, 700, 1300, 60_000])
def test_a_full_disk_costs_one_append(cuts: bool, more: int) -> None:
    sink = Full(10**6)
    writer = TapeWriter(sink, MANIFEST)
    writer.append([new_call(0, [1])])
    sink.room, sink.cuts = writer.end + more, cuts
    with pytest.raises(OSError, match="No space"):
        writer.append([new_call(1, [2] * 20_000), new_call(2)])
    assert read_all(bytes(sink.data))[0] == [0]  # as another process sees it now
    sink.room, sink.cuts = 10**6, True
    writer.append([new_call(3, [4])])
    writer.seal(Coverage(seen=4, kept=2, dropped={"disk_full": 2}))
    assert read_all(bytes(sink.data)) == ([0, 3], [])


def test_a_disk_that_does_not_come_back() -> None:
    sink = Full(10**6)
    writer = TapeWriter(sink, MANIFEST)
    writer.append([new_call(0, [1])])
    sink.room, sink.cuts = writer.end + 100, False
    for _ in range(2):
        with pytest.raises(OSError, match=r"No space|I/O error|Input/output"):
            writer.append([new_call(1, [2])])
    assert read_all(bytes(sink.data)) == ([0], [])


def test_the_growth_is_known_before() -> None:
    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST)
    plan = writer.plan([new_call(0, [1]), new_call(1)])
    before = writer.end
    writer.append([new_call(5, [3])])  # a plan does not depend on what comes first
    grown = writer.end
    writer.commit(plan)
    assert writer.end - grown == plan.size
    assert before < grown
    assert read_all(bytes(sink.data)) == ([5, 0, 1], [])


@pytest.mark.parametrize(
    ("refusals", "rows", "kinds"), [(0, 50, 0), (1, 0, 1), (2, 0, 0), (9, 0, 0)]
)
def test_an_end_that_has_no_room_has_a_coarser_table(refusals: int, rows: int, kinds: int) -> None:
    asked: list[int] = []

    def fits(size: int) -> bool:
        asked.append(size)
        return len(asked) > refusals

    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST)
    writer.append([new_call(number, shape=(number,)) for number in range(50)])
    writer.seal(Coverage(seen=50, kept=50), fits=fits)
    assert asked == sorted(asked, reverse=True)
    end = opened(sink.data).end
    assert end is not None
    table = end.table()
    assert table is not None
    assert (len(table.rows), len(table.kinds)) == (rows, kinds)
    assert (table.totals().seen, table.totals().kept) == (50, 50)
    assert read_all(bytes(sink.data))[1] == []


def test_a_rewound_tape_is_empty() -> None:
    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST)
    writer.append([new_call(0, [1])])
    writer.rewind()
    writer.append([new_call(7)])
    writer.seal(Coverage(seen=1, kept=1))
    assert read_all(bytes(sink.data)) == ([7], [])


class Counting(BytesSource):
    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.requests, self.fetched = 0, 0

    def read_at(self, offset: int, size: int) -> bytes:
        found = super().read_at(offset, size)
        self.requests += 1
        self.fetched += len(found)
        return found


def test_the_end_takes_three_requests() -> None:
    calls = [new_call(number, shape=(number, number * 7919)) for number in range(6000)]
    for count in (10, 6000):
        source = Counting(tape(calls[:count]))
        reader = TapeReader(source)
        assert reader.end is not None
        table = reader.end.table()
        assert table is not None
        assert table.totals().seen == count
        assert source.requests == (2 if count == 10 else 3)


@pytest.mark.parametrize("floats", [0, 10, 5000])
def test_a_scan_fetches_no_byte_twice(floats: int) -> None:
    values = [[1.0] * floats] if floats else []
    groups = [[new_call(10 * at + by, *values) for by in range(10)] for at in range(30)]
    data = tape(*groups)
    source = Counting(data)
    reader = TapeReader(source)
    opening = source.fetched
    assert len(reader.scan()) == 300
    assert source.fetched - opening <= len(data)
    assert source.fetched <= 1.05 * len(data) + 2 * 2**16
    if floats == 5000:  # it jumps over tensors
        assert source.fetched - opening < len(data) / 2


def test_one_call_of_a_sealed_tape_takes_few_requests() -> None:
    groups = [[new_call(10 * at + by, [1.0] * 5000) for by in range(10)] for at in range(30)]
    source = Counting(tape(*groups))
    reader = TapeReader(source)
    before = source.requests
    record = reader.record(155)
    tensor(reader, record, record.inputs.facts()[0])
    assert source.requests - before <= 7


def test_a_tape_with_as_many_groups_as_its_index_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("calltape_schema.writer.MAX_INDEX_BYTES", 3 * 48)
    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST)
    for number in range(3):
        writer.append([new_call(number)])
    with raises("limit", "full"):
        writer.append([new_call(3)])
    writer.seal(Coverage(seen=3, kept=3))
    assert read_all(bytes(sink.data)) == ([0, 1, 2], [])


def test_the_end_of_a_call_beyond_all_time_is_capped() -> None:
    """Both numbers are within their limits, and their sum is not: a stranger's tape, edited."""
    data = tape([new_call(0, [1], time_ns=2**63 - 1, duration_ns=2**63 - 1)])
    end = opened(data).end
    assert end is not None
    assert (end.first_ns, end.last_ns) == (2**63 - 1, 2**63 - 1)
