"""An ONNX model has the assertions of its program as an output, and refuses values like it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from calltape_analyzer import export, load_programs
from calltape_analyzer.arguments.samples import LiveCall
from calltape_analyzer.arguments.sizings import Sizing, values_at
from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.errors import NoVariant
from calltape_analyzer.exporting.onnx.conversion import checks_kept
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import UnseenRuns
from tests.analyzer.exported import assert_as_module, call, made, taped
from tests.analyzer.exporting.models import Model, t

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integration


class Branching(Model):
    """Takes one of two ways, as the values say."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


class Detects(Model):
    """Returns early if nothing is left, as detectors do."""

    def forward(self, x: Tensor) -> Tensor:
        found = x[x > 0]
        if found.numel() == 0:
            return x.new_zeros(0)
        return found - found.max()


def test_each_side_of_an_if_gets_a_model(tmp_path: Path) -> None:
    calls = [call(sign * torch.ones(n, 3)) for n, sign in ((2, 1), (3, 1), (4, -1), (5, -1))]
    model = Branching()
    unseen = [call(torch.ones(7, 3)), call(-torch.ones(8, 3))]
    programs = made(tmp_path, model, calls, to="onnx")
    assert programs.verify().ok
    assert_as_module(programs, model, unseen)
    programs.save(tmp_path / "saved")
    assert_as_module(load_programs(tmp_path / "saved"), model, unseen)


def test_a_result_that_may_not_be_empty_is_checked(tmp_path: Path) -> None:
    model = Detects()
    programs = made(tmp_path, model, [call(t(n, 3)) for n in (4, 5, 7)], to="onnx")
    assert_as_module(programs, model, [call(t(9, 3))])
    with pytest.raises(NoVariant, match="the program is for calls in which"):
        programs(-torch.ones(4, 3))


class Halves(torch.nn.Module):
    """Adds up the rows that a mask chooses, or all if it chooses fewer than two."""

    def forward(self, x: Any, mask: Any) -> Any:
        found = x[mask]
        if found.shape[0] < 2:
            return x.sum(0), x.new_zeros(0)
        return found.sum(0), x.new_zeros(found.shape[0] - 2)


def test_an_error_of_the_runtime_where_an_assertion_fails_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(rows: int, ones: int) -> Any:
        return call(torch.ones(rows, 4), torch.arange(rows) < ones)

    module = Halves()
    tape = taped(tmp_path, module, [of(5, 3), of(6, 4), of(7, 2)])
    programs = export(tape, module, to="onnx")
    (program,) = programs.values()
    runner = Session.of(tape, module, Tolerances())
    runs = UnseenRuns(runner, program)
    for marked in (3, 0):
        sample = LiveCall(of(5, marked)[0], {}, programs.sorter).sample
        monkeypatch.setattr(runner, "sample", lambda *_, sample=sample, **__: sample)
        ran = runs.answer((Sizing(0, values_at(program.variant, 0), False), True), lambda _: None)
        assert (ran.program_error is None) == (marked == 3)
    assert ran.program_error is not None
    assert ran.program_error.is_condition
    assert "a number computed from the inputs is at least 2" in str(ran.program_error.why)


class ChecksInABranch(torch.nn.Module):
    """Asserts something about a number in one of two branches of its graph."""

    def forward(self, x: Tensor, n: Tensor) -> Any:
        def times(x: Tensor, n: Tensor) -> Any:
            count: Any = n.item()
            torch._check(count < 5)
            return x * count

        def plus(x: Tensor, n: Tensor) -> Tensor:
            return x + 1.0

        return torch.cond(x.sum() > 0, times, plus, (x, n))


def test_an_assertion_within_a_branch_is_refused() -> None:
    traced = torch.export.export(ChecksInABranch(), (torch.ones(3), torch.tensor(2)))
    refusal = "a branch or a loop of it asserts: Runtime assertion failed for expression u0 <= 4"
    with checks_kept(), pytest.raises(Exception, match=refusal):
        torch.onnx.export(traced, (), None, dynamo=True, verbose=False)
