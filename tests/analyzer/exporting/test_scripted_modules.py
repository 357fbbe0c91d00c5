"""Modules of TorchScript are recorded, replayed and exported, as models and as parts of models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from calltape_analyzer import export, open_tape, replay
from calltape_analyzer.exporting.scripted_parts import scripted_parts
from calltape_analyzer.tape import Tape
from calltape_recorder import record
from tests.analyzer.exporting.scripted_models import (
    Buffered,
    Choosing,
    Parts,
    Picture,
    Sized,
    Summing,
    Weighted,
)

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

Call = tuple[tuple[Any, ...], dict[str, Any]]


def built(make: Callable[[], nn.Module]) -> Any:
    torch.manual_seed(0)
    return make().eval()


def recorded(model: Any, calls: list[Call], path: Path) -> Tape:
    with record(model, path), torch.no_grad():
        for args, kwargs in calls:
            model(*args, **kwargs)
    return open_tape(path)


def rows(batch: int, length: int, *, weighted: bool = False) -> Call:
    ids = torch.randint(0, 10, (batch, length))
    return (ids,), {"weights": torch.rand(batch, length)} if weighted else {}


def pictures(*shape: int) -> Call:
    return (torch.randn(shape[0], 3, *shape[1:]),), {}


SCRIPTED = {
    "script": (
        lambda: torch.jit.script(Weighted().eval()),
        [rows(2, 3), rows(4, 6), rows(3, 5, weighted=True), rows(2, 8, weighted=True)],
        [rows(7, 9), rows(5, 4, weighted=True)],
    ),
    "trace": (
        lambda: torch.jit.trace(Picture().eval(), torch.randn(1, 3, 4, 5)),
        [pictures(1, 4, 5), pictures(3, 6, 7)],
        [pictures(2, 9, 8)],
    ),
    "frozen": (
        lambda: torch.jit.freeze(torch.jit.script(Picture().eval())),
        [pictures(1, 4, 5), pictures(3, 6, 7)],
        [pictures(2, 9, 8)],
    ),
    "parts": (Parts, [pictures(2, 4, 5), pictures(3, 6, 7)], [pictures(4, 9, 8)]),
}


@pytest.mark.integration
@pytest.mark.parametrize(("make", "calls", "unseen"), SCRIPTED.values(), ids=SCRIPTED)
def test_a_program_takes_recorded_and_unseen_calls(
    tmp_path: Path, make: Any, calls: list[Call], unseen: list[Call]
) -> None:
    tape = recorded(built(make), calls, tmp_path / "a.tape")
    model = built(make)
    assert replay(tape, model).ok
    programs = export(tape, model)
    assert programs.verify().ok
    for args, kwargs in [*calls, *unseen]:
        with torch.no_grad():
            want = model(*args, **kwargs)
        torch.testing.assert_close(programs(*args, **kwargs), want)
    assert "__call__" not in vars(torch.jit.ScriptModule)  # it stood there while tracing


@pytest.mark.integration
def test_a_size_that_a_script_reads_is_a_condition(tmp_path: Path) -> None:
    calls: list[Call] = [((torch.randn(2, 3, 4),), {}), ((torch.randn(5, 6, 4),), {})]
    tape = recorded(built(lambda: torch.jit.script(Sized())), calls, tmp_path / "a.tape")
    programs = export(tape, built(lambda: torch.jit.script(Sized())))
    assert programs.verify().ok
    with pytest.raises(Exception, match=r"for calls in which x\[0\] is "):
        programs(torch.randn(7, 3, 4))


@pytest.mark.integration
@pytest.mark.parametrize("within", [nn.Sequential, lambda part: part], ids=["part", "whole"])
def test_a_value_that_a_script_reads_decides_which_calls_a_program_takes(
    tmp_path: Path, within: Any
) -> None:
    model = within(torch.jit.script(Choosing()))
    tape = recorded(model, [((torch.ones(2, 3),), {})], tmp_path / "a.tape")
    assert replay(tape, model).ok
    programs = export(tape, model)
    assert programs.verify().ok
    x = torch.full((2, 3), 2.0)
    torch.testing.assert_close(programs(x), model(x))
    with pytest.raises(Exception, match=r"is for calls in which|refuses"):
        programs(-torch.ones(2, 3))


def test_an_error_of_a_script_is_told_with_its_line() -> None:
    model = nn.Sequential(torch.jit.script(Choosing()))
    with (
        scripted_parts(model),
        pytest.raises(
            RuntimeError, match=r"data-dependent.*\(TorchScript, scripted_models\.py:\d+\)$"
        ),
    ):
        torch.export.export(model, (torch.ones(2, 3),))


def test_the_state_of_a_scripted_module_is_put_back(tmp_path: Path) -> None:
    model = torch.jit.script(Buffered())
    tape = recorded(model, [((torch.ones(2, 3),), {})] * 3, tmp_path / "a.tape")
    fresh = torch.jit.script(Buffered())
    assert replay(tape, fresh).ok
    assert (fresh.calls.item(), fresh.last.item()) == (0, 0)
    assert replay(tape, model).ok
    assert (model.calls.item(), model.last.item()) == (3, 6)


def test_another_scripted_method_is_recorded_and_replayed(tmp_path: Path) -> None:
    model = torch.jit.script(Summing())
    with record(model, tmp_path / "a.tape", method="total"):
        model.total(torch.ones(2, 3))
    assert replay(open_tape(tmp_path / "a.tape"), torch.jit.script(Summing())).ok
