"""The calls of a tape as the programs that can serve them.

:mod:`observations` puts calls into groups that no program could serve together, :mod:`splitting`
takes groups apart by their sizes. Here the dimensions of each part are decided: dynamic where they
varied, also where they varied in another variant or in a sibling of a list (rule 5 of
docs/decisions/0012), and the symbols that they are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from calltape_analyzer.completion import Completion
from calltape_analyzer.layout import Place
from calltape_analyzer.observations import Group, Observations, Row
from calltape_analyzer.splitting import (
    Condition,
    Fixed,
    Split,
    column_name,
    counters_of,
    splits_of,
)
from calltape_analyzer.symbols import Column, Symbol, columns_of, symbols_of, value_in
from calltape_analyzer.tallies import Seen, Span
from calltape_analyzer.whole_traffic import Whole

__all__ = ["Dimension", "VariantFacts", "merged", "pooled_as", "variants_of"]

Reason = Literal["varied", "pooled", "neighbour", "constant", "one", "declared", "counter"]


@dataclass(frozen=True)
class Dimension:
    """What became of a column, and why.

    ``reason`` is ``varied`` (several values in this variant), ``pooled`` (in another variant, or in
    a sibling of the same list), ``neighbour`` (its argument was seen once, and a dimension of the
    same axis and size of another one is dynamic), ``constant``, ``one`` (it varied elsewhere, and
    is always 1 here), ``counter`` (an int that follows from a tensor beside it).
    """

    dynamic: bool
    reason: Reason


@dataclass(eq=False)
class VariantFacts:
    """One variant as data.

    Attributes:
        group, conditions: the calls that belong to it.
        rows: the distinct ones, by first call.
        dimensions: what became of each column.
        symbols: the dynamic ones, by symbol.
        completions: of a merged variant, how the calls of other groups become some of this one.
        frozen: small integer tensors, by place, whose values are constants of the program: the
            model reads them with Python, as ``grid.tolist()``.
        whole: what counters of the whole traffic say of a column, where the tape has them.
        all_calls: how many calls there were by these, kept or not; None where nobody knows.
        name: unique among the variants of a tape.
    """

    group: Group
    rows: list[tuple[Row, Seen]]
    conditions: tuple[Condition, ...]
    dimensions: dict[Column, Dimension] = field(default_factory=dict)
    symbols: list[Symbol] = field(default_factory=list)
    completions: dict[Hashable, Completion] = field(default_factory=dict)
    frozen: dict[int, Any] = field(default_factory=dict)
    whole: dict[Column, Whole] = field(default_factory=dict)
    all_calls: int | None = None
    name: str = ""

    @property
    def calls(self) -> int:
        """How many calls it has."""
        return sum(seen.calls for _, seen in self.rows)

    def dynamic(self) -> list[Column]:
        """The dynamic columns."""
        return [column for column, found in self.dimensions.items() if found.dynamic]

    def span(self, *columns: Column) -> Span:
        """The smallest and the largest value of columns: over the whole traffic where that is known
        to be of this variant alone, else in the calls on the tape."""
        values = [value_in(row, column) for row, _ in self.rows for column in columns]
        for column in columns:
            whole = self.whole.get(column)
            if whole is not None and not whole.shared_with:
                values += (whole.values.min, whole.values.max)
        return Span(min(values), max(values))

    @property
    def counters(self) -> dict[int, Column]:
        """The ints that follow from a dimension of a tensor, with it."""
        every = counters_of(self.group)
        return {
            column.place: every[column.place]
            for column, found in self.dimensions.items()
            if found.reason == "counter"
        }

    def with_ints(self, scalars: Sequence[Any], ints: Sequence[int]) -> list[Any]:
        """Scalars of a call in the layout's order, with other ints."""
        given = iter(ints)
        return [
            next(given) if place.kind == "int" else value
            for place, value in zip(self.group.layout.scalars, scalars, strict=True)
        ]

    def row_in(self, key: Hashable, row: Row) -> Row | None:
        """A row of any group as one of this variant's; None where it takes no calls of the group.

        Args:
            key: of the group.
            row: in the group's layout.
        """
        if key == self.group.key:
            return row
        completion = self.completions.get(key)
        return None if completion is None else completion.row(row)

    def refuses(self, row: Row) -> str | None:
        """Why a row of the same group does not belong to it; None where it does."""
        layout = self.group.layout
        for condition in self.conditions:
            if not condition.holds(row):
                return f"not {condition.text(layout)}"
        known = self.rows[0][0]
        for column in self.dynamic():
            # Nothing is a case of its own to many models, and no trace is made with it.
            is_new = all(value_in(seen, column) != 0 for seen, _ in self.rows)
            if column.axis is not None and value_in(row, column) == 0 and is_new:
                return f"{column_name(layout, column)} is 0, which was never recorded"
        for column, found in self.dimensions.items():
            if not found.dynamic and found.reason != "counter":
                expected, got = value_in(known, column), value_in(row, column)
                if expected != got:
                    return f"{column_name(layout, column)} is {got}; this program has {expected}"
        return None


