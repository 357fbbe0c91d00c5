"""ONNX translations of operators that torch.onnx (2.15) translates not at all, or wrongly."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from calltape_analyzer.exporting.onnx.assertions import check, check_translation

__all__ = ["translations"]

_INT32, _INT64, _BOOL = 6, 7, 9  # of onnx.TensorProto.DataType


def translations() -> dict[Any, Any]:
    """Translations by operator, as ``torch.onnx.export(custom_translation_table=...)`` takes them.
    There are none if onnxscript is not installed."""
    try:
        from onnxscript import opset18
    except ImportError:
        return {}
    found: dict[Any, Any] = {
        check: check_translation(opset18),
        operator.floordiv: _floor_division(opset18),
    }
    for name, made in _by_name(opset18).items():
        packet, _, overload = name.partition(".")
        found_operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if found_operator is not None:
            found[found_operator] = made
    return found


def _floor_division(op: Any) -> Callable[..., Any]:
    """For ``-(-n // 4)``: ONNX's ``Div`` of ints, which torch.onnx (2.15) makes of it, rounds
    towards zero."""

    def divided(self: Any, other: Any) -> Any:
        return op.Div(op.Sub(self, op.Mod(self, other)), other)

    return divided


def _by_name(op: Any) -> dict[str, Callable[..., Any]]:
    """Translations by the name of the operator, with parameters like its own."""

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        return _attention(op, query, key, value, attn_mask, is_causal, scale, enable_gqa)

    def places(
        sorted_sequence: Any, self: Any, out_int32: bool = False, right: bool = False,
        side: str | None = None, sorter: Any = None,
    ) -> Any:  # fmt: skip
        if sorter is not None:
            raise ValueError("torch.searchsorted with sorter= has no translation")
        return _places(op, sorted_sequence, self, right or side == "right", out_int32)

    def buckets(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
        return _places(op, boundaries, self, right, out_int32)

    def distances(one: Any, other: Any, p: float, compute_mode: int | None = None) -> Any:
        return _distances(op, one, other, p)

    def selected(self: Any, mask: Any) -> Any:
        return _selected(op, self, mask)

    def repeated(repeats: Any, output_size: Any = None) -> Any:
        return _repeated(op, repeats)

    def is_all_true(values: Any) -> Any:
        return op.Cast(op.ReduceMin(op.Cast(values, to=_INT64), keepdims=0), to=_BOOL)

    def squeezed(self: Any, dim: Any = None) -> Any:
        return _squeezed(op, self, dim)

    return {
        **_of_order(op),
        **_of_pools(op),
        "squeeze.default": squeezed,
        "squeeze.dim": squeezed,
        "squeeze.dims": squeezed,
        "repeat_interleave.Tensor": repeated,
        "_is_all_true.default": is_all_true,
        "_cdist_forward.default": distances,
        "scaled_dot_product_attention.default": attention,
        "searchsorted.Tensor": places,
        "bucketize.Tensor": buckets,
        "masked_select.default": selected,
    }


def _squeezed(op: Any, tensor: Any, dim: Any) -> Any:
    """A tensor without dimensions of size 1. torch leaves one of another size as it is; ONNX's
    ``Squeeze``, which torch.onnx (2.15) makes of it, fails. Of an open size only the call tells
    whether it is 1."""
    rank = len(tensor.shape)
    asked = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = sorted({axis % rank for axis in asked}) if rank else []
    if not all(isinstance(tensor.shape[axis], int) for axis in axes):
        if len(axes) == rank:
            return op.Squeeze(tensor)
        sizes = op.Shape(tensor)
        stays = op.Constant(value_ints=[int(axis not in axes) for axis in range(rank)])
        is_one = op.Equal(sizes, op.Constant(value_ints=[1]))
        left = op.Compress(sizes, op.Or(op.Cast(stays, to=_BOOL), op.Not(is_one)), axis=0)
        return op.Reshape(tensor, left, allowzero=1)
    found = [axis for axis in axes if tensor.shape[axis] == 1]
    return op.Squeeze(tensor, op.Constant(value_ints=found)) if found else op.Identity(tensor)


def _distances(op: Any, one: Any, other: Any, p: float) -> Any:
    """The distance of each row of one to each row of the other."""
    if p not in (1.0, 2.0, math.inf):
        raise ValueError(f"torch.cdist with p={p} has no translation, only p=1, p=2 and p=inf")
    rows = op.Unsqueeze(one, op.Constant(value_ints=[-2]))
    columns = op.Unsqueeze(other, op.Constant(value_ints=[-3]))
    differences, last = op.Sub(rows, columns), op.Constant(value_ints=[-1])
    if p == 2.0:
        return op.Sqrt(op.ReduceSumSquare(differences, last, keepdims=0))
    reduced = op.ReduceSum if p == 1.0 else op.ReduceMax
    return reduced(op.Abs(differences), last, keepdims=0)


def _places(op: Any, ordered: Any, values: Any, right: bool, is_int32: bool) -> Any:
    """Where values would stand in an ordered row: how many of it are smaller (with ``right``: not
    greater). Each value is compared with each of the row."""
    last = op.Constant(value_ints=[-1])
    ordered, values = _of_one_dtype(op, ordered, values)
    if ordered.shape is not None and len(ordered.shape) > 1:
        ordered = op.Unsqueeze(ordered, op.Constant(value_ints=[-2]))
    each = op.Unsqueeze(values, last)
    is_before = op.LessOrEqual(ordered, each) if right else op.Less(ordered, each)
    count = op.ReduceSum(op.Cast(is_before, to=_INT64), last, keepdims=0)
    return op.Cast(count, to=_INT32) if is_int32 else count


def _of_one_dtype(op: Any, one: Any, other: Any) -> tuple[Any, Any]:
    """Two tensors in the dtype in which torch compares them; ONNX compares only equal ones."""
    if one.dtype is None or other.dtype is None or one.dtype == other.dtype:
        return one, other
    if one.dtype.is_integer() and other.dtype.is_integer():
        return op.Cast(one, to=_INT64), op.Cast(other, to=_INT64)
    if other.dtype.is_integer() or (
        one.dtype.is_floating_point() and one.dtype.itemsize > other.dtype.itemsize
    ):
        return one, op.CastLike(other, one)
    return op.CastLike(one, other), other


def _repeated(op: Any, repeats: Any) -> Any:
    """Each place as often as it says there: 0, 0, 1, 1, 1 for 2, 3."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    counts = op.Cast(repeats, to=_INT64)
    ends = op.CumSum(counts, zero)
    every = op.Range(zero, op.ReduceSum(counts, keepdims=0), one)
    return op.CastLike(_places(op, ends, every, True, False), repeats)


def _selected(op: Any, values: Any, mask: Any) -> Any:
    """The values where a mask is true, in one row; both are made as wide as the other."""
    wide = op.Shape(op.Or(op.Expand(mask, op.Shape(values)), mask))
    flat = op.Constant(value_ints=[-1])
    return op.Compress(
        op.Reshape(op.Expand(values, wide), flat), op.Reshape(op.Expand(mask, wide), flat)
    )


def _attention(
    op: Any, query: Any, key: Any, value: Any, mask: Any, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> Any:  # fmt: skip
    """Attention as torch computes it: a row of scores that is masked whole gives zeros.

    torch.onnx fills what a boolean mask hides with the lowest finite number, so that such a row
    becomes the mean of all values. Left-padded batches have such rows.
    """
    from onnxscript import ir

    def constant(number: float) -> Any:
        return op.Constant(value=ir.tensor(number, dtype=query.dtype))

    if enable_gqa and query.shape[1] != key.shape[1]:
        key, value = (_for_each_head(op, query, tensor) for tensor in (key, value))
    # Both factors are scaled, as torch does it: their product overflows later.
    left, right = _roots_of_scale(op, query, scale, constant)
    rank = len(query.shape)
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = op.MatMul(op.Mul(query, left), op.Mul(turned, right))
    if mask is None and not is_causal:
        return op.MatMul(op.Softmax(scores, axis=-1), value)
    hidden = constant(-math.inf)
    if is_causal:
        scores = op.Where(_causal_mask(op, query, key), scores, hidden)
    elif mask is not None:
        is_boolean = mask.dtype == ir.DataType.BOOL
        scores = op.Where(mask, scores, hidden) if is_boolean else op.Add(scores, mask)
    weights = op.Softmax(scores, axis=-1)
    # Only a row of nothing but -inf has no weights where the score is -inf: a row with NaN or inf
    # in it stays without.
    is_hidden = op.And(op.IsNaN(weights), op.Equal(scores, hidden))
    return op.MatMul(op.Where(is_hidden, constant(0.0), weights), value)


def _roots_of_scale(op: Any, query: Any, scale: float | None, constant: Any) -> tuple[Any, Any]:
    """Two factors whose product is the scale."""
    if scale is not None:
        root = math.sqrt(abs(scale))
        return constant(math.copysign(root, scale)), constant(root)
    width = query.shape[-1]
    if isinstance(width, int):
        return (constant(width**-0.25),) * 2
    last = op.CastLike(op.Shape(query, start=-1), query)
    return (op.Sqrt(op.Reciprocal(op.Sqrt(last))),) * 2


def _for_each_head(op: Any, query: Any, tensor: Any) -> Any:
    """Keys or values ``(batch, groups, length, width)``, once for each head of their group."""
    ends = [op.Shape(tensor, start=i, end=i + 1) for i in range(4)]
    heads = op.Shape(query, start=1, end=2)
    times = op.Div(heads, ends[1])
    wide = op.Concat(ends[0], ends[1], times, ends[2], ends[3], axis=0)
    repeated = op.Expand(op.Unsqueeze(tensor, op.Constant(value_ints=[2])), wide)
    return op.Reshape(repeated, op.Concat(ends[0], heads, ends[2], ends[3], axis=0))


def _causal_mask(op: Any, query: Any, key: Any) -> Any:
    """True at ``(i, j)`` if query ``i`` sees key ``j``: if ``j <= i``."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    axis = op.Constant(value_ints=[0])
    rows = op.Range(zero, op.Squeeze(op.Shape(query, start=-2, end=-1), axis), one)
    columns = op.Range(zero, op.Squeeze(op.Shape(key, start=-2, end=-1), axis), one)
    last = op.Constant(value_ints=[1])
    return op.GreaterOrEqual(op.Unsqueeze(rows, last), columns)


def _of_order(op: Any) -> dict[str, Callable[..., Any]]:
    """Running maxima and products, and the extremes of all dimensions, which torch.onnx (2.15)
    translates not at all."""

    def maxima(self: Any, dim: int) -> tuple[Any, Any]:
        return _running(op, self, dim, op.ReduceMax)

    def minima(self: Any, dim: int) -> tuple[Any, Any]:
        return _running(op, self, dim, op.ReduceMin)

    def products(self: Any, dim: int, dtype: Any = None) -> Any:
        return _products(op, self, dim, dtype)

    def largest_of_all(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
        return _reduced(op, op.ReduceMax, self, dim, keepdim)

    def smallest_of_all(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
        return _reduced(op, op.ReduceMin, self, dim, keepdim)

    return {
        "amax.default": largest_of_all,
        "amin.default": smallest_of_all,
        "cummax.default": maxima,
        "cummin.default": minima,
        "cumprod.default": products,
    }


def _reduced(op: Any, best_of: Callable[..., Any], x: Any, dim: Any, keepdim: bool) -> Any:
    """The best of some dimensions; of all, if none is named, which torch.onnx does not take."""
    axes = [dim] if isinstance(dim, int) else list(dim or ())
    if not axes:
        return best_of(x, keepdims=int(keepdim))
    return best_of(x, op.Constant(value_ints=axes), keepdims=int(keepdim))


class _Row(NamedTuple):
    """Which dimension of a tensor of which rank. A scalar is a row of its own."""

    axis: int
    rank: int


def _row(x: Any, dim: int) -> _Row:
    rank = len(x.shape)
    return _Row(dim % rank if rank else 0, rank)


def _prefixes(op: Any, x: Any, of: _Row) -> tuple[Any, Any, Any]:
    """What each element has before it.

    Returns:
        ``x`` with its dimension last and one before it, for the element that looks; whether an
        element is one that it sees; and the places ``0, 1, ...``.
    """
    axis, rank = of
    order = [*(i for i in range(rank) if i != axis), axis]
    row = op.Unsqueeze(op.Transpose(x, perm=order), op.Constant(value_ints=[-2]))
    size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), op.Constant(value_ints=[0]))
    places = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    seen = op.LessOrEqual(places, op.Unsqueeze(places, op.Constant(value_ints=[-1])))
    return row, seen, places


def _back(op: Any, x: Any, of: _Row) -> Any:
    """The last dimension where it was."""
    axis, rank = of
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return op.Transpose(x, perm=order)


def _running(op: Any, x: Any, dim: int, best_of: Callable[..., Any]) -> tuple[Any, Any]:
    """The best of all elements up to each one, and where the last one of these is."""
    of, last = _row(x, dim), op.Constant(value_ints=[-1])
    if not of.rank:
        return op.Identity(x), op.Constant(value_int=0)
    row, seen, places = _prefixes(op, x, of)
    first = op.Slice(
        row, op.Constant(value_ints=[0]), op.Constant(value_ints=[1]), last
    )  # everything sees it, so it changes no maximum
    best = best_of(op.Where(seen, row, first), last, keepdims=1)
    is_best = op.And(seen, op.Equal(row, best))
    where = op.ReduceMax(op.Where(is_best, places, op.Constant(value_int=0)), last, keepdims=0)
    return _back(op, op.Squeeze(best, last), of), _back(op, where, of)


def _products(op: Any, x: Any, dim: int, dtype: Any) -> Any:
    of = _row(x, dim)
    if dtype is not None and dtype >= 0:
        x = op.Cast(x, to=int(dtype))
    elif x.dtype is not None and (x.dtype.is_integer() or x.dtype.name == "BOOL"):
        x = op.Cast(x, to=_INT64)
    if not of.rank:
        return op.Identity(x)
    row, seen, _ = _prefixes(op, x, of)
    factors = op.Where(seen, row, op.CastLike(op.Constant(value_int=1), row))
    products = op.ReduceProd(factors, op.Constant(value_ints=[-1]), keepdims=0)
    return _back(op, products, of)


def _of_pools(op: Any) -> dict[str, Callable[..., Any]]:
    """Adaptive pools: means, whose windows follow from the size of the picture, and the maximum of
    all of it.

    torch.onnx (2.15) has none. It decomposes the operators, and the decomposition makes constants
    of the windows that the traced picture has: the model is wrong, or fails, at other sizes. Here
    the windows are computed when the model runs.
    """
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
        wanted = list(output_size) if isinstance(output_size, Sequence) else [output_size]
        wanted = wanted * dims if len(wanted) == 1 else wanted
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
    if type(wanted) is int:
        parts = op.Constant(value_int=wanted)
    else:  # a size of the graph
        parts = op.Reshape(op.Cast(wanted, to=_INT64), op.Constant(value_ints=[]))
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
