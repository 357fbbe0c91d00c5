"""Adaptive pools in ONNX have the windows of the picture that they get, not of the traced one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from calltape_analyzer.exporting.onnx.translations import translations

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integration


class PoolsToSize(nn.Module):
    """The size of the result is a size of another argument."""

    def forward(self, x: Tensor, like: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(x, like.shape[2:])


class Nested(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Any:
        return self.pool(x)


def session_of(model: nn.Module, *traced: Tensor) -> Any:
    import onnxruntime

    auto = torch.export.Dim.AUTO
    shapes = tuple(dict.fromkeys(range(t.ndim), auto) for t in traced)
    exported = torch.export.export(
        model.eval(), traced, dynamic_shapes={"x": shapes[0]} | (
            {"like": shapes[1]} if len(traced) > 1 else {}
        ),
    )  # fmt: skip
    program = torch.onnx.export(
        exported, (), dynamo=True, verbose=False, custom_translation_table=translations()
    )
    assert program is not None
    return onnxruntime.InferenceSession(program.model_proto.SerializeToString())


def assert_is_torchs(model: nn.Module, traced: list[Tensor], given: list[Tensor]) -> None:
    session = session_of(model, *traced)
    feeds = {one.name: t.numpy() for one, t in zip(session.get_inputs(), given, strict=True)}
    expected = model(*given)
    every = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(session.run(None, feeds), every, strict=True):
        np.testing.assert_allclose(got, wanted.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("pool", "traced", "given"),
    [
        (nn.AdaptiveAvgPool1d(3), (2, 4, 9), (3, 4, 14)),
        (nn.AdaptiveAvgPool2d((2, 3)), (2, 4, 8, 12), (3, 4, 7, 11)),
        (nn.AdaptiveAvgPool2d((7, 7)), (2, 4, 14, 15), (3, 4, 5, 9)),
        (nn.AdaptiveAvgPool2d((None, 2)), (2, 4, 6, 8), (1, 4, 9, 5)),
        (nn.AdaptiveAvgPool2d(1), (2, 4, 6, 8), (1, 4, 9, 5)),
        (nn.AdaptiveAvgPool3d(2), (2, 3, 4, 6, 8), (2, 3, 5, 7, 9)),
        (nn.AdaptiveMaxPool1d(1), (2, 4, 9), (3, 4, 14)),
        (nn.AdaptiveMaxPool2d(1, return_indices=True), (2, 4, 8, 12), (3, 4, 7, 11)),
        (nn.AdaptiveMaxPool3d(1, return_indices=True), (2, 3, 4, 6, 8), (2, 3, 5, 7, 9)),
    ],
)
def test_windows_follow_from_the_size_of_the_picture(
    pool: nn.Module, traced: tuple[int, ...], given: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    assert_is_torchs(Nested(pool), [torch.randn(traced)], [torch.randn(given)])


def test_the_first_of_equal_maxima_is_found() -> None:
    model = Nested(nn.AdaptiveMaxPool2d(1, return_indices=True))
    ties = torch.randint(0, 2, (3, 2, 7, 9), generator=torch.Generator().manual_seed(1)).float()
    assert_is_torchs(model, [torch.randn(2, 2, 6, 8)], [ties])


def test_a_mean_without_an_infinite_element_stays_finite() -> None:
    x = torch.zeros(1, 1, 5, 5)
    x[0, 0, 0, 0] = torch.inf
    assert_is_torchs(Nested(nn.AdaptiveAvgPool2d(2)), [torch.randn(2, 1, 6, 8)], [x])


def test_the_size_of_the_result_may_come_from_another_argument() -> None:
    traced = [torch.randn(2, 4, 8, 12), torch.randn(2, 4, 3, 5)]
    assert_is_torchs(PoolsToSize(), traced, [torch.randn(3, 4, 9, 10), torch.randn(3, 4, 2, 6)])
