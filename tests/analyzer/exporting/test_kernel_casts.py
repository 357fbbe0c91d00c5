"""Operators that ONNX Runtime has not for a dtype give what torch gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from calltape_analyzer.exporting.onnx.kernel_casts import cast_for_kernels
from calltape_analyzer.programs.onnx_model import OnnxModel

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integration

Function = Callable[..., Any]
IDS = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]])


class Model(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def converted(function: Function, x: torch.Tensor) -> Any:
    program = torch.onnx.export(
        Model(function).eval(), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), dynamo=True,
        verbose=False,
    )  # fmt: skip
    assert program is not None
    return program


def assert_is_torchs(function: Function, *inputs: torch.Tensor) -> None:
    program = converted(function, inputs[0])
    cast_for_kernels(program.model)
    model = OnnxModel(program)
    (name,) = model.input_names
    for x in inputs:
        (got,) = model.run({name: x})
        expected = function(x)
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got, expected)


BOOLEANS: dict[str, Function] = {
    "where": lambda x: torch.where(x > 1, x > 2, x == 0),
    "masked_fill": lambda x: (x > 0).masked_fill(x > 2, False),
    "or": lambda x: (x > 1) + (x < 1),
    "and": lambda x: (x > 0) * (x < 3),
    "where of broadcast": lambda x: torch.where((x > 1)[:, :1], x > 2, torch.tensor(True)),
}


@pytest.mark.parametrize("name", BOOLEANS)
def test_operators_of_booleans_agree_with_torch(name: str) -> None:
    assert_is_torchs(BOOLEANS[name], IDS, torch.cat([IDS, IDS + 1]), IDS[:1])


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
def test_small_ints_wrap_as_in_torch(dtype: torch.dtype) -> None:
    last = torch.iinfo(dtype).max

    def function(x: torch.Tensor) -> torch.Tensor:
        small = x.to(dtype) + (last - 2)
        return torch.where(small > 1, small * 3, small.clamp(0, 5))

    assert_is_torchs(function, IDS, torch.cat([IDS, IDS * 20]))


def test_layers_in_bfloat16_agree_with_torch() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3).to(torch.bfloat16)
    x = torch.randn(2, 4).to(torch.bfloat16)
    assert_is_torchs(lambda x: torch.relu(layer(x)).softmax(-1), x, torch.cat([x, -x]))


def test_a_bias_is_added_before_rounding() -> None:
    # 257 is no bfloat16: rounded to 256 first, the sum would be 257 as well, and 256 at the end.
    def one_more(x: torch.Tensor) -> torch.Tensor:
        weight, bias = torch.ones(1, 2, dtype=x.dtype), torch.ones(1, dtype=x.dtype)
        return torch.nn.functional.linear(x, weight, bias)

    x = torch.tensor([[[256.0, 1.0]]], dtype=torch.bfloat16)
    assert one_more(x).item() == 258
    program = converted(one_more, x.expand(3, 2, 2))
    cast_for_kernels(program.model)
    (got,) = OnnxModel(program).run({"x": x.expand(3, 2, 2).contiguous()})
    assert set(got.flatten().tolist()) == {258.0}


def test_the_same_model_has_the_same_names() -> None:
    names = []
    for _ in range(2):
        program = converted(lambda x: torch.where(x > 1, x > 2, x == 0) & (x < 9), IDS)
        cast_for_kernels(program.model)
        names.append([value.name for node in program.model.graph for value in node.outputs])
    assert names[0] == names[1]
    assert len(set(names[0])) == len(names[0])


def test_without_casts_the_runtime_refuses_booleans() -> None:
    program = converted(BOOLEANS["where"], IDS)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        OnnxModel(program).open()


def test_what_the_runtime_takes_stays_as_it_is() -> None:
    program = converted(lambda x: torch.where(x > 1, x * 2, x).cumsum(-1), IDS)
    before = [node.op_type for node in program.model.graph]
    cast_for_kernels(program.model)
    assert [node.op_type for node in program.model.graph] == before
