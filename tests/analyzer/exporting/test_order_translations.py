"""Running maxima and products in ONNX Runtime are those of torch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from calltape_analyzer.exporting.onnx.conversion import order_as_stored
from calltape_analyzer.exporting.onnx.kernel_casts import cast_for_kernels
from calltape_analyzer.exporting.onnx.translations import translations
from calltape_analyzer.programs.onnx_model import OnnxModel

pytest.importorskip("onnxruntime")
assert_close: Any = torch.testing.assert_close
pytestmark = pytest.mark.integration


class Orders(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        near = x.clamp(-9, 9)  # infinities have no int, and no distance from each other
        ints = (near * 2).to(torch.int32)
        return (
            *x.cummax(-1), *x.cummin(0), x.cumprod(1), x.amax(), x.amin(),
            x.amax((0, 1), keepdim=True), x.amin(1),
            *ints.cummax(0), ints.cumprod(-1), ints.amax(), (x > 0).amax(-1),
            torch.cdist(near, near, p=1.0), torch.cdist(near, near, p=math.inf),
        )  # fmt: skip


def in_onnx(model: torch.nn.Module, x: torch.Tensor) -> OnnxModel:
    auto = torch.export.Dim.AUTO
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: auto, 1: auto},))
    order_as_stored(exported.graph_module)
    program: Any = torch.onnx.export(
        exported, (), dynamo=True, verbose=False, custom_translation_table=translations()
    )
    cast_for_kernels(program.model)
    return OnnxModel(program)


def assert_is_torchs(model: torch.nn.Module, *inputs: torch.Tensor) -> None:
    runs = in_onnx(model, inputs[0])
    (name,) = runs.input_names
    for x in inputs:
        for place, (got, expected) in enumerate(zip(runs.run({name: x}), model(x), strict=True)):
            assert got.dtype == expected.dtype, place
            assert_close(got, expected, equal_nan=True, msg=lambda said, n=place: f"{n}: {said}")


def test_orders_agree_with_torch() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    falling = torch.arange(20.0).flip(0).reshape(4, 5)
    with_infinities = torch.tensor([[-math.inf, 2.0, -math.inf, 1.5], [0.5, 3.0, math.inf, -1.0]])
    assert_is_torchs(Orders(), x, falling, with_infinities)


class Ties(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (*x.cummax(-1), *x.cummin(-1))


def test_the_last_of_equal_maxima_is_named() -> None:
    rows = torch.tensor([[1.0, 1.0, 2.0, 2.0, 0.0], [0.0, -math.inf, 0.0, 3.0, 3.0]])
    assert_is_torchs(Ties(), rows, -rows, torch.full((3, 4), -math.inf))


class Chunks(torch.nn.Module):
    """Overlapping windows of the memory, as Longformer makes them."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        turned = x.transpose(0, 1)  # its memory is in the order of x
        rows, columns = turned.shape
        across, down = turned.stride()
        return (turned.as_strided((rows, columns - 1, 2), (across, down, down)), turned + 1)


def test_as_strided_reads_the_memory() -> None:
    assert_is_torchs(Chunks(), torch.randn(5, 4), torch.randn(7, 3))


class ChosenChunks(torch.nn.Module):
    """Windows of columns whose number only values tell."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        chosen = x[:, torch.nonzero(x[0] > 0)[:, 0]].contiguous()
        rows, columns = chosen.shape
        torch._check(columns >= 2)
        return (chosen.as_strided((rows, columns - 1, 2), (chosen.stride(0), 1, 1)),)


def test_as_strided_of_a_size_from_values_agrees_with_torch() -> None:
    x = torch.randn(3, 6)
    x[0] = torch.tensor([1.0, -1.0, 2.0, 3.0, -2.0, 4.0])
    assert_is_torchs(ChosenChunks(), x, x.abs())


class Part(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 1:].as_strided((2, 2), (1, 1))


class Rest(torch.nn.Module):
    """The rows behind the first one, which have no gaps."""

    def __init__(self, offset: int | None) -> None:
        super().__init__()
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[1:].as_strided((2, 2), (1, 1), self.offset)


def test_as_strided_of_the_rest_begins_there() -> None:
    exported = torch.export.export(Rest(None), (torch.randn(4, 5),))
    order_as_stored(exported.graph_module)
    program: Any = torch.onnx.export(exported, (), dynamo=True, verbose=False)
    runs = OnnxModel(program)
    x = torch.randn(4, 5)
    assert_close(runs.run({runs.input_names[0]: x})[0], Rest(None)(x))


@pytest.mark.parametrize("model", [Part(), Rest(1)], ids=["a part", "an offset"])
def test_as_strided_within_a_larger_memory_is_rejected(model: torch.nn.Module) -> None:
    exported = torch.export.export(model, (torch.randn(4, 5),))
    with pytest.raises(ValueError, match="shares memory"):
        order_as_stored(exported.graph_module)
