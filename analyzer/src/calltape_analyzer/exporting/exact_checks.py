"""The condition of an assertion, computed for ONNX as Python computes it: in double precision.

A float that Python reads from a tensor is a double: ``x.amax().item() > 0.2`` holds for 0.2 of
float32, which is 0.20000000298. torch.onnx (2.15) compares as float32, where both are equal, and
the model would serve the other side of an ``if``. So the numbers on the way from tensors and sizes
to such a condition are computed once more beside the graph's own, as tensors of no dimension.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

__all__ = ["erase_unused", "exact_condition", "number", "number_translation"]

_aten = torch.ops.aten
_READS = {_aten._local_scalar_dense.default, _aten.item.default}
_ON_TENSORS = {
    operator.add: _aten.add.Tensor,
    operator.sub: _aten.sub.Tensor,
    operator.mul: _aten.mul.Tensor,
    operator.truediv: _aten.div.Tensor,
    operator.mod: _aten.remainder.Tensor,
    operator.pow: _aten.pow.Tensor_Tensor,
    operator.neg: _aten.neg.default,
    operator.abs: _aten.abs.default,
    abs: _aten.abs.default,
    operator.eq: _aten.eq.Tensor,
    operator.ne: _aten.ne.Tensor,
    operator.lt: _aten.lt.Tensor,
    operator.le: _aten.le.Tensor,
    operator.gt: _aten.gt.Tensor,
    operator.ge: _aten.ge.Tensor,
    operator.and_: _aten.logical_and.default,
    operator.or_: _aten.logical_or.default,
    torch.sym_not: _aten.logical_not.default,
    torch.sym_max: _aten.maximum.default,
    torch.sym_min: _aten.minimum.default,
    torch.sym_ite: _aten.where.self,
    torch.sym_sqrt: _aten.sqrt.default,
    torch._sym_sqrt: _aten.sqrt.default,  # type: ignore[attr-defined]
    torch.sym_float: None,
    math.floor: _aten.floor.default,
    math.ceil: _aten.ceil.default,
    math.trunc: _aten.trunc.default,
    round: _aten.round.default,
}
"""What a scalar function is on tensors; None for one that only changes the dtype."""
_TO_INT = {math.floor, math.ceil, math.trunc, round}
_DTYPES = {"SymInt": torch.int64, "SymFloat": torch.float64, "SymBool": torch.bool}
_DTYPES |= {"int": torch.int64, "float": torch.float64, "bool": torch.bool}


def exact_condition(graph: Graph, condition: Node) -> Node:
    """A node that has the value of a condition on floats. Conditions on ints, and tensors, are
    exact as they are.

    Args:
        graph: where nodes are added, at its insertion point.
        condition: the condition of an assertion.

    Raises:
        NotImplementedError: a number on the way cannot be computed so.
    """
    steps = _steps(condition)
    if not any(_kind(one) == "SymFloat" for one in steps):
        return condition
    made: dict[Node, Node] = {}
    for step in steps:
        made[step] = _as_tensor(graph, step, made)
    return made[condition]


def erase_unused(graph: Graph) -> None:
    """Takes numbers that nothing needs out of a graph: some have no translation."""
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and _kind(node) in _DTYPES and not node.users:
            graph.erase_node(node)


def number(value: float, dtype: torch.dtype) -> torch.Tensor:
    """A constant of a condition; it is translated and never called."""
    return torch.tensor(value, dtype=dtype)


def number_translation(op: Any) -> Callable[..., Any]:
    """The translation of :func:`number`, in double precision. Constants of torch.onnx are
    float32."""
    import numpy
    from onnxscript import ir

    def constant(value: float, dtype: int) -> Any:
        return op.Constant(value=ir.tensor(numpy.array(value, ir.DataType(dtype).numpy())))

    return constant


def _steps(condition: Node) -> list[Node]:
    """The numbers that a condition is made of, each behind those that it is made of."""
    found: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in found or _kind(node) not in _DTYPES:
            return
        for one in node.all_input_nodes:
            visit(one)
        found[node] = None

    visit(condition)
    return list(found)


def _kind(value: Any) -> str:
    return type(value.meta.get("val") if isinstance(value, Node) else value).__name__


def _as_tensor(graph: Graph, step: Node, made: dict[Node, Node]) -> Node:
    dtype = _DTYPES[_kind(step)]
    if step.target in _READS:
        return _cast(graph, _added(graph, _aten.reshape.default, (step.args[0], []), dtype), dtype)
    if step.op != "call_function" or step.target not in _ON_TENSORS:
        if dtype is torch.int64:  # a size, or an argument
            return _added(graph, _aten.scalar_tensor.default, (step,), dtype, dtype=dtype)
        if step.target is operator.floordiv:
            return _floor_division(graph, step, made, dtype)
        raise NotImplementedError(f"an ONNX model cannot check what {step.target} decides")
    is_inexact = any(_kind(one) in ("float", "SymFloat") for one in step.args)
    inexact = is_inexact or step.target in (operator.truediv, torch.sym_float)
    numbers = [
        _number(graph, one, made, torch.float64 if inexact and not _is_bool(one) else None)
        for one in step.args
    ]
    function = _ON_TENSORS[step.target]
    if function is None:
        return numbers[0]
    own = torch.float64 if step.target in _TO_INT else dtype
    found = _added(graph, function, tuple(numbers), own)
    return _cast(graph, found, dtype) if own is not dtype else found


def _floor_division(graph: Graph, step: Node, made: dict[Node, Node], dtype: torch.dtype) -> Node:
    numbers = [_number(graph, one, made, dtype) for one in step.args]
    return _added(
        graph, _aten.div.Tensor_mode, tuple(numbers), dtype, rounding_mode="floor"
    )  # fmt: skip


def _is_bool(value: Any) -> bool:
    return _kind(value) in ("bool", "SymBool")


def _number(graph: Graph, value: Any, made: dict[Node, Node], dtype: torch.dtype | None) -> Node:
    """An argument of a step as a tensor, of a dtype if one is wanted."""
    own = _DTYPES[_kind(value)]
    if not isinstance(value, Node):
        wanted = dtype or own
        return _added(graph, number, (value, wanted), wanted)
    return made[value] if dtype in (None, own) else _cast(graph, made[value], dtype)


def _cast(graph: Graph, value: Node, dtype: torch.dtype | None) -> Node:
    return _added(graph, _aten._to_copy.default, (value,), dtype, dtype=dtype)


def _added(
    graph: Graph, function: Any, args: tuple[Any, ...], of: torch.dtype | None, **kwargs: Any
) -> Node:
    node = graph.call_function(function, args, kwargs)
    node.meta["val"] = torch.empty((), dtype=of)
    return node
