"""Programs with functions of Python on numbers can be saved, and compute the same afterwards."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

from calltape_analyzer import NoVariant, export, load_programs
from calltape_analyzer.programs.torch_model import write_numbers
from tests.analyzer.exported import assert_same, call, taped
from tests.analyzer.exporting.test_arguments import Model, t

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
