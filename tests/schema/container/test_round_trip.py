"""What is written is read: records, values, accounts, and the table of counted inputs."""

from __future__ import annotations

import random

import pytest

from calltape_schema.end import Coverage
from calltape_schema.groups import planned
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSink, BytesSource
from calltape_schema.writer import TapeWriter
from tests.raising import raises
from tests.schema.container.tapes import (
    MANIFEST,
    TAPE,
    counted,
    new_call,
    opened,
    read_all,
    tape,
    tensor,
)


def mixed() -> bytes:
    return tape(
        [new_call(0, [1, 2]), new_call(1, scalars=[2**70, -5], shape=(2, 3), ranges=[(0, 4, 9)])],
        [new_call(2, [3], [4, 5], error={"type": "builtins:ValueError", "message": "no"})],
        seen=5,
    )


@pytest.mark.parametrize("level", [0, 1, 6])
def test_records_and_values(level: int) -> None:
    data = tape([new_call(0, [1, 2]), new_call(7, [3])], [new_call(9, shape=(2,))], level=level)
    reader = opened(data)
    assert list(reader.scan().numbers) == [0, 7, 9]
    assert [reader.record_at(at).call for at in range(3)] == [0, 7, 9]
    assert reader.scan().damage == []
    record = reader.record(7)
    (leaf,) = record.inputs.facts()
    assert tensor(reader, record, leaf) == b"\0\0\x40\x40"
    assert (record.tape, record.thread, record.duration_ns) == (TAPE, 7, 10)
    assert read_all(data) == ([0, 7, 9], [])


def test_the_end_says_what_the_records_say() -> None:
    reader = opened(mixed())
    end = reader.end
    assert end is not None
    assert reader.scan().damage == []
    assert (end.coverage.seen, end.coverage.kept, end.raised) == (5, 3, 1)
    assert (end.first_call, end.last_call) == (0, 2)
    table = end.table()
    assert table is not None
    assert not table.kinds
    assert not table.other.seen
    assert pack_inputs(table) == pack_inputs(counted(reader))
    (row,) = [row for row in table.rows.values() if row.ranges]
    assert row.tree().scalars == (2**70, -5)
    assert row.ranges == {0: (4, 9)}


def test_a_damaged_group_costs_its_own_calls_also_without_a_scan() -> None:
    data = bytearray(tape([new_call(0), new_call(2)], [new_call(1)]))
    data[data.index(b"records/00000000.msgpack") + 600] ^= 1
    reader = opened(bytes(data))
    assert reader.record(1).call == 1
    for number in (0, 2):
        with raises("damaged"):
            reader.record(number)
    with raises("usage", "no call 3"):
        reader.record(3)


MANY = [*range(6000)]
random.Random(0).shuffle(MANY)


@pytest.mark.parametrize("seals", [True, False])
@pytest.mark.parametrize(
    "groups",
    [
        [[5, 3], [4]],
        [[number] for number in (1, 0, 2, 5, 3, 4, 6, 7)],  # some are in order again
        [[number] for number in range(2000, 0, -1)],
        [MANY[at : at + 7] for at in range(0, len(MANY), 7)],  # more than a block of numbers
    ],
    ids=len,
)
def test_calls_in_any_order_are_found_and_come_once(groups: list[list[int]], seals: bool) -> None:
    """A group with a call that is there already is damage."""
    numbers = [number for group in groups for number in group]
    twice = [[numbers[-1], 30_000], [40_000, numbers[0]]]
    added = [] if seals else twice
    calls = [[new_call(number) for number in group] for group in [*groups, *added]]
    reader = opened(tape(*calls, seals=seals))
    some = numbers[:: 1 + len(numbers) // 50]
    assert [reader.record(number).call for number in some] == some
    scan = reader.scan()
    assert list(scan.numbers) == numbers
    assert [error.kind for error in scan.damage] == ["damaged"] * len(added)
    assert [scan.position(number) for number in numbers] == list(range(len(numbers)))
    assert [scan.position(number) for number in (10_000, 30_000, 40_000)] == [None] * 3
    assert [numbers[at] for at in scan.order or ()] in ([], sorted(numbers))


@pytest.mark.parametrize("numbers", [(5, 5), (4, 6, 4)])
def test_a_number_that_is_in_a_group_twice_is_damage_however_it_is_read(
    numbers: tuple[int, ...],
) -> None:
    """With a scan, and by the index alone."""
    data = tape([new_call(1)], [new_call(number) for number in numbers])
    assert list(opened(data).scan().numbers) == [1]
    reader = opened(data)
    for number in numbers:
        with raises("damaged", "stands twice"):
            reader.record(number)
    assert reader.record(1).call == 1


def test_a_tape_without_calls_counts_inputs() -> None:
    """As a survey is."""
    table = counted(opened(mixed()))
    sink = BytesSink()
    writer = TapeWriter(sink, MANIFEST)
    writer.table = table
    writer.seal(Coverage(seen=5, kept=3, dropped={"policy": 2}), elsewhere={})
    reader = opened(sink.data)
    assert reader.end is not None
    found = reader.end.table()
    assert found is not None
    assert found.totals().kept == 3
    assert (len(reader.scan()), reader.scan().damage) == (0, [])


def test_large_records_are_parted_into_groups() -> None:
    calls = [
        new_call(number, error={"type": "a:B", "message": f"{number}" * 200_000})
        for number in range(10, 20)
    ]
    plan = planned(TAPE, calls)
    assert [group.numbers for group in plan.groups] == [
        [10, 11], [12], [13, 14], [15, 16], [17], [18, 19],
    ]  # fmt: skip
    assert plan.size == sum(map(len, plan.parts))
    assert read_all(tape(calls)) == (list(range(10, 20)), [])


def test_a_record_that_no_reader_takes_is_refused() -> None:
    with raises("limit"):
        planned(TAPE, [new_call(0, error={"type": "a:B", "message": b"0" * 2**26})])


def test_many_calls_that_are_alike() -> None:
    call = new_call(0, shape=(2, 3))
    calls = [call._replace(number=number) for number in range(20_000)]
    data = tape(*(calls[at : at + 500] for at in range(0, len(calls), 500)))
    reader = opened(data)
    assert reader.end is not None
    table = reader.end.table()
    assert table is not None
    (row,) = table.rows.values()
    assert (row.seen, row.kept, row.first, row.last, row.example) == (20_000, 20_000, 0, 19_999, 0)
    assert (len(reader.scan()), reader.scan().damage) == (20_000, [])
    assert len(data) < 60 * 20_000
    assert reader.record(17_777).call == 17_777


def test_source_is_not_touched_beyond_its_size() -> None:
    data = mixed()
    reader = TapeReader(BytesSource(data + b"later"))
    assert reader.end is None  # the zero blocks are not the last bytes
    assert len(reader.scan()) == 3
    assert "bytes were added" in str(reader.scan().damage[0])
