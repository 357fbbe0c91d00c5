"""A float argument that varies, such as the time step of a diffusion model, is an input of its
program, and not one constant program per recorded value."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from calltape_analyzer import (
    NoVariant,
    TapeError,
    check,
    export,
    load_programs,
    open_tape,
    replay,
)
from calltape_analyzer.programs.notes import OpenFloats
from tests.analyzer.exported import Call, assert_as_module, call, made, taped

VALUES, UNSEEN = (951.5, 11.25, 3.5), (700.75, 2.0, 4.0)


class TimeStep(torch.nn.Module):
    """An embedding of a time step, which may be an int as well, as diffusion models have it."""

    def forward(self, x: Tensor, t: float) -> Tensor:
        dtype = torch.float64 if isinstance(t, float) else torch.int64
        steps = torch.tensor([t], dtype=dtype).expand(x.shape[0])
        rates = torch.exp(-math.log(10000) * torch.arange(0, 8, dtype=torch.float32) / 8)
        angles = steps[:, None].float() * rates[None]
        return x + torch.cat([angles.sin(), angles.cos()], -1)


class Bounds(torch.nn.Module):
    """A float as a fill value, as a threshold and as a bound."""

    def forward(self, x: Tensor, t: float) -> Tensor:
        return torch.full_like(x, t) + torch.where(x > t, x, t) + x.clamp(max=t)


class Row(torch.nn.Module):
    """A float that selects a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rows = torch.nn.Embedding(1000, 16)

    def forward(self, x: Tensor, t: float) -> Tensor:
        return x + self.rows(torch.tensor([int(t)]))


class Returned(torch.nn.Module):
    """A result that is a float."""

    def forward(self, x: Tensor, t: float) -> tuple[Tensor, float]:
        return x.half() * t, t * 2


class Branching(torch.nn.Module):
    """Something else for large floats."""

    def forward(self, x: Tensor, t: float) -> Tensor:
        return x * 2 if t > 500.0 else x - t


class Named(torch.nn.Module):
    """What no trace can do for any float: look it up."""

    def forward(self, x: Tensor, t: float) -> Tensor:
        return x + {951.5: 1.0, 11.25: 2.0, 3.5: 3.0}.get(t, 4.0)


class Unread(torch.nn.Module):
    """A float that changes nothing."""

    def forward(self, x: Tensor, t: float) -> Tensor:
        return x * 2


def calls(values: Sequence[float] = VALUES, batch: int = 2) -> list[Call]:
    made = torch.Generator().manual_seed(0)
    return [call(torch.rand(batch + i, 16, generator=made), t) for i, t in enumerate(values)]


@pytest.mark.parametrize("to", ["torch", "onnx"])
@pytest.mark.parametrize("model", [TimeStep(), Bounds(), Row(), Returned(), Unread()])
@pytest.mark.integration
def test_one_program_takes_any_float(tmp_path: Path, model: torch.nn.Module, to: str) -> None:
    programs = made(tmp_path, model, calls(), calls(UNSEEN, 7), to=to)
    (program,) = programs.values()
    assert OpenFloats(("t",), 3, 3) in program.remarks


def test_a_verdict_names_the_float(tmp_path: Path) -> None:
    programs = made(tmp_path, Bounds(), calls(), calls(UNSEEN, 7))
    (verdict,) = programs.verdicts
    assert verdict.scope == "general"
    assert verdict.open == ("x[0]", "t")


def test_a_float_alone_may_vary(tmp_path: Path) -> None:
    """No size varied, and new calls may still be others than the recorded ones."""
    own, unseen = ([call(torch.ones(2, 3), t) for t in some] for some in (VALUES, UNSEEN))
    (verdict,) = made(tmp_path, Bounds(), own, unseen).verdicts
    assert (verdict.scope, verdict.open) == ("general", ("t",))


def test_the_float_may_be_infinite_or_not_a_number(tmp_path: Path) -> None:
    values = (1.0, math.inf, math.nan, 0.25)
    made(tmp_path, Bounds(), calls(values), calls((-math.inf, 0.5, math.nan), 7))


def test_each_side_of_a_branch_has_one_program(tmp_path: Path) -> None:
    values = (951.5, 11.25, 3.5, 600.0)
    programs = made(tmp_path, Branching(), calls(values), calls(UNSEEN, 7))
    assert len(programs) == 2


def test_a_float_that_is_looked_up_is_a_constant(tmp_path: Path) -> None:
    model = Named()
    programs = export(taped(tmp_path, model, calls()), model)
    assert programs.verify().ok
    assert len(programs) == 3
    assert_as_module(programs, model, calls(VALUES, 7))
    with pytest.raises(NoVariant, match=r"t is 700\.75; this program has"):
        programs(*calls(UNSEEN)[0][0])


