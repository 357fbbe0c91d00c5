"""Functions of Python on numbers, in a form that torch can write to a file.

torch.export.save (2.15) has no ``math.floor``, ``math.ceil``, ``round`` and ``abs``, which a
program has in its conditions on floats, and in numbers that it returns. It has what these are made
of.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Graph, Node

__all__ = ["write_numbers"]


def write_numbers(graph: Graph) -> None:
    """Replaces in a graph what torch cannot write. Each number stays what it is."""
    for node in list(graph.nodes):
        made = _MADE_OF.get(node.target) if node.op == "call_function" else None
        if made is None or any(one is not None for one in node.args[1:]) or node.kwargs:
            continue  # round(x, 2) is correct to the last bit, which nothing else gives
        with graph.inserting_before(node):
            found = made(_Writing(graph), node.args[0])
        # torch cannot read the bounds of what is rounded, if that is a symbol alone.
        found.meta["val"] = node.target(1.0 * node.args[0].meta["val"])
        node.replace_all_uses_with(found)
        _note_values(graph, found)
        graph.erase_node(node)
        found.name = node.name  # it may be an output, which the program knows by its name


def _note_values(graph: Graph, changed: Node) -> None:
    """Lets what is computed from a number be known by the value that the number is known by now."""
    new = {changed}
    for node in graph.nodes:
        of_python = node.op == "call_function" and not isinstance(node.target, OpOverload)
        if of_python and not new.isdisjoint(node.all_input_nodes):
            new.add(node)
            node.meta["val"] = node.target(*_values(node.args))


def _values(args: Iterable[Any]) -> list[Any]:
    return [one.meta["val"] if isinstance(one, Node) else one for one in args]


class _Writing:
    """Adds functions to a graph, at its insertion point."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        node = self._graph.call_function(function, args)
        node.meta["val"] = function(*_values(args))
        return node

    def either(self, condition: Node, one: Any, other: Any) -> Node:
        return self(torch.sym_ite, condition, one, other)  # type: ignore[no-any-return]


def _floor(write: _Writing, x: Node) -> Node:
    whole = write(math.trunc, x)
    return write.either(write(operator.gt, whole, x), write(operator.sub, whole, 1), whole)


def _ceil(write: _Writing, x: Node) -> Node:
    whole = write(math.trunc, x)
    return write.either(write(operator.lt, whole, x), write(operator.add, whole, 1), whole)


def _round(write: _Writing, x: Node) -> Node:
    """To the nearest int; to an even one if two are as near."""
    below = _floor(write, x)
    above = write(operator.add, below, 1)
    even = write(operator.add, below, write(operator.mod, below, 2))
    rest = write(operator.sub, x, below)  # exact
    near = write.either(write(operator.gt, rest, 0.5), above, even)
    return write.either(write(operator.lt, rest, 0.5), below, near)


def _abs(write: _Writing, x: Node) -> Node:
    return write.either(write(operator.lt, x, 0), write(operator.neg, x), x)


_MADE_OF: dict[Any, Callable[[_Writing, Node], Node]] = {
    math.floor: _floor, math.ceil: _ceil, round: _round, abs: _abs, operator.abs: _abs,
}  # fmt: skip
