"""``as_strided`` in ONNX, where a tensor has no memory of its own.

``as_strided`` reads the memory of a tensor. torch.onnx (2.15) takes the order of the elements for
that of the memory, which is another one after a ``transpose``: the attention of Longformer gets
other elements. Here dimensions are put into the order of the memory first, which changes nothing in
torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

__all__ = ["order_as_stored"]

_MOST_DIMENSIONS = 6
"""720 orders are tried for six; none of a larger tensor."""


def order_as_stored(module: Any) -> None:
    """Permutes what goes into ``as_strided`` in a graph.

    Args:
        module: a ``torch.fx.GraphModule`` of a program that was exported.

    Raises:
        ValueError: the tensor is a part of another one, or repeats elements, so that no order of
            dimensions is that of its memory; or it begins within a larger one, and the offset of
            ``as_strided`` counts from the beginning of that.
    """
    import torch

    aten = torch.ops.aten
    changed = False
    for node in list(module.graph.nodes):
        if node.target not in (aten.as_strided.default, aten.as_strided_copy.default):
            continue
        value = node.args[0].meta["val"]
        order = _order(value.shape, value.stride())
        offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        begins = offset is None or _is_known(value.storage_offset(), 0)
        if order is None or not begins:
            raise ValueError(
                "as_strided of a tensor that shares memory with a larger one has no translation"
            )
        if order == tuple(range(value.dim())):
            continue
        with module.graph.inserting_before(node):
            permuted = module.graph.call_function(aten.permute.default, (node.args[0], list(order)))
        permuted.meta["val"] = value.permute(order)
        node.args = (permuted, *node.args[1:])
        changed = True
    if changed:
        module.recompile()


def _order(sizes: Sequence[Any], strides: Sequence[Any]) -> tuple[int, ...] | None:
    """The dimensions in the order of the memory, the slowest first; None if it has gaps."""
    dims = range(len(sizes))
    orders = itertools.permutations(dims) if len(sizes) <= _MOST_DIMENSIONS else [tuple(dims)]
    return next((order for order in orders if _is_dense(sizes, strides, order)), None)


def _is_dense(sizes: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    expected: Any = 1
    for dim in reversed(order):
        if _is_known(sizes[dim], 1):
            continue
        if not _is_known(strides[dim], expected):
            return False
        expected = expected * sizes[dim]
    return True


def _is_known(one: Any, other: Any) -> bool:
    """Whether two sizes are the same in every call. To compare symbols would make a condition."""
    return bool(_unclamped(one) == _unclamped(other))


def _unclamped(size: Any) -> Any:
    """A size without the ``Max(1, size)`` that torch writes into strides: of a tensor of size 0,
    nothing is read."""
    expression = getattr(getattr(size, "node", None), "expr", size)
    if not hasattr(expression, "replace") or isinstance(expression, int):
        return expression
    return expression.replace(
        lambda part: type(part).__name__ == "Max" and len(part.args) == 2 and 1 in part.args,
        lambda part: next(one for one in part.args if one != 1),
    )
