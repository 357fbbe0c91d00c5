"""What is known of a call before anything of it is copied: what policies and counters go by."""

from __future__ import annotations

from typing import Any

import torch

from calltape_recorder.structures import Structure

__all__ = ["Row", "Sight", "row_of"]

Row = tuple[Any, ...]
"""Dtype and shape of each leaf in turn, then every int among the scalars (None for another)."""

_Tensor = torch.Tensor


class Sight:
    """One call, before the model runs.

    Attributes:
        number: how many calls were seen before it.
        args, kwargs: what it was called with; not to be changed.
        structure: of its inputs.
        row: see :data:`Row`.
        scalars: the values of its scalars, in order.
    """

    __slots__ = ("args", "kwargs", "number", "row", "scalars", "structure")

    def __init__(
        self, number: int, args: tuple[Any, ...], kwargs: dict[str, Any], structure: Structure,
        row: Row, scalars: list[Any],
    ) -> None:  # fmt: skip
        self.number = number
        self.args = args
        self.kwargs = kwargs
        self.structure = structure
        self.row = row
        self.scalars = scalars


def row_of(leaves: list[Any], scalars: list[Any]) -> Row:
    """Dtypes, shapes and ints of one side of a call."""
    row: list[Any] = []
    try:
        for leaf in leaves:
            if type(leaf) is _Tensor:
                row.append(leaf.dtype)
                row.append(leaf.shape)
            else:
                row += _careful(leaf)
    except Exception:  # a nested tensor is a plain one by its class, and has no shape
        row = [part for leaf in leaves for part in _careful(leaf)]
    if scalars:
        row += [value if type(value) is int else None for value in scalars]
    return tuple(row)


def _careful(leaf: Any) -> tuple[Any, Any]:
    """Of a subclass, whose own code must not run, or an array."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            return leaf.dtype, tuple([int(size) for size in leaf.shape])
    except Exception:
        return type(leaf).__name__, ()
