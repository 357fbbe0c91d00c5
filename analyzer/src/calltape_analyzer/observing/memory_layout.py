"""What the layout of a tensor in memory is called: contiguous, channels last, with gaps, ....

In come sizes and strides. Out goes a name that people know; tensors of one name may have different
sizes. Axes of size 1 say nothing of a layout, and neither does a tensor without elements.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import combinations

from calltape_analyzer.plain_data import PlainData, Text
from calltape_analyzer.pytree.memory import contiguous_strides, is_dense
from calltape_analyzer.text import counted

__all__ = ["CONTIGUOUS", "LayoutSeen", "layout_name", "layouts_in_words", "order_of_strides"]

CONTIGUOUS = "contiguous"
_GAPS = "with gaps"
_OVERLAPPING = "overlapping"
_KNOWN = {(0, 2, 3, 1): "channels_last", (0, 2, 3, 4, 1): "channels_last_3d"}
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
    given = strides if strides is not None else contiguous_strides(once)
    sized = [axis for axis, size in enumerate(shape) if size > 1]
    same = [axis for axis in sized if axis in expanded or given[axis] == 0]
    kept = [axis for axis in sized if axis not in same]
    words = [f"expanded ({'axis' if len(same) == 1 else 'axes'} {_listed(same)})"] if same else []
    pairs = [(given[axis], shape[axis]) for axis in kept]
    if _overlaps(pairs):
        return " and ".join([*words, _OVERLAPPING])
    order = _order_in_words(given, kept, len(shape))
    rest = " ".join(
        [
            *([order] if order else []),
            *([] if is_dense([shape[i] for i in kept], [given[i] for i in kept]) else [_GAPS]),
        ]
    )
    return " and ".join([*words, *([rest] if rest else [])]) or CONTIGUOUS


def layouts_in_words(layouts: Sequence[LayoutSeen]) -> str | None:
    """The layouts of one tensor for people: ``contiguous in 3 calls, channels_last in 1``. None if
    it was contiguous in all calls, as nearly all are."""
    if all(one.name == CONTIGUOUS for one in layouts):
        return None
    first, *others = layouts
    if not others:
        return f"{first.name} in {'the only call' if first.calls == 1 else 'all calls'}"
    more = (f"{one.name} in {one.calls}" for one in others)
    return ", ".join([f"{first.name} in {counted(first.calls, 'call')}", *more])


def order_of_strides(strides: Sequence[int]) -> tuple[int, ...]:
    """The axes from the largest stride to the smallest."""
    return tuple(sorted(range(len(strides)), key=lambda axis: -strides[axis]))


def _order_in_words(strides: Sequence[int], kept: Sequence[int], rank: int) -> str | None:
    """The order of the axes that count, if it is not that of their numbers."""
    order = order_of_strides(strides)
    own = [axis for axis in order if axis in kept]
    if own == sorted(own):
        return None
    for known, name in _KNOWN.items():
        if len(known) == rank and own == [axis for axis in known if axis in kept]:
            return name
    return f"transposed (stride order {_listed(order)})"


def _overlaps(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether two elements share memory. Not found are overlaps that need three axes and leave
    gaps."""
    if math.prod(size for _, size in pairs) > sum((n - 1) * step for step, n in pairs) + 1:
        return True
    # Two steps along one axis may end where steps along another one do.
    return any(
        other // math.gcd(one, other) < size and one // math.gcd(one, other) < others_size
        for (one, size), (other, others_size) in combinations(pairs, 2)
    )


def _listed(axes: Sequence[int]) -> str:
    return ",".join(map(str, axes))
