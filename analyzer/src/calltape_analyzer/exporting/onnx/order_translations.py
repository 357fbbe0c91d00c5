"""ONNX translations of running maxima and products, and of the extremes of all dimensions, which
torch.onnx (2.15) translates not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["order_translations"]

_INT64 = 7  # of onnx.TensorProto.DataType


def order_translations(op: Any) -> dict[str, Callable[..., Any]]:
    """Translations by the name of the operator, with parameters like its own."""

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
