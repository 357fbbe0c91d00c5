"""The viewer's reader is the second implementation of the format: it conforms, and on tapes that
are torn, damaged or forged it says what calltape's own reader says."""

from __future__ import annotations

import itertools
import json
import random
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from calltape_schema.bounds import MAX_MEMBER_BYTES, MAX_ROWS
from calltape_schema.packing import pack
from calltape_schema.tar import ZEROS_AT_END
from tests.fixture_files import FIXTURES
from tests.fuzz.mutator import Mutator, seeds
from tests.schema.container.tapes import new_call, read_all, tape
from tests.viewer.node import NODE, VIEWER, answer, node

import calltape_reader  # isort: skip
import run_conformance  # isort: skip
from attacks.attack import GROUP, group_with, plain_record  # isort: skip
from counted_inputs import signature_of  # isort: skip
from group_writing import section  # isort: skip
from tape_writing import TapeBytes, inputs_root  # isort: skip

pytestmark = pytest.mark.integration

READER = VIEWER / "conformance.mjs"


def test_the_viewer_conforms(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, FIXTURES / "run_conformance.py", "--", NODE, READER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    with capsys.disabled():
        print(f"\nthe viewer under Node: {', '.join(done.stdout.splitlines()[:3])}")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in run_conformance.PARTS:
        tapes = len(list(run_conformance.tapes(part)))
        assert tapes > (5 if part == "future" else 60)
        assert f"{part}: {tapes} of {tapes} tapes" in done.stdout
    # Nothing is left out.
    assert "without" not in done.stdout


def test_a_command_line_without_a_tape_is_wrong() -> None:
    done = node(READER)
    assert done.returncode == 2
    assert re.match("usage: ", done.stderr)


FIRST = new_call(0, [1, 2], [5, 6])
GROUPS = (
    [FIRST],
    [new_call(1, shape=(2,)), new_call(2, [3], scalars=[7]), new_call(3, [4])],
    [new_call(4, [9], [5, 6], at=[("x1", 0, "x1")])],
)


def torn_and_damaged() -> Iterator[bytes]:
    """A tape as it is, cut off, and with single bytes that are others."""
    for level, seals in itertools.product((0, 1), (True, False)):
        yield tape(*GROUPS, level=level, seals=seals)
    data = tape(*GROUPS)
    for size in range(512, len(data), 331):
        yield data[:size]
    for at in range(0, len(data), 197):
        yield data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
    # Bytes of a tensor look like a group of this tape, and the header before them is damaged.
    forged = tape([new_call(99)], seals=False)[len(tape(seals=False)) :]
    floats = [*memoryview(bytes(384) + forged).cast("f")]
    inside = bytearray(tape([new_call(0, floats)], [new_call(1)]))
    inside[inside.index(b"blobs/00000000") + 130] ^= 1
    yield bytes(inside)


def mutants() -> Iterator[bytes]:
    """Tapes changed by grammar, with right checksums."""
    for seed in range(150):
        chance = random.Random(seed)
        yield Mutator().mutant(chance.choice(seeds()), chance)


@pytest.mark.parametrize("made", [torn_and_damaged, mutants])
def test_both_readers_say_the_same(tmp_path: Path, made: Callable[[], Iterator[bytes]]) -> None:
    """They share no code."""
    paths = []
    for number, data in enumerate(made()):
        paths.append(tmp_path / f"{number}.tape")
        paths[-1].write_bytes(data)
    done = node(READER, *paths)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    found = [json.loads(json.dumps(calltape_reader.document(str(path)))) for path in paths]
    assert sum(bool(one.get("damage")) for one in found) > 30
    assert sum(len(one.get("calls", ())) for one in found) > 100
    for path, theirs, ours in zip(paths, answers, found, strict=True):
        differences = list(run_conformance.differences(plain(ours), plain(theirs), "", frozenset()))
        assert differences == [], path.name


def plain(found: dict[str, Any]) -> dict[str, Any]:
    """What was found, without the kinds of errors: of two things that are wrong, a reader may see
    the one first or the other."""
    if "refused" in found:
        return {"refused": True}
    calls = [call | {"values": call["values"] == "ok"} for call in found["calls"]]
    made = found | {"calls": calls, "damage": bool(found["damage"])}
    if found["damage"]:  # a reader may give a table that it does not believe
        made.pop("table", None)
    return made


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
    (tmp_path / "a.tape").write_bytes(data)
    document = json.loads(node(READER, tmp_path / "a.tape").stdout)
    assert [call["number"] for call in document["calls"] if call["values"] != "ok"] == ["65"]
    assert document["damage"] == ["limit"]
    assert read_all(data) == (list(range(65)), ["limit"])


def large_tapes() -> Iterator[tuple[TapeBytes, dict[str, Any]]]:
    """Tapes with as much as there may be, and with one more, of what makes no small file: bytes of
    a group and of an end, and rows of the table. With each, what a reader finds."""
    for more in (0, 1):
        one = TapeBytes()
        one.member(GROUP, enlarged(group_with(plain_record()), MAX_MEMBER_BYTES + more))
        yield (
            one,
            {"calls": ["1"], "damage": []} if not more else {"calls": [], "damage": ["limit"]},
        )
        one = TapeBytes()
        payload = pack(one.ending())
        place = pack(struct.pack("<QQ8s", len(one.data), MAX_MEMBER_BYTES + more, b"calltape"))
        envelope = pack([zlib.crc32(payload), payload])
        one.member("end.msgpack", enlarged(envelope, MAX_MEMBER_BYTES + more, place))
        one.data += ZEROS_AT_END
        yield one, {"calls": [], "damage": ["damaged"] * more, "sealed": not more}
        nodes = inputs_root({"kind": "scalar", "of": "int", "scalar": 0})
        parts = [pack({"root": nodes, "leaves": 0, "scalars": 1}), pack([])]
        scalars = sorted((pack([n]) for n in range(MAX_ROWS + more)),
                         key=lambda packed: signature_of(*parts, packed))  # fmt: skip
        numbers = struct.pack("<6Q", 1, 0, 0, 9, 9, 2**64 - 1) * len(scalars)
        rows = [[0, 1, packed, b""] for packed in scalars]
        one = TapeBytes()
        table = pack({"parts": parts, "rows": rows, "numbers": numbers})
        one.seal({"policy": len(rows)}, inputs=section(table))
        yield one, {"calls": [], "damage": ["damaged"] * more, "sealed": True}


def enlarged(content: bytes, size: int, last: bytes = b"") -> bytes:
    """A short array with one element more, or two, so that it has so many bytes."""
    zeros = size - len(content) - len(b"\xc6" + bytes(4)) - len(last)
    head = bytes([content[0] + 1 + bool(last)]) + content[1:]
    return head + b"\xc6" + zeros.to_bytes(4, "big") + bytes(zeros) + last


def test_what_is_large_has_limits(tmp_path: Path) -> None:
    path = tmp_path / "a.tape"
    for made, expected in large_tapes():
        path.write_bytes(made.data)
        for found in (json.loads(node(READER, path).stdout), calltape_reader.document(str(path))):
            assert {key: found[key] for key in expected if key != "calls"} | {
                "calls": [call["number"] for call in found["calls"]]
            } == expected


OPENED = """
import { openTape } from "SRC/tape.mjs";
const data = Buffer.from(asked, "hex");
let reads = 0;
const read = async (at, length) => (reads++, new Uint8Array(data.subarray(at, at + length)));
const tape = await openTape({ size: data.length, read });
const isKnown = await tape.readEnd();
const opened = reads;
const order = [...tape.columns.order()];
const calls = [];
for (const at of order) calls.push((await tape.call(at)).record.call);
const rows = tape.table?.rows.map(({ calls, first, last }) => [calls, first, last].map(Number));
console.log(JSON.stringify({ isKnown, opened, calls, rows, rest: Number(tape.table?.rest) }));
"""


@pytest.mark.parametrize(
    "numbers",
    [[[0, 1], [2, 3, 4]], [[0, 2], [9]], [[5, 3], [4, 8]], []],
    ids=["dense", "gaps", "any order", "no calls"],
)
def test_a_tape_is_opened_from_its_end(tmp_path: Path, numbers: list[list[int]]) -> None:
    """The index and the table tell the calls before any record was read."""
    groups = [[new_call(one, shape=(one % 2,)) for one in group] for group in numbers]
    found = answer(tmp_path, OPENED, tape(*groups, seen=20).hex())
    every = sorted(one for group in numbers for one in group)
    assert found["isKnown"]
    assert found["calls"] == every
    kinds = [[one for one in every if one % 2 == parity] for parity in (0, 1)]
    assert sorted(found["rows"]) == sorted([len(one), one[0], one[-1]] for one in kinds if one)
    assert found["rest"] == 0
    is_dense = all(max(one) - min(one) + 1 == len(one) for one in numbers)
    assert not is_dense or found["opened"] == 3  # header and content of the manifest, the end
