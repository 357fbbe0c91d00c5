"""Recorded on a CUDA device, analyzed, replayed, exported and verified there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportOptions, Tape, export, open_tape, replay
from calltape_recorder import record
from tests.analyzer.exported import assert_same

pytestmark = pytest.mark.cuda


class Normed(torch.nn.Module):
    """Has parameters, and a buffer that calls update in training mode only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 5)
        self.norm = torch.nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y: torch.Tensor = self.norm(self.linear(x))
        return y if scale is None else y * scale


def on_device(device: str = "cuda") -> torch.nn.Module:
    return Normed().eval().to(device)


def recorded(folder: Path, module: torch.nn.Module, device: str = "cuda") -> Tape:
    """Calls with and without a scale, whose inputs the host overwrites at once."""
    with record(module, folder / "t.tape"), torch.no_grad():
        for n in (2, 7, 5):
            x, scale = torch.randn(n, 3, device=device), torch.tensor(2.0, device=device)
            module(x)
            x.fill_(9)
            module(x, scale)
            x.fill_(-1)
            scale.fill_(-1)
    return open_tape(folder / "t.tape")


def test_a_call_is_replayed(tmp_path: Path) -> None:
    module = on_device()
    report = replay(recorded(tmp_path, module), module)
    assert report.ok, report.table()
    assert {row.against for row in report} == {"tape"}


def test_programs_run_where_the_model_is(tmp_path: Path) -> None:
    module = on_device()
    programs = export(recorded(tmp_path, module), module)
    report = programs.verify()
    assert report.ok, report.table()
    x = torch.randn(11, 3, device="cuda")
    outputs = programs(x)
    assert outputs.device.type == "cuda"
    assert_same(module(x), outputs)


def test_a_tape_of_a_device_is_exported_without_one(tmp_path: Path) -> None:
    tape = recorded(tmp_path, on_device())
    args, _ = tape.variants()[0].infer_arguments()
    assert args[0].device.type == "cpu"
    programs = export(tape, on_device("cpu"))
    assert programs.verify().ok
    assert programs(torch.randn(11, 3)).device.type == "cpu"


def test_saved_programs_are_loaded_there(tmp_path: Path) -> None:
    from calltape_analyzer import load_programs

    module = on_device()
    tape = recorded(tmp_path, module)
    export(tape, module).save(tmp_path / "programs")
    loaded = load_programs(tmp_path / "programs", trusted=True)
    x = torch.randn(4, 3, device="cuda")
    assert_same(module(x), loaded(x))


def test_what_does_not_fit_into_the_memory_is_not_run(tmp_path: Path) -> None:
    module = on_device()
    programs = export(recorded(tmp_path, module), module, options=ExportOptions(max_memory=1))
    assert programs.verify().ok
    assert any(
        "max_memory" in str(text) for attempt in programs.attempts for text in attempt.untried
    )


def test_a_model_in_half_precision_is_exported(tmp_path: Path) -> None:
    module = on_device().to(torch.bfloat16)
    with record(module, tmp_path / "t.tape"), torch.no_grad():
        for n in (2, 7, 5):
            module(torch.randn(n, 3, device="cuda", dtype=torch.bfloat16))
    programs = export(open_tape(tmp_path / "t.tape"), module)
    assert programs.verify().ok


class Split(torch.nn.Module):
    """Half of it is on another device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 5).to("cuda:0"), torch.nn.Linear(5, 2)
        self.second.to("cuda:1")

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x).to("cuda:1"))


def test_a_model_on_several_devices_is_exported(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device only")
    module = Split().eval()
    with record(module, tmp_path / "t.tape"), torch.no_grad():
        for n in (2, 7, 5):
            module(torch.randn(n, 3, device="cuda:0"))
    tape = open_tape(tmp_path / "t.tape")
    assert replay(tape, module).ok
    assert export(tape, module).verify().ok
