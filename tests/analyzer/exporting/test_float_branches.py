"""An ``if`` on a float: a program serves the side that it was traced for, and no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from calltape_analyzer import export, load_programs
from calltape_analyzer.errors import ExportError, NoVariant
from calltape_analyzer.exporting.torch_fixes.kept_assertions import (
    kept_assertions,
    require_assertions,
)
from calltape_analyzer.exporting.torch_fixes.python_values import real_values
from tests.analyzer.exported import Call, assert_as_module, call, made, taped
from tests.analyzer.exporting.models import Model


class Branching(Model):
    """Asks one question, and does something else for each answer."""

    def __init__(self, asks: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        if self.asks(x):
            return x * 2
        return x - 1


class Halving(Model):
    """Goes on until an error is small."""

    def forward(self, x: Tensor) -> Tensor:
        turns = 0
        while x.amax().item() > 0.2:
            x, turns = x / 2, turns + 1
        return x + turns


class TwoParts(Model):
    """Asks within submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Branching(lambda x: x.mean().item() > 0.5)
        self.other = Branching(lambda x: x.amin().item() <= 0.35)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) + self.other(x)


def full(rows: int, value: float) -> Tensor:
    return torch.full((rows, 4), value)


LOW = [call(full(n, 0.25)) for n in (2, 3, 5)]
HIGH = [call(full(n, 0.75)) for n in (2, 3, 5)]
# Exact in binary, so that the mean of equal numbers is one of them.
MORE_LOW, MORE_HIGH = call(full(4, 0.3125)), call(full(4, 0.8125))

QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "above": lambda x: x.mean().item() > 0.5,
    "not below": lambda x: x.mean().item() >= 0.5,
    "below": lambda x: x.mean().item() < 0.5,
    "at most": lambda x: x.mean().item() <= 0.5,
    "minus": lambda x: -x.mean().item() < -0.5,
    "between": lambda x: 0.4 < x.mean().item() < 1,
    "beside a size": lambda x: x.sum().item() > x.shape[0] * 2,
    "a size": lambda x: x.round().sum().item() == x.numel(),
    "over a size": lambda x: x.sum().item() / x.numel() > 0.5,
    "float of a tensor": lambda x: float(x.mean()) > 0.5,
    "int of a float": lambda x: int(x.max().item() * 4) > 2,
    "int of a tensor": lambda x: int(x.max() * 4) > 2,
    "floor": lambda x: math.floor(x.mean().item() * 2) >= 1,
    "ceil": lambda x: math.ceil(x.mean().item() * 2) >= 2,
    "round": lambda x: round(x.mean().item()) == 1,
    "floor division": lambda x: x.mean().item() // 0.5 > 0,
    "greatest": lambda x: max(x.mean().item(), x.amin().item()) > 0.5,
    "some": lambda x: (x > 0.5).any().item(),
    "count": lambda x: (x > 0.5).sum().item(),
    "count of a size": lambda x: (x > 0.5).sum().item() == x.numel(),
    "close": lambda x: not torch.allclose(x, torch.full_like(x, 0.25), atol=0.1),
    "equal": lambda x: not torch.equal(x.round(), torch.zeros_like(x)),
}
"""Questions that are answered no at 0.25 and yes at 0.75, or the other way round."""

