"""Several variants as one program: calls without a cache get a cache of length zero.

A prefill is a decode step with nothing cached (rule 6 of docs/decisions/export-strategies.md).
Shapes cannot tell whether one program may serve both: for some models the merged program exports
cleanly and returns other values. So an export keeps a merge only if a replay of every recorded call
proves it (:mod:`calltape_analyzer.exporting.exporter`). Who asks a tape for the shapes of one
program gets what the calls show.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import islice
from typing import Any

from calltape_analyzer.observing.groups import Group, GroupKey
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.size_table import Column, SizeTable
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.caches import holds_cache
from calltape_analyzer.pytree.flattening import is_empty
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.variants.derivation import Pools, find_symbols, variant_of
from calltape_analyzer.variants.facts import Completion, Source, VariantFacts
from calltape_analyzer.variants.splitting import Split

__all__ = ["can_merge", "lacking", "merged", "whole"]

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
    one, other = smaller.group.layout, larger.group.layout
    mine = {(p.argument, p.path) for p in one.tensors}
    theirs = {(p.argument, p.path) for p in other.tensors}
    missing = {argument for argument, _ in theirs - mine}
    is_more = mine < theirs and not set(one.arguments) - set(other.arguments)
    is_absent = all(
        name not in one.nodes or is_empty(one.nodes[name]) or holds_cache(name, other.nodes[name])
        for name in missing
    )
    return missing if is_more and is_absent and _rest_is_equal(smaller, larger, missing) else set()


def whole(variants: Sequence[VariantFacts]) -> VariantFacts:
    """Variants of one group, whatever sizes divide them, as one."""
    rows = reduce(SizeTable.merge, (one.every for one in variants))
    return _undivided(Split(variants[0].group, rows))


def merged(
    larger: VariantFacts, smaller: Sequence[VariantFacts], sorter: CallSorter, calls: Calls
) -> VariantFacts:
    """One variant of several: the calls of the smaller ones as calls of the larger one. It is
    made of the calls on the tape, and has nothing of the other calls.

    Args:
        larger: has what the others lack (:func:`lacking`).
        smaller: these.
        sorter: lays out the calls.
        calls: of the tape.
    """
    tree = calls.inputs_at(larger.rows.first)
    scalars = sorter.sorted(tree).layout.scalars_of(tree.scalars)
    rows = larger.every.items()
    completions: dict[GroupKey, Completion] = {}
    for variant in smaller:
        made = completions[variant.group.key] = _completion_of(variant.group, larger, scalars)
        rows += [(made.row(row), seen) for row, seen in variant.every.items()]
    whole = _undivided(Split(larger.group, SizeTable.of(rows)))
    whole.completions = completions
    return whole


def _undivided(split: Split) -> VariantFacts:
    pools = Pools([split])
    made = variant_of(split, pools)
    find_symbols(made, pools)
    return made


def _rest_is_equal(one: VariantFacts, other: VariantFacts, but: set[str]) -> bool:
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

    return bool(rest(one) == rest(other))


def _completion_of(smaller: Group, larger: VariantFacts, scalars: Sequence[Any]) -> Completion:
    """How calls of the smaller group are completed, with the scalars of a call of the larger one
    where they lack them."""
    one, other = smaller.layout, larger.group.layout
    tensors = _matched(one.tensors, other.tensors)
    rows, present = larger.rows, _Present()
    for column in rows.columns:
        if column.axis is not None and tensors[column.index] is not None:
            present.add(column, rows.values(column))
    missing = {
        i: tuple(present.source(c, rows.values(c)) for c in larger.group.dimensions(i))
        for i, at in enumerate(tensors)
        if at is None
    }
    return Completion(
        smaller.key,
        other,
        tensors,
        _matched(one.scalars, other.scalars),
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

    def source(self, column: Column, own: tuple[int, ...]) -> Source:
        """Where the size of a dimension comes from that the smaller variant lacks."""
        if column.axis == 0 and own in self._first:
            return Source(column=self._first[own])
        if len(set(own)) == 1:
            return Source(constant=own[0])
        if own in self._any:
            return Source(column=self._any[own])
        for totals, total in islice(self._any.items(), _MAX_COMPARED):
            part = self._any.get(tuple(t - v for t, v in zip(totals, own, strict=True)))
            if part is not None:
                return Source(column=total, less=part)
        return Source()
