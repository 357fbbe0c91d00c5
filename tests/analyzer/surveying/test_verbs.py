"""Each verb reads a survey, or refuses it with a sentence that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.cli.verbs import VERBS
from calltape_analyzer.errors import UsageError
from tests.analyzer.cli.commands import run
from tests.analyzer.surveying.surveyed import written
from tests.analyzer.tapes import write_tape

READ = {
    "info": [], "view": ["--out", "out.html"], "variants": [], "explain": ["x", "0"], "survey": [],
    "diff": ["s.tape"],
}  # fmt: skip
REFUSE = {
    "ls": [], "show": ["0"], "filter": ["-o", "out"], "merge": ["-o", "out"],
    "recover": ["-o", "out"], "redact": ["-o", "out"], "bundle": ["-o", "out.py"],
    "convert": ["-o", "out"], "table": ["-o", "out.parquet"],
    "export": ["--to", "torch", "--model", "tests.analyzer.surveying.test_verbs:Model"],
    "replay": ["--model", "tests.analyzer.surveying.test_verbs:Model"],
    "minimise": ["--check", "false", "-o", "out"],
}  # fmt: skip


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        write_tape(
            tmp_path / f"{number}.tape", [((torch.zeros(i + 2, 4),), {}) for i in range(3)],
            target=Model(), tape_id=bytes([number]) * 16,
            producer={"host": f"gpu-{number}"},
        )  # fmt: skip
    written(tmp_path / "s.tape", tmp_path / "0.tape", tmp_path / "1.tape")
    return tmp_path


def test_these_are_all_verbs() -> None:
    assert {verb.name for verb in VERBS} == {*READ, *REFUSE}


@pytest.mark.parametrize("verb", READ)
def test_each_reading_verb_takes_a_survey(folder: Path, verb: str) -> None:
    ran = run(verb, "s.tape", *READ[verb])
    assert (ran.code, ran.err) == (0, "")
    assert ran.out


@pytest.mark.parametrize("verb", REFUSE)
def test_other_verbs_reject_a_survey_with_advice(folder: Path, verb: str) -> None:
    before = sorted(folder.iterdir())
    ran = run(verb, "s.tape", *REFUSE[verb])
    assert ran.code not in (0, 3, 4)
    assert ran.out == ""
    assert "a survey has counts and sizes, and no single call or value" in ran.err
    assert "Open the tapes themselves" in ran.err
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("verb", ["info", "variants", "survey"])
def test_a_scan_is_of_tapes(folder: Path, verb: str) -> None:
    ran = run(verb, "s.tape", "--scan")
    if verb == "survey":  # it reads what it can read
        assert (ran.code, ran.err) == (0, "")
    else:
        assert (ran.code, ran.out) == (1, "")
        assert "no records to scan. Name the tapes themselves" in ran.err


def test_info_has_all_that_its_tapes_say(folder: Path) -> None:
    ran = run("info", "s.tape")
    rows = {line[:11].strip(): line[11:] for line in ran.out.splitlines()}
    assert rows["hosts"] == "gpu-0, gpu-1"
    assert rows["time"].startswith("2023-11-14T22:13:20.000Z to 2023-11-14T22:13:")
    assert rows["target"].endswith("Model.forward (seen by hook)")
    assert rows["calls"] == "6 with 1 input signature"
    assert rows["checksums"] == "a survey has no calls; the surveyed tapes have them"
    assert "--scan" not in ran.out
    facts = json.loads(run("info", "s.tape", "--json").out)
    tapes = json.loads(run("info", "0.tape", "1.tape", "--json").out)
    same = (
        "calls", "input_signatures", "errors", "tensor_bytes", "coverage", "traffic", "contexts",
        "first_call", "last_call_end", "hosts", "target", "signature",
    )  # fmt: skip
    assert {name: facts[name] for name in same} == {name: tapes[name] for name in same}


@pytest.mark.parametrize("options", [["--quick"], ["--markdown"]])
def test_info_counts_calls_of_a_survey_in_every_form(folder: Path, options: list[str]) -> None:
    ran = run("info", "s.tape", *options)
    assert (ran.code, ran.err) == (0, "")
    assert "6" in ran.out


def test_a_survey_of_a_survey_keeps_hosts_and_times(folder: Path) -> None:
    one = json.loads(run("survey", "s.tape", "--json").out)[0]
    both = json.loads(run("survey", "0.tape", "1.tape", "--json").out)[0]
    same = ("hosts", "first_call", "last_call_end", "calls", "inputs", "coverage", "recordings")
    assert {name: one[name] for name in same} == {name: both[name] for name in same}


def test_a_single_call_is_refused_in_python_too(folder: Path) -> None:
    with open_tape("s.tape") as tape:
        for ask in (lambda: tape[0], lambda: tape.find(0), lambda: list(tape)):
            with pytest.raises(UsageError, match="Open the tapes themselves"):
                ask()


def test_several_targets_are_listed_and_chosen_by_name(folder: Path) -> None:
    write_tape(
        folder / "2.tape", [((torch.zeros(2),), {})], target=torch.nn.ReLU(), tape_id=b"z" * 16
    )
    written(folder / "t.tape", folder / "2.tape")
    listed = run("info", "s.tape", "t.tape")
    assert listed.code == 0
    assert "tapes of 2 targets" in listed.out
    chosen = run("variants", "s.tape", "t.tape", "--target", "ReLU")
    assert (chosen.code, chosen.out) == (0, run("variants", "2.tape").out)
    refused = run("variants", "s.tape", "t.tape")
    assert refused.code == 1
    assert "--target" in refused.err
