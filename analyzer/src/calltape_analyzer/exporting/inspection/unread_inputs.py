"""The tensors whose values no output of a program depends on.

A trace makes a constant of what Python computes from values (``len(str(ids.tolist()))``), and the
program reads them no more. A model may also not need an argument. Nobody can tell these apart from
a program alone, so that it is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["unread_inputs"]

_OF_SIZES = ("sym_size", "sym_stride", "sym_numel", "sym_storage_offset")
"""Operators that read no values of their tensor."""
_CHECKS = ("_assert", "sym_constrain_range")


def unread_inputs(exported: Any, names: Sequence[str]) -> list[str]:
    """The names of the tensors among the inputs whose values nothing depends on: no output, no
    tensor that is written to, and no condition.

    Args:
        exported: a ``torch.export.ExportedProgram``.
        names: of its inputs, for people.
    """
    nodes = {node.name: node for node in exported.graph.nodes}
    read = _read_by([node for node in nodes.values() if _is_effect(node)])
    inputs = [s for s in exported.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    return [
        name
        for name, spec in zip(names, inputs, strict=True)
        if (node := nodes.get(getattr(spec.arg, "name", ""))) is not None
        and hasattr(node.meta.get("val"), "shape")
        and node not in read
    ]


def _is_effect(node: Any) -> bool:
    """Whether somebody sees what a node does."""
    if node.op != "call_function":
        return bool(node.op == "output")
    schema = getattr(node.target, "_schema", None)
    return any(word in str(node.target) for word in _CHECKS) or getattr(schema, "is_mutable", False)


def _read_by(nodes: Sequence[Any]) -> set[Any]:
    """These nodes, and all whose values they depend on."""
    found, waiting = set(nodes), list(nodes)
    while waiting:
        for before in _values_of(waiting.pop()):
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


def _values_of(node: Any) -> Iterator[Any]:
    is_of_sizes = node.op == "call_function" and any(w in str(node.target) for w in _OF_SIZES)
    return iter(()) if is_of_sizes else iter(node.all_input_nodes)
