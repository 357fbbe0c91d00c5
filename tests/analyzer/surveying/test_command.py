"""``calltape survey``: what it tells, and what it costs if a file is broken."""

from __future__ import annotations

import json
from pathlib import Path

import torch

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
    assert run("shapes", both).out == run("shapes", *tmp_path.glob("*.tape")).out
    assert run("variants", both).code == 0


def test_a_broken_survey_costs_its_own_answer_only(tmp_path: Path) -> None:
    good, bad = made(tmp_path, "a", b"a" * 16), tmp_path / "bad.json"
    bad.write_bytes(b"")
    ran = run("survey", good, bad)
    assert ran.code == 3
    assert "3 with 3 different inputs" in ran.out
    assert f"{bad}: the file is no survey" in ran.err
    alone = run("survey", bad)
    assert (alone.code, alone.out) == (1, "")
