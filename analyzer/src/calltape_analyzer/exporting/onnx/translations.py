"""ONNX translations of operators that torch.onnx (2.15) translates wrongly, or not at all."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from onnxscript import ir, opset18

__all__ = ["check", "translations"]

op: Any = opset18

_INT32, _INT64, _BOOL = 6, 7, 9  # of onnx.TensorProto.DataType


def translations() -> dict[Any, Any]:
    """Translations by operator, as ``torch.onnx.export(custom_translation_table=...)`` takes them,
    with parameters like its own."""
    by_name: dict[str, Callable[..., Any]] = {
        "_cdist_forward.default": cdist,
        "_is_all_true.default": is_all_true,
        "amax.default": amax,
        "amin.default": amin,
        "bucketize.Tensor": bucketize,
        "cummax.default": cummax,
        "cummin.default": cummin,
        "cumprod.default": cumprod,
        "masked_select.default": masked_select,
        "repeat_interleave.Tensor": repeat_interleave,
        "scaled_dot_product_attention.default": attention,
        "searchsorted.Tensor": searchsorted,
        "squeeze.default": squeeze,
        "squeeze.dim": squeeze,
        "squeeze.dims": squeeze,
    }
    for dims in (1, 2, 3):
        mean = _adaptive_mean(dims)
        by_name[f"adaptive_avg_pool{dims}d.default"] = mean
        by_name[f"adaptive_max_pool{dims}d.default"] = _adaptive_maximum(dims)
        if dims > 1:
            by_name[f"_adaptive_avg_pool{dims}d.default"] = mean
    table: dict[Any, Any] = {check: _checked, operator.floordiv: floordiv}
    for name, translation in by_name.items():
        packet, _, overload = name.partition(".")
        aten_operator = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if aten_operator is not None:
            table[aten_operator] = translation
    return table


def check(condition: Any) -> Any:
    """Replaces an assertion in a graph; it is translated and never called."""
    return condition


def _checked(condition: Any) -> Any:
    """The translation of :func:`check`: the condition as one element."""
    return op.Reshape(op.Cast(condition, to=_BOOL), op.Constant(value_ints=[1]))


def floordiv(self: Any, other: Any) -> Any:
    """``n // 4`` for negative numbers too. torch.onnx (2.15) translates it to ``Div``, which rounds
    towards zero."""
    return op.Div(op.Sub(self, op.Mod(self, other)), other)


def is_all_true(values: Any) -> Any:
    return op.Cast(op.ReduceMin(op.Cast(values, to=_INT64), keepdims=0), to=_BOOL)


def squeeze(self: Any, dim: Any = None) -> Any:
    """Removes dimensions of size 1. torch ignores a named dimension of another size; ONNX's
    ``Squeeze``, to which torch.onnx (2.15) translates it, fails. Whether an open size is 1 is known
    only when the model runs."""
    rank = len(self.shape)
    dims = range(rank) if dim is None else [dim] if isinstance(dim, int) else dim
    axes = sorted({axis % rank for axis in dims}) if rank else []
    if not all(isinstance(self.shape[axis], int) for axis in axes):
        if len(axes) == rank:
            return op.Squeeze(self)
        sizes = op.Shape(self)
        stays = op.Constant(value_ints=[int(axis not in axes) for axis in range(rank)])
        is_one = op.Equal(sizes, op.Constant(value_ints=[1]))
        remaining = op.Compress(sizes, op.Or(op.Cast(stays, to=_BOOL), op.Not(is_one)), axis=0)
        return op.Reshape(self, remaining, allowzero=1)
    ones = [axis for axis in axes if self.shape[axis] == 1]
    return op.Squeeze(self, op.Constant(value_ints=ones)) if ones else op.Identity(self)


def cdist(one: Any, other: Any, p: float, compute_mode: int | None = None) -> Any:
    """The distance of each row of ``one``, (..., n, d), to each row of ``other``, (..., m, d): of
    shape (..., n, m)."""
    if p not in (1.0, 2.0, math.inf):
        raise ValueError(f"torch.cdist with p={p} has no translation, only p=1, p=2 and p=inf")
    rows = op.Unsqueeze(one, op.Constant(value_ints=[-2]))
    columns = op.Unsqueeze(other, op.Constant(value_ints=[-3]))
    differences, last = op.Sub(rows, columns), op.Constant(value_ints=[-1])
    if p == 2.0:
        return op.Sqrt(op.ReduceSumSquare(differences, last, keepdims=0))
    reduced = op.ReduceSum if p == 1.0 else op.ReduceMax
    return reduced(op.Abs(differences), last, keepdims=0)


def searchsorted(
    sorted_sequence: Any, self: Any, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    if sorter is not None:
        raise ValueError("torch.searchsorted with sorter= has no translation")
    return _insertion_points(sorted_sequence, self, right or side == "right", out_int32)


def bucketize(self: Any, boundaries: Any, out_int32: bool = False, right: bool = False) -> Any:
    return _insertion_points(boundaries, self, right, out_int32)


def _insertion_points(ordered: Any, values: Any, right: bool, is_int32: bool) -> Any:
    """Where values would be inserted into a sorted row: how many elements of the row are smaller
    (with ``right``: not greater). Compares each value with each element."""
    last = op.Constant(value_ints=[-1])
    ordered, values = _of_one_dtype(ordered, values)
    if ordered.shape is not None and len(ordered.shape) > 1:
        ordered = op.Unsqueeze(ordered, op.Constant(value_ints=[-2]))
    each = op.Unsqueeze(values, last)
    is_before = op.LessOrEqual(ordered, each) if right else op.Less(ordered, each)
    count = op.ReduceSum(op.Cast(is_before, to=_INT64), last, keepdims=0)
    return op.Cast(count, to=_INT32) if is_int32 else count


def _of_one_dtype(one: Any, other: Any) -> tuple[Any, Any]:
    """Casts two tensors to the dtype in which torch compares them; ONNX only compares equal
    dtypes."""
    if one.dtype is None or other.dtype is None or one.dtype == other.dtype:
        return one, other
    if one.dtype.is_integer() and other.dtype.is_integer():
        return op.Cast(one, to=_INT64), op.Cast(other, to=_INT64)
    if other.dtype.is_integer() or (
        one.dtype.is_floating_point() and one.dtype.itemsize > other.dtype.itemsize
    ):
        return one, op.CastLike(other, one)
    return op.CastLike(one, other), other


def repeat_interleave(repeats: Any, output_size: Any = None) -> Any:
    """Repeats each index as often as its element says: 0, 0, 1, 1, 1 for 2, 3."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    counts = op.Cast(repeats, to=_INT64)
    ends = op.CumSum(counts, zero)
    every = op.Range(zero, op.ReduceSum(counts, keepdims=0), one)
    return op.CastLike(_insertion_points(ends, every, True, False), repeats)