def test_a_float_is_an_input_of_the_program_for_each_text(tmp_path: Path) -> None:
    class Both(torch.nn.Module):
        def forward(self, x: Tensor, t: float, how: str) -> Tensor:
            return x * t if how == "times" else x + t

    def both(values: Sequence[tuple[float, str]], batch: int = 2) -> list[Call]:
        return [call(torch.rand(batch + i, 3), t, how) for i, (t, how) in enumerate(values)]

    own = both([(2.5, "times"), (3.5, "plus"), (4.5, "times")])
    programs = made(tmp_path, Both(), own, both([(5.5, "times"), (6.5, "plus")], 7))
    assert len(programs) == 2
    told = [note for program in programs.values() for note in program.all_notes]
    assert {OpenFloats(("t",), 3, 3), OpenFloats(("t",), 2, 3)} & set(told)
    assert sum(isinstance(note, OpenFloats) for note in told) == 2


@pytest.mark.parametrize("values", [VALUES, (*VALUES, 0.25, 0.125)])
def test_a_float_that_python_reads_is_one_of_the_recorded(
    tmp_path: Path, values: Sequence[float]
) -> None:
    """No recorded value makes a difference, and others may."""

    class Excess(torch.nn.Module):
        def forward(self, x: Tensor, t: float) -> Tensor:
            return x + max(0.0, math.exp(-t) - 1.0)

    model = Excess()
    programs = made(tmp_path, model, calls(values))
    (verdict,) = programs.verdicts
    assert verdict.closed == ("t",)
    assert_as_module(programs, model, calls(values, 7))
    with pytest.raises(NoVariant, match=r"t is -1\.0; this program has 951\.5, 11\.25, 3\.5"):
        programs(*calls((-1.0,), 7)[0][0])
    programs.save(tmp_path / "saved")
    with pytest.raises(NoVariant, match=r"t is -1\.0; this program has 951\.5, 11\.25, 3\.5"):
        load_programs(tmp_path / "saved", trusted=True)(*calls((-1.0,), 7)[0][0])


@pytest.mark.parametrize("batch", [2, None])
def test_the_first_float_may_be_alone_on_its_side(tmp_path: Path, batch: int | None) -> None:
    """Also if all calls have one size."""
    own = calls((11.25, 951.5, 600.0, 700.0))
    own = [call(own[0][0][0], args[1]) for args, _ in own] if batch is None else own
    unseen = [call(args[0][:2], args[1]) for args, _ in calls(UNSEEN)]
    programs = made(tmp_path, Branching(), own, unseen)
    assert len(programs) == 2


def test_floats_that_come_back_are_inputs_as_well(tmp_path: Path) -> None:
    own = calls((7.5, 5.0, 2.5) * 3)
    assert len(made(tmp_path, Bounds(), own, calls(UNSEEN, 7))) == 1


def test_floats_that_come_back_may_be_constants_of_many_programs(tmp_path: Path) -> None:
    class Grown(torch.nn.Module):
        def forward(self, x: Tensor, t: float) -> Tensor:
            return x * math.exp(t)

    assert len(made(tmp_path, Grown(), calls((0.5, 0.25, 0.75, 1.5) * 2))) == 4


def test_zero_is_false(tmp_path: Path) -> None:
    class OrOne(torch.nn.Module):
        def forward(self, x: Tensor, t: float) -> Tensor:
            return x * (t or 3.0)

    model = OrOne()
    programs = made(tmp_path, model, calls(), calls(UNSEEN, 7))
    assert len(programs) == 1
    with pytest.raises(NoVariant, match="is not 0"):
        programs(*calls((0.0,), 7)[0][0])


def test_saved_programs_take_any_float(tmp_path: Path) -> None:
    model = Bounds()
    made(tmp_path, model, calls()).save(tmp_path / "saved")
    assert_as_module(load_programs(tmp_path / "saved", trusted=True), model, calls(UNSEEN, 7))


@pytest.mark.parametrize("to", ["torch", "onnx"])
def test_the_file_of_a_program_takes_the_recorded_floats(tmp_path: Path, to: str) -> None:
    made(tmp_path, Bounds(), calls(), to=to).save(tmp_path / "saved")
    (file,) = [path for path in (tmp_path / "saved").iterdir() if path.suffix in (".pt2", ".onnx")]
    with open_tape(tmp_path / "calls.tape") as tape:
        assert check(tape, file, trusted=True).ok
        assert replay(tape, file, trusted=True).ok


def test_a_saved_program_cannot_open_what_is_no_float(tmp_path: Path) -> None:
    made(tmp_path, Bounds(), calls()).save(tmp_path / "saved")
    manifest = tmp_path / "saved" / "manifest.json"
    document = json.loads(manifest.read_text())
    (program,) = document["programs"]
    assert program["open_floats"] == [0]
    program["open_floats"] = [1]
    manifest.write_text(json.dumps(document))
    with pytest.raises(TapeError, match="its manifest contradicts itself"):
        load_programs(tmp_path / "saved", trusted=True)
