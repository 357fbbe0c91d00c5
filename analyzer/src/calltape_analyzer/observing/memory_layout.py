"""How the tensors of a call lie in memory: the names of layouts, and which tensors share memory.

The names are those that people use (contiguous, channels last, with gaps), and do not depend on
sizes. An axis of size 1 says nothing about a layout, and neither does a tensor without elements.
Two arguments may be the same object, or share memory; a model may check this, or write to one and
read the other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from itertools import combinations
from typing import NamedTuple

from calltape_analyzer.plain_data import PlainData, Text
from calltape_analyzer.pytree.memory import (
    Place,
    contiguous_strides,
    is_dense,
    overlap,
    place_of_leaf,
)
from calltape_analyzer.text import counted
from calltape_schema.blob import contiguous
from calltape_schema.tree import Leaf

__all__ = [
    "CONTIGUOUS",
    "LayoutSeen",
    "Shared",
    "layout_in_memory",
    "layout_name",
    "layouts_in_words",
    "shared_memory",
]


CONTIGUOUS = "contiguous"


_GAPS = "with gaps"


_OVERLAPPING = "overlapping"


_NAMES_BY_ORDER = {(0, 2, 3, 1): "channels_last", (0, 2, 3, 4, 1): "channels_last_3d"}
"""The names that torch has for an order of the axes by stride, as in ``torch.memory_format``."""


class LayoutSeen(PlainData):
    """One layout in memory that a tensor had, by its name (``channels_last``), and
    how many calls had it."""

    name: Text
    calls: int


def layout_name(
    shape: Sequence[int], strides: Sequence[int] | None, expanded: Collection[int] = ()
) -> str:
    """The name of a layout.

    ``contiguous`` is torch's order without gaps, ``channels_last`` and ``channels_last_3d`` are
    those of ``torch.memory_format``, and ``transposed (stride order 1,0)`` is any other order of
    the axes, from the largest stride to the smallest. ``with gaps`` stands behind an order, or
    alone, if there is memory between the elements that is none of theirs (a slice, a step);
    ``overlapping`` is a tensor of which two elements share memory (sliding windows);
    ``expanded (axis 0)`` is one whose elements are the same along an axis.

    Args:
        shape: its sizes.
        strides: its strides in elements; None for the contiguous ones.
        expanded: its axes of stride 0, besides those that ``strides`` has.
    """
    if 0 in shape:
        return CONTIGUOUS
    once = [1 if axis in expanded else size for axis, size in enumerate(shape)]
    all_strides = strides if strides is not None else contiguous_strides(once)
    sized = [axis for axis, size in enumerate(shape) if size > 1]
    repeated_axes = [axis for axis in sized if axis in expanded or all_strides[axis] == 0]
    stored_axes = [axis for axis in sized if axis not in repeated_axes]
    words = (
        [f"expanded ({'axis' if len(repeated_axes) == 1 else 'axes'} {_listed(repeated_axes)})"]
        if repeated_axes
        else []
    )
    pairs = [(all_strides[axis], shape[axis]) for axis in stored_axes]
    if _overlaps(pairs):
        return " and ".join([*words, _OVERLAPPING])
    order = _order_in_words(all_strides, stored_axes, len(shape))
    others = " ".join(
        [
            *([order] if order else []),
            *(
                []
                if is_dense([shape[i] for i in stored_axes], [all_strides[i] for i in stored_axes])
                else [_GAPS]
            ),
        ]
    )
    return " and ".join([*words, *([others] if others else [])]) or CONTIGUOUS


def layout_in_memory(leaf: Leaf) -> str:
    """The name of a tensor's layout in memory; torch's layout of one that is not strided."""
    if leaf.layout != "strided":
        return leaf.layout
    if leaf.strides is None and not leaf.expanded:
        return CONTIGUOUS
    return layout_name(leaf.shape, leaf.strides, leaf.expanded)


def layouts_in_words(layouts: Sequence[LayoutSeen]) -> str | None:
    """The layouts of one tensor for people: ``contiguous in 3 calls, channels_last in 1``. None if
    it was contiguous in all calls, as nearly all are."""
    if all(layout.name == CONTIGUOUS for layout in layouts):
        return None
    first, *rarer = layouts
    if not rarer:
        return f"{first.name} in {'the only call' if first.calls == 1 else 'all calls'}"
    more = (f"{layout.name} in {layout.calls}" for layout in rarer)
    return ", ".join([f"{first.name} in {counted(first.calls, 'call')}", *more])


def _order_in_words(strides: Sequence[int], stored_axes: Sequence[int], rank: int) -> str | None:
    """The order of the axes that count, if it is not that of their numbers."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    stored_order = [axis for axis in order if axis in stored_axes]
    if stored_order == sorted(stored_order):
        return None
    for usual_order, name in _NAMES_BY_ORDER.items():
        if len(usual_order) == rank and stored_order == [
            axis for axis in usual_order if axis in stored_axes
        ]:
            return name
    return f"transposed (stride order {_listed(order)})"