def masked_select(self: Any, mask: Any) -> Any:
    """The elements where a mask is true, in one row; tensor and mask are broadcast."""
    wide = op.Shape(op.Or(op.Expand(mask, op.Shape(self)), mask))
    flat = op.Constant(value_ints=[-1])
    return op.Compress(
        op.Reshape(op.Expand(self, wide), flat), op.Reshape(op.Expand(mask, wide), flat)
    )


def attention(
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    """Attention as torch computes it: a row of scores that is entirely masked gives zeros.

    torch.onnx replaces what a boolean mask hides by the lowest finite number, so that such a row
    becomes the mean of all values. Left-padded batches have such rows.
    """

    def constant(number: float) -> Any:
        return op.Constant(value=ir.tensor(number, dtype=query.dtype))

    if enable_gqa and query.shape[1] != key.shape[1]:
        key, value = (_for_each_head(query, tensor) for tensor in (key, value))
    # Both factors are scaled, as torch does it: their product overflows later.
    query_factor, key_factor = _scale_factors(query, scale, constant)
    rank = len(query.shape)
    turned = op.Transpose(key, perm=[*range(rank - 2), rank - 1, rank - 2])
    scores = op.MatMul(op.Mul(query, query_factor), op.Mul(turned, key_factor))
    if attn_mask is None and not is_causal:
        return op.MatMul(op.Softmax(scores, axis=-1), value)
    hidden = constant(-math.inf)
    if is_causal:
        scores = op.Where(_causal_mask(query, key), scores, hidden)
    elif attn_mask is not None:
        is_boolean = attn_mask.dtype == ir.DataType.BOOL
        scores = op.Where(attn_mask, scores, hidden) if is_boolean else op.Add(scores, attn_mask)
    weights = op.Softmax(scores, axis=-1)
    # Only a row of nothing but -inf has no weights where the score is -inf: a row with NaN or inf
    # in it stays without.
    is_hidden = op.And(op.IsNaN(weights), op.Equal(scores, hidden))
    return op.MatMul(op.Where(is_hidden, constant(0.0), weights), value)


def _scale_factors(query: Any, scale: float | None, constant: Any) -> tuple[Any, Any]:
    """Two factors whose product is the scale."""
    if scale is not None:
        root = math.sqrt(abs(scale))
        return constant(math.copysign(root, scale)), constant(root)
    width = query.shape[-1]
    if isinstance(width, int):
        return (constant(width**-0.25),) * 2
    last = op.CastLike(op.Shape(query, start=-1), query)
    return (op.Sqrt(op.Reciprocal(op.Sqrt(last))),) * 2


def _for_each_head(query: Any, tensor: Any) -> Any:
    """Keys or values, (batch, groups, length, width), repeated for each head of their group."""
    ends = [op.Shape(tensor, start=i, end=i + 1) for i in range(4)]
    heads = op.Shape(query, start=1, end=2)
    times = op.Div(heads, ends[1])
    wide = op.Concat(ends[0], ends[1], times, ends[2], ends[3], axis=0)
    copies = op.Expand(op.Unsqueeze(tensor, op.Constant(value_ints=[2])), wide)
    return op.Reshape(copies, op.Concat(ends[0], heads, ends[2], ends[3], axis=0))


def _causal_mask(query: Any, key: Any) -> Any:
    """True at ``(i, j)`` if query ``i`` sees key ``j``: if ``j <= i``."""
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    axis = op.Constant(value_ints=[0])
    rows = op.Range(zero, op.Squeeze(op.Shape(query, start=-2, end=-1), axis), one)
    columns = op.Range(zero, op.Squeeze(op.Shape(key, start=-2, end=-1), axis), one)
    last = op.Constant(value_ints=[1])
    return op.GreaterOrEqual(op.Unsqueeze(rows, last), columns)


def cummax(self: Any, dim: int) -> tuple[Any, Any]:
    return _running(self, dim, op.ReduceMax)


def cummin(self: Any, dim: int) -> tuple[Any, Any]:
    return _running(self, dim, op.ReduceMin)


def amax(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _reduced(op.ReduceMax, self, dim, keepdim)


def amin(self: Any, dim: Any = (), keepdim: bool = False) -> Any:
    return _reduced(op.ReduceMin, self, dim, keepdim)


def _reduced(best_of: Callable[..., Any], x: Any, dim: Any, keepdim: bool) -> Any:
    """The best of some dimensions; of all if none is named, which torch.onnx rejects."""
    axes = [dim] if isinstance(dim, int) else list(dim or ())
    if not axes:
        return best_of(x, keepdims=int(keepdim))
    return best_of(x, op.Constant(value_ints=axes), keepdims=int(keepdim))


class _Row(NamedTuple):
    """A dimension of a tensor, and the tensor's rank: 0 for a scalar."""

    axis: int
    rank: int


def _row(x: Any, dim: int) -> _Row:
    rank = len(x.shape)
    return _Row(dim % rank if rank else 0, rank)


def _prefixes(x: Any, of: _Row) -> tuple[Any, Any, Any]:
    """For each element of a row, the elements up to it.

    Returns:
        ``x`` with the dimension of the row last, and a new one before it for the element that looks
        back; a mask of the elements that it sees; and the indices ``0, 1, ...``.
    """
    axis, rank = of
    order = [*(i for i in range(rank) if i != axis), axis]
    row = op.Unsqueeze(op.Transpose(x, perm=order), op.Constant(value_ints=[-2]))
    size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), op.Constant(value_ints=[0]))
    places = op.Range(op.Constant(value_int=0), size, op.Constant(value_int=1))
    seen = op.LessOrEqual(places, op.Unsqueeze(places, op.Constant(value_ints=[-1])))
    return row, seen, places


