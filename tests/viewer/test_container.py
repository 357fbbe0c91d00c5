"""The viewer's reader on tapes of the schema's writer: torn, damaged, forged, with references."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from calltape_schema.end import Coverage, decode_end, encode_end
from calltape_schema.groups import member, planned
from calltape_schema.tar import BLOCK, ZEROS_AT_END, parse_header
from tests.schema.container.tapes import TAPE, new_call, read_all, tape
from tests.sections import deflated
from tests.viewer.node import VIEWER, node

pytestmark = pytest.mark.integration

FIRST = new_call(0, [1, 2], [5, 6])
GROUPS = (
    [FIRST],
    [new_call(1, shape=(2,)), new_call(2, [3], scalars=[7]), new_call(3, [4])],
    [new_call(4, [9], [5, 6], at=[("x1", 0, "x1")])],
)


def read(folder: Path, tapes: Sequence[bytes]) -> list[dict[str, Any]]:
    """What the viewer finds on tapes."""
    paths = [folder / f"{number}.tape" for number in range(len(tapes))]
    for path, data in zip(paths, tapes, strict=True):
        path.write_bytes(data)
    done = node(VIEWER / "conformance.mjs", *paths)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def told(found: dict[str, Any]) -> tuple[list[int], list[str]]:
    """The numbers of the calls whose values are whole, and the kinds of damage."""
    return [int(call["number"]) for call in found["calls"] if call["values"] == "ok"], found[
        "damage"
    ]


def test_a_whole_tape(tmp_path: Path) -> None:
    tapes = [tape(*GROUPS, level=level, seals=seals) for level in (0, 1) for seals in (True, False)]
    for found, sealed in zip(read(tmp_path, tapes), (True, False) * 2, strict=True):
        assert told(found) == ([0, 1, 2, 3, 4], [])
        assert found["sealed"] is sealed
        elsewhere = [leaf["bytes"] for leaf in found["calls"][4]["inputs"]["leaves"]]
        assert elsewhere[1] == found["calls"][0]["inputs"]["leaves"][1]["bytes"]


def test_a_torn_tape_keeps_what_was_flushed(tmp_path: Path) -> None:
    data = tape(*GROUPS)
    starts = [len(tape(*GROUPS[:count], seals=False)) for count in range(4)]
    sizes = sorted({*range(starts[0], len(data), 331), *starts, *(at + 1 for at in starts)})
    for size, found in zip(sizes, read(tmp_path, [data[:size] for size in sizes]), strict=True):
        # The zeros after the content of a group may be missing.
        groups = max(at for at in range(4) if len(data[: starts[at]].rstrip(b"\0")) <= size)
        whole = sum(map(len, GROUPS[:groups]))
        is_end_cut = starts[3] + BLOCK <= size
        assert told(found) == (list(range(whole)), ["damaged"] if is_end_cut else []), size


def test_damage_costs_its_group_and_who_points_there(tmp_path: Path) -> None:
    data = tape(*GROUPS)
    in_group, in_header = bytearray(data), bytearray(data)
    in_tensor = data.replace(b"\0\0\x80\x3f\0\0\0\x40", b"\1\0\x80\x3f\0\0\0\x40")
    assert in_tensor != data
    in_group[data.index(b"records/00000001") + BLOCK + 40] ^= 1
    in_header[data.index(b"records/00000001") + 130] ^= 1
    rubbish = tape(*GROUPS[:1], seals=False) + b"rubbish!" * 256
    plan = planned(TAPE, GROUPS[1])
    plan.groups[0].place(len(rubbish))
    rubbish += b"".join(map(bytes, plan.parts))
    found = read(tmp_path, [bytes(in_group), bytes(in_header), in_tensor, rubbish])
    assert [told(one) for one in found] == [
        ([0, 4], ["damaged"]), ([0, 4], ["damaged"]), ([1, 2, 3], ["damaged"]),
        ([0, 1, 2, 3], ["damaged"]),
    ]  # fmt: skip


def test_a_group_with_a_number_of_another_one_is_none(tmp_path: Path) -> None:
    found = read(tmp_path, [tape([FIRST], [new_call(1), new_call(0)], seals=False)])
    assert told(found[0]) == ([0], ["damaged"])


def test_a_group_inside_a_tensor_is_none(tmp_path: Path) -> None:
    """Bytes of a tensor look like a group of this tape, and the header before them is damaged."""
    forged = tape([new_call(99)], seals=False)[len(tape(seals=False)) :]
    floats = [*memoryview(bytes(384) + forged).cast("f")]
    data = bytearray(tape([new_call(0, floats)], [new_call(1)]))
    data[data.index(b"blobs/00000000") + 130] ^= 1
    assert told(read(tmp_path, [bytes(data)])[0]) == ([1], ["damaged"])


REFERENCES = {
    "a later call": [new_call(1, [1, 2], at=[("x0", 3, "x0")]), new_call(3, [1, 2])],
    "itself": [new_call(3, [1, 2], at=[("x0", 3, "x0")])],
    "a call that is not there": [new_call(3, [1, 2], at=[("x0", 1, "x0")])],
    "a key that is not there": [FIRST, new_call(3, [1, 2], at=[("x0", 0, "y")])],
    "another shape": [FIRST, new_call(3, [1], at=[("x0", 0, "x0")])],
    "a call without bytes": [new_call(0, shape=(1,)), new_call(3, [1, 2], at=[("x0", 0, "x0")])],
    "a tail that is not there": [FIRST, new_call(3, [1, 2, 3], at=[("x0", 0, "x0", 0)])],
    "an axis that is not there": [FIRST, new_call(3, [1, 2, 3], at=[("x0", 0, "x0", 1)])],
}  # fmt: skip


def test_references_to_what_is_not_there(tmp_path: Path) -> None:
    """The call is listed with its shapes; its values are not given out."""
    found = read(tmp_path, [tape(calls) for calls in REFERENCES.values()])
    for name, one in zip(REFERENCES, found, strict=True):
        bad = {call["number"]: call for call in one["calls"] if call["values"] != "ok"}
        assert list(bad) == (["1"] if name == "a later call" else ["3"]), name
        assert all(
            "bytes" not in leaf for call in bad.values() for leaf in call["inputs"]["leaves"]
        )
        assert one["damage"] in (["damaged"], ["invalid"]), name


def test_parts_of_all_tensors_of_a_call_are_counted(tmp_path: Path) -> None:
    """8,192 keys that 64 earlier calls have are as many as there may be; one more is too many."""
    calls = [new_call(0, [1, 2])]
    calls += [new_call(number, [1, 2], at=[("x0", number - 1, "x0")]) for number in range(1, 64)]
    most = [(f"x{key}", 63, "x0") for key in range(2**13)]
    calls += [
        new_call(64, [1, 2], at=most),
        new_call(65, [1, 2], at=[*most, (f"x{len(most)}", 0, "x0")]),
    ]
    data = tape(*([call] for call in calls))
    (found,) = read(tmp_path, [data])
    assert told(found) == (list(range(65)), ["limit"])
    assert read_all(data) == (list(range(65)), ["limit"])


def ended(change: Callable[[Any], dict[str, Any]]) -> bytes:
    """A tape of two groups whose end has other facts."""
    data = tape([FIRST], [new_call(1), new_call(2)])
    at = data.index(b"end.msgpack")
    header = parse_header(data[at : at + BLOCK], at)
    assert header is not None
    end = decode_end(data[header.start : header.start + header.size])
    content = encode_end(end.model_copy(update=change(end)), at)
    return data[:at] + b"".join(member("end.msgpack", [content], len(content))) + ZEROS_AT_END


def _index(end: Any, **changes: int) -> dict[str, Any]:
    one, two = map(end.groups().entry, (0, 1))
    return {"index": deflated(one.pack() + two._replace(**changes).pack())}


ENDS: dict[str, tuple[Callable[[Any], dict[str, Any]], list[int], list[str]]] = {
    "sound": (lambda end: {}, [0, 1, 2], []),
    "a group that is not there": (lambda end: _index(end, offset=2**20), [0], ["damaged"]),
    "groups in another order": (lambda end: _index(end, offset=512), [0, 1, 2], ["invalid"]),
    "other numbers": (lambda end: _index(end, high=5), [0, 1, 2], ["damaged"]),
    "no calls": (lambda end: _index(end, calls=0), [0, 1, 2], ["invalid"]),
    "a cut index": (lambda end: {"index": deflated(bytes(47))}, [0, 1, 2], ["invalid"]),
    "a vast index": (
        lambda end: {"index": deflated(b"")._replace(size=2**40)}, [0, 1, 2], ["limit"],
    ),
    "a sum that is wrong": (
        lambda end: {"coverage": Coverage(seen=9, kept=3)}, [0, 1, 2], ["damaged"],
    ),
    "a table that is none": (lambda end: {"inputs": deflated(b"\xc1")}, [0, 1, 2], ["damaged"]),
    "a table of other calls": (
        lambda end: {"inputs": deflated(_other_table())}, [0, 1, 2], ["damaged"],
    ),
}  # fmt: skip


def _other_table() -> bytes:
    from calltape_schema.inputs_document import pack_inputs
    from calltape_schema.inputs_table import InputsTable

    table = InputsTable()
    for number in range(3):
        call = new_call(number, shape=(7,))
        tree = call.record["inputs"]
        table.add(tree["structure"], tree["leaves"], call.scalars, number)
    return pack_inputs(table)


def test_an_end_that_contradicts_the_records(tmp_path: Path) -> None:
    found = read(tmp_path, [ended(change) for change, _, _ in ENDS.values()])
    assert {name: told(one) for name, one in zip(ENDS, found, strict=True)} == {
        name: (whole, damage) for name, (_, whole, damage) in ENDS.items()
    }


_OPENED = """
import {{ readFileSync }} from "node:fs";
import {{ openTape }} from "{src}/tape.mjs";
const data = readFileSync(process.argv[2]);
let reads = 0;
const read = async (at, length) => (reads++, new Uint8Array(data.subarray(at, at + length)));
const tape = await openTape({{ size: data.length, read }});
const isKnown = await tape.readEnd();
const opened = reads;
const order = [...tape.columns.order()];
const calls = [];
for (const at of order) calls.push((await tape.call(at)).record.call);
const rows = tape.table?.rows.map(({{ calls, first, last }}) => [calls, first, last].map(Number));
console.log(JSON.stringify({{ isKnown, opened, calls, rows, rest: Number(tape.table?.rest) }}));
"""


@pytest.mark.parametrize(
    "numbers",
    [[[0, 1], [2, 3, 4]], [[0, 2], [9]], [[5, 3], [4, 8]], []],
    ids=["dense", "gaps", "any order", "no calls"],
)
def test_a_tape_opened_from_its_end(tmp_path: Path, numbers: list[list[int]]) -> None:
    """The index and the table tell the calls before any record was read."""
    groups = [[new_call(one, shape=(one % 2,)) for one in group] for group in numbers]
    path, script = tmp_path / "a.tape", tmp_path / "opened.mjs"
    path.write_bytes(tape(*groups, seen=20))
    script.write_text(_OPENED.format(src=(VIEWER / "src").as_uri()))
    done = node(script, path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    every = sorted(one for group in numbers for one in group)
    assert found["isKnown"]
    assert found["calls"] == every
    kinds = [[one for one in every if one % 2 == parity] for parity in (0, 1)]
    assert sorted(found["rows"]) == sorted([len(one), one[0], one[-1]] for one in kinds if one)
    assert found["rest"] == 0
    is_dense = all(max(one) - min(one) + 1 == len(one) for one in numbers)
    assert not is_dense or found["opened"] == 3  # header and content of the manifest, the end
