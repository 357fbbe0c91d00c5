"""Ints that vary from call to call, as constants of programs: a part of a variant for each value.

A trace makes a symbol of such an int, which is no ``int`` to ``isinstance``: a model that asks
takes another branch (rule 15 of docs/decisions/export-strategies.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from calltape_analyzer.observing.size_table import Column, SizeRow, value_in
from calltape_analyzer.observing.tallies import Seen
from calltape_analyzer.variants.derivation import part_of
from calltape_analyzer.variants.facts import DimensionDecision, VariantFacts

__all__ = ["int_value_parts", "varying_ints"]


def varying_ints(variant: VariantFacts) -> list[Column]:
    """The ints that are inputs of a program of this variant."""
    return [column for column in variant.dynamic() if column.is_int]


def int_value_parts(variant: VariantFacts) -> Iterator[VariantFacts]:
    """A variant for each combination of its ints, most calls first. The ints are constants of
    it."""
    columns = varying_ints(variant)
    by_values: dict[tuple[int, ...], list[tuple[SizeRow, Seen]]] = defaultdict(list)
    for row, seen in variant.rows.items():
        by_values[tuple(value_in(row, column) for column in columns)].append((row, seen))
    ordered = sorted(by_values.items(), key=lambda item: -sum(seen.calls for _, seen in item[1]))
    layout = variant.group.layout
    for values, own in ordered:
        shown = [f"{layout.column_name(c)}={v}" for c, v in zip(columns, values, strict=True)]
        held = replace(variant, dimensions=dict(variant.dimensions))
        held.dimensions |= dict.fromkeys(columns, DimensionDecision(False, "constant"))
        yield part_of(held, own, f"{variant.name}, {', '.join(shown)}")
