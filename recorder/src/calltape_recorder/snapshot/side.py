"""One side of a call: its inputs or its outputs.

A side passes through these forms:

1. *captured*: its structure, leaves and scalars, found by the walk
   (:class:`~calltape_recorder.snapshot.snapshots.CapturedSide`). Its :data:`Outline` is what
   policies and counts look at.
2. *cached*: what is known of sides that look the same
   (:class:`~calltape_recorder.snapshot.side_cache.CachedSide`).
3. *copied*: what will be written (:class:`Side`). The facts of its leaves are
   :class:`~calltape_recorder.snapshot.side_facts.SideFacts`.
4. *encoded*: what a record has of it (:class:`~calltape_recorder.write.encoding.EncodedLeaves`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import torch

from calltape_recorder.capture.structures import Structure, Wanted
from calltape_recorder.snapshot.buffers import SideCopies
from calltape_recorder.snapshot.copies import pieces_of
from calltape_recorder.snapshot.facts import dtype_of, shape_like, shape_of
from calltape_recorder.snapshot.side_facts import SideFacts
from calltape_recorder.threads import is_interrupt
from calltape_schema.objects import name_of

_Tensor = torch.Tensor


class Side:
    """Copied inputs or outputs of a call.

    Attributes:
        facts: of its leaves.
        wanted: whether the bytes of its leaves are kept, as in its structure, except for a list of
            chunks.
        places, spans: the copies; see :data:`~calltape_recorder.snapshot.buffers.SideCopies`.
        origins: of each leaf the origin of its bytes and of their first part, see
            :class:`~calltape_recorder.snapshot.earlier_copies.EarlierCopy`.
        joined: the bytes of all leaves in a row, if they are few; else None. Then there are no
            places.
        template: the side without these bytes, which sides that look the same share; or None.
        is_template: whether this side is a template.
    """

    # Slots, because creating a dataclass or a named tuple costs as much as copying a tensor.
    __slots__ = (
        "facts", "is_template", "joined", "origins", "places", "scalars", "spans", "structure",
        "template", "wanted",
    )  # fmt: skip

    def __init__(
        self,
        structure: Structure,
        scalars: Sequence[Any],
        facts: SideFacts,
        copies: SideCopies = ((), b""),
        wanted: Wanted | None = None,
        origins: bytes = b"",
        joined: bytes | None = None,
        template: Side | None = None,
    ) -> None:
        # Python's garbage collector does not visit bytes and tuples of bytes, however many calls
        # wait.
        self.structure = structure
        self.scalars = tuple(scalars)
        self.facts = facts
        self.places, self.spans = tuple(copies[0]), copies[1]
        self.wanted = structure.wanted if wanted is None else wanted
        self.origins = origins
        self.joined = joined
        self.template = template
        self.is_template = False

    def pieces(self) -> Sequence[Any]:
        """The copy of each leaf, created on each call; None for a leaf without one."""
        if self.joined is not None:
            return split(self.joined, self.facts.sizes)
        return pieces_of(self.places, self.spans)


def split(joined: bytes, sizes: Iterable[int]) -> list[bytearray | None]:
    """The bytes of each leaf, as bytearrays: torch warns of bytes that cannot be changed."""
    parts: list[bytearray | None] = []
    begin = 0
    for size in sizes:
        parts.append(bytearray(joined[begin : begin + size]) if size else None)
        begin += size
    return parts


# What policies and counts see of a side.

Outline = tuple[Any, ...]
"""The dtypes of all leaves, their shapes, and the value of each scalar that is an int (None for
other scalars)."""

_dtype, _shape = attrgetter("dtype"), attrgetter("shape")


def outline_of(leaves: list[Any]) -> Outline:
    """The dtypes and shapes of the leaves of one side of a call."""
    for leaf in leaves:  # all() of a generator takes longer
        if type(leaf) is not _Tensor:
            break
    else:
        try:
            return (*map(_dtype, leaves), *map(_shape, leaves))
        except Exception as error:
            if is_interrupt(error):
                raise
    pairs = [_dtype_and_shape(leaf) for leaf in leaves]
    return (*[dtype for dtype, _ in pairs], *[shape for _, shape in pairs])


def lasting(outline: Outline) -> Outline:
    """An outline that can be remembered: its shapes are shared plain tuples."""
    return tuple([shape_like(part) if type(part) is torch.Size else part for part in outline])


def with_ints(outline: Outline, scalars: Iterable[Any]) -> Outline:
    """An outline of leaves, extended by the ints among these scalars."""
    return (*outline, *[value if type(value) is int else None for value in scalars])


def _dtype_and_shape(leaf: Any) -> tuple[Any, Any]:
    """The dtype and shape of an array or a tensor subclass, read without running its code."""
    try:
        with torch._C.DisableTorchFunctionSubclass():
            if issubclass(type(leaf), _Tensor):
                return dtype_of(leaf), _sizes_of(leaf)
            # Not the dtype itself: its text may contain names of fields, which may be private.
            return leaf.dtype.name[:64], tuple([int(size) for size in leaf.shape])
    except Exception as error:
        if is_interrupt(error):
            raise
        return name_of(type(leaf)), ()


def _sizes_of(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple([int(size) for size in shape_of(tensor)])
    except Exception as error:  # a nested tensor in the strided layout has no shape
        if is_interrupt(error):
            raise
        return ()
