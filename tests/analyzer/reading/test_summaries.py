"""Sealed tapes answer from their ends, and say the same as their records."""

from __future__ import annotations

import random
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from calltape_analyzer import (
    Tape,
    TapeError,
    UsageError,
    diff,
    filter_tape,
    merge_tapes,
    open_tape,
    survey,
)
from calltape_analyzer.reading import tape_file
from calltape_recorder import record
from calltape_schema import reader as schema_reader
from calltape_schema.end import Coverage, End
from calltape_schema.inputs_document import pack_inputs
from calltape_schema.inputs_table import Counts, InputsTable
from calltape_schema.scan import Scan
from calltape_schema.tree import decode_leaves, encode_leaves
from tests.analyzer.cli.commands import run
from tests.analyzer.reading.summarised import Model, calls, some
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import change_end, change_table, flip, member_list
from tests.forging.sections import deflated, forged


def answers(tape: Tape) -> dict[str, Any]:
    """What a tape says of all its calls together."""
    found: dict[str, Any] = {"coverage": tape.coverage, "calls": len(tape)}
    try:
        found["shapes"] = tape.single.findings.model_dump()
    except TapeError as error:
        found["shapes"] = str(error)
    found["variants"] = [variant.findings.model_dump() for variant in tape.variants()]
    found["dynamic"] = [repr(variant.infer_dynamic_shapes(True)) for variant in tape.variants()]
    observed = tape.observations()
    found["ranges"] = sorted(map(repr, (g.ranges for g in observed.groups.values())))
    arguments = dict.fromkeys(name for part in observed.parts() for name in part.layout.arguments)
    found["explained"] = [str(tape.explain(argument)) for argument in arguments]
    found["missing"] = len(tape.counters.missing)
    return found


@given(calls())
def test_an_end_says_what_the_records_say(
    tmp_path_factory: pytest.TempPathFactory, made: list[Recorded]
) -> None:
    path = write_tape(tmp_path_factory.mktemp("a") / "a.tape", made, target=Model())
    with open_tape(path) as quick, open_tape(path, scan=True) as thorough:
        assert quick.source == "end"
        assert thorough.source == "records"
        assert answers(quick) == answers(thorough)
        table = thorough.segments[0].table
        assert table is not None
        # A row does not tell which of its calls raised: then the records do.
        is_mixed = any(0 < row.raised < row.seen for row in table.rows.values())
        assert quick.source == ("records" if is_mixed else "end")
        assert str(diff(quick, thorough)) == str(diff(thorough, thorough))
        assert not thorough.damage


@given(calls(), st.integers(0, 2**16))
def test_any_split_into_files_says_the_same(
    tmp_path_factory: pytest.TempPathFactory, made: list[Recorded], seed: int
) -> None:
    from calltape_schema.records import Segment

    folder = tmp_path_factory.mktemp("a")
    rng = random.Random(seed)
    parts: list[list[Recorded]] = [[], [], []]
    for call in made:
        rng.choice(parts).append(call)
    for at, part in enumerate(parts):
        write_tape(
            folder / f"{at}.tape", part, target=Model(), table=rng.random() < 0.8,
            segment=Segment(number=at),
        )  # fmt: skip
    with open_tape(folder) as quick, open_tape(folder, scan=True) as thorough:
        assert answers(quick) == answers(thorough)
        assert quick.damage == thorough.damage == []


def test_the_file_is_scanned_when_a_call_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    scans: list[Any] = []

    def scan(*args: Any) -> Scan:
        scans.append(args)
        return Scan(*args)

    monkeypatch.setattr(schema_reader, "Scan", scan)
    with open_tape(path) as tape:
        assert (len(tape), tape.sealed, tape.unfinished) == (9, True, 0)
        tape.variants()
        assert not scans
        assert tape.calls[4].inputs.kwargs == {"n": 0}
        assert len(scans) == 1
        assert tape.source == "records"
        assert [call.number for call in tape.calls] == list(range(9))
        assert len(scans) == 1