def _move_back(x: Any, of: _Row) -> Any:
    """``x`` with its last dimension moved back to where it was."""
    axis, rank = of
    order = list(range(rank - 1))
    order.insert(axis, rank - 1)
    return op.Transpose(x, perm=order)


def _running(x: Any, dim: int, best_of: Callable[..., Any]) -> tuple[Any, Any]:
    """The best of all elements up to each one, and the index of the last of the best."""
    of, last = _row(x, dim), op.Constant(value_ints=[-1])
    if not of.rank:
        return op.Identity(x), op.Constant(value_int=0)
    row, seen, places = _prefixes(x, of)
    first = op.Slice(
        row, op.Constant(value_ints=[0]), op.Constant(value_ints=[1]), last
    )  # everything sees it, so it changes no maximum
    best = best_of(op.Where(seen, row, first), last, keepdims=1)
    is_best = op.And(seen, op.Equal(row, best))
    where = op.ReduceMax(op.Where(is_best, places, op.Constant(value_int=0)), last, keepdims=0)
    return _move_back(op.Squeeze(best, last), of), _move_back(where, of)


def cumprod(self: Any, dim: int, dtype: Any = None) -> Any:
    x, of = self, _row(self, dim)
    if dtype is not None and dtype >= 0:
        x = op.Cast(x, to=int(dtype))
    elif x.dtype is not None and (x.dtype.is_integer() or x.dtype.name == "BOOL"):
        x = op.Cast(x, to=_INT64)
    if not of.rank:
        return op.Identity(x)
    row, seen, _ = _prefixes(x, of)
    factors = op.Where(seen, row, op.CastLike(op.Constant(value_int=1), row))
    product = op.ReduceProd(factors, op.Constant(value_ints=[-1]), keepdims=0)
    return _move_back(product, of)