def _overlaps(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether two elements share memory. Not found are overlaps that need three axes and leave
    gaps."""
    if math.prod(size for _, size in pairs) > sum((n - 1) * step for step, n in pairs) + 1:
        return True
    # Two steps along one axis may end where steps along another one do.
    return any(
        other_stride // math.gcd(stride, other_stride) < size
        and stride // math.gcd(stride, other_stride) < others_size
        for (stride, size), (other_stride, others_size) in combinations(pairs, 2)
    )


def _listed(axes: Sequence[int]) -> str:
    return ",".join(map(str, axes))


_MAX_PARTNERS = 16
"""Of one tensor, so many others that it shares memory with are noted."""


class Shared(NamedTuple):
    """Two tensors of a call that are one object, or share memory.

    Attributes:
        one, other: their numbers in the layout; ``one`` is the first.
        is_one: whether they are one object.
    """

    one: int
    other: int
    is_one: bool

    def text(self, places: Sequence[object], *, negated: bool = False) -> str:
        """``value is key``, or ``window shares memory with store``.

        Args:
            places: the paths of the tensors.
            negated: whether it is not so: ``value is not key``.
        """
        how = "is" if self.is_one else "shares memory with"
        if negated:
            how = "is not" if self.is_one else "shares no memory with"
        return f"{places[self.other]} {how} {places[self.one]}"


def shared_memory(leaves: Sequence[Leaf], objects: Sequence[Hashable]) -> tuple[Shared, ...]:
    """Which tensors are one object, and which have a byte in common. Empty tensors have none.

    Args:
        leaves: in the order of a layout.
        objects: of each, what is equal for one object only; None for what is never shared.
    """
    first: dict[Hashable, int] = {}
    sharing: list[Shared] = []
    groups: dict[int, list[int]] = defaultdict(list)
    for i, (leaf, memory) in enumerate(zip(leaves, objects, strict=True)):
        if memory is None or 0 in leaf.shape:
            continue
        earlier = first.setdefault(memory, i)
        if earlier != i:
            sharing.append(Shared(earlier, i, True))
        elif leaf.storage is not None:
            groups[leaf.storage].append(i)
    for members in groups.values():
        if len(members) > 1:
            places: dict[int, Place] = {}
            for i in members:
                element = contiguous(leaves[i].dtype, (1,))
                places[i] = place_of_leaf(leaves[i], element.nbytes if element is not None else 1)
            sharing += _overlapping(places)
    return tuple(sorted(sharing))


def _overlapping(places: dict[int, Place]) -> list[Shared]:
    """The pairs with a byte in common. In the order of where they begin, each is compared with
    those that have not ended there."""
    sharing: list[Shared] = []
    active: list[int] = []
    for i in sorted(places, key=lambda i: (places[i].offset, i)):
        active = [j for j in active if places[j].end > places[i].offset]
        partners = [j for j in active[-_MAX_PARTNERS:] if overlap(places[j], places[i])]
        sharing += [Shared(min(i, j), max(i, j), False) for j in partners]
        active.append(i)
    return sharing
