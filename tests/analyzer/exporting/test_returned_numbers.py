"""Python numbers in what a model returns, computed from tensors and from sizes."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from calltape_analyzer import ExportError, NoVariant, export, load_programs
from tests.analyzer.exported import Call, assert_same, call, made, taped
from tests.analyzer.exporting.models import Model, t


class Returns(Model):
    """Returns one of these."""

    KINDS: ClassVar[dict[str, Any]] = {
        "float": lambda x: x.mean().item(),
        "int and float": lambda x: {"n": int((x > 0).sum()), "rest": (x * 2, [float(x.max())])},
        "computed": lambda x: (x, x.mean().item() * 2 + 1, math.floor(x.sum().item())),
        "list": lambda x: x[0].tolist(),
        "of sizes": lambda x: (x * 2, x.shape[0], x.shape[0] / 2),
    }

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x):
        return self.KINDS[self.kind](x)


class Positive(Model):
    def forward(self, x):
        return x + 1, (x.sum() > 0).item()


class Long(Model):
    def forward(self, x):
        return x + 1, x.shape[0] > 3


def calls(*sizes: int) -> list[Call]:
    return [call(t(size, 4)) for size in sizes]


@pytest.mark.integration
@pytest.mark.parametrize("kind", Returns.KINDS)
def test_numbers_come_out_of_a_program(tmp_path: Path, kind: str) -> None:
    made(tmp_path, Returns(kind), calls(2, 5), calls(3, 7))


@pytest.mark.integration
def test_a_saved_program_returns_numbers(tmp_path: Path) -> None:
    model = Returns("int and float")
    programs = made(tmp_path, model, calls(2, 5))
    programs.save(tmp_path / "saved")
    loaded = load_programs(tmp_path / "saved", trusted=True)
    (args, _), *_ = calls(4)
    assert_same(model(*args), loaded(*copy.deepcopy(args)))


@pytest.mark.integration
def test_an_onnx_model_returns_numbers(tmp_path: Path) -> None:
    made(tmp_path, Returns("int and float"), calls(2, 5), calls(3, 7), to="onnx")


@pytest.mark.integration
def test_a_bool_of_sizes_comes_out_of_a_program_each(tmp_path: Path) -> None:
    made(tmp_path, Long(), calls(2, 5), calls(3, 4, 7))


def test_a_bool_of_values_is_a_condition(tmp_path: Path) -> None:
    model, x = Positive(), torch.ones(2, 4)
    programs = export(taped(tmp_path, model, [call(x), call(torch.ones(5, 4))]), model)
    assert programs.verify().ok
    assert programs(x)[1] is True
    with pytest.raises(NoVariant) as refused:
        programs(-x)
    assert "the program is for calls in which" in str(refused.value)
    # It is asked for after the model returned: no line of anybody else is named.
    assert "test_returned_numbers.py" not in str(refused.value)


def test_other_numbers_are_not_reproduced(tmp_path: Path) -> None:
    class Other(Returns):
        KINDS: ClassVar[dict[str, Any]] = {"float": lambda x: x.mean().item() + 1}

    tape = taped(tmp_path, Returns("float"), calls(2, 5))
    with pytest.raises(ExportError, match="outputs is "):
        export(tape, Other("float"))