def _adaptive_mean(dims: int) -> Callable[..., Any]:
    """Means, whose windows follow from the size of the picture.

    torch.onnx (2.15) has no adaptive pools. It decomposes the operators, and the decomposition
    makes constants of the windows that the traced picture has: the model is wrong, or fails, at
    other sizes. Here the windows are computed when the model runs.
    """

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
            values, is_inside, count = _windows(x, axis, rank, size)
            zero = op.CastLike(op.Constant(value_float=0.0), x)
            inside = op.Where(is_inside, values, zero)
            total = op.ReduceSum(inside, op.Constant(value_ints=[axis + 1]), keepdims=0)
            x = op.Div(total, op.CastLike(count, total))
        return op.CastLike(x, self) if is_small else x

    return mean


def _adaptive_maximum(dims: int) -> Callable[..., Any]:
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
    """The size of the window, if all windows are equal and known now; None otherwise."""
    if not all(type(size) is int for size in (*sizes, *wanted)):
        return None
    if any(size % parts for size, parts in zip(sizes, wanted, strict=True)):
        return None
    return [size // parts for size, parts in zip(sizes, wanted, strict=True)]


def _windows(x: Any, axis: int, rank: int, window_count: Any) -> tuple[Any, Any, Any]:
    """The elements of each window along one dimension.

    Returns:
        ``x`` with two dimensions in place of one: the windows, and the elements of each, as many as
        the longest one has; whether an element is in its window; and how many are.
    """
    zero, one = op.Constant(value_int=0), op.Constant(value_int=1)
    size = op.Squeeze(op.Shape(x, start=axis, end=axis + 1), op.Constant(value_ints=[0]))
    if type(window_count) is int:
        parts = op.Constant(value_int=window_count)
    else:  # a size of the graph
        parts = op.Reshape(op.Cast(window_count, to=_INT64), op.Constant(value_ints=[]))
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
