"""``calltape survey``, and other verbs on what it wrote: they say what they say of the tapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import diff, open_tape
from calltape_analyzer import limits as budget
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import written
from tests.analyzer.tapes import Recorded, write_tape


class Model(torch.nn.Module):
    def forward(self, x: Any, mask: Any = None, end: bytes = b"\xff\x00") -> Any:
        return x


def test_variants_are_chosen_without_single_calls(tmp_path: Path) -> None:
    calls = [{"x": torch.zeros(i + 2, 4), "mask": torch.ones(2)} for i in range(3)]
    tape = write_tape(tmp_path / "a.tape", [*calls, {"x": torch.zeros(3, 4)}], target=Model())
    found = written(tmp_path / "s.tape", tape)
    for verb, *words in (["variants"], ["explain", "x", "0"]):
        on_tape, on_survey = (
            run(verb, path, *words, "--variant", "1", "--json") for path in (tape, found)
        )
        assert (on_survey.code, on_survey.out) == (0, on_tape.out)
        missing = run(verb, found, *words, "--variant", "none")
        assert "there is no variant 'none'" in missing.err


def test_python_of_a_survey_has_shapes_and_no_arguments(tmp_path: Path) -> None:
    calls = [((torch.zeros(i + 2, 4),), {}) for i in range(3)]
    found = written(tmp_path / "s.tape", write_tape(tmp_path / "a.tape", calls))
    scope: dict[str, Any] = {}
    exec(run("variants", found, "--python").out, scope)
    assert scope["dynamic_shapes"] == {"args": ({0: torch.export.Dim.AUTO},)}
    assert "args" not in scope, "a survey has no call to make arguments of"


def test_a_survey_of_wider_ranges_is_compared(tmp_path: Path) -> None:
    for name, most in (("before", 5), ("now", 50)):
        calls = [((torch.arange(most - i, most),), {}) for i in (2, 3)]
        written(tmp_path / f"{name}.s", write_tape(tmp_path / f"{name}.tape", calls))
    ran = run("diff", tmp_path / "before.s", tmp_path / "now.s")
    assert ran.code == 0, "a range is no difference"
    assert "elements 47..49; 2..4 before" in ran.out
    assert "not all of these calls need have them" in ran.out
    tapes = run("diff", tmp_path / "before.tape", tmp_path / "now.tape")
    assert "elements 47..49; 2..4 before" in tapes.out
    assert "need have them" not in tapes.out


def test_calls_that_raise_now_are_counts(tmp_path: Path) -> None:
    calls = [Recorded((torch.zeros(i + 2, 4),)) for i in range(3)]
    raised = [
        Recorded((torch.zeros(i + 2, 4),), error=("builtins:ValueError", "no")) for i in range(3)
    ]
    before = write_tape(tmp_path / "before.tape", calls)
    now = write_tape(tmp_path / "now.tape", calls + raised)
    with (
        open_tape(written(tmp_path / "before.s", before)) as one,
        open_tape(written(tmp_path / "now.s", now)) as other,
        open_tape(before) as tape,
        open_tape(now) as later,
    ):
        difference = diff(one, other)
        assert "3 calls raised, and none did before" in str(difference)
        assert "first call" not in str(difference), "a survey does not know which of them raised"
        assert "3 calls raised, and none did before (3 calls, first call 3)" in str(
            diff(tape, later)
        )
    assert json.loads(run("info", tmp_path / "now.s", "--json").out)["errors"] == 3


def test_a_survey_without_calls_stands_in_for_its_tapes(tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "a.tape", [])
    found = written(tmp_path / "s.tape", tape)
    shown = run("info", found)
    assert (shown.code, shown.err) == (0, "")
    assert "None" not in shown.out
    assert run("variants", found) == run("variants", tape)


def test_a_broken_survey_costs_its_own_answer_only(tmp_path: Path) -> None:
    good = written(tmp_path / "a.s", write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})]))
    bad = tmp_path / "bad.s"
    bad.write_bytes(good.read_bytes()[:-900])
    ran = run("survey", good, bad)
    assert "1 with 1 different inputs" in ran.out
    alone = run("survey", bad)
    assert alone.code in (0, 1, 3)
    assert "unexpected" not in alone.err


@pytest.mark.parametrize("seconds", ["0", "600"])
def test_adding_up_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: str
) -> None:
    """Each file is read, and no time is left to add them up."""
    monkeypatch.setattr(budget.Spending, "look", lambda self, frame: None)
    for number in range(3):
        calls = [((torch.zeros(2, 4),), {})]
        write_tape(tmp_path / f"{number}.tape", calls, tape_id=bytes([number]) * 16)
    ran = run("--max-seconds", seconds, "survey", tmp_path, "-o", tmp_path / "s.out")
    if seconds == "600":
        assert (ran.code, ran.err) == (0, "")
        return
    assert ran.code == 1
    assert "no tape could be read" in ran.out
    assert "3 files left out: adding them up takes too long" in ran.err
    assert "--max-seconds" in ran.err
    assert not (tmp_path / "s.out").exists()


@pytest.mark.parametrize("name", ["nothing", "text", "cut"])
def test_a_survey_of_unreadable_files_exits_with_1(tmp_path: Path, name: str) -> None:
    tape = write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})])
    data = {"nothing": b"", "text": b"hello" * 300, "cut": tape.read_bytes()[:300]}[name]
    for number in range(2):
        (tmp_path / f"{number}.tape").write_bytes(data)
    tape.unlink()
    out = tmp_path / "s.out"
    ran = run("survey", tmp_path, "-o", out)
    assert (ran.code, ran.out) == (1, f"no tape could be read; {out} was not written\n")
    assert [f"{number}.tape" in line for number, line in enumerate(ran.err.splitlines())] == [
        True, True
    ]  # fmt: skip
    assert not out.exists()
    alone = run("survey", tmp_path)
    assert (alone.code, alone.out) == (1, "no tape could be read\n")
    as_json = run("survey", tmp_path, "--json")
    assert (as_json.code, json.loads(as_json.out)) == (1, [])


@pytest.mark.parametrize("name", ["a.tape", "s.tape"])
def test_a_survey_writes_over_none_of_its_inputs(tmp_path: Path, name: str) -> None:
    tape = write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})])
    written(tmp_path / "s.tape", tape)
    before = (tmp_path / name).read_bytes()
    refused = run("survey", tmp_path / name, "-o", tmp_path / name, "--force")
    assert refused.code != 0
    assert "one of the tapes that are read" in refused.err
    assert (tmp_path / name).read_bytes() == before


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    tape = write_tape(tmp_path / "a.tape", [((torch.zeros(2, 4),), {})])
    out = tmp_path / "s.tape"
    assert run("survey", tape, "-o", out).code == 0
    again = run("survey", tape, "-o", out)
    assert again.code != 0
    assert "--force" in again.err
    assert run("survey", tape, "-o", out, "--force").code == 0