def variants_of(
    observations: Observations, settled: Container[Hashable] = ()
) -> list[VariantFacts]:
    """The variants, in the order of their first call, without names.

    Args:
        observations: the calls.
        settled: dimensions (as :func:`pooled_as` names them) that had one size in several calls,
            of which not all need be among these.
    """
    splits = [split for group in observations.in_order() for split in splits_of(group)]
    pools = Pools(splits)
    made = [_variant(split, pools) for split in splits]
    for variant in made:
        _adopt_neighbours(variant, pools, settled)
        give_symbols(variant, pools)
    return sorted(made, key=lambda v: min(seen.first for _, seen in v.rows))


class Pools:
    """The same dimension over all variants: by argument, path with the numbers in it left open,
    rank and axis."""

    def __init__(self, splits: Iterable[Split]) -> None:
        self.values: dict[Hashable, set[int]] = defaultdict(set)
        self.calls: dict[Hashable, int] = defaultdict(int)
        self._vectors: dict[Hashable, dict[Hashable, int]] = defaultdict(dict)
        for number, split in enumerate(splits):
            self._add(number, split)

    def _add(self, number: int, split: Split) -> None:
        if not split.rows:
            return
        keys = {c: self.key(split.group, c) for c in columns_of(split.rows[0][0])}
        for r, (row, seen) in enumerate(split.rows):
            counted: set[Hashable] = set()
            for column, key in keys.items():
                value = value_in(row, column)
                self.values[key].add(value)
                self._vectors[key].setdefault((number, r), value)
                if key not in counted:
                    self.calls[key] += seen.calls
                    counted.add(key)

    @staticmethod
    def key(group: Group, column: Column) -> Hashable:
        if column.axis is None:
            place = group.ints[column.place]
            return place.argument, _open(place.path), "int"
        place = group.layout.tensors[column.place]
        return pooled_as(place, group.facts[column.place].rank, column.axis)

    def differ(self, one: Hashable, other: Hashable) -> bool:
        """Whether two dimensions ever had different sizes in one call."""
        a, b = self._vectors[one], self._vectors[other]
        return any(b[at] != value for at, value in a.items() if at in b)


def pooled_as(place: Place, rank: int, axis: int) -> Hashable:
    """Equal for the dimensions of tensors that are one over all variants."""
    return place.argument, _open(place.path), rank, axis


def _open(path: str) -> str:
    """``.layers.0.keys`` as ``.layers.*.keys``."""
    return re.sub(r"(?<=\.)\d+", "*", path)


