"""A verdict that was reached is the exit code, also where a file beside the tape is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.analyzer.cli.commands import run
from tests.analyzer.tapes import Recorded, write_tape
from tests.forging.changes import flip, member_list

TOLD = "notes.tape: the file does not start with the manifest of a tape"


def right() -> torch.nn.Module:
    return torch.nn.ReLU()


def wrong() -> torch.nn.Module:
    return torch.nn.Tanh()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    runs = tmp_path / "runs"
    runs.mkdir()
    calls = [Recorded((torch.ones(n),), outputs=torch.ones(n)) for n in (1, 2, 3)]
    write_tape(runs / "a.tape", calls, target=torch.nn.ReLU())
    return runs


@pytest.mark.parametrize(("name", "clean", "beside_junk"), [("right", 0, 3), ("wrong", 1, 1)])
def test_replay_exits_with_3_beside_an_unreadable_file(
    name: str, clean: int, beside_junk: int, folder: Path
) -> None:
    words = ("replay", folder, "--model", f"{__name__}:{name}")
    assert run(*words).code == clean
    (folder / "notes.tape").write_text("no tape")
    shown = run(*words)
    assert (shown.code, TOLD in shown.err) == (beside_junk, True)


def test_a_damaged_call_is_no_failure_of_the_model(folder: Path) -> None:
    path = folder / "a.tape"
    blob = [member for member in member_list(path) if member.name.endswith(".safetensors")][-1]
    flip(path, blob.start + blob.size - 1)
    assert run("replay", folder, "--model", f"{__name__}:right").code == 3
    assert run("replay", folder, "--model", f"{__name__}:wrong").code == 1
