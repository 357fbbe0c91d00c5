"""Exports with a torch that is too old for them: one error, before anything is loaded or run. With
the versions of ``make test-versions`` it is tried with an old torch, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import TapeError, check, export, load_programs, open_tape, replay
from calltape_analyzer.programs.torch_model import demand_torch
from calltape_recorder import record


@pytest.fixture
def old_torch(monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of a torch that is too old: the installed one, if it is."""
    found = str(torch.__version__)
    if tuple(map(int, found.split(".")[:2])) >= (2, 12):
        found = "2.11.1+cu130"
        monkeypatch.setattr(torch, "__version__", found)
    return found


@pytest.fixture
def tape_file(tmp_path: Path) -> Path:
    model = torch.nn.Linear(3, 2).eval()
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        model(torch.ones(2, 3))
        model(torch.ones(4, 3))
    return tmp_path / "a.tape"


def program() -> Any:
    return torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.ones(2, 3),))


DOORS: dict[str, Callable[[Any, Path], object]] = {
    "export": lambda tape, _: export(tape, torch.nn.Linear(3, 2)),
    "export to onnx": lambda tape, _: export(tape, torch.nn.Linear(3, 2), to="onnx"),
    "load_programs": lambda _, folder: load_programs(folder, trusted=True),
    "replay of saved programs": lambda tape, folder: replay(tape, folder, trusted=True),
    "replay of a file": lambda tape, folder: replay(tape, folder / "a.pt2", trusted=True),
    "replay of a program": lambda tape, _: replay(tape, program()),
    "check of a file": lambda tape, folder: check(tape, folder / "a.pt2", trusted=True),
}


@pytest.mark.parametrize("door", DOORS)
def test_exports_say_which_torch_they_need(
    door: str, tape_file: Path, old_torch: str, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "a.pt2").write_bytes(b"never read")
    with open_tape(tape_file) as tape, pytest.raises(TapeError) as caught:
        DOORS[door](tape, folder)
    said = str(caught.value)
    assert caught.value.kind == "usage"
    assert f"torch {old_torch} is installed" in said
    assert "need 2.12 or newer" in said
    assert "Install torch 2.12 or newer here" in said


@pytest.mark.usefixtures("old_torch")
def test_tapes_and_models_are_read_and_run_with_any_torch(tape_file: Path) -> None:
    model = torch.nn.Linear(3, 2).eval()
    with open_tape(tape_file) as tape:
        assert tape.infer_dynamic_shapes()
        assert len(replay(tape, model).rows) == 2


@pytest.mark.parametrize("version", ["2.6.0", "2.9.1+cpu", "2.11.0a0+git123", "1.13.1", "2.11"])
def test_too_old(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(TapeError, match="exported programs need"):
        demand_torch()


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.12.0a0+git123", "2.15.1+cu132", "2.100", "3.0.0", "main"]
)
def test_new_enough(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    demand_torch()
