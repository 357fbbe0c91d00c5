"""Variants made from the variants of a tape, for an export to try: several merged into one, one
with fewer relations, and a part of one.

A prefill is a decode step with nothing cached, so calls without a cache get a cache of length zero
(rule 6 of docs/decisions/export-strategies.md). Shapes cannot tell whether one program can serve
both: for some models, the merged program exports cleanly and returns different values. An export
therefore keeps a merge only if a replay of every recorded call proves it
(:mod:`calltape_analyzer.exporting.exporter`). If you ask a tape for the shapes of a single program,
you get what the calls show.

Any two points lie on a line. A looser variant therefore has separate symbols for sizes that were
equal, or followed from each other, in too few calls.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from typing import Any

from calltape_analyzer.observing.groups import Completion, Group, GroupKey, SizeSource
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.size_table import Column, Seen, SizeRow, SizeTable
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.caches import holds_cache
from calltape_analyzer.pytree.flattening import is_empty
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.variants.derivation import Pools, decide, find_symbols
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import name_symbols
from calltape_analyzer.variants.symbols import Symbol

__all__ = [
    "breaks",
    "can_merge",
    "lacking",
    "looser_variants",
    "merged",
    "part_of",
    "undivided",
]

_MAX_COMPARED = 256
"""To find sums takes quadratic time (docs/decisions/variants-and-shapes.md)."""


def can_merge(smaller: VariantFacts, larger: VariantFacts) -> bool:
    """Whether the larger variant has all that the smaller one has, and more only in caches."""
    if smaller.conditions:
        return False
    missing, nodes = lacking(smaller, larger), larger.group.layout.nodes
    return bool(missing) and all(holds_cache(name, nodes[name]) for name in missing)


def lacking(smaller: VariantFacts, larger: VariantFacts) -> set[str]:
    """The arguments that the larger variant has and the smaller one lacks, as a whole or as far as
    they are a cache; none if the two differ in anything else."""
    if smaller.group.varying or larger.group.varying:
        return set()  # whether their values matter is asked for one variant at a time
    small_layout, large_layout = smaller.group.layout, larger.group.layout
    mine, theirs = _kinds_of(smaller.group), _kinds_of(larger.group)
    missing = {argument for argument, _ in theirs.keys() - mine.keys()}
    is_more = mine.items() < theirs.items() and not (
        set(small_layout.arguments) - set(large_layout.arguments)
    )
    is_absent = all(
        name not in small_layout.nodes
        or is_empty(small_layout.nodes[name])
        or holds_cache(name, large_layout.nodes[name])
        for name in missing
    )
    return missing if is_more and is_absent and _rest_is_equal(smaller, larger, missing) else set()


def _kinds_of(group: Group) -> dict[tuple[str, Any], tuple[str, int]]:
    """The dtype and the rank of each tensor, by argument and path."""
    return {
        (p.argument, p.path): (fact.dtype, fact.rank)
        for p, fact in zip(group.layout.tensors, group.facts, strict=True)
    }


def undivided(variants: Sequence[VariantFacts]) -> VariantFacts:
    """Variants of one group, whatever sizes divide them, as one."""
    rows = reduce(SizeTable.merge, (variant.all_rows for variant in variants))
    return _undivided(variants[0].group, rows)


def merged(
    larger: VariantFacts, smaller: Sequence[VariantFacts], sorter: CallSorter, calls: Calls
) -> VariantFacts:
    """One variant of several: the calls of the smaller ones become calls of the larger one. Only
    calls on the tape count, not those of traffic counters.

    Args:
        larger: has what the others lack (:func:`lacking`).
        smaller: these.
        sorter: lays out the calls.
        calls: of the tape.
    """
    tree = calls.inputs_at(larger.rows.first)
    scalars = sorter.sorted(tree).layout.scalars_of(tree.scalars)
    rows = larger.all_rows.items()
    completions: dict[GroupKey, Completion] = {}
    for variant in smaller:
        completion = _completion_of(variant.group, larger, scalars)
        completions[variant.group.key] = completion
        rows += [(completion.row(row), seen) for row, seen in variant.all_rows.items()]
    whole = _undivided(larger.group, SizeTable.of(rows))
    whole.completions = completions
    return whole


def _undivided(group: Group, rows: SizeTable) -> VariantFacts:
    facts = VariantFacts(group, rows)
    pools = Pools([facts])
    decide(facts, pools)
    find_symbols(facts, pools)
    return facts


def _rest_is_equal(first: VariantFacts, second: VariantFacts, but: set[str]) -> bool:
    def rest(variant: VariantFacts) -> Any:
        group = variant.group
        layout = group.layout
        keys = [key for key in layout.keys if key[0] not in but]
        shared = [
            (str(layout.tensors[p.one]), str(layout.tensors[p.other]), p.is_one)
            for p in group.key.shared
        ]
        facts = {
            (p.argument, p.path): fact
            for p, fact in zip(layout.tensors, group.facts, strict=True)
            if p.argument not in but
        }
        values = {
            (p.argument, p.path): repr(value)
            for p, value in zip(layout.others, group.constants, strict=True)
            if p.argument not in but
        }
        return keys, facts, values, shared

    return bool(rest(first) == rest(second))


def _completion_of(smaller: Group, larger: VariantFacts, scalars: Sequence[Any]) -> Completion:
    """How calls of the smaller group are completed, with the scalars of a call of the larger one
    where they lack them."""
    small_layout, large_layout = smaller.layout, larger.group.layout
    tensors = _matched(small_layout.tensors, large_layout.tensors)
    rows, present = larger.rows, _Present()
    for column in rows.columns:
        if column.axis is not None and tensors[column.index] is not None:
            present.add(column, rows.values(column))
    missing = {
        i: tuple(present.source(c, rows.values(c)) for c in larger.group.dimensions(i))
        for i, number in enumerate(tensors)
        if number is None
    }
    return Completion(
        smaller.key,
        large_layout,
        tensors,
        _matched(small_layout.scalars, large_layout.scalars),
        missing,
        {i: larger.group.facts[i].dtype for i in missing},
        tuple(scalars),
        larger.counting_ints,
    )


def _matched(have: Sequence[LeafPath], want: Sequence[LeafPath]) -> tuple[int | None, ...]:
    places = {(p.argument, p.path): i for i, p in enumerate(have)}
    return tuple(places.get((p.argument, p.path)) for p in want)


class _Present:
    """The dimensions that the smaller of two variants has, by their values in the larger one."""

    def __init__(self) -> None:
        self._any: dict[tuple[int, ...], Column] = {}
        self._first: dict[tuple[int, ...], Column] = {}

    def add(self, column: Column, values: tuple[int, ...]) -> None:
        self._any.setdefault(values, column)
        if column.axis == 0:
            self._first.setdefault(values, column)

    def source(self, column: Column, axes: tuple[int, ...]) -> SizeSource:
        """Where the size of a dimension comes from that the smaller variant lacks."""
        if column.axis == 0 and axes in self._first:
            return SizeSource(column=self._first[axes])
        if len(set(axes)) == 1:
            return SizeSource(constant=axes[0])
        if axes in self._any:
            return SizeSource(column=self._any[axes])
        for totals, total in islice(self._any.items(), _MAX_COMPARED):
            part = self._any.get(tuple(t - v for t, v in zip(totals, axes, strict=True)))
            if part is not None:
                return SizeSource(column=total, less=part)
        return SizeSource()


_FEW = 2
"""So many distinct values are no evidence."""


_KINDS: tuple[Callable[[Column], Hashable], ...] = (
    lambda column: column.axis,
    lambda column: column.axis == 0,
    lambda column: None,
)
"""Columns of one symbol that differ in this become several."""


def looser_variants(variant: VariantFacts) -> Iterator[VariantFacts]:
    """The variant without what few calls suggest, the loosest first: dimensions of different axes
    are different symbols, then only first dimensions and others; no size follows from another."""
    divisions: list[list[list[Column]]] = []
    for kind in _KINDS:
        groups = [part for symbol in variant.symbols for part in _parts(symbol, kind)]
        is_new = groups not in divisions and (
            len(groups) > len(variant.symbols) or any(map(_follows_weakly, variant.symbols))
        )
        if is_new:
            divisions.append(groups)
            yield _loosened(variant, groups)


def breaks(variant: VariantFacts, looser: VariantFacts, values: Sequence[int]) -> bool:
    """Whether sizes of a looser variant contradict all that it is looser in.

    Args:
        variant: as it was.
        looser: of :func:`looser_variants`.
        values: of the symbols of the looser one.
    """
    by_column = {
        column: value
        for symbol, value in zip(looser.symbols, values, strict=True)
        for column in symbol.columns
    }
    parts: dict[Column, list[int]] = {}
    for symbol, value in zip(looser.symbols, values, strict=True):
        whole_symbol = next(s for s in variant.symbols if symbol.columns[0] in s.columns)
        parts.setdefault(whole_symbol.columns[0], []).append(value)
    if any(len(set(sizes)) < len(sizes) for sizes in parts.values()):
        return False
    firsts = [by_column[symbol.columns[0]] for symbol in variant.symbols]
    weak = [(i, s.relation) for i, s in enumerate(variant.symbols) if _follows_weakly(s)]
    return all(relation is None or relation.value(firsts) != firsts[i] for i, relation in weak)


def _follows_weakly(symbol: Symbol) -> bool:
    return symbol.relation is not None and len(set(symbol.values)) <= _FEW


def _parts(symbol: Symbol, kind: Callable[[Column], Hashable]) -> list[list[Column]]:
    if len(set(symbol.values)) > _FEW:
        return [symbol.columns]
    parts: dict[Hashable, list[Column]] = {}
    for column in symbol.columns:
        parts.setdefault(kind(column), []).append(column)
    return list(parts.values())


def _loosened(variant: VariantFacts, groups: Sequence[list[Column]]) -> VariantFacts:
    """The variant with a symbol for each group of columns, and the relations that are strong."""
    number = {columns[0]: i for i, columns in enumerate(groups)}
    of_symbol = {i: number[symbol.columns[0]] for i, symbol in enumerate(variant.symbols)}
    symbols = [Symbol(columns, variant.rows.values(columns[0])) for columns in groups]
    for i, symbol in enumerate(variant.symbols):
        if symbol.relation is not None and not _follows_weakly(symbol):
            terms = tuple((factor, of_symbol[term]) for factor, term in symbol.relation.terms)
            symbols[of_symbol[i]].relation = symbol.relation._replace(terms=terms)
    looser = replace(variant, symbols=symbols)
    name_symbols(looser)
    return looser


def part_of(variant: VariantFacts, rows: Iterable[tuple[SizeRow, Seen]], name: str) -> VariantFacts:
    """Some of the calls of a variant, as a variant of their own."""
    part = replace(variant, rows=SizeTable.of(rows), name=name, symbols=[], unsampled=None)
    find_symbols(part, Pools([]))
    return part
