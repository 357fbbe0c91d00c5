"""ONNX translations of adaptive pools: means, whose windows follow from the size of the picture,
and the maximum of all of it.

torch.onnx (2.15) has none. It decomposes the operators, and the decomposition makes constants of
the windows that the traced picture has: the model is wrong, or fails, at other sizes. Here the
windows are computed when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["pool_translations"]

_INT64 = 7  # of onnx.TensorProto.DataType


def pool_translations(op: Any) -> dict[str, Callable[..., Any]]:
    """Translations by the name of the operator, with parameters like its own."""
    found: dict[str, Callable[..., Any]] = {}
    for dims in (1, 2, 3):
        mean, maximum = _mean_of(op, dims), _maximum_of(op, dims)
        found[f"adaptive_avg_pool{dims}d.default"] = mean
        found[f"adaptive_max_pool{dims}d.default"] = maximum
        if dims > 1:
            found[f"_adaptive_avg_pool{dims}d.default"] = mean
    return found


def _mean_of(op: Any, dims: int) -> Callable[..., Any]:
    def mean(self: Any, output_size: Any) -> Any:
        rank = len(self.shape)
        axes = list(range(rank - dims, rank))
        wanted = _sizes(output_size, dims)
        if all(type(size) is int and size == 1 for size in wanted):
            return op.ReduceMean(self, op.Constant(value_ints=axes), keepdims=1)
        kernel = _even_kernel([self.shape[axis] for axis in axes], wanted)
        if kernel is not None and rank == dims + 2:
            return op.AveragePool(self, kernel_shape=kernel, strides=kernel)
        x = self
        is_small = x.dtype is not None and x.dtype.is_floating_point() and x.dtype.itemsize < 4
        if is_small:  # torch adds up in float32
            x = op.Cast(x, to=1)
        for axis, size in zip(axes, wanted, strict=True):
            values, is_inside, count = _windows(op, x, axis, rank, size)
            zero = op.CastLike(op.Constant(value_float=0.0), x)
            inside = op.Where(is_inside, values, zero)
            total = op.ReduceSum(inside, op.Constant(value_ints=[axis + 1]), keepdims=0)
            x = op.Div(total, op.CastLike(count, total))
        return op.CastLike(x, self) if is_small else x

    return mean


def _maximum_of(op: Any, dims: int) -> Callable[..., Any]:
    def maximum(self: Any, output_size: Any) -> tuple[Any, Any]:
        """The maximum of a whole picture, and where the first one is in it when it is flattened. No
        program with more windows is converted."""
        rank = len(self.shape)
        axes = op.Constant(value_ints=list(range(rank - dims, rank)))
        last = op.Constant(value_ints=[0] * (rank - dims) + [-1])
        place = op.ArgMax(op.Reshape(self, last), axis=-1, keepdims=1)
        one_each = op.Constant(value_ints=[0] * (rank - dims) + [1] * dims)
        return op.ReduceMax(self, axes, keepdims=1), op.Reshape(place, one_each)

    return maximum


def _sizes(output_size: Any, dims: int) -> list[Any]:
    sizes = list(output_size) if isinstance(output_size, Sequence) else [output_size]
    return sizes * dims if len(sizes) == 1 else sizes


def _even_kernel(sizes: Sequence[Any], wanted: Sequence[Any]) -> list[int] | None:
    """The window, if it is the same everywhere and known now."""
    if not all(type(size) is int for size in (*sizes, *wanted)):
        return None
    if any(size % parts for size, parts in zip(sizes, wanted, strict=True)):
        return None
    return [size // parts for size, parts in zip(sizes, wanted, strict=True)]


def _windows(op: Any, x: Any, axis: int, rank: int, wanted: Any) -> tuple[Any, Any, Any]:
    """The elements of each window along one dimension.

    Returns:
        ``x`` with two dimensions in place of one: the windows, and the elements of each, as many as
        the longest one has; whether an element is in its window; and how many are.
    """
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), op.Constant(value_ints=[0]))
    parts = op.Constant(value_int=wanted) if type(wanted) is int else _scalar(op, wanted)
    steps = op.Range(zero, parts, one)
    begins = op.Div(op.Mul(steps, size), parts)
    last = op.Sub(parts, one)
    ends = op.Div(op.Add(op.Mul(op.Add(steps, one), size), last), parts)
    counts = op.Sub(ends, begins)
    offsets = op.Range(zero, op.ReduceMax(counts, keepdims=0), one)
    column = op.Constant(value_ints=[-1])
    places = op.Add(op.Unsqueeze(begins, column), offsets)
    is_inside = op.Less(places, op.Unsqueeze(ends, column))
    values = op.Gather(x, op.Min(places, op.Sub(size, one)), axis=axis)
    after = rank - axis - 1  # dimensions behind it, which all windows share
    if after:
        behind = op.Constant(value_ints=list(range(2, 2 + after)))
        is_inside = op.Unsqueeze(is_inside, behind)
        counts = op.Unsqueeze(counts, op.Constant(value_ints=list(range(1, 1 + after))))
    return values, is_inside, counts


def _scalar(op: Any, value: Any) -> Any:
    """A size of the graph as a scalar."""
    return op.Reshape(op.Cast(value, to=_INT64), op.Constant(value_ints=[]))
