"""The verbs that make tapes of tapes: filter, merge, recover; and what info says is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calltape_analyzer import diagnose, open_tape, private_data
from calltape_schema.remedies import told_to
from tests.analyzer.cli.commands import process, run, without_torch
from tests.analyzer.editing.recordings import numbers, recorded


@pytest.fixture
def tape(tmp_path: Path) -> Path:
    return recorded(tmp_path / "in.tape", [3, 4, -5, 6, 9])


def kept(path: Path) -> list[int]:
    with open_tape(path, verify=True) as found:
        assert found.damage == []
        return numbers(found)


def test_filter_keeps_the_calls_that_were_chosen_and_overwrites_only_by_force(
    tape: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.tape"
    result = run("filter", tape, "-o", out, "--where", "n > 3", "--no-errors")
    assert (result.code, result.err) == (0, "")
    assert "3 calls" in result.out
    assert "left out: 2 calls" in result.out
    assert kept(out) == [1, 3, 4]
    result = run("filter", tape, "-o", out)
    assert result.code == 1
    assert "there already. Name another place, or pass --force" in result.err
    result = run("filter", tape, "-o", out, "--force", "--calls", "2..3", "--json")
    assert result.code == 0
    report = json.loads(result.out)
    assert (report["calls"], report["left_out"], report["lost"]) == (2, 3, [])
    assert kept(out) == [2, 3]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--errors"], [2]),
        (["--first", "2"], [0, 1]),
        (["--where", "n > 3", "--first", "1"], [1]),
        (["--start", "+0", "--end", "+1000"], [0, 1, 2, 3, 4]),
        (["--start", "2100-01-01"], []),
        (["--start", "2020-01-01T00:00:00Z"], [0, 1, 2, 3, 4]),
        (["--end", "1000000000.5"], []),
        (["--where", "n == 9", "--where", "x[0] == 9"], [4]),
        (["--novel", "--drop", "*"], [0, 1, 2, 3, 4]),
    ],
)
def test_each_option_of_filter_chooses_its_calls(
    tape: Path, tmp_path: Path, options: list[str], expected: list[int]
) -> None:
    out = tmp_path / "out.tape"
    result = run("filter", tape, "-o", out, *options)
    assert result.code == 0, result.err
    assert kept(out) == expected


@pytest.mark.parametrize(
    "options",
    [
        ["--start", "yesterday"],
        ["--start", "+x"],
        ["--start", "+nan"],
        ["--end", "+inf"],
        ["--calls", "x"],
        ["--calls", "99"],
        ["--variant", "none"],
        ["--target", "none"],
        ["--where", "n >"],
        ["--where", "nothing > 1"],
        ["--drop", ""],
    ],
)
def test_a_wrong_command_line_writes_nothing(
    tape: Path, tmp_path: Path, options: list[str]
) -> None:
    result = run("filter", tape, "-o", tmp_path / "out.tape", *options)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.replace("Error: ", "calltape: ").split("calltape: ")) == 2
    assert not (tmp_path / "out.tape").exists()


def test_an_empty_path_is_rejected_as_the_name_of_a_value(tape: Path, tmp_path: Path) -> None:
    result = run("redact", tape, "-o", tmp_path / "out.tape", "--keep", "")
    assert (result.code, result.out) == (2, "")
    assert "a path that is empty names no value" in result.err


def test_filter_rejects_a_condition_that_it_cannot_evaluate_and_its_own_source(
    tape: Path, tmp_path: Path
) -> None:
    result = run("filter", tape, "-o", tmp_path / "out.tape", "--where", "open('x') > 1")
    assert (result.code, result.out) == (2, "")
    assert "cannot be part of a condition" in result.err
    result = run("filter", tape, "-o", tape, "--force")
    assert result.code == 2
    assert "none is changed in place" in result.err
    result = run("filter", tape, "-o", tmp_path / "out.tape", "--where", "nothing > 1")
    assert "The sizes are: x[0]" in result.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.tape"]


def test_merge_and_take_apart(tape: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "other.tape", [7, 8])
    out = tmp_path / "out.tape"
    result = run("merge", tape, other, "-o", out)
    assert result.code == 0
    assert "2 recordings are one now" in result.out
    assert kept(out) == [0, 1, 2, 3, 4, 5, 6]


def test_recover_says_what_was_lost(tape: Path, tmp_path: Path) -> None:
    data = tape.read_bytes()
    torn = tmp_path / "torn.tape"
    torn.write_bytes(data[: data.index(b"blobs/00000004") + 700])
    result = run("recover", torn, "-o", tmp_path / "a.tape")
    assert result.code == 3
    assert "of calls that were being written" in result.out
    assert kept(tmp_path / "a.tape") == [0, 1, 2, 3]
    torn.write_bytes(data[: data.index(b"end.msgpack")])
    result = run("recover", torn, "-o", tmp_path / "b.tape")
    assert (result.code, result.err) == (0, "")
    damaged = bytearray(data)
    damaged[data.index(b"blobs/00000001.safetensors") + 800] ^= 1
    torn.write_bytes(damaged)
    result = run("recover", torn, "-o", tmp_path / "c.tape")
    assert result.code == 3
    assert "call 1" in result.out
    assert kept(tmp_path / "c.tape") == [0, 2, 3, 4]
    result = run("filter", torn, "-o", tmp_path / "d.tape")
    assert result.code == 3
    result = run("recover", tape, "-o", tmp_path / "e.tape", "--json")
    assert result.code == 0
    assert "nothing had to be recovered" in json.loads(result.out)["notes"][0]


def test_info_shows_the_history(tape: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "other.tape", [7, 8])
    out = tmp_path / "out.tape"
    run("merge", tape, other, "-o", tmp_path / "both.tape")
    run("filter", tmp_path / "both.tape", "-o", out, "--first", "3")
    result = run("info", out)
    assert result.code == 0
    assert "history    merge of " in result.out
    assert "(in.tape, 5 calls)" in result.out
    assert "filter first 3 of " in result.out
    steps = json.loads(run("info", out, "--json").out)["history"]
    assert [step["verb"] for step in steps] == ["merge", "filter"]
    assert steps[0]["sources"][1]["first"] == 5
    assert json.loads(run("info", tape, "--json").out)["history"] == []


def test_info_says_what_is_wrong(tape: Path, tmp_path: Path) -> None:
    result = run("info", tape)
    assert result.code == 0
    assert "error" not in result.out
    document = json.loads(run("info", tape, "--json").out)
    with open_tape(tape) as opened, told_to("command"):
        assert document["findings"] == [
            symptom.model_dump() for symptom in diagnose(opened).symptoms
        ]
        assert document["private"] == private_data(opened).model_dump(mode="json")
    data = bytearray(tape.read_bytes())
    data[data.index(b"blobs/00000001.safetensors") + 800] ^= 1
    (tmp_path / "b.tape").write_bytes(data)
    result = run("info", tmp_path / "b.tape")
    assert result.code == 3
    assert "error: 1 place corrupted" in result.out
    assert "save the rest with `calltape recover`" in result.out
    quick = run("info", tape, "--quick").out
    assert "were not looked for; leave out --quick" in quick
    assert "\nprivate " not in quick


@pytest.mark.integration
def test_none_of_them_imports_torch(tape: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out.tape")
    commands = [
        ["filter", str(tape), "-o", out, "--where", "n > 3", "--novel", "--drop", "x"],
        ["merge", str(tape), "-o", out, "--force"],
        ["recover", str(tape), "-o", out, "--force"],
        ["info", str(tape)],
    ]
    assert len(without_torch(commands)) == 4


@pytest.mark.integration
def test_a_process_that_is_killed_leaves_no_tape(tape: Path, tmp_path: Path) -> None:
    result = process("--max-seconds", "0", "filter", tape, "-o", tmp_path / "out.tape")
    assert result.returncode in (0, 1)
    assert (tmp_path / "out.tape").exists() == (result.returncode == 0)
