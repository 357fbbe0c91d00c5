"""Describes a call before anything of it is copied, for policies and counts."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch

from calltape_recorder.capture.structures import Structure
from calltape_schema.objects import name_of

__all__ = ["CallView", "Row", "are_plain", "row_of", "with_ints"]

Row = tuple[Any, ...]
"""The dtypes of all leaves, their shapes, then one entry per scalar: an int, or None for a scalar
of another type."""

_Tensor = torch.Tensor
_Base: Any = torch._C.TensorBase
_dtype_of, _shape_of = _Base.dtype.__get__, _Base.shape.__get__  # a property may hide them
_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


@dataclass(eq=False, slots=True)
class CallView:
    """One call, before the model runs.

    Attributes:
        number: how many calls were seen before it.
        args, kwargs: its arguments. They must not be changed.
        structure: the structure of its inputs.
        row: see :data:`Row`.
        scalars: the values of its scalars, in order.
    """

    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    structure: Structure
    row: Row
    scalars: list[Any]

    @property
    def likeness(self) -> bytes | int:
        """Equal for calls of one structure. The keys of dicts that are data are no part of it."""
        core = self.structure.core
        return self.structure.encoded if core is None else core.likeness

    def evidence(self) -> tuple[Row, list[Any]]:
        """The row and the scalars, without those in dicts at keys that are data."""
        core = self.structure.core
        if core is None:
            return self.row, self.scalars
        leaves = len(self.row) - len(self.scalars)
        places = (*core.leaves, *[leaves // 2 + i for i in core.leaves])
        numbers = [self.row[leaves + i] for i in core.scalars]
        return (*[self.row[i] for i in places], *numbers), [self.scalars[i] for i in core.scalars]


def are_plain(leaves: list[Any]) -> bool:
    """Whether all of these are tensors of the plain class."""
    for leaf in leaves:  # noqa: SIM110 - a generator takes longer
        if type(leaf) is not _Tensor:
            return False
    return True


def row_of(leaves: list[Any]) -> Row:
    """The dtypes and shapes of the leaves of one side of a call."""
    if are_plain(leaves):
        try:
            return (*map(_dtype, leaves), *map(_shape, leaves))
        except Exception:
            pass
    read = [_careful(leaf) for leaf in leaves]
    return (*[dtype for dtype, _ in read], *[shape for _, shape in read])


def with_ints(row: Row, scalars: list[Any]) -> Row:
    """A row of leaves, extended by the ints among these scalars."""
    return (*row, *[value if type(value) is int else None for value in scalars])


def _careful(leaf: Any) -> tuple[Any, Any]:
    """The dtype and shape of an array, or of a tensor subclass, whose own code must not run."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            if issubclass(type(leaf), _Tensor):
                return _dtype_of(leaf), _sizes_of(leaf)
            # Not the dtype, whose text may have names of fields, which may be private.
            return leaf.dtype.name[:64], tuple([int(size) for size in leaf.shape])
    except Exception:
        return name_of(type(leaf)), ()


def _sizes_of(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple([int(size) for size in _shape_of(tensor)])
    except Exception:  # a nested tensor in the strided layout has no shape
        return ()
