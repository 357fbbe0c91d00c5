"""The ONNX translation of a batch normalization that normalizes by the batch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["norm_translations"]


def norm_translations(op: Any) -> dict[str, Callable[..., Any]]:
    """Translations by the name of the operator, with parameters like its own."""

    def batch_norm(
        input: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
        momentum: float, eps: float,
    ) -> tuple[Any, ...]:  # fmt: skip
        statistics = running_mean, running_var
        return _batch_norm(op, input, (weight, bias), statistics, training, momentum, eps)

    return {"_native_batch_norm_legit_functional.default": batch_norm}


def _batch_norm(
    op: Any, x: Any, affine: tuple[Any, Any], statistics: tuple[Any, Any], training: bool,
    momentum: float, eps: float,
) -> tuple[Any, ...]:  # fmt: skip
    """Normalizes by the batch in training mode, where torch.onnx (2.15) takes the running
    statistics in any case.

    Returns:
        The result, mean and inverse deviation of the batch, and the new running statistics.
    """
    rank = len(x.shape)
    axes = op.Constant(value_ints=[axis for axis in range(rank) if axis != 1])
    behind = op.Constant(value_ints=list(range(1, rank - 1)))

    def across(values: Any) -> Any:
        """One value per channel, to be broadcast."""
        return op.Unsqueeze(values, behind) if rank > 2 else values

    def number(value: float) -> Any:
        return op.CastLike(op.Constant(value_float=value), x)

    mean, variance = statistics
    if training:
        mean = op.ReduceMean(x, axes, keepdims=0)
        centred = op.Sub(x, across(mean))
        variance = op.ReduceMean(op.Mul(centred, centred), axes, keepdims=0)
    inverse = op.Reciprocal(op.Sqrt(op.Add(variance, number(eps))))
    result = op.Mul(op.Sub(x, across(mean)), across(inverse))
    weight, bias = affine
    result = result if weight is None else op.Mul(result, across(weight))
    result = result if bias is None else op.Add(result, across(bias))
    if not training or statistics[0] is None:
        return result, op.Identity(mean), inverse, op.Identity(mean), op.Identity(variance)
    # torch keeps the variance that divides by one less.
    sizes = op.Concat(op.Shape(x, start=0, end=1), op.Shape(x, start=2), axis=0)
    count = op.CastLike(op.ReduceProd(sizes, keepdims=0), x)
    unbiased = op.Div(op.Mul(variance, count), op.Sub(count, number(1.0)))
    kept = [
        op.Add(op.Mul(new, number(momentum)), op.Mul(old, number(1 - momentum)))
        for new, old in zip((mean, unbiased), statistics, strict=True)
    ]
    return result, op.Identity(mean), inverse, *kept
