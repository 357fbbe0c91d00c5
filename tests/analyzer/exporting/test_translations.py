"""ONNX translations of ours compute what torch computes, also where torch's own do not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from calltape_analyzer.exporting.onnx.translations import translations

pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.integration

INF = math.inf


class Attention(torch.nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None
    ) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, **self.options
        )


def tensors(length: int, keys: int, heads: int = 4, groups: int = 4) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = ((2, heads, length, 8), (2, groups, keys, 8), (2, groups, keys, 8))
    return [torch.randn(shape) for shape in shapes]


def in_onnx(model: torch.nn.Module, given: list[torch.Tensor]) -> np.ndarray[Any, Any]:
    import onnxruntime

    auto = torch.export.Dim.AUTO
    shapes = tuple({0: auto, 2: auto} for _ in given)
    program = torch.onnx.export(
        model.eval(), tuple(given), dynamic_shapes=shapes, dynamo=True, verbose=False,
        custom_translation_table=translations(),
    )  # fmt: skip
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    feeds = {one.name: t.numpy() for one, t in zip(session.get_inputs(), given, strict=True)}
    return np.asarray(session.run(None, feeds)[0])


def assert_is_torchs(model: torch.nn.Module, given: list[torch.Tensor]) -> None:
    expected = model(*given).numpy()
    np.testing.assert_allclose(in_onnx(model, given), expected, rtol=1e-5, atol=1e-6)


def padded(length: int, keys: int) -> torch.Tensor:
    """A causal mask in which the first sample has two positions of padding on its left."""
    mask = torch.ones(2, 1, length, keys, dtype=torch.bool).tril(keys - length)
    mask[0, :, :, :2] = False
    return mask


@pytest.mark.parametrize(("length", "keys"), [(5, 5), (3, 7)])
def test_rows_that_a_boolean_mask_hides_whole_are_zero(length: int, keys: int) -> None:
    mask = padded(length, keys)
    mask[1, :, 1] = False
    given = [*tensors(length, keys), mask]
    assert not Attention()(*given)[1, :, 1].any()  # in torch
    assert_is_torchs(Attention(), given)


def test_without_our_translation_such_rows_are_a_mean() -> None:
    import onnxruntime

    given = [*tensors(5, 5), padded(5, 5)]
    program: Any = torch.onnx.export(Attention(), tuple(given), dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    feeds = {one.name: t.numpy() for one, t in zip(session.get_inputs(), given, strict=True)}
    # If this fails, torch.onnx has mended it, and the translation can go.
    assert np.abs(session.run(None, feeds)[0][0, :, 0]).max() > 0.01


@pytest.mark.parametrize("lowest", [-INF, torch.finfo(torch.float32).min, -1e4])
def test_attention_with_masks_of_numbers_agrees_with_torch(lowest: float) -> None:
    mask = torch.zeros(2, 1, 5, 5).masked_fill(~padded(5, 5), lowest)
    mask[1] += torch.randn(5, 5)
    assert_is_torchs(Attention(), [*tensors(5, 5), mask])


@pytest.mark.parametrize(("length", "keys"), [(5, 5), (3, 6), (6, 3)])
def test_causal_attention_agrees_with_torch(length: int, keys: int) -> None:
    assert_is_torchs(Attention(is_causal=True), tensors(length, keys))


@pytest.mark.parametrize("scale", [None, 0.3, 1.0, -0.5])
def test_scaled_attention_agrees_with_torch(scale: float | None) -> None:
    assert_is_torchs(Attention(scale=scale), tensors(4, 5))


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_grouped_heads_agrees_with_torch(masked: bool) -> None:
    given = tensors(4, 6, heads=6, groups=2) + ([padded(4, 6)] if masked else [])
    assert_is_torchs(Attention(enable_gqa=True), given)


@pytest.mark.parametrize("odd", [math.nan, INF])
def test_numbers_that_are_none_stay_visible(odd: float) -> None:
    query, key, value = tensors(4, 5)
    query[1, 2, 3, 0] = odd
    mask = padded(4, 5)
    expected = Attention()(query, key, value, mask)
    found = in_onnx(Attention(), [query, key, value, mask])
    assert np.isnan(found[1, 2, 3]).all()
    assert np.array_equal(np.isnan(found), expected.isnan().numpy())


def test_attention_without_heads_agrees_with_torch() -> None:
    given = [t[:, 0] for t in tensors(4, 5)]
    model = Attention()
    auto = torch.export.Dim.AUTO
    program: Any = torch.onnx.export(
        model, tuple(given), dynamic_shapes=tuple({1: auto} for _ in given), dynamo=True,
        verbose=False, custom_translation_table=translations(),
    )  # fmt: skip
    import onnxruntime

    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    feeds = {one.name: t.numpy() for one, t in zip(session.get_inputs(), given, strict=True)}
    np.testing.assert_allclose(session.run(None, feeds)[0], model(*given).numpy(), atol=1e-6)


# --- places and selections -----------------------------------------------------------------------


class Places(torch.nn.Module):
    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right = right

    def forward(self, ordered: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.searchsorted(ordered, values, right=self.right)


class Buckets(Places):
    def forward(self, ordered: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.bucketize(values, ordered, right=self.right, out_int32=True)


class Selected(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, mask > 0)


def run(model: torch.nn.Module, given: list[torch.Tensor]) -> None:
    auto = torch.export.Dim.AUTO
    shapes = tuple(dict.fromkeys(range(t.dim()), auto) for t in given)
    import onnxruntime

    program = torch.onnx.export(
        model.eval(), tuple(given), dynamic_shapes=shapes, dynamo=True, verbose=False,
        custom_translation_table=translations(),
    )  # fmt: skip
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    feeds = {one.name: t.numpy() for one, t in zip(session.get_inputs(), given, strict=True)}
    (got,) = session.run(None, feeds)
    np.testing.assert_array_equal(got, model(*given).numpy())


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("cls", [Places, Buckets])
def test_places_in_a_row_are_those_of_torch(cls: Any, right: bool) -> None:
    run(cls(right), [torch.tensor([1.0, 2, 2, 5]), torch.tensor([[0.0, 2, 3], [5, 9, 1]])])


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.int32, torch.int64), (torch.int64, torch.float32), (torch.float32, torch.int64),
        (torch.float32, torch.float64), (torch.float64, torch.float32),
    ],
)  # fmt: skip
def test_places_of_values_of_another_dtype_are_those_of_torch(
    dtypes: tuple[torch.dtype, torch.dtype],
) -> None:
    run(Places(True), [torch.tensor([1, 3, 5]).to(dtypes[0]), torch.arange(7).to(dtypes[1])])


def test_places_in_several_rows_are_those_of_torch() -> None:
    rows = torch.randint(0, 9, (3, 7)).sort(-1).values
    run(Places(False), [rows, torch.randint(0, 9, (3, 4))])


def test_a_selection_is_as_wide_as_values_and_mask() -> None:
    run(Selected(), [torch.rand(3, 4), torch.tensor([[1, 0, 1, 1]])])
    run(Selected(), [torch.rand(3, 4), torch.tensor([[1], [0], [1]])])


class Repeated(torch.nn.Module):
    def forward(self, x: torch.Tensor, times: torch.Tensor) -> torch.Tensor:
        return torch.repeat_interleave(x, times, dim=0, output_size=x.shape[0] * 2)


def test_rows_are_repeated_as_often_as_is_said() -> None:
    run(Repeated(), [torch.rand(4, 3), torch.tensor([2, 0, 5, 1])])


class Squeezes(torch.nn.Module):
    """One dimension of size 1, one of another size, and one that is open."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.squeeze(1).squeeze(2) + x.squeeze(0, 1, 3).sum() + x.squeeze().sum()


def test_a_dimension_of_another_size_than_one_is_not_squeezed() -> None:
    import onnxruntime

    traced, given = torch.randn(2, 1, 4, 3), torch.randn(5, 1, 4, 3)
    program = torch.onnx.export(
        Squeezes().eval(), (traced,), dynamic_shapes=({0: torch.export.Dim.AUTO},), dynamo=True,
        verbose=False, custom_translation_table=translations(),
    )  # fmt: skip
    assert program is not None
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: given.numpy()})
    np.testing.assert_allclose(got, Squeezes()(given).numpy(), rtol=1e-5, atol=1e-5)
