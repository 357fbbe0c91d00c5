"""``calltape survey``: what it tells, and what it costs if a file is broken."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from calltape_analyzer import open_tape, read_survey
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import write_tape


def made(folder: Path, name: str, tape_id: bytes) -> Path:
    calls = [((torch.zeros(i + 2, 4),), {}) for i in range(3)]
    tape = write_tape(folder / f"{name}.tape", calls, tape_id=tape_id)
    assert run("survey", tape, "-o", folder / f"{name}.json").code == 0
    return folder / f"{name}.json"


def test_surveys_add_up_and_stand_in_for_tapes(tmp_path: Path) -> None:
    one, two = made(tmp_path, "a", b"a" * 16), made(tmp_path, "b", b"b" * 16)
    both = tmp_path / "both.json"
    assert run("survey", one, two, one, "-o", both).code == 0
    (facts,) = json.loads(run("survey", both, "--json").out)
    assert (facts["calls"], facts["files"]) == (6, 2)
    assert run("variants", both).out == run("variants", *tmp_path.glob("*.tape")).out
    scope: dict[str, Any] = {}
    exec(run("variants", both, "--python").out, scope)
    assert scope["dynamic_shapes"] == {"args": ({0: torch.export.Dim.AUTO},)}
    assert "args" not in scope, "a survey has no call to make arguments of"


def test_variants_are_chosen_without_single_calls(tmp_path: Path) -> None:
    calls = [{"x": torch.zeros(i + 2, 4), "mask": torch.ones(2)} for i in range(3)]
    write_tape(tmp_path / "a.tape", [*calls, {"x": torch.zeros(3, 4)}], target=other_model())
    assert run("survey", tmp_path / "a.tape", "-o", tmp_path / "s.json").code == 0
    for verb in (["variants"], ["explain"]):
        argument = ["x", "0"] if verb == ["explain"] else []
        on_tape, on_survey = (
            run(*verb, tmp_path / name, *argument, "--variant", "1", "--json")
            for name in ("a.tape", "s.json")
        )
        assert (on_survey.code, on_survey.out) == (0, on_tape.out)
        missing = run(*verb, tmp_path / "s.json", *argument, "--variant", "none")
        assert "there is no variant 'none'" in missing.err


def test_advice_names_the_tape_of_a_call(tmp_path: Path) -> None:
    calls = [((torch.zeros(size, 4),), {}) for size in (1, 2, 3)]
    tape = write_tape(tmp_path / "a.tape", calls)
    assert run("survey", tape, "-o", tmp_path / "s.json").code == 0
    with read_survey(tmp_path / "s.json").tape() as surveyed, open_tape(tape) as whole:
        (note,) = surveyed.shape_findings().notes
        assert f".index) of {tape}, which has at least 2" in note
        assert ".index), which" in whole.shape_findings().notes[0]


def test_a_broken_survey_costs_its_own_answer_only(tmp_path: Path) -> None:
    good, bad = made(tmp_path, "a", b"a" * 16), tmp_path / "bad.json"
    bad.write_bytes(b"")
    ran = run("survey", good, bad)
    assert ran.code == 3
    assert "3 with 3 different inputs" in ran.out
    assert f"{bad}: the file is no survey" in ran.err
    alone = run("survey", bad)
    assert (alone.code, alone.out) == (1, "")


def test_a_copy_is_told_by_name_and_is_no_damage(tmp_path: Path) -> None:
    made(tmp_path, "a", b"a" * 16)
    shutil.copy(tmp_path / "a.tape", tmp_path / "again.tape")
    ran = run("survey", tmp_path / "a.tape", tmp_path / "again.tape", "-o", tmp_path / "s.json")
    assert (ran.code, ran.err) == (0, "")
    assert "again.tape" in next(row for row in ran.out.splitlines() if row.startswith("copies"))
    for later in (["variants"], ["info"]):
        assert run(*later, tmp_path / "s.json").err == ""


class Model(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x


def other_model() -> torch.nn.Module:
    """Of the same name as the other one, with another signature."""

    class Other(torch.nn.Module):
        def forward(self, x: Any, mask: Any = None) -> Any:
            return x

    Other.__qualname__ = Model.__qualname__
    return Other()


def test_two_targets_of_one_name_are_told_apart(tmp_path: Path) -> None:
    calls = [((torch.zeros(i + 2, 4),), {}) for i in range(3)]
    write_tape(tmp_path / "a.tape", calls, target=Model(), tape_id=b"a" * 16)
    write_tape(tmp_path / "b.tape", calls[:2], target=other_model(), tape_id=b"b" * 16)
    found = tmp_path / "s.json"
    assert run("survey", tmp_path, "-o", found).code == 0
    ran = run("info", found)
    assert ran.code == 0
    names = [row.split()[1:] for row in ran.out.splitlines() if row.startswith("target")]
    assert [" ".join(name).rpartition("Model.")[2] for name in names] == [
        "forward(x)",
        "forward(x, mask=None)",
    ]
    assert len(json.loads(run("info", found, "--json").out)) == 2
    assert run("variants", found, "--target", "forward(x)").code == 0
    refused = run("variants", found)
    assert refused.code == 1
    assert "mask=None" in refused.err


def test_a_survey_of_wider_ranges_is_compared(tmp_path: Path) -> None:
    for name, most in (("before", 5), ("now", 50)):
        calls = [((torch.arange(most - i, most),), {}) for i in (2, 3)]
        tape = write_tape(tmp_path / f"{name}.tape", calls)
        assert run("survey", tape, "-o", tmp_path / f"{name}.json").code == 0
    ran = run("diff", tmp_path / "before.json", tmp_path / "now.json")
    assert ran.code == 0, "a range is no difference"
    assert "elements 47..49; 2..4 before" in ran.out
    assert "not all of these calls need have them" in ran.out
    tapes = run("diff", tmp_path / "before.tape", tmp_path / "now.tape")
    assert "elements 47..49; 2..4 before" in tapes.out
    assert "need have them" not in tapes.out


def test_a_default_of_bytes(tmp_path: Path) -> None:
    """JSON has none: such a tape could not be surveyed."""

    class Model(torch.nn.Module):
        def forward(self, x: Any, end: bytes = b"\xff\x00") -> Any:
            return x

    tape = write_tape(tmp_path / "a.tape", [((torch.zeros(2),), {})], target=Model())
    assert run("survey", tape, "-o", tmp_path / "a.json").code == 0
    assert run("variants", tmp_path / "a.json").code == 0


def test_a_survey_without_calls_stands_in_for_its_tapes(tmp_path: Path) -> None:
    write_tape(tmp_path / "a.tape", [])
    assert run("survey", tmp_path / "a.tape", "-o", tmp_path / "s.json").code == 0
    shown = run("info", tmp_path / "s.json")
    assert (shown.code, shown.err) == (0, "")
    assert "None" not in shown.out
    assert run("variants", tmp_path / "s.json") == run("variants", tmp_path / "a.tape")


def test_folders_stand_for_hosts_that_no_tape_names(tmp_path: Path) -> None:
    for name in ("host-1", "host-2"):
        (tmp_path / name).mkdir()
        calls = [((torch.zeros(2, 4),), {})]
        write_tape(tmp_path / name / "a.tape", calls, tape_id=name.encode().ljust(16))
    shown = run("survey", tmp_path)
    assert re.search(r"^folders    2: .*host-1, .*host-2$", shown.out, re.MULTILINE)
    (facts,) = json.loads(run("survey", tmp_path, "--json").out)
    assert facts["hosts"] == []
    assert [Path(one).name for one in facts["folders"]] == ["host-1", "host-2"]


def test_a_survey_cannot_be_scanned(tmp_path: Path) -> None:
    one = made(tmp_path, "a", b"a" * 16)
    shown = run("variants", one, "--scan")
    assert (shown.code, shown.out) == (1, "")
    assert "no records to scan" in shown.err
    assert run("variants", one, tmp_path / "a.tape", "--scan").code == 0


def test_markdown_is_of_tapes(tmp_path: Path) -> None:
    shown = run("info", made(tmp_path, "a", b"a" * 16), "--markdown")
    assert (shown.code, shown.out) == (1, "")
    assert "not of a survey" in shown.err
