"""Models that ask whether anything was found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer.errors import NoVariant
from calltape_analyzer.programs.notes import EmptyAgrees
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.models import Model, t

_FOUND, _NONE = torch.linspace(-1, 1, 12), -torch.ones(9)
_CALLS = [call(_FOUND), call(_FOUND[2:]), call(torch.linspace(-3, 2, 14))]


class Skipping(Model):
    """Stops early if nothing is found, as a detector does."""

    def forward(self, x):
        found = x[x > 0]
        if found.numel() == 0:
            return found.new_empty((0,))
        return found / found.max() + found.min()


class InLevels(Model):
    """Finds in two levels, and counts together what it found."""

    def forward(self, x):
        both = torch.cat([level[level > 0.2] for level in (x, x[1:] * 0.5)])
        if both.numel() == 0:
            return both
        return both.cumsum(0) * both.max()


class Answering(Model):
    """Returns something else if nothing is found."""

    def forward(self, x):
        found = x[x > 0]
        if found.numel() == 0:
            return torch.ones(1)
        return found * 2


class AnsweringLater(Model):
    """Stops early at first, and returns something else later."""

    def forward(self, x):
        found = x[x > 0]
        if found.numel() == 0:
            return found
        large = found[found > 0.5]
        if large.numel() == 0:
            return torch.ones(1)
        return large * 2


@pytest.mark.parametrize("model", [Skipping(), InLevels()], ids=lambda m: type(m).__name__)
def test_nothing_is_found_although_every_recorded_call_found_something(
    tmp_path: Path, model: Model
) -> None:
    programs = made(tmp_path, model, _CALLS)
    assert len(programs) == 1
    assert_as_module(programs, model, [call(_NONE), call(torch.linspace(-2, 1, 15))])
    (program,) = programs
    assert programs[program].has(EmptyAgrees)


@pytest.mark.integration
@pytest.mark.parametrize("model", [Answering(), AnsweringLater()], ids=lambda m: type(m).__name__)
def test_a_program_that_needs_results_says_where_they_are_asked_about(
    tmp_path: Path, model: Model
) -> None:
    programs = made(tmp_path, model, _CALLS)
    few = call(torch.tensor([-1.0, -2, 0.25, -3])) if isinstance(model, AnsweringLater) else None
    args, kwargs = few or call(_NONE)
    with pytest.raises(
        Exception, match=r"test_empty_results.py:\d+, in forward: if \w+\.numel\(\)"
    ):
        programs(*args, **kwargs)


@pytest.mark.integration
def test_an_onnx_model_needs_results(tmp_path: Path) -> None:
    programs = made(tmp_path, Skipping(), _CALLS, to="onnx")
    assert_as_module(programs, Skipping(), [call(torch.linspace(-2, 1, 15))], rtol=1e-3)
    with pytest.raises(NoVariant, match="is for calls in which"):
        programs(_NONE)


def test_a_call_that_found_nothing_may_be_recorded(tmp_path: Path) -> None:
    made(tmp_path, Skipping(), [*_CALLS, call(_NONE)])


class Extreme(Model):
    def forward(self, x):
        found = x[x > 0]
        if len(found) == 0:
            return found
        return found - found.amin() + (found > 1).max() + (found * 100).int().max()


def test_extremes_of_empty_tensors_are_those_of_torch_for_all_dtypes(tmp_path: Path) -> None:
    programs = made(tmp_path, Extreme(), _CALLS)
    assert_as_module(programs, Extreme(), [call(_NONE), call(t(7))])
