"""A size of 0 that no call had is taken where model and program were seen to agree."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import ExportOptions, Programs, check, export, load_programs
from calltape_analyzer.errors import NoVariant
from calltape_analyzer.programs.notes import TakesZero
from calltape_analyzer.programs.reasons import End
from tests.analyzer.exported import assert_same, call, taped


class Total(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return (x * 2).sum(0)


class Rows(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.softmax(-1)


class Mean(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mean(0)


class Largest(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x.max(0).values


class Branching(torch.nn.Module):
    """Does something else without rows, of which its trace keeps no condition."""

    def forward(self, x: Any) -> Any:
        return x if x.shape[0] == 0 else x.sum(0, keepdim=True)


class Product(torch.nn.Module):
    def forward(self, x: Any, y: Any) -> Any:
        return x @ y


def with_loaded(programs: Programs, folder: Path) -> list[Programs]:
    """Programs, and the same after they were saved and loaded."""
    programs.save(folder)
    return [programs, load_programs(folder, trusted=True)]


def notes(programs: Programs) -> list[str]:
    return [str(n) for p in programs.values() for n in p.remarks if isinstance(n, TakesZero)]


@pytest.mark.integration
@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("model", "seen"),
    [(Total(), "outputs were compared with"), (Rows(), "outputs have no elements there")],
)
def test_zero_is_taken_where_model_and_program_agree(
    tmp_path: Path, to: Any, model: torch.nn.Module, seen: str
) -> None:
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    empty = torch.rand(0, 4)
    for programs in with_loaded(export(tape, model, to=to), tmp_path / "programs"):
        assert_same(model(empty), programs(empty))
        (note,) = notes(programs)
        assert note.startswith(f"takes a size of 0 for x[0]: {seen}")
        asked = taped(tmp_path, model, [call(empty)], name=f"{id(programs)}.tape")
        assert check(asked, programs).ok


@pytest.mark.integration
@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Mean(), "the model itself returned NaN or infinity"),
        (Largest(), "the model itself raised IndexError"),
        (Branching(), "the program returned something else than the model"),
    ],
)
def test_zero_is_refused_with_the_reason_where_they_do_not(
    tmp_path: Path, to: Any, model: torch.nn.Module, why: str
) -> None:
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    made = export(tape, model, to=to)
    assert made.verify().ok
    assert len(made.attempts) == 1
    for programs in with_loaded(made, tmp_path / "programs"):
        with pytest.raises(NoVariant, match=rf"x\[0\] is 0, which was never recorded; {why}"):
            programs(torch.rand(0, 4))
        assert not notes(programs)


@pytest.mark.integration
def test_runtime_that_dies_at_0_dies_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = torch.nn.GRU(4, 4, batch_first=True)
    tape = taped(tmp_path, model, [call(torch.rand(n, 5, 4)) for n in (2, 3, 4)])
    programs = export(tape, model, to="onnx")
    assert programs.verify().ok
    why = "ONNX Runtime ended its process when that was tried"
    with pytest.raises(NoVariant, match=rf"[^ ]+\[0\] is 0, which was never recorded; {why}"):
        programs(torch.rand(0, 5, 4))
    (program,) = programs.values()
    (name,) = program.model.input_names
    runs = [{name: torch.rand(*shape)} for shape in ((2, 5, 4), (0, 5, 4), (3, 5, 4), (2, 5, 9))]
    assert [program.model.death(one, 60) for one in runs] == [None, End.DIED, None, None]
    assert program.model.death(runs[0], 0.001) is End.LATE
    for executable in ("", "/bin/false", "/bin/true"):
        monkeypatch.setattr(sys, "executable", executable)
        assert program.model.death(runs[0], 60) is End.NOT_TRIED


def test_dimensions_are_taken_at_0_only_as_they_were_tried(tmp_path: Path) -> None:
    model = Product()
    sizes = ((2, 3, 4), (3, 5, 7), (4, 2, 6))
    tape = taped(tmp_path, model, [call(torch.rand(n, k), torch.rand(k, m)) for n, k, m in sizes])
    programs = export(tape, model)
    for n, k, m in ((0, 3, 2), (2, 0, 2), (2, 3, 0)):
        x, y = torch.rand(n, k), torch.rand(k, m)
        assert_same(x @ y, programs(x, y))
    with pytest.raises(NoVariant, match=r"x\[0\], y\[1\] are 0, which was never recorded\)"):
        programs(torch.rand(0, 3), torch.rand(3, 0))


def test_nothing_is_tried_at_0_where_only_recorded_sizes_are_run(tmp_path: Path) -> None:
    model = Total()
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    programs = export(tape, model, options=ExportOptions(probe="none"))
    with pytest.raises(NoVariant, match=r"x\[0\] is 0, which was never recorded\)"):
        programs(torch.rand(0, 4))


def test_no_message_of_the_model_is_kept_of_a_run_at_0(tmp_path: Path) -> None:
    class Quoting(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            if x.shape[0] == 0:
                raise ValueError("<wombat>")
            return x * 2

    model = Quoting()
    tape = taped(tmp_path, model, [call(torch.rand(n, 4)) for n in (1, 2, 3)])
    export(tape, model).save(tmp_path / "programs")
    saved = (tmp_path / "programs" / "manifest.json").read_text()
    assert "the model itself raised ValueError" in saved
    assert "wombat" not in saved
