"""What needs a single call says that a survey has none, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import diff, open_tape, survey, write_survey
from calltape_analyzer.surveying.executors import Loop
from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape


@pytest.mark.parametrize("command", [["ls"], ["table", "-o", "calls.parquet"], ["show"]])
def test_a_survey_has_no_single_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tape(tmp_path / "a.tape", [((torch.zeros(i + 2, 4),), {}) for i in range(3)])
    write_survey(survey("a.tape", executor=Loop()), "s.json")
    rest = ["0"] if command == ["show"] else []
    ran = run(command[0], "s.json", *rest, *command[1:])
    assert ran.code == 1
    assert "unexpected" not in ran.err
    assert "survey" in ran.err
    assert not Path("calls.parquet").exists()


def test_calls_that_raise_now_are_counts(tmp_path: Path) -> None:
    calls = [Recorded((torch.zeros(i + 2, 4),)) for i in range(3)]
    raised = [
        Recorded((torch.zeros(i + 2, 4),), error=("builtins:ValueError", "no")) for i in range(3)
    ]
    before = write_tape(tmp_path / "before.tape", calls)
    now = write_tape(tmp_path / "now.tape", calls + raised)
    found = diff(*(survey(path, executor=Loop()).tape() for path in (before, now)))
    assert "3 calls raised, and none did before" in str(found)
    assert str(found) == str(diff(open_tape(before), open_tape(now)))
