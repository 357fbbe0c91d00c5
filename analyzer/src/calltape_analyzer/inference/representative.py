"""Which call stands for all calls of one program.

In come aligned calls and their dynamic axes. Out go the pattern whose first call stands for all,
and the sizes of a pattern that ``torch.export`` takes for constants.
"""

from __future__ import annotations

from collections.abc import Sequence

from calltape_analyzer.inference.alignment import AlignedRow, Alignment
from calltape_analyzer.inference.patterns import CallPattern
from calltape_analyzer.pytree.caches import window_leaves

__all__ = ["representative", "specialized"]


def representative(
    alignment: Alignment,
    patterns: Sequence[CallPattern],
    dynamic: Sequence[Sequence[int]],
    *,
    like_observer: bool = False,
) -> CallPattern:
    """The pattern whose first call stands for all.

    The rule of ``torch.onnx.InputObserver``: the first call that passes as many arguments, by
    position and by keyword, as the one with the most tensors. If an argument was passed before it
    had its tensors (a prepared, empty cache), it is instead the first call of those that have every
    tensor with the fewest dynamic sizes of 0 and 1, because torch.export specializes these.

    Args:
        alignment: of the patterns.
        patterns: in the order of their first call.
        dynamic: per slot the axes that varied.
        like_observer: whether a prepared, empty cache is like one that was not passed. Then a call
            that has every tensor stands for all only if none of its dynamic sizes is 0 or 1, or if
            the peers' choice would be completed with a full sliding window.
    """
    best = alignment.best.bound
    counts = len(best.args), len(best.kwargs)
    alike = (p for p in patterns if (len(p.bound.args), len(p.bound.kwargs)) == counts)
    first = next(alike, alignment.best)
    complete: list[CallPattern] = []
    if alignment.has_late:
        complete = [p for p in patterns if None not in alignment.needed(p)]
    if not complete:
        return first
    small = [len(specialized(p, alignment.row(p), dynamic)) for p in complete]
    if like_observer and min(small) and not _fills_a_window(alignment, first, dynamic):
        return first
    return complete[small.index(min(small))]


def _fills_a_window(
    alignment: Alignment, pattern: CallPattern, dynamic: Sequence[Sequence[int]]
) -> bool:
    """Whether a call would be completed with a sliding window that never varied: it is full in all
    calls that have it, and the call's attention mask leaves no place for its tokens."""
    windows: list[bool] = []
    for reference, _ in alignment.references:
        leaves = window_leaves(reference.node)
        windows += [slot.leaf in leaves for slot in reference.slots]
    row = alignment.row(pattern)
    return any(
        leaf is None and is_window and not axes
        for leaf, is_window, axes in zip(row, windows, dynamic, strict=True)
    )


def specialized(
    pattern: CallPattern, row: AlignedRow, dynamic: Sequence[Sequence[int]]
) -> list[tuple[int, int, int]]:
    """The dynamic axes on which a pattern has size 0 or 1, as (slot, axis, size). To
    ``torch.export`` these sizes are constants."""
    return [
        (slot, axis, pattern.shape(*leaf)[axis])
        for slot, (leaf, axes) in enumerate(zip(row, dynamic, strict=True))
        if leaf is not None
        for axis in axes
        if pattern.shape(*leaf)[axis] < 2
    ]
