"""The recorded sizes of the tensors that an exported program takes, for engines that want a range
and one typical size for each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.variant_findings import TensorFinding

__all__ = ["Shape", "input_tensors", "most_common_shapes"]

Shape = tuple[int, ...]

_MAX_COMMON = 1024


def input_tensors(variant: Variant) -> list[tuple[int, TensorFinding]]:
    """The tensors that are inputs of a program, each with its place among all tensors of the
    variant. Those that follow from an attribute beside them are none."""
    from calltape_analyzer.arguments.plan import derived_tensors

    derived = derived_tensors(variant.facts.group.layout)
    return [(i, found) for i, found in enumerate(variant.findings.tensors) if i not in derived]


def most_common_shapes(rows: SizeTable) -> tuple[Shape, ...]:
    """The shapes of all tensors in the combination that most calls had, as it was recorded.

    Of several equally common ones, as growing caches leave them, those without an empty tensor are
    preferred, and of these the one in the middle by its number of elements. If they are
    thousands, this is asked of some of them.

    Args:
        rows: the sizes of the calls, such as ``variant.facts.every``.
    """
    places = rows.most_common()
    common = [rows.row(at).shapes for at in places[:: -(-len(places) // _MAX_COMMON)]]
    fewest = min(map(_empty, common))
    common = sorted((s for s in common if _empty(s) == fewest), key=lambda s: (_elements(s), s))
    return common[(len(common) - 1) // 2]


def _empty(shapes: Sequence[Shape]) -> int:
    return sum(0 in shape for shape in shapes)


def _elements(shapes: Sequence[Shape]) -> int:
    return sum(math.prod(shape) for shape in shapes)
