"""The calls of a tape as the programs that can serve them.

:mod:`observations` puts calls into groups that no program could serve together, :mod:`splitting`
takes groups apart by their sizes. Here the dimensions of each part are decided: dynamic where they
varied, also where they varied in another variant (rule 5 of docs/decisions/0012), and the symbols
that they are.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from calltape_analyzer.completion import Completion
from calltape_analyzer.layout import Place
from calltape_analyzer.observations import Group, Key, Observations, Row
from calltape_analyzer.rows import Rows
from calltape_analyzer.splitting import (
    Condition,
    Fixed,
    Split,
    column_name,
    counters_of,
    splits_of,
)
from calltape_analyzer.symbols import Column, Symbol, refuted, symbols_of, value_in
from calltape_analyzer.tallies import Seen, Span
from calltape_analyzer.whole_traffic import Whole

__all__ = ["Dimension", "VariantFacts", "merged", "pooled_as", "variants_of"]

Reason = Literal["varied", "pooled", "neighbour", "constant", "one", "declared", "counter"]


@dataclass(frozen=True)
class Dimension:
    """What became of a column, and why.

    ``reason`` is ``varied`` (several values in this variant), ``pooled`` (in another variant, or
    seen once, in the siblings of the same list), ``neighbour`` (its argument was seen once, and a
    dimension of the same axis and size of another one is dynamic), ``constant``, ``one`` (it varied
    elsewhere, and is always 1 here), ``counter`` (an int that follows from a tensor beside it).
    """

    dynamic: bool
    reason: Reason


@dataclass(eq=False)
class VariantFacts:
    """One variant as data.

    Attributes:
        group, conditions: the calls that belong to it.
        rows: distinct ones, by first call: all of them, or a sample of very many. What is said of
            the calls (their number, ranges, symbols and relations) holds for :attr:`every` row.
        dimensions: what became of each column.
        symbols: the dynamic ones, by symbol.
        completions: of a merged variant, how the calls of other groups become some of this one.
        frozen: small integer tensors, by place, whose values are constants of the program: the
            model reads them with Python, as ``grid.tolist()``.
        whole: what counters of the whole traffic say of a column, where the tape has them.
        all_calls: how many calls there were by these, kept or not; None where nobody knows.
        name: unique among the variants of a tape.
        held: texts and floats, by place among the layout's scalars, that vary over the calls and
            are constants of the program: the model does something else with others.
    """

    group: Group
    rows: list[tuple[Row, Seen]]
    conditions: tuple[Condition, ...]
    dimensions: dict[Column, Dimension] = field(default_factory=dict)
    symbols: list[Symbol] = field(default_factory=list)
    completions: dict[Key, Completion] = field(default_factory=dict)
    frozen: dict[int, Any] = field(default_factory=dict)
    whole: dict[Column, Whole] = field(default_factory=dict)
    all_calls: int | None = None
    name: str = ""
    held: dict[int, Any] = field(default_factory=dict)
    _every: Rows | None = None

    @property
    def every(self) -> Rows:
        """The distinct rows, however many there are."""
        if self._every is None:
            self._every = Rows.of(self.rows)
        return self._every

    @property
    def calls(self) -> int:
        """How many calls it has."""
        return self.every.calls

    def dynamic(self) -> list[Column]:
        """The dynamic columns."""
        return [column for column, found in self.dimensions.items() if found.dynamic]

    def span(self, *columns: Column) -> Span:
        """The smallest and the largest value of columns: over the whole traffic where that is known
        to be of this variant alone, else in the calls on the tape."""
        values: list[int] = []
        for column in columns:
            seen = self.every.span(column)
            values += (seen.min, seen.max)
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

    def only(self, rows: Iterable[tuple[Row, Seen]], name: str) -> VariantFacts:
        """Some of its calls, as a variant of their own."""
        made = replace(self, rows=list(rows), name=name, symbols=[], _every=None)
        give_symbols(made, Pools([]))
        return made

    def completion_of(self, key: Key) -> Completion | None:
        """How a call of another group becomes one of this variant."""
        return next((c for known, c in self.completions.items() if known.takes(key)), None)

    def row_in(self, key: Key, row: Row) -> Row | None:
        """A row of any group as one of this variant's; None where it takes no calls of the group.

        Args:
            key: of the group.
            row: in the group's layout.
        """
        if self.group.key.takes(key):
            return row
        completion = self.completion_of(key)
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
            is_new = 0 not in self.every.distinct(column)
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
    made = [_variant(split, pools, settled) for split in splits]
    for variant in made:
        _adopt_neighbours(variant, pools, settled)
        give_symbols(variant, pools)
    return sorted(made, key=lambda v: v.every.first)


class Pools:
    """The same dimension over all variants: by argument, path, rank and axis; and over the elements
    of lists, by the path with the numbers in it left open."""

    def __init__(self, splits: Iterable[Split]) -> None:
        self.values: dict[Hashable, set[int]] = defaultdict(set)
        self.calls: dict[Hashable, int] = defaultdict(int)
        self._siblings: dict[Hashable, set[Hashable]] = defaultdict(set)
        self._columns: dict[Hashable, dict[int, tuple[Split, Column]]] = defaultdict(dict)
        for number, split in enumerate(splits):
            self._add(number, split)

    def _add(self, number: int, split: Split) -> None:
        for column in split.rows.columns:
            key = self.key(split.group, column)
            self.values[key] |= split.rows.distinct(column)
            if number not in self._columns[key]:
                self.calls[key] += split.rows.calls
                self._columns[key][number] = split, column
            self._siblings[_opened(key)].add(key)

    @staticmethod
    def key(group: Group, column: Column) -> Hashable:
        if column.axis is None:
            place = group.ints[column.place]
            return place.argument, place.path, "int", None
        place = group.layout.tensors[column.place]
        return pooled_as(place, group.facts[column.place].rank, column.axis)

    def varied(self, key: Hashable) -> bool:
        """Whether a dimension had several sizes."""
        return len(self.values[key]) > 1

    @staticmethod
    def opened(key: Hashable) -> Hashable:
        """Equal for dimensions that are one, or those of elements of one list."""
        return _opened(key)

    def siblings(self, key: Hashable) -> set[Hashable]:
        """The same dimension of the other elements of the same lists."""
        return self._siblings[_opened(key)] - {key}

    def is_open(self, key: Hashable, settled: Container[Hashable] = ()) -> bool:
        """Whether a dimension was seen in one call only, and no sibling that was seen in several
        says that it is constant."""
        if self.calls[key] != 1 or key in settled:
            return False
        known = self._known_siblings(key, settled)
        return all(map(self.varied, known))

    def is_alike(self, key: Hashable, settled: Container[Hashable] = ()) -> bool:
        """The same, where there are such siblings."""
        return self.is_open(key, settled) and bool(self._known_siblings(key, settled))

    def _known_siblings(self, key: Hashable, settled: Container[Hashable]) -> list[Hashable]:
        return [k for k in self.siblings(key) if self.calls[k] > 1 or k in settled]

    def differ(self, one: Hashable, other: Hashable) -> bool:
        """Whether two dimensions ever had different sizes in one call."""
        mine, theirs = self._columns[one], self._columns[other]
        return any(
            not split.rows.same(column, theirs[number][1])
            for number, (split, column) in mine.items()
            if number in theirs
        )


def pooled_as(place: Place, rank: int, axis: int) -> Hashable:
    """Equal for the dimensions of tensors that are one over all variants."""
    return place.argument, place.path, rank, axis


def _opened(key: Any) -> Hashable:
    """The key of ``.layers.0.keys`` as that of ``.layers.*.keys``."""
    argument, path, *rest = key
    return argument, re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path), *rest


def merged(
    larger: VariantFacts, completions: Sequence[Completion], smaller: Sequence[VariantFacts]
) -> VariantFacts:
    """One variant of several: the calls of the smaller ones as calls of the larger. It is made for
    an export, which answers for calls that are on the tape, and has nothing of the others."""
    rows = dict(larger.rows)
    for completion, variant in zip(completions, smaller, strict=True):
        for row, seen in variant.rows:
            rows.setdefault(completion.row(row), seen)
    split = Split(larger.group, Rows.of(rows.items()))
    pools = Pools([split])
    made = _variant(split, pools)
    made.completions = {completion.key: completion for completion in completions}
    give_symbols(made, pools)
    return made


def _variant(split: Split, pools: Pools, settled: Container[Hashable] = ()) -> VariantFacts:
    rows = [(split.rows.row(at), split.rows.seen(at)) for at in split.rows.sample()]
    made = VariantFacts(split.group, rows, split.conditions, _every=split.rows)
    counters = _open_counters(split)
    for column in split.rows.columns:
        made.dimensions[column] = _decided(column, counters, pools, split, settled)
    return made


def _decided(
    column: Column,
    counters: Mapping[int, Column],
    pools: Pools,
    split: Split,
    settled: Container[Hashable],
) -> Dimension:
    if column.axis is None and column.place in counters:
        return Dimension(False, "counter")
    values = split.rows.distinct(column)
    if len(values) > 1:
        return Dimension(True, "varied")
    fixed = any(
        isinstance(c, Fixed) and c.column == column and not c.negated for c in split.conditions
    )
    key = pools.key(split.group, column)
    pooled = not fixed and (pools.varied(key) or pools.is_alike(key, settled))
    if pooled and (values == {1} or (column.axis is None and values == {0})):
        return Dimension(False, "one")
    return Dimension(True, "pooled") if pooled else Dimension(False, "constant")


def _open_counters(split: Split) -> Mapping[int, Column]:
    """The counters that equal their dimension in every row."""
    return {
        counter: keys
        for counter, keys in counters_of(split.group).items()
        if split.rows.same(Column(counter, None), keys)
    }


def _adopt_neighbours(variant: VariantFacts, pools: Pools, settled: Container[Hashable]) -> None:
    row = variant.rows[0][0]
    known = {(c.axis, value_in(row, c)) for c in variant.dynamic() if c.axis is not None}
    for column, found in list(variant.dimensions.items()):
        if found.reason != "constant" or column.axis is None or value_in(row, column) < 2:
            continue
        key = pools.key(variant.group, column)
        if pools.is_open(key, settled) and (column.axis, value_in(row, column)) in known:
            variant.dimensions[column] = Dimension(True, "neighbour")


def give_symbols(variant: VariantFacts, pools: Pools) -> None:
    """Finds the symbols of the dynamic columns, and relations that hold in every row: those that
    the rows at hand suggest are checked against all, and a row that refutes one joins them."""
    while True:
        _learn_symbols(variant, pools)
        refuting = _refuting(variant)
        if refuting is None:
            return
        rows = [*variant.rows, (variant.every.row(refuting), variant.every.seen(refuting))]
        variant.rows = sorted(rows, key=lambda item: item[1].first)


def _learn_symbols(variant: VariantFacts, pools: Pools) -> None:
    groups: list[list[Column]] = []
    by_line: dict[int, list[int]] = defaultdict(list)
    for column in variant.dynamic():
        line = variant.every.line(column)
        varied = len(variant.every.distinct(column)) > 1
        for at in by_line[line]:
            if _is_same(variant, groups[at][0], column, pools, varied):
                groups[at].append(column)
                break
        else:
            by_line[line].append(len(groups))
            groups.append([column])
    rows = [row for row, _ in variant.rows]
    variant.symbols = symbols_of(groups, rows, _preferred(variant, groups))
    for numbers in by_line.values():
        for number in numbers if len(numbers) > 1 else ():
            variant.symbols[number].ambiguous = True


def _refuting(variant: VariantFacts) -> int | None:
    """The place of the first row in which a relation does not hold."""
    if len(variant.every) == len(variant.rows):
        return None
    every = [variant.every.values(symbol.columns[0]) for symbol in variant.symbols]
    for symbol, own in zip(variant.symbols, every, strict=True):
        if symbol.relation is None:
            continue
        found = refuted(symbol.relation, every, own)
        if found is not None:
            return found
    return None


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