def merged(
    larger: VariantFacts, completions: Sequence[Completion], smaller: Sequence[VariantFacts]
) -> VariantFacts:
    """One variant of several: the calls of the smaller ones as calls of the larger. It is made for
    an export, which answers for calls that are on the tape, and has nothing of the others."""
    rows = dict(larger.rows)
    for completion, variant in zip(completions, smaller, strict=True):
        for row, seen in variant.rows:
            rows.setdefault(completion.row(row), seen)
    split = Split(larger.group, list(rows.items()))
    pools = Pools([split])
    made = _variant(split, pools)
    made.completions = {completion.key: completion for completion in completions}
    give_symbols(made, pools)
    return made


def _variant(split: Split, pools: Pools) -> VariantFacts:
    made = VariantFacts(split.group, split.rows, split.conditions)
    counters = _open_counters(split)
    for column in columns_of(split.rows[0][0]):
        values = {value_in(row, column) for row in split.only_rows}
        made.dimensions[column] = _decided(column, values, counters, pools, split)
    return made


def _decided(
    column: Column, values: set[int], counters: Mapping[int, Column], pools: Pools, split: Split
) -> Dimension:
    if column.axis is None and column.place in counters:
        return Dimension(False, "counter")
    if len(values) > 1:
        return Dimension(True, "varied")
    fixed = any(
        isinstance(c, Fixed) and c.column == column and not c.negated for c in split.conditions
    )
    pooled = len(pools.values[pools.key(split.group, column)]) > 1 and not fixed
    if pooled and (values == {1} or (column.axis is None and values == {0})):
        return Dimension(False, "one")
    return Dimension(True, "pooled") if pooled else Dimension(False, "constant")


def _open_counters(split: Split) -> Mapping[int, Column]:
    """The counters that equal their dimension in every row."""
    return {
        counter: keys
        for counter, keys in counters_of(split.group).items()
        if all(row.ints[counter] == value_in(row, keys) for row in split.only_rows)
    }


def _adopt_neighbours(variant: VariantFacts, pools: Pools, settled: Container[Hashable]) -> None:
    row = variant.rows[0][0]
    known = {(c.axis, value_in(row, c)) for c in variant.dynamic() if c.axis is not None}
    for column, found in list(variant.dimensions.items()):
        if found.reason != "constant" or column.axis is None or value_in(row, column) < 2:
            continue
        key = pools.key(variant.group, column)
        once = pools.calls[key] == 1 and key not in settled
        if once and (column.axis, value_in(row, column)) in known:
            variant.dimensions[column] = Dimension(True, "neighbour")


def give_symbols(variant: VariantFacts, pools: Pools) -> None:
    """Finds the symbols of the dynamic columns."""
    rows = [row for row, _ in variant.rows]
    groups: list[list[Column]] = []
    by_values: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for column in variant.dynamic():
        vector = tuple(value_in(row, column) for row in rows)
        for at in by_values[vector]:
            if _is_same(variant, groups[at][0], column, pools, len(set(vector)) > 1):
                groups[at].append(column)
                break
        else:
            by_values[vector].append(len(groups))
            groups.append([column])
    variant.symbols = symbols_of(groups, rows, _preferred(variant, groups))
    for numbers in by_values.values():
        for number in numbers if len(numbers) > 1 else ():
            variant.symbols[number].ambiguous = True


def _is_same(variant: VariantFacts, one: Column, other: Column, pools: Pools, varied: bool) -> bool:
    if varied:
        return True
    keys = pools.key(variant.group, one), pools.key(variant.group, other)
    return not pools.differ(*keys)


def _preferred(variant: VariantFacts, groups: Sequence[Sequence[Column]]) -> list[int]:
    """Groups that totals should depend on, not the other way round: first axes, then tokens and
    what was there before them."""
    tensors = variant.group.layout.tensors

    def rank(columns: Sequence[Column]) -> int:
        if any(c.axis == 0 for c in columns):
            return 0
        names = {tensors[c.place].argument for c in columns if c.axis is not None}
        if names & {"input_ids", "inputs_embeds", "decoder_input_ids"}:
            return 1
        return 2 if any("past" in name or "cache" in name for name in names) else 3

    return sorted(range(len(groups)), key=lambda i: rank(groups[i]))