_IN_ONNX = ["int of a tensor", "some", "count", "count of a size", "close", "equal"]
"""No float decides these."""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("question", "to"), [*((n, "torch") for n in QUESTIONS), *((n, "onnx") for n in _IN_ONNX)]
)
def test_the_side_that_was_never_recorded_is_refused(
    tmp_path: Path, question: str, to: str
) -> None:
    model = Branching(QUESTIONS[question])
    for name, recorded, same, other in (
        ("low", LOW, MORE_LOW, MORE_HIGH), ("high", HIGH, MORE_HIGH, MORE_LOW),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        programs = made(folder, model, recorded, [same], to=to)
        with pytest.raises(
            NoVariant, match=r"the model asks (about that )?at .*\.py:\d+"
        ) as caught:
            programs(*other[0])
        assert "test_float_branches.py" in str(caught.value)


@pytest.mark.integration
@pytest.mark.parametrize("question", sorted(QUESTIONS.keys() - _IN_ONNX))
def test_a_float_that_decides_is_in_no_onnx_model(tmp_path: Path, question: str) -> None:
    pytest.importorskip("onnxruntime")
    model = Branching(QUESTIONS[question])
    # torch itself does not convert a program that rounds a number of a tensor.
    why = "needs the value of a tensor" if question == "round" else "decides by a float"
    with pytest.raises(ExportError, match=rf"the model {why} at .*\.py:\d+"):
        export(taped(tmp_path, model, LOW), model, to="onnx")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("question", "to"),
    [
        ("above", "torch"), ("float of a tensor", "torch"), ("int of a tensor", "torch"),
        ("count", "torch"), ("count", "onnx"),
    ],
)  # fmt: skip
def test_each_side_has_a_program(tmp_path: Path, question: str, to: str) -> None:
    model = Branching(QUESTIONS[question])
    programs = made(tmp_path, model, [*LOW, *HIGH], [MORE_LOW, MORE_HIGH], to=to)
    assert len(programs) == 2


@pytest.mark.integration
def test_branches_in_several_parts_of_a_model_become_guards(tmp_path: Path) -> None:
    model = TwoParts()
    programs = made(tmp_path, model, [*LOW, *HIGH], [MORE_LOW, MORE_HIGH])
    with pytest.raises(NoVariant, match="the model asks at"):
        programs(full(4, 0.4))


@pytest.mark.integration
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_value_at_the_limit_is_compared_as_python_compares_it(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    # 0.2 of float32 is 0.20000000298, and of bfloat16 0.2001953125.
    calls = [call(full(n, value).to(dtype)) for n in (2, 3) for value in (0.1, 0.3)]
    model = Halving()
    programs = made(tmp_path, model, calls)
    for value in (0.2, 0.4, math.nextafter(0.2, 1)):
        given = call(full(4, 1.0).to(dtype) * value)
        try:
            got = programs(*given[0])
        except NoVariant:
            continue
        assert got.allclose(model(*given[0]))


@pytest.mark.integration
def test_programs_that_were_saved_refuse_as_before(tmp_path: Path) -> None:
    for question in ("above", "beside a size", "int of a float"):
        model = Branching(QUESTIONS[question])
        folder = tmp_path / question.replace(" ", "-")
        folder.mkdir()
        made(folder, model, LOW).save(folder / "saved")
        programs = load_programs(folder / "saved", trusted=True)
        assert_as_module(programs, model, [MORE_LOW])
        with pytest.raises(NoVariant, match="the program is for calls in which"):
            programs(*MORE_HIGH[0])


def traced(model: Model, given: Call) -> Any:
    with real_values(True):
        return torch.export.export(model, given[0], strict=False)


def test_a_program_without_an_assertion_of_its_trace_is_none(tmp_path: Path) -> None:
    model = Branching(QUESTIONS["above"])
    with pytest.raises(RuntimeError, match=r"leaves an assertion out of the program, zuf0 <= 0\.5"):
        require_assertions(traced(model, MORE_LOW))  # torch's own way
    with kept_assertions():
        require_assertions(traced(model, MORE_LOW))


def test_without_the_passes_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another torch, which writes assertions in another way, no program is silently wrong."""
    from calltape_analyzer.exporting.torch_fixes import kept_assertions as kept

    monkeypatch.setattr(kept, "INSERT", "of another version")
    with pytest.raises(Exception, match="nothing could be exported"):
        export(taped(tmp_path, Branching(QUESTIONS["above"]), LOW), Branching(QUESTIONS["above"]))
