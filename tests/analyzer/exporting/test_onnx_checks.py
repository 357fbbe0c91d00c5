"""An ONNX model has the assertions of its program as an output, and refuses values like it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from calltape_analyzer import load_programs
from calltape_analyzer.errors import NoVariant
from tests.analyzer.exported import assert_as_module, call, made
from tests.analyzer.exporting.test_arguments import Model, t

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
