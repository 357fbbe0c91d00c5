"""A model is run and exported in the mode, training or evaluation, in which it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import Programs, Tape, export, load_programs, open_tape, replay
from calltape_analyzer.programs.notes import ModelInTraining, TracedInTraining
from calltape_recorder import record
from tests.analyzer.exported import assert_same


class Net(torch.nn.Module):
    """Drops most of what it has while it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.drop = torch.nn.Dropout(0.9)
        self.norm = torch.nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.drop(self.layer(x)))


class Modal(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if self.training else x * 3


def taped(path: Path, model: torch.nn.Module, *modes: bool) -> Tape:
    before = model.training
    with record(model, path), torch.no_grad():
        for is_training in modes:
            model.train(is_training)
            for rows in (3, 5, 4):
                model(torch.ones(rows, 6))
    model.train(before)
    return open_tape(path)


def modes_of(model: torch.nn.Module) -> list[bool]:
    return [part.training for part in model.modules()]


def test_a_model_in_training_mode_is_exported_in_that_of_its_calls(tmp_path: Path) -> None:
    model = Net()
    tape = taped(tmp_path / "a.tape", model, False)
    model.norm.eval()
    before = modes_of(model)
    programs = export(tape, model)
    assert programs.verify().ok
    assert replay(tape, model).ok
    assert modes_of(model) == before
    assert programs.notes == (ModelInTraining(),)
    x = torch.rand(7, 6)
    assert_same(model.eval()(x), programs(x))


@pytest.mark.integration
def test_a_part_in_another_mode_stays_so(tmp_path: Path) -> None:
    model = Net().train()
    model.drop.eval()
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        for rows in (3, 5):
            model(torch.ones(rows, 6) * torch.arange(rows)[:, None])
    with open_tape(tmp_path / "a.tape") as tape:
        assert replay(tape, model).ok
        programs = export(tape, model)
    (program,) = programs.values()
    assert not program.random_generators
    assert program.has(TracedInTraining)


def of_both(folder: Path, programs: Programs, model: torch.nn.Module) -> list[Programs]:
    programs.save(folder)
    return [programs, load_programs(folder, trusted=True)]


@pytest.mark.integration
def test_calls_in_both_modes_are_of_two_variants(tmp_path: Path) -> None:
    model = Modal()
    tape = taped(tmp_path / "a.tape", model, True, False)
    assert sorted(v.name for v in tape.variants()) == ["evaluation mode", "training mode"]
    programs = export(tape, model)
    assert programs.verify().ok
    assert programs.is_general
    for each in of_both(tmp_path / "saved", programs, model):
        assert torch.equal(each(torch.ones(9, 6)), torch.full((9, 6), 3.0))
        assert each.verify(tape).ok


class Merging(torch.nn.Module):
    """Merges weights when it is put into evaluation mode, as adapters do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.drop = torch.nn.Dropout(0.5)

    def train(self, mode: bool = True) -> torch.nn.Module:
        if not mode:
            self.weight.data += 1
        return super().train(mode)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x * self.weight)


def test_a_model_is_put_into_a_mode_without_code_of_its_own(tmp_path: Path) -> None:
    model = Merging()
    torch.nn.Module.train(model, False)
    with record(model, tmp_path / "a.tape"), torch.no_grad():
        for rows in (2, 4):
            model(torch.ones(rows, 3))
    torch.nn.Module.train(model, True)
    with open_tape(tmp_path / "a.tape") as tape:
        programs = export(tape, model)
        assert programs.verify().ok
    assert torch.equal(model.weight, torch.ones(3))
    assert modes_of(model) == [True, True]


def test_a_frozen_script_has_no_mode(tmp_path: Path) -> None:
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(6, 6).eval()))
    with record(frozen, tmp_path / "a.tape"), torch.no_grad():
        frozen(torch.ones(3, 6))
    with open_tape(tmp_path / "a.tape") as tape:
        assert replay(tape, frozen).ok