def test_representative_arguments_come_from_the_records(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    with open_tape(path) as quick, open_tape(path, scan=True) as thorough:
        for one, other in zip(quick.variants(), thorough.variants(), strict=True):
            args, expected = one.infer_arguments(), other.infer_arguments()
            assert torch.equal(args.args[0], expected.args[0])
        assert quick.source == "records"


def with_other_inputs_of(rows: int) -> Any:
    """Forges a table of calls whose first argument had other rows."""

    def forge(table: InputsTable) -> None:
        for row in table.rows.values():
            (leaf, *_) = decode_leaves(row.leaves)
            (_, size) = leaf.shape
            changed = {**leaf.model_dump(exclude_none=True), "shape": [rows, size]}
            row.leaves = encode_leaves([changed])

    return forge


def damage(tape: Tape) -> list[str]:
    return [str(error) for error in tape.damage]


def test_a_forged_table_is_damage_when_the_file_is_scanned(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    change_table(path, with_other_inputs_of(7))
    with open_tape(path) as tape:
        assert tape.source == "end"
        list(tape.calls)
        late = damage(tape)
    with open_tape(path, scan=True) as tape:
        found = damage(tape)
    assert ["forged or stale table of inputs" in text for text in found] == [True]
    assert found == late


def with_more_tensors(table: InputsTable) -> None:
    """The inputs of another model: two tensors in the place of one."""
    for row in table.rows.values():
        (leaf, *_) = decode_leaves(row.leaves)
        row.leaves = encode_leaves([leaf.model_dump(exclude_none=True)] * 2)
        tensor = b"\x82\xa4kind\xa6tensor\xa4leaf"
        args = row.structure.replace(b"\x91" + tensor + b"\x00", b"\x92" + tensor + b"\x00" + tensor
                                     + b"\x01")  # fmt: skip
        row.structure = args.replace(b"\xa6leaves\x01", b"\xa6leaves\x02")


def test_arguments_are_those_of_the_records(tmp_path: Path) -> None:
    """To make them a call is read, which shows that the end of its file was forged."""
    made = [Recorded((torch.zeros(2, 1 + i),)) for i in range(9)]
    path = change_table(write_tape(tmp_path / "a.tape", made, target=Model()), with_more_tensors)
    with open_tape(path) as tape:
        assert tape.source == "end"
        args, kwargs = tape.infer_arguments()
        assert (len(args), len(kwargs)) == (1, 0)
        assert any("forged or stale table" in text for text in damage(tape))
        again = tape.infer_arguments().args[0]
    assert again.shape == args[0].shape


def test_two_inputs_that_begin_with_one_call_are_damage(tmp_path: Path) -> None:
    def forge(table: InputsTable) -> None:
        for row in table.rows.values():
            row.first = row.example = 0

    made = [Recorded((torch.zeros(*[2] * (1 + i % 2), 3 + i),)) for i in range(8)]
    path = change_table(write_tape(tmp_path / "a.tape", made, target=Model()), forge)
    with open_tape(path) as tape:
        assert tape.source == "end"
        with pytest.raises(TapeError, match="begins two different inputs") as caught:
            [variant.infer_dynamic_shapes() for variant in tape.variants()]
    assert caught.value.kind == "damaged"
    with open_tape(path, scan=True) as tape:
        assert len([variant.infer_dynamic_shapes() for variant in tape.variants()]) == 2


def test_a_row_that_breaks_the_format_is_damage_and_the_records_answer(tmp_path: Path) -> None:
    def broken(table: InputsTable) -> None:
        for row in table.rows.values():
            row.structure = b"\xc1"

    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    change_table(path, broken)
    with open_tape(path) as tape:
        assert [len(variant) for variant in tape.variants()] == [9]
        assert tape.source == "records"
        list(tape.calls)
        assert ["forged or stale table" in text for text in damage(tape)] == [True]


def test_a_table_is_not_compared_where_calls_are_lost(tmp_path: Path) -> None:
    """The lost calls are told, and would explain any difference."""
    made = [Recorded((torch.zeros(2, 1 + (i % 3 == 0)),)) for i in range(9)]
    for forge in (lambda table: None, with_other_inputs_of(3)):
        path = write_tape(tmp_path / "a.tape", made, target=Model())
        change_table(path, forge)
        group = next(m for m in member_list(path) if m.name == "records/00000004.msgpack")
        flip(path, group.start + 90)
        with open_tape(path, scan=True) as tape:
            assert len(tape) == 8
            assert [error.kind for error in tape.damage] == ["damaged"]
            assert "forged or stale" not in str(tape.damage[0])


def test_a_file_that_changes_after_its_end_was_read(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    whole = path.read_bytes()
    other = write_tape(tmp_path / "b.tape", some(12), target=Model(), tape_id=bytes(16))
    for changed in (whole[:4000], other.read_bytes()):
        path.write_bytes(whole)
        with open_tape(path) as tape:
            assert len(tape) == 9
            path.write_bytes(changed)
            with pytest.raises(TapeError, match="changed since it was opened"):
                tape.calls[0]


def test_answers_follow_the_records_once_these_were_read(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    change_table(path, with_other_inputs_of(7))
    with open_tape(path) as tape, open_tape(path, scan=True) as thorough:
        before = answers(tape)
        part = tape.only(ignore=["n"])
        list(part.calls)
        assert len(tape) == 9
        assert before != answers(tape) == answers(thorough)


def test_threads_may_ask_at_once(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(200), target=Model())
    for _ in range(5):
        with open_tape(path) as tape, ThreadPoolExecutor(8) as pool:
            calls = list(pool.map(lambda at, tape=tape: tape.calls[at].number, range(200)))
        assert calls == list(range(200))


def test_a_table_that_cannot_be_unpacked_is_damage_and_the_records_answer(
    tmp_path: Path,
) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    whole = write_tape(tmp_path / "b.tape", some(9), target=Model(), table=False)
    change_end(path, lambda end: {"inputs": forged(b"no zlib", 0)})
    with open_tape(path) as tape, open_tape(whole) as expected:
        assert answers(tape) == answers(expected)
        assert tape.source == "records"
        assert len([text for text in damage(tape) if "forged or stale" in text]) == 1


def test_a_damaged_record_is_found_when_the_file_is_scanned(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    group = next(m for m in member_list(path) if m.name == "records/00000004.msgpack")
    flip(path, group.start + 90)
    with open_tape(path) as tape:
        assert len(tape) == 9, "so the end says"
        assert [call.number for call in tape.calls] == [0, 1, 2, 3, 5, 6, 7, 8]
        assert len(tape) == 8
        assert tape.damage
        with pytest.raises(TapeError):
            tape.find(4)


def test_a_tape_that_was_killed_is_scanned(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    data = path.read_bytes()
    for cut in (len(data) - 1, len(data) - 1024, data.index(b"end.msgpack")):
        path.write_bytes(data[:cut])
        with open_tape(path) as tape:
            assert tape.source == "records"
            assert len(tape) == 9


def test_a_part_of_the_calls_is_read_from_the_records(tmp_path: Path) -> None:
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())
    with open_tape(path) as tape:
        part = tape.only(calls="0..1")
        assert (len(part), part.source) == (2, "records")
        assert len(part.variants()) == 1 or part.variants()
    with open_tape(path) as tape, pytest.raises(UsageError):
        tape.only(calls="12")


def test_the_recorder_writes_one(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    for count in (1, 300):
        with record(model, tmp_path / f"{count}.tape", values="none"):
            for n in range(count):
                model(torch.zeros(1 + n % 5))
        with open_tape(tmp_path / f"{count}.tape") as tape:
            assert tape.source == "end"
            assert len(tape) == count
            (variant,) = tape.variants()
            assert len(variant) == count


def test_rolling_files_have_one_each(tmp_path: Path) -> None:
    model = torch.nn.Identity()
    with record(model, tmp_path / "a.tape", values="none", segment_bytes=20_000):
        for n in range(700):
            model(torch.zeros(1 + n % 5))
    assert len(list(tmp_path.glob("*.tape"))) > 1
    with open_tape(tmp_path) as quick, open_tape(tmp_path, scan=True) as thorough:
        assert quick.source == "end"
        assert answers(quick) == answers(thorough)
        assert quick.source == "end"


def test_tapes_that_are_made_of_others_have_one(tmp_path: Path) -> None:
    for name in "ab":
        model = torch.nn.Identity()
        with record(model, tmp_path / f"{name}.tape"):
            for n in range(300):
                model(torch.zeros(1 + n % 5, dtype=torch.int64))
    (tmp_path / "filtered").mkdir()
    (tmp_path / "merged").mkdir()
    with open_tape(tmp_path / "a.tape") as tape:
        filter_tape(tape, tmp_path / "filtered" / "c.tape", drop="outputs.*")
    with open_tape([tmp_path / "a.tape", tmp_path / "b.tape"]) as tape:
        merge_tapes(tape, tmp_path / "merged" / "d.tape")
    for path in (tmp_path / "filtered", tmp_path / "merged"):
        with open_tape(path) as quick, open_tape(path, scan=True) as thorough:
            assert quick.source == "end"
            assert answers(quick) == answers(thorough)
            assert not thorough.damage


def test_commands_say_what_they_read(tmp_path: Path) -> None:
    path = str(write_tape(tmp_path / "a.tape", some(9), target=Model()))
    for words in (["variants"], ["explain", "x"], ["diff"]):
        given = [words[0], path, *(words[1:] or ([path] if words[0] == "diff" else []))]
        code, out, err = run(*given, "-v")
        assert (code, "--scan" in err) == (0, True), err
        assert run(*given) == (0, out, "")
        scanned = run(*given, "--scan", "-v")
        assert (scanned[0], scanned[1], scanned[2]) == (0, out, "")
    assert "the summary at the end of the tape" in run("info", path, "--quick")[1]
    assert "the record of each call" in run("info", path)[1]
    quick, thorough = (run("info", path, *o)[1] for o in (["--quick"], ["--quick", "--scan"]))
    assert quick.replace("the summary at the end of the tape (--scan compares it with the "
                         "records)", "the record of each call") == thorough  # fmt: skip


def counted_reads(patch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads from now on."""
    found: list[int] = []
    real = tape_file.TapeFile.read_at

    def read(self: Any, at: int, size: int) -> bytes:
        data = real(self, at, size)
        found.append(len(data))
        return data

    patch.setattr(tape_file.TapeFile, "read_at", read)
    return found


def test_reads_do_not_grow_with_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places of a sealed tape are read: its manifest and its end."""
    found = []
    for count in (30, 3000):
        path = write_tape(tmp_path / f"{count}.tape", some(count), target=Model())
        with monkeypatch.context() as patch:
            reads = counted_reads(patch)
            with open_tape(path) as tape:
                tape.variants()
                tape.counters  # noqa: B018
        found.append((len(reads), sum(reads)))
    (few_reads, few_bytes), (many_reads, many_bytes) = found
    assert few_reads == many_reads <= 10
    assert many_bytes < few_bytes + 200


@pytest.mark.parametrize("beyond", [2**63, 2**64 - 1, 10**6])
def test_a_locator_beyond_the_file_is_ignored(tmp_path: Path, beyond: int) -> None:
    """No checksum covers it. An offset of 2^63 is more than a file can have."""
    path = write_tape(tmp_path / "a.tape", [((torch.ones(n, 2),), {}) for n in (2, 3)])
    data = path.read_bytes()
    end = data.rindex(b"calltape")
    forged = struct.pack("<QQ", beyond, beyond - 1)
    path.write_bytes(data[: end - 16] + forged + data[end:])
    with open_tape(path) as tape:
        assert tape.source == "records"
        assert len(tape.calls) == 2


def test_a_tape_that_claims_more_calls_than_its_file_can_have(tmp_path: Path) -> None:
    """`list()` takes memory for as many calls as it is told of."""
    path = write_tape(tmp_path / "a.tape", some(9), target=Model())

    def claims(end: End) -> dict[str, Any]:
        index = end.groups()
        entries = [index.entry(at)._replace(calls=2**40) for at in range(len(index))]
        packed = b"".join(entry.pack() for entry in entries)
        table = InputsTable()
        table.other.add(Counts(2**40 * len(index), 2**40 * len(index), 0))
        return {
            "coverage": Coverage(seen=2**40 * len(index), kept=2**40 * len(index)),
            "index": deflated(packed), "inputs": deflated(pack_inputs(table)),
        }  # fmt: skip

    change_end(path, claims)
    with open_tape(path) as tape:
        assert len(tape) == 9
        assert len(list(tape)) == 9
        assert tape.damage


def test_a_survey_of_many_calls_is_no_list_of_them(tmp_path: Path) -> None:
    write_tape(tmp_path / "a.tape", some(9), target=Model())
    survey(tmp_path / "a.tape").write(tmp_path / "b.tape")
    change_end(tmp_path / "b.tape", lambda end: {"coverage": Coverage(seen=2**40, kept=2**40)})
    with open_tape(tmp_path / "b.tape") as tape, pytest.raises(UsageError, match="no single call"):
        list(tape)


class Doubling(torch.nn.Module):
    def forward(self, ids: Any, mask: Any = None) -> Any:
        return ids * 2  # outputs have ranges too, which are not those of the inputs


@pytest.fixture(params=["all", "none"])
def tape(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Six calls of two shapes: each call has other ranges. With tensors, and without: those records
    share members. The numbers are many, because the range of few would tell them."""
    model, path = Doubling(), tmp_path / "a.tape"
    with record(model, path, values=request.param):
        for call in range(6):
            ids = torch.arange(2000 + call % 2) + 100 * call
            model(ids, mask=None if call % 2 else torch.arange(2000, dtype=torch.int32) + call)
    return path


def ranges(path: Path, **how: Any) -> dict[str, list[tuple[int, int]]]:
    with open_tape(path, scan=True, **how) as opened:
        groups = opened.observations().groups.values()
        return {
            str(sorted(group.layout.arguments)): [(s.min, s.max) for s in group.ranges.values()]
            for group in groups
        }


def test_ranges_are_those_of_all_calls(tape: Path) -> None:
    """Of the calls 0, 2, 4, with a mask, and of 1, 3, 5."""
    assert ranges(tape) == {
        "['ids', 'mask']": [(0, 2399), (0, 2003)],
        "['ids']": [(100, 2500)],
    }


def test_variants_say_the_same_by_the_records_and_by_the_end(tape: Path) -> None:
    told = []
    for scan in (False, True):
        with open_tape(tape, scan=scan) as opened:
            tensors = [
                tensor for variant in opened.variants() for tensor in variant.findings.tensors
            ]
            told.append(sorted((tensor.name, tensor.range) for tensor in tensors))
    assert told[0] == told[1]
    assert ("mask", (0, 2003)) in told[0]


def test_of_a_part_only_its_calls_count(tape: Path) -> None:
    with open_tape(tape, scan=True) as opened:
        (group,) = opened.only(calls="2..4", ignore=["mask"]).observations().groups.values()
    assert (group.ranges[0].min, group.ranges[0].max) == (200, 2399)


def test_forged_ranges_are_damage_when_the_records_were_read(tmp_path: Path) -> None:
    given = [((torch.arange(2000) + 100 * call,), {}) for call in range(3)]
    path = write_tape(tmp_path / "a.tape", given, target=Doubling())

    def forge(table: Any) -> None:
        (row,) = table.rows.values()
        row.ranges = {0: (-5, 9)}

    change_table(path, forge)
    with open_tape(path) as opened:
        (group,) = opened.observations().groups.values()
        assert (group.ranges[0].min, group.ranges[0].max) == (-5, 9), "nobody can tell"
        assert not opened.damage
    with open_tape(path, scan=True) as opened:
        (group,) = opened.observations().groups.values()
        assert (group.ranges[0].min, group.ranges[0].max) == (0, 2199)
        (error,) = opened.damage
        assert (error.path, error.member) == (str(path), "end.msgpack")
        assert "other ranges of integers" in str(error)
        opened.observations()
        assert len(opened.damage) == 1
