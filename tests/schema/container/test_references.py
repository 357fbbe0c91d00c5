"""A leaf whose bytes an earlier call of the same file has."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pytest

from calltape_schema.blob import Stored, build_header, interleaved
from calltape_schema.errors import TapeError
from calltape_schema.groups import NewCall
from calltape_schema.inputs_table import signature_of
from calltape_schema.sections import NO_CHECKSUMS, checksums_of
from calltape_schema.tree import encode_leaves
from tests.schema.container.tapes import new_call, opened, read_all, tape, tensor

FIRST = new_call(3, [1, 2], [5, 6])


def grown(
    number: int, columns: int, own: int, rows: int = 2, at: Sequence[Any] = (), **changes: Any
) -> NewCall:
    """A call with a tensor of which the blob has the last columns: element (i, j) is 10 i + j."""
    every = [10 * row + column for row in range(rows) for column in range(columns - own, columns)]
    stored = Stored("F32", changes.get("shape", (rows, own)), 4 * len(every))
    blob = [build_header({"x0": stored}), struct.pack(f"<{len(every)}f", *every)]
    call = new_call(number, [0.0], at=at)
    leaves = encode_leaves([{"dtype": "float32", "shape": [rows, columns], "key": "x0"}])
    tree = call.record["inputs"] | {"leaves": leaves}
    key = signature_of(tree["structure"], leaves, b"\x90")
    return call._replace(
        record=call.record | {"inputs": tree}, signature=key, blob=blob,
        checksums=checksums_of(blob),
    )  # fmt: skip


def value(data: bytes, number: int, leaf: int = 0) -> bytes:
    reader = opened(data)
    record = reader.record(number)
    return tensor(reader, record, record.inputs.facts()[leaf])


@pytest.mark.parametrize("seals", [True, False])
def test_a_reference_leads_to_the_value_of_an_earlier_call(seals: bool) -> None:
    same, other = new_call(4, [9], [5, 6], at=[("x1", 3, "x1")]), new_call(
        5, [1, 2], [8], at=[("x0", 3, "x0")]
    )  # fmt: skip
    data = tape([FIRST], [same, other], seals=seals)
    assert value(data, 4, 1) == value(data, 3, 1)
    assert value(data, 5, 0) == value(data, 3, 0)
    assert read_all(data) == ([3, 4, 5], [])


def test_a_reference_may_name_another_key_in_the_same_group() -> None:
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


WIDE = grown(3, 4, 4)


def test_a_value_that_grew_is_put_together() -> None:
    """The first columns are those of the call before, however many calls they come from."""
    calls = [WIDE, *(grown(n, n + 1, 1, at=[("x0", n - 1, "x0", 1)]) for n in range(4, 60))]
    calls.append(grown(60, 60, 0, at=[("x0", 59, "x0", 1)]))  # a tail of nothing
    calls.append(grown(61, 62, 2, at=[("x0", 60, "x0", 1)]))
    data = tape(calls[:2], calls[2:])
    for number in (3, 4, 30, 60, 61):
        columns = number + 1 - (number == 60)
        every = [10 * row + column for row in range(2) for column in range(columns)]
        assert value(data, number) == struct.pack(f"<{len(every)}f", *every)
    assert len(data) < 61 * 2048


def test_a_reference_leads_to_a_value_that_grew() -> None:
    later = grown(4, 5, 1, at=[("x0", 3, "x0", 1)])
    same = grown(5, 5, 0, at=[("x0", 4, "x0")])._replace(blob=[], checksums=NO_CHECKSUMS)
    assert value(tape([WIDE, later], [same]), 5) == value(tape([WIDE, later]), 4)


@pytest.mark.parametrize("rows", [1, 2, 3, 1000])
def test_rows_are_joined(rows: int) -> None:
    parts = [bytes(range(rows % 251, rows % 251 + 3)) * rows, b"", b"x" * rows]
    made = interleaved(parts, rows)
    assert made == b"".join(parts[0][3 * at : 3 * at + 3] + b"x" for at in range(rows))
    assert interleaved([b"", b""], rows) == interleaved([b""], 0) == b""


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
