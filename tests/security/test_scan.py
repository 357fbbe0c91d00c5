"""Promise: what a record says is compared with what the tape says of it, and a call that is forged
counts nowhere. Whoever did not read all records says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calltape_analyzer import TapeError, open_tape, survey
from calltape_schema.inputs_table import InputsTable
from calltape_schema.tree import encode_leaves
from tests.analyzer.cli.commands import run
from tests.fixture_files import FIXTURES
from tests.forging.changes import change_table
from tests.raising import raises
from tests.security.costly import Inputs, inputs_of, sealed, survey_of

NODES = [{"kind": "tensor", "leaf": 0}]
CALLS = 6


def shaped(*sizes: int) -> Inputs:
    return inputs_of(NODES, [sizes])


@pytest.fixture(params=[0, 3, 5], ids=lambda number: f"call {number}")
def liar(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Calls of two inputs; by the tables one of them is of the first kind, by its record not."""
    inputs = [shaped(2, 3)] * 4 + [shaped(4, 3)] * 2
    forged = {request.param: shaped(9, 9, 9)}
    return sealed(tmp_path / "liar.tape", inputs, forged=forged)


def test_a_forged_record_counts_nowhere_in_the_api(liar: Path) -> None:
    with open_tape(liar, scan=True) as tape:
        assert len(tape) == len(list(tape.calls)) == CALLS - 1
        assert sum(map(len, tape.variants())) == CALLS - 1
        assert sum(seen.calls for seen in tape.calls.by_inputs()) == CALLS - 1
        assert tape.observations().calls == CALLS - 1
        assert [error.kind for error in tape.damage] == ["invalid"]
        assert "not as the table" in str(tape.damage[0])
    found = survey(liar, processes=1, scan=True).target()
    assert (found.coverage.kept, found.table.totals().kept) == (CALLS - 1, CALLS - 1)
    assert len(found.damage) == 1


def test_single_calls_skip_it_without_a_scan(liar: Path) -> None:
    with open_tape(liar) as tape:
        assert len(list(tape.calls)) == len(list(tape)) == CALLS - 1
        assert sum(len(variant.calls) for variant in tape.variants()) == CALLS - 1
        assert len(tape.damage) == 1


@pytest.mark.parametrize(
    "words",
    ["info", "info --json", "info --scan", "info --markdown", "ls", "ls --json",
     "variants --scan", "variants --scan --json", "variants --scan --python",
     "explain 0 --scan", "survey --scan --jobs 1", "survey --scan --json --jobs 1"],
)  # fmt: skip
def test_every_command_says_so_and_shows_the_rest(liar: Path, words: str) -> None:
    verb, *options = words.split()
    arguments = [options.pop(0)] if verb == "explain" else []
    ran = run(verb, liar, *arguments, *options)
    assert ran.code == 3
    assert "a record is not as the table of its group says" in ran.err
    assert ran.out.strip()


@pytest.mark.parametrize("verb", ["variants", "explain"])
def test_an_answer_without_a_scan_says_what_was_read(liar: Path, verb: str) -> None:
    ran = run(verb, liar, *(["0"] if verb == "explain" else []), "-v")
    assert ran.code == 0
    assert "--scan compares it with the records" in ran.err


def test_a_survey_says_what_was_read(liar: Path) -> None:
    assert f"read       0 of {CALLS} records; --scan reads all of them" in run("survey", liar).out
    assert "read " not in run("survey", liar, "--scan").out
    (told,) = json.loads(run("survey", liar, "--json").out)
    assert (told["records"], told["records_read"]) == (CALLS, 0)


def test_records_that_stand_for_others_are_counted(tmp_path: Path) -> None:
    path = sealed(tmp_path / "a.tape", [shaped(2, 3)] * 5, is_sealed=False)
    ran = run("variants", path)
    assert (ran.code, ran.err) == (
        0,
        "calltape: 1 of 5 records were read; --scan reads and compares all of them\n",
    )
    assert run("variants", path, "--scan").err == ""


def test_a_broken_record_makes_all_others_be_read(tmp_path: Path) -> None:
    """Then the others are not believed either: all of them are read."""
    inputs = [shaped(2, 3)] * 4 + [shaped(4, 3)] * 2
    forged = {0: shaped(9, 9), 5: shaped(8, 8)}
    path = sealed(tmp_path / "a.tape", inputs, is_sealed=False, forged=forged)
    with open_tape(path) as tape:
        assert sum(map(len, tape.variants())) == 4
        assert len(tape.damage) == 2


def test_a_position_without_a_call_is_a_tape_error(liar: Path) -> None:
    with open_tape(liar) as tape:
        with raises("usage") as caught:
            tape[10**6]
        assert isinstance(caught.value, IndexError)


def test_a_survey_whose_table_cannot_be_read_says_so(tmp_path: Path) -> None:
    path = survey_of(tmp_path / "s.tape", b"\xc1", 3)
    with open_tape(path) as tape:
        assert [error.member for error in tape.damage] == ["end.msgpack"]
    assert run("variants", path).code == 3


def test_an_error_that_a_lie_caused_is_told_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is asked: an IndexError says nothing about a tape."""

    def changed(table: InputsTable) -> None:
        for at, row in enumerate(table.rows.values()):
            row.leaves = encode_leaves([
                {"dtype": "float32", "shape": [7 + at], "missing": "policy"}
            ])  # fmt: skip

    def fails(*_: Any) -> Any:
        return [][0]

    path = change_table(sealed(tmp_path / "a.tape", [shaped(2, 3)] * 3), changed)
    monkeypatch.setattr("calltape_analyzer.observing.sorting.CallSorter.observations", fails)
    with open_tape(path) as tape:
        with raises("damaged") as caught:
            tape.observations()
        assert isinstance(caught.value.__cause__, IndexError)
        assert "forged or stale table" in str(tape.damage[0])
    sound = sealed(tmp_path / "b.tape", [shaped(2, 3)] * 3)
    with open_tape(sound) as tape, pytest.raises(IndexError):  # a fault of ours is no damage
        tape.observations()


def test_a_call_that_only_the_end_names_is_damage(tmp_path: Path) -> None:
    def changed(table: InputsTable) -> None:
        for row in table.rows.values():
            row.first = row.last = row.example = 1000

    path = change_table(sealed(tmp_path / "a.tape", [shaped(2, 3)] * 3), changed)
    with open_tape(path) as tape:
        (variant,) = tape.variants()
        with pytest.raises(TapeError):
            variant.infer_arguments()
        assert "forged or stale table" in str(tape.damage[0])
        assert tape.variants()[0].infer_arguments().args[0].shape == (2, 3)


@pytest.mark.parametrize("name", ["reference_no_blob", "reference_other_shape"])
def test_convert_writes_what_is_whole(tmp_path: Path, name: str) -> None:
    path = FIXTURES / "hostile" / f"{name}.tape"
    ran = run("convert", path, "-o", tmp_path / "out")
    assert ran.code == 3
    with open_tape(path) as tape:
        whole = len(tape) - len(tape.verify())
        assert 0 < whole < len(tape)
    assert len(list((tmp_path / "out").glob("call_*.json"))) == whole


def test_convert_writes_no_depth_that_a_tape_chose(tmp_path: Path) -> None:
    """A field of a record that nobody knows may nest as deep as a document."""
    deep: Any = 0
    for _ in range(900):
        deep = [deep]
    path = sealed(tmp_path / "a.tape", [shaped(2, 3)] * 2, unknown=deep)
    ran = run("convert", path, "-o", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    assert len(list((tmp_path / "out").glob("call_*.json"))) == 2
