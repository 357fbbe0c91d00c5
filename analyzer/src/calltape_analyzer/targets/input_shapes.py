"""The recorded sizes of the tensors that an exported program takes, for engines that want a range
and one typical size for each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from calltape_analyzer.variant import Variant
from calltape_analyzer.variant_findings import TensorFinding
from calltape_analyzer.variants import VariantFacts

__all__ = ["Shape", "input_tensors", "most_common_shapes"]

Shape = tuple[int, ...]


def input_tensors(variant: Variant) -> list[tuple[int, TensorFinding]]:
    """The tensors that are inputs of a program, each with its place among all tensors of the
    variant. Those that follow from an attribute beside them are none."""
    from calltape_analyzer.exporting.templates import derived_tensors

    derived = derived_tensors(variant.facts.group.layout)
    return [(i, found) for i, found in enumerate(variant.findings.tensors) if i not in derived]


def most_common_shapes(
    variant: VariantFacts, rows: Sequence[int] | None = None
) -> tuple[Shape, ...]:
    """The shapes of all tensors in the combination that most calls had, as it was recorded.

    Of several equally common ones, as growing caches leave them, those without an empty tensor are
    preferred, and of these the one in the middle by its number of elements.

    Args:
        variant: any.
        rows: the places of the rows that are considered; all by default.
    """
    calls: Counter[tuple[Shape, ...]] = Counter()
    for r in range(len(variant.rows)) if rows is None else rows:
        row, seen = variant.rows[r]
        calls[row.shapes] += seen.calls  # rows differ in ints too
    most = max(calls.values())
    common = [shapes for shapes, number in calls.items() if number == most]
    fewest = min(map(_empty, common))
    common = sorted((s for s in common if _empty(s) == fewest), key=lambda s: (_elements(s), s))
    return common[(len(common) - 1) // 2]


def _empty(shapes: Sequence[Shape]) -> int:
    return sum(0 in shape for shape in shapes)


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)
