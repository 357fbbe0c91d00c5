"""Small integer tensors as constants of programs: a part of a variant for each value.

A model that reads a tensor with Python (``for h, w in grid.tolist()``) can be traced only if the
values of that tensor are known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from calltape_analyzer.arguments.samples import sample_in
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.variants.derivation import part_of
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["tensor_value_parts"]

_MAX_TENSORS_TRIED = 4
_MAX_SHOWN_VALUE = 60
_MAX_ELEMENTS = 64


def tensor_value_parts(
    variant: VariantFacts, calls: Calls, sorter: CallSorter
) -> Iterator[tuple[LeafPath, int, Iterator[VariantFacts]]]:
    """The tensors whose values may have to be known, most promising first, each with the number of
    its values, and a variant per value.

    Args:
        variant: could not be exported, because values are not known.
        calls: of the tape.
        sorter: lays them out.
    """
    for place in _small_integers(variant)[:_MAX_TENSORS_TRIED]:
        where = variant.group.layout.tensors[place]
        every = _by_value(variant, place, calls, sorter)
        parts = (_part(variant, place, n, *found) for n, found in enumerate(every, 1))
        yield where, len(every), parts


def _part(
    variant: VariantFacts, place: int, number: int, value: Any, firsts: dict[SizeRow, CallRef]
) -> VariantFacts:
    shown = str(value.tolist())
    # Different values have different names: a value that is too long to be one gets a number.
    is_short = len(shown) <= _MAX_SHOWN_VALUE
    where = variant.group.layout.tensors[place]
    name = f"{variant.name}, {where}{f'={shown}' if is_short else f' of value {number}'}"
    # The first call of a row may have had another value.
    rows = [
        (row, seen._replace(first=firsts[row]))
        for row, seen in variant.rows.items()
        if row in firsts
    ]
    part = part_of(variant, rows, name)
    part.frozen = {place: value}
    return part


def _by_value(
    variant: VariantFacts, place: int, calls: Calls, sorter: CallSorter
) -> list[tuple[Any, dict[SizeRow, CallRef]]]:
    """The values of a tensor, each with the rows of its calls and their first call. A variant may
    have some of the rows of its group."""
    own = {row for row, _ in variant.rows.items()}
    found: dict[str, tuple[Any, dict[SizeRow, CallRef]]] = {}
    for call in calls:
        if has_raised(call):
            continue
        placed = sorter.sorted(call.record.inputs)
        if not variant.group.key.takes(placed.key) or placed.row not in own:
            continue
        value = sample_in(variant, call, sorter).tensors[place]
        _, rows = found.setdefault(repr(value.tolist()), (value, {}))
        rows.setdefault(placed.row, call.ref)
    return list(found.values())


def _small_integers(variant: VariantFacts) -> list[int]:
    """The integer tensors that could be constants, smallest first. Token ids never are."""
    shapes = variant.rows.row(0).shapes
    found = [
        i
        for i, (place, facts) in enumerate(
            zip(variant.group.layout.tensors, variant.group.facts, strict=True)
        )
        if facts.dtype in ("int64", "int32")
        and math.prod(shapes[i]) <= _MAX_ELEMENTS
        and not place.argument.endswith(("input_ids", "_mask", "labels", "position_ids"))
    ]
    return sorted(found, key=lambda i: math.prod(shapes[i]))
