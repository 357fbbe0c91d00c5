"""The calls of a tape as the programs that can serve them.

:mod:`observations` puts calls into groups that no program could serve together, :mod:`splitting`
takes groups apart by their sizes. Here the dimensions of each part are decided: dynamic where they
varied, also where they varied in another variant (rule 5 of docs/decisions/0012), and the symbols
that they are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from calltape_analyzer.completion import Completion
from calltape_analyzer.observations import Group, Key, Observations, Row
from calltape_analyzer.pools import Line, Pools
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

__all__ = ["Dimension", "Reason", "VariantFacts", "give_symbols", "merged", "variants_of"]

_MAX_ROUNDS, _MAX_SINGLE = 32, 8

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
        capped: whether it has so many dimensions that not all were compared with each other, to
            find broadcasting, or what tells equal ones apart in other variants.
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
    capped: bool = False
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
    pools = Pools(splits, settled)
    made = [_variant(split, pools) for split in splits]
    for variant in made:
        _adopt_neighbours(variant, pools)
        give_symbols(variant, pools)
    return sorted(made, key=lambda v: v.every.first)


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


def _variant(split: Split, pools: Pools) -> VariantFacts:
    rows = [(split.rows.row(at), split.rows.seen(at)) for at in split.rows.sample()]
    made = VariantFacts(split.group, rows, split.conditions, capped=split.capped, _every=split.rows)
    counters = _open_counters(split)
    fixed = {c.column for c in split.conditions if isinstance(c, Fixed) and not c.negated}
    for column in split.rows.columns:
        if column.axis is None and column.place in counters:
            made.dimensions[column] = Dimension(False, "counter")
        else:
            made.dimensions[column] = _decided(column, column in fixed, pools, split)
    return made


def _decided(column: Column, fixed: bool, pools: Pools, split: Split) -> Dimension:
    values = split.rows.distinct(column)
    if len(values) > 1:
        return Dimension(True, "varied")
    key = pools.key(split.group, column)
    pooled = not fixed and (pools.varied(key) or pools.is_alike(key))
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


def _adopt_neighbours(variant: VariantFacts, pools: Pools) -> None:
    row = variant.rows[0][0]
    known = {(c.axis, value_in(row, c)) for c in variant.dynamic() if c.axis is not None}
    for column, found in list(variant.dimensions.items()):
        if found.reason != "constant" or column.axis is None or value_in(row, column) < 2:
            continue
        key = pools.key(variant.group, column)
        if pools.is_open(key) and (column.axis, value_in(row, column)) in known:
            variant.dimensions[column] = Dimension(True, "neighbour")


def give_symbols(variant: VariantFacts, pools: Pools) -> None:
    """Finds the symbols of the dynamic columns, and relations that hold in every row: those that
    the rows at hand suggest are checked against all, and a row that refutes one joins them. After
    a few rounds all that refute one join at once, and what is refuted again and again is none."""
    for rounds in range(_MAX_ROUNDS):
        _learn_symbols(variant, pools)
        refuting = _refuting(variant)
        if not refuting:
            return
        places = [next(iter(refuting.values()))] if rounds < _MAX_SINGLE else refuting.values()
        every = variant.every
        rows = [*variant.rows, *((every.row(at), every.seen(at)) for at in set(places))]
        variant.rows = sorted(rows, key=lambda item: item[1].first)
    _learn_symbols(variant, pools)
    for number in _refuting(variant):
        variant.symbols[number].relation = None
        variant.symbols[number].capped = True


def _learn_symbols(variant: VariantFacts, pools: Pools) -> None:
    groups: list[list[Column]] = []
    lines: dict[int, Line] = defaultdict(lambda: Line(pools))
    for column in variant.dynamic():
        line = lines[variant.every.line(column)]
        varied = len(variant.every.distinct(column)) > 1
        elsewhere = None if varied else pools.elsewhere(pools.key(variant.group, column))
        at = line.group_of(elsewhere)
        if at is None:
            line.add(elsewhere, len(groups))
            groups.append([column])
        else:
            groups[at].append(column)
    rows = [row for row, _ in variant.rows]
    variant.symbols = symbols_of(groups, rows, _preferred(variant, groups))
    for line in lines.values():
        variant.capped |= line.capped
        for number in line.groups if len(line.groups) > 1 else ():
            variant.symbols[number].ambiguous = True


def _refuting(variant: VariantFacts) -> dict[int, int]:
    """Per symbol whose relation does not hold in every row, the place of the first such row."""
    if len(variant.every) == len(variant.rows):
        return {}
    every = [variant.every.values(symbol.columns[0]) for symbol in variant.symbols]
    found: dict[int, int] = {}
    for number, (symbol, own) in enumerate(zip(variant.symbols, every, strict=True)):
        at = None if symbol.relation is None else refuted(symbol.relation, every, own)
        if at is not None:
            found[number] = at
    return found


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
