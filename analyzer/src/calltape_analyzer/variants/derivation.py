"""Derives variants from observations: which columns are dynamic, and which share a symbol.

Takes groups of calls, which ``splitting`` divides into parts that one program can serve. Then a
decision is made for each column of each part: it is dynamic if it varied in this variant or in
another one (rule 5). A *pool* is the same dimension in all variants, identified by argument, path,
rank and axis. Returns :class:`VariantFacts` with their symbols.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from calltape_analyzer.observing.groups import Group, Observations
from calltape_analyzer.observing.layout import LeafPath, Renamed
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, Span
from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.pytree.caches import has_cache_word
from calltape_analyzer.variants.facts import (
    DimensionDecision,
    Fixed,
    VariantFacts,
    counting_ints_of,
)
from calltape_analyzer.variants.splitting import splits_of
from calltape_analyzer.variants.symbols import refuted, symbols_of

__all__ = [
    "EqualColumns",
    "Occurrences",
    "Pools",
    "constant_pools",
    "decide",
    "find_symbols",
    "key_over_lists",
    "pool_key",
    "variants_of",
]


_IN_LISTS = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MAX_COMPARED = 64
_MAX_PATHS = 256  # the columns of one tensor come one after the other


class Pools:
    """The pools of all variants.

    Siblings of a pool are the same dimension of the other elements of the same lists: their keys
    are equal but for the numbers in the path.

    Args:
        splits: the variants, of which nothing has to be decided yet.
        constant: keys of pools that are known to be constant from counted calls.
    """

    def __init__(self, splits: Iterable[VariantFacts], constant: Container[Hashable] = ()) -> None:
        self.values: dict[Hashable, set[int]] = defaultdict(set)
        self.calls: dict[Hashable, int] = defaultdict(int)
        self._constant = constant
        self._lines: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._occurrences: dict[Hashable, Occurrences] = {}
        self._interned: dict[tuple[tuple[int, int], ...], Occurrences] = {}
        self._presences: dict[tuple[int, ...], int] = {}
        self._differ: dict[tuple[Occurrences, Occurrences], bool] = {}
        for number, split in enumerate(splits):
            calls, says_nothing = split.calls, split.nothing_yet
            for column in split.all_rows.columns:
                if column in says_nothing:
                    continue
                key = self.key(split.group, column)
                self.values[key] |= split.all_rows.distinct(column)
                lines = self._lines[key]
                if number not in lines:
                    self.calls[key] += calls
                    lines[number] = split.all_rows.line(column)
        # Per key over lists, whether all of its pools that were seen in several calls varied.
        self._siblings: dict[Hashable, bool] = {}
        for key, seen in self.calls.items():
            if seen > 1 or key in constant:
                siblings = key_over_lists(key)
                self._siblings[siblings] = self._siblings.get(siblings, True) and self.varied(key)

    @staticmethod
    def key(group: Group, column: Column) -> Hashable:
        """The key of the pool that a column of a group belongs to."""
        path = group.layout.path(column)
        if column.axis is None:
            return path.argument, path.path, "int", None
        return pool_key(path, group.facts[column.index].rank, column.axis)

    def varied(self, key: Hashable) -> bool:
        """Whether a pool has several sizes."""
        return len(self.values[key]) > 1

    def is_open(self, key: Hashable) -> bool:
        """Whether nothing says that a pool is constant: it was seen in one call only, and so were
        its siblings, or they varied."""
        if self.calls[key] != 1 or key in self._constant:
            return False
        return self._siblings.get(key_over_lists(key)) is not False

    def has_varying_siblings(self, key: Hashable) -> bool:
        """Whether a pool was seen in one call only, and has siblings that varied."""
        return self.is_open(key) and key_over_lists(key) in self._siblings

    def occurrences(self, key: Hashable) -> Occurrences:
        """The variants that have a dimension of a pool."""
        if key not in self._occurrences:
            lines = self._lines.get(key, {})
            presence = self._presences.setdefault(tuple(lines), len(self._presences))
            occurrences = Occurrences(lines, presence)
            self._occurrences[key] = self._interned.setdefault(tuple(lines.items()), occurrences)
        return self._occurrences[key]

    def differ(self, first: Occurrences, second: Occurrences) -> bool:
        """Whether two dimensions ever had different sizes in one call."""
        if first.presence == second.presence:
            return first is not second
        pair = (first, second)
        if pair not in self._differ:
            fewer, more = sorted((first.lines, second.lines), key=len)
            self._differ[pair] = any(more.get(n, line) != line for n, line in fewer.items())
        return self._differ[pair]


class Occurrences:
    """The variants that have a dimension, by number, and the line that it is on in each.

    Dimensions with the same lines share one object, so that equality is identity. ``presence`` is
    equal for dimensions that are in the same variants.
    """

    def __init__(self, lines: Mapping[int, int], presence: int) -> None:
        self.lines = lines
        self.presence = presence


def pool_key(path: LeafPath, rank: int, axis: int) -> Hashable:
    """Equal for the dimensions of tensors that are the same dimension in all variants."""
    return path.argument, path.path, rank, axis


def key_over_lists(key: Any) -> Hashable:
    """Equal for pools that are one, or that are of elements of one list: the key of
    ``.layers.0.keys`` becomes the key of ``.layers.*.keys``."""
    argument, path, *dimension = key
    return argument, _over_lists(path), *dimension


def constant_pools(
    counters: TrafficCounters, signature: Signature, renamed: Renamed = str
) -> set[Hashable]:
    """The pools (by :func:`pool_key`) that had one size in several counted calls. The second call
    is evidence that they are constant, and need not be kept for that.

    Args:
        counters: of the tape.
        signature, renamed: as the calls were laid out with.
    """
    calls: Counter[Hashable] = Counter()
    spans: dict[Hashable, Span] = {}
    for group in counters.groups.values():
        keys_of_group: set[Hashable] = set()
        for path in group.layout(signature, renamed).tensors:
            axes = group.leaves[path.number]
            for axis, values in enumerate(axes):
                key, span = pool_key(path, len(axes), axis), Span(values.min, values.max)
                spans[key] = span.merge(spans.get(key))
                keys_of_group.add(key)
        calls.update(dict.fromkeys(keys_of_group, group.calls))
    return {key for key, span in spans.items() if calls[key] > 1 and span.min == span.max}


@lru_cache(_MAX_PATHS)
def _over_lists(path: str) -> str:
    return _IN_LISTS.sub("*", path)


class EqualColumns:
    """Columns that never differed in a variant, divided into symbols. Columns that varied are one
    symbol; columns that did not are divided by what they are in other variants.

    Attributes:
        symbols: numbers of the symbols.
        capped: whether there were more symbols than some column was compared with.
    """

    def __init__(self, pools: Pools) -> None:
        self.symbols: list[int] = []
        self.capped = False
        self._pools = pools
        self._equal: dict[Occurrences, int] = {}
        self._known: list[Occurrences] = []
        self._presences: Counter[int] = Counter()

    def add(self, occurrences: Occurrences | None, number: int) -> None:
        """Makes a symbol of a column.

        Args:
            occurrences: of the column, if it did not vary in this variant.
            number: of the symbol.
        """
        self.symbols.append(number)
        if occurrences is not None:
            self._equal[occurrences] = number
            self._known.append(occurrences)
            self._presences[occurrences.presence] += 1

    def symbol_of(self, occurrences: Occurrences | None) -> int | None:
        """The first symbol that never differed from a column with these occurrences."""
        if occurrences is None:
            return self.symbols[0] if self.symbols else None
        equal = self._equal.get(occurrences)
        # Symbols in the same variants are found by identity; only the others are compared.
        uncompared = len(self._known) - self._presences[occurrences.presence]
        if not uncompared:
            return equal
        for number, compared in islice(zip(self.symbols, self._known, strict=True), _MAX_COMPARED):
            if not self._pools.differ(compared, occurrences):
                return number
            uncompared -= compared.presence != occurrences.presence
        self.capped |= equal is None and uncompared > 0
        return equal


_MAX_ROUNDS, _MAX_SINGLE = 32, 8


def variants_of(
    observations: Observations, constant: Container[Hashable] = ()
) -> list[VariantFacts]:
    """The variants, in the order of their first call, without names.

    Args:
        observations: the calls.
        constant: the pools (by :func:`pool_key`) that are known
            to be constant, because they had one size in several calls. Not all of these calls need
            be among the observations.
    """
    variants = [split for group in observations.in_order() for split in splits_of(group)]
    pools = Pools(variants, constant)
    for variant in variants:
        decide(variant, pools)
        _decide_by_neighbours(variant, pools)
        find_symbols(variant, pools)
    return sorted(variants, key=lambda v: v.all_rows.first)


def decide(variant: VariantFacts, pools: Pools) -> None:
    """Decides which columns of a variant are dynamic, and chooses the rows to learn from."""
    all_rows = variant.rows
    variant.rows, variant.unsampled = all_rows.part(all_rows.sample()), all_rows
    counting = counting_ints_of(variant.group)
    fixed = {c.column for c in variant.conditions if isinstance(c, Fixed) and not c.negated}
    fixed |= variant.nothing_yet
    for column in all_rows.columns:
        if column in counting and all_rows.same(column, counting[column]):
            variant.dimensions[column] = DimensionDecision(False, "counter")
        else:
            variant.dimensions[column] = _decided(variant, column, column in fixed, pools)


def _decided(variant: VariantFacts, column: Column, fixed: bool, pools: Pools) -> DimensionDecision:
    values = variant.all_rows.distinct(column)
    if len(values) > 1:
        return DimensionDecision(True, "varied")
    key = pools.key(variant.group, column)
    pooled = not fixed and (pools.varied(key) or pools.has_varying_siblings(key))
    if pooled and (values == {1} or (column.is_int and values == {0})):
        return DimensionDecision(False, "one")
    return DimensionDecision(True, "pooled") if pooled else DimensionDecision(False, "constant")


def _decide_by_neighbours(variant: VariantFacts, pools: Pools) -> None:
    """Makes dimensions dynamic that were constant, if what says so says little: the dimension was
    seen once and has a dynamic neighbour (a dimension of the same axis and size), or it is a first
    dimension that never differed from another one which is dynamic by other variants only. The
    calls of one batch size show of neither of the two that it is constant."""
    rows = variant.rows
    neighbours: dict[tuple[int | None, int], list[Column]] = defaultdict(list)
    for column in variant.dynamic():
        if not column.is_int:
            neighbours[column.axis, rows.value(0, column)].append(column)
    for column, decision in list(variant.dimensions.items()):
        if decision.reason != "constant" or column.is_int:
            continue
        size = rows.value(0, column)
        dynamic_beside = neighbours.get((column.axis, size))
        if size < 2 or not dynamic_beside:
            continue
        if pools.is_open(pools.key(variant.group, column)) or (
            column.axis == 0 and _is_one_with_a_pooled(column, dynamic_beside, variant, pools)
        ):
            variant.dimensions[column] = DimensionDecision(True, "neighbour")


def _is_one_with_a_pooled(
    column: Column, dynamic_beside: Sequence[Column], variant: VariantFacts, pools: Pools
) -> bool:
    def occurrences(neighbour: Column) -> Occurrences:
        return pools.occurrences(pools.key(variant.group, neighbour))

    pooled = (c for c in dynamic_beside if variant.dimensions[c].reason == "pooled")
    return any(not pools.differ(occurrences(column), occurrences(c)) for c in pooled)


def find_symbols(variant: VariantFacts, pools: Pools) -> None:
    """Finds the symbols of the dynamic columns, and relations that hold in every row.

    The rows at hand suggest relations. These are checked against all rows, and a row that refutes
    one joins the rows at hand. After a few rounds all rows that refute one join at once. A relation
    that is refuted again and again is given up.
    """
    for rounds in range(_MAX_ROUNDS):
        _find_symbols_once(variant, pools)
        refuting = _refuting_rows(variant)
        if not refuting:
            return
        places = [next(iter(refuting.values()))] if rounds < _MAX_SINGLE else refuting.values()
        variant.rows = variant.rows.merge(variant.all_rows.part(set(places)))
    _find_symbols_once(variant, pools)
    for number in _refuting_rows(variant):
        variant.symbols[number].relation = None
        variant.symbols[number].capped = True


def _find_symbols_once(variant: VariantFacts, pools: Pools) -> None:
    """Finds symbols and relations in the rows at hand."""
    groups: list[list[Column]] = []
    equal: dict[int, EqualColumns] = defaultdict(lambda: EqualColumns(pools))
    for column in variant.dynamic():
        on_this_line = equal[variant.all_rows.line(column)]
        varied = len(variant.all_rows.distinct(column)) > 1
        # Columns that never varied here may differ in other variants.
        occurrences = None if varied else pools.occurrences(pools.key(variant.group, column))
        symbol = on_this_line.symbol_of(occurrences)
        if symbol is None:
            on_this_line.add(occurrences, len(groups))
            groups.append([column])
        else:
            groups[symbol].append(column)
    variant.symbols = symbols_of(groups, variant.rows, _preferred(variant, groups))
    for on_this_line in equal.values():
        variant.capped |= on_this_line.capped
        for number in on_this_line.symbols if len(on_this_line.symbols) > 1 else ():
            variant.symbols[number].ambiguous = True


def _refuting_rows(variant: VariantFacts) -> dict[int, int]:
    """Per symbol whose relation does not hold in every row, the place of the first such row."""
    if len(variant.all_rows) == len(variant.rows):
        return {}
    first_columns = [variant.all_rows.values(symbol.columns[0]) for symbol in variant.symbols]
    refuting: dict[int, int] = {}
    for number, (symbol, values) in enumerate(zip(variant.symbols, first_columns, strict=True)):
        place = None if symbol.relation is None else refuted(symbol.relation, first_columns, values)
        if place is not None:
            refuting[number] = place
    return refuting


def _preferred(variant: VariantFacts, groups: Sequence[Sequence[Column]]) -> list[int]:
    """The groups, ordered so that totals follow from the first ones and not vice versa: first axes,
    then tokens, then the tokens before them."""
    layout = variant.group.layout

    def rank(columns: Sequence[Column]) -> int:
        if any(c.axis == 0 for c in columns):
            return 0
        names = {layout.path(c).argument for c in columns if not c.is_int}
        if names & {"input_ids", "inputs_embeds", "decoder_input_ids"}:
            return 1
        return 2 if any(map(has_cache_word, names)) else 3

    return sorted(range(len(groups)), key=lambda i: rank(groups[i]))
