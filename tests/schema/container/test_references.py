"""A leaf whose bytes an earlier call of the same file has."""

from __future__ import annotations

import pytest

from calltape_schema.errors import TapeError
from tests.schema.container.tapes import new_call, opened, read_all, tape, tensor

FIRST = new_call(3, [1, 2], [5, 6])


def value(data: bytes, number: int, leaf: int = 0) -> bytes:
    reader = opened(data)
    record = reader.record(number)
    return tensor(reader, record, record.inputs.facts()[leaf])


@pytest.mark.parametrize("seals", [True, False])
def test_a_value_of_an_earlier_call(seals: bool) -> None:
    same, other = new_call(4, [9], [5, 6], at=[("x1", 3, "x1")]), new_call(
        5, [1, 2], [8], at=[("x0", 3, "x0")]
    )  # fmt: skip
    data = tape([FIRST], [same, other], seals=seals)
    assert value(data, 4, 1) == value(data, 3, 1)
    assert value(data, 5, 0) == value(data, 3, 0)
    assert read_all(data) == ([3, 4, 5], [])


def test_it_may_have_another_key_there_and_be_in_the_same_group() -> None:
    data = tape([FIRST, new_call(4, [5, 6], at=[("x0", 3, "x1")])])
    assert value(data, 4) == value(data, 3, 1)
    assert opened(data).record(4).blob is None  # nothing of its own


def test_equal_inputs_have_one_row_wherever_their_bytes_are() -> None:
    data = tape([FIRST, new_call(4, [1, 2], [5, 6], at=[("x0", 3, "x0"), ("x1", 3, "x1")])])
    end = opened(data).end
    assert end is not None
    table = end.table()
    assert table is not None
    assert [row.seen for row in table.rows.values()] == [2]


HOSTILE = {
    "a later call": ([FIRST, new_call(2, [1, 2], at=[("x0", 3, "x0")])], 2, "no earlier one"),
    "itself": ([new_call(2, [1, 2], at=[("x0", 2, "x0")])], 2, "no earlier one"),
    "a call that is missing": ([FIRST, new_call(4, [1, 2], at=[("x0", 1, "x0")])], 4, "no call 1"),
    "a key that is not there": ([FIRST, new_call(4, [1, 2], at=[("x0", 3, "y")])], 4, "no tensor"),
    "another shape": ([FIRST, new_call(4, [1], at=[("x0", 3, "x0")])], 4, "not as its leaf says"),
    "a call without bytes": (
        [new_call(3, shape=(1,)), new_call(4, [1, 2], at=[("x0", 3, "x0")])], 4, "no blob",
    ),
    "two steps": (
        [FIRST, new_call(4, [1, 2], at=[("x0", 3, "x0")]),
         new_call(5, [1, 2], at=[("x0", 4, "x0")])], 5, "no blob",
    ),
    "two steps with a blob": (
        [FIRST, new_call(4, [1, 2], [7], at=[("x0", 3, "x0")]),
         new_call(5, [1, 2], at=[("x0", 4, "x0")])], 5, "no tensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_references_end_in_an_error(name: str) -> None:
    calls, number, message = HOSTILE[name]
    with pytest.raises(TapeError, match=message) as raised:
        value(tape(calls), number)
    lost = raised.value.kind == "damaged"
    assert (lost, "copy the file again" in str(raised.value)) == (message == "no call 1",) * 2
    assert len(opened(tape(calls)).scan()) == len(calls)  # shapes are there


def test_a_damaged_call_costs_those_that_point_to_it() -> None:
    other = new_call(6, [4])
    data = bytearray(tape([FIRST, new_call(4, [1, 2], at=[("x0", 3, "x0")]), other]))
    at = data.index(b"\0\0\x80\x3f\0\0\0\x40")
    data[at] ^= 1
    for number in (3, 4):
        with pytest.raises(TapeError, match="tensors of call 3 do not match"):
            value(bytes(data), number)
    assert value(bytes(data), 6)
    assert read_all(bytes(data)) == ([6], ["damaged"])


def test_too_many_references() -> None:
    many = [(f"x{at}", 3, "x0") for at in range(50_001)]
    data = tape([FIRST, new_call(4, [1, 2], at=many)])
    with pytest.raises(TapeError) as raised:
        opened(data).record(4)
    assert raised.value.kind == "invalid"
