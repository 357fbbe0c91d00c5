"""A reader that has only FORMAT-next.md finds what the writer wrote."""

from __future__ import annotations

import msgpack
import pytest

from tests.schema.container import independent_reader
from tests.schema.container.tapes import TAPE, new_call, opened, tape

CALLS = (
    [new_call(0, [1, 2]), new_call(1, scalars=[2**70, -5], shape=(2, 3), ranges=[(0, 4, 9)])],
    [new_call(number, [number], scalars=[number]) for number in range(2, 60)],
    [new_call(60, [5], [1, 2], at=[("x1", 0, "x0")], error={"type": "a:B", "message": "no"})],
)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("seals", [True, False])
def test_it_finds_what_ours_finds(level: int, seals: bool) -> None:
    data = tape(*CALLS, level=level, seals=seals)
    manifest, calls, end = independent_reader.read_tape(data)
    reader = opened(data)
    assert manifest["tape"] == TAPE
    assert sorted(calls) == list(reader.scan().numbers)
    for number, found in calls.items():
        record = reader.record(number)
        leaves = record.inputs.facts()
        assert found["time_ns"] == record.time_ns
        assert found["inputs"]["structure"] == msgpack.unpackb(record.inputs.structure)
        assert found["inputs"].get("scalars", []) == list(record.inputs.scalars)
        assert [leaf["shape"] for leaf in found["inputs"]["leaves"]] == [
            list(leaf.shape) for leaf in leaves
        ]
        for leaf in leaves:
            if leaf.key is not None:
                assert found["tensors"][leaf.key] == reader.tensor(record, leaf)
    assert (end is not None) == seals
    if seals:
        assert reader.end is not None
        table = reader.end.table()
        assert table is not None
        rows = {tuple(counts) for *_, counts in independent_reader.table_of(end)}
        assert rows == {
            (row.seen, row.kept, row.raised, row.first, row.last, row.example)
            for row in table.rows.values()
        }


def test_it_reads_a_torn_tape() -> None:
    data = tape(*CALLS, seals=False)
    _, calls, end = independent_reader.read_tape(data[: len(data) - 700])
    assert (len(calls), end) == (60, None)
