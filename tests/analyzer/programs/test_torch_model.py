"""The torch that programs need, and numbers in files of programs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from calltape_analyzer import NoVariant, TapeError, check, export, load_programs, open_tape, replay
from calltape_analyzer.programs.exported_model import require_torch, write_numbers
from calltape_recorder import record
from tests.analyzer.exported import assert_same, call, taped
from tests.analyzer.exporting.models import Model, t


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
def test_a_torch_that_is_too_old_is_rejected(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(TapeError, match="exported programs need"):
        require_torch()


@pytest.mark.parametrize(
    "version", ["2.12.0", "2.12.0a0+git123", "2.15.1+cu132", "2.100", "3.0.0", "main"]
)
def test_a_torch_that_is_new_enough_is_accepted(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    require_torch()


_NUMBERS = [
    0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -1.5, -2.5, 0.49999999999999994, -0.49999999999999994, 2.4999,
    2.5000001, 1e15 + 0.5, 1e15 + 1.5, -1e15 - 0.5, 1e300, -1e300, 3.0, -3.0,
]  # fmt: skip


@pytest.mark.parametrize("function", [math.floor, math.ceil, round, abs])
def test_each_number_stays_what_it_is(function: Callable[[float], Any]) -> None:
    graph = Graph()
    given = graph.placeholder("x")
    given.meta["val"] = 1.25
    made = graph.call_function(function, (given,))
    made.meta["val"] = function(1.25)
    graph.output(made)
    write_numbers(graph)
    assert all(node.target is not function for node in graph.nodes)
    run = GraphModule({}, graph)
    assert [run(number) for number in _NUMBERS] == [function(number) for number in _NUMBERS]


class Conditions(Model):
    """Asks, and returns what it asked for."""

    def forward(self, x):
        most, mean = x.max().item(), x.mean().item()
        if round(most) > 50 or math.ceil(mean) > 50 or math.floor(abs(mean) * 3) > 50:
            return x * 2, 0, 0
        return x, math.floor(most), round(mean)


@pytest.mark.integration
def test_a_program_with_them_is_saved_and_loaded(tmp_path: Path) -> None:
    model = Conditions()
    programs = export(taped(tmp_path, model, [call(t(2, 4)), call(t(5, 4))]), model)
    programs.save(tmp_path / "saved")
    x = t(3, 4)
    for served in (programs, load_programs(tmp_path / "saved", trusted=True)):
        assert_same(model(x), served(x))
        with pytest.raises(NoVariant, match="the program is for calls in which"):
            served(torch.full((3, 4), 60.0))
