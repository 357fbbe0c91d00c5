"""Two variants as one program: calls without a cache get a cache of length zero.

A prefill is a decode step with nothing cached (rule 6 of docs/decisions/export-strategies.md).
Shapes cannot tell whether one program may serve both: for some models the merged program exports
cleanly and returns other values. So a merge is kept only if a replay of every recorded call proves
it (:mod:`calltape_analyzer.exporting.program_search`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calltape_analyzer.observing.columns import Column
from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.pytree.caches import holds_cache
from calltape_analyzer.variants.completion import Completion, Source
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["can_merge", "completion_of"]


def can_merge(smaller: VariantFacts, larger: VariantFacts) -> bool:
    """Whether the larger variant has all that the smaller one has, and more only in caches."""
    if smaller.conditions or smaller.group.key == larger.group.key:
        return False
    if smaller.group.varying or larger.group.varying:
        return False  # whether their values matter is asked for one variant at a time
    one, other = smaller.group.layout, larger.group.layout
    if set(one.arguments) - set(other.arguments):
        return False
    mine = {(p.argument, p.path) for p in one.tensors}
    theirs = {(p.argument, p.path) for p in other.tensors}
    if not mine < theirs:
        return False
    missing = {argument for argument, _ in theirs - mine}
    return all(holds_cache(name, other.nodes[name]) for name in missing) and _rest_is_equal(
        smaller, larger, missing
    )


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


def completion_of(smaller: Group, larger: VariantFacts, scalars: Sequence[Any]) -> Completion:
    """How calls of the smaller group are completed.

    Args:
        smaller: a group with :func:`can_merge`.
        larger: the variant that they become part of.
        scalars: the scalars of a call of the larger one, in its layout's order.
    """
    one, other = smaller.layout, larger.group.layout
    tensors = _matched(one.tensors, other.tensors)
    missing = {i: _sources(larger, i, tensors) for i, at in enumerate(tensors) if at is None}
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


def _sources(
    larger: VariantFacts, tensor: int, matched: Sequence[int | None]
) -> tuple[Source, ...]:
    """Where the sizes of a tensor come from that the smaller variant lacks.

    Args:
        larger: the variant that has it.
        tensor: its number there.
        matched: per tensor of the larger variant its number in the smaller one, or None.
    """
    rows = larger.rows
    present = {
        column: rows.values(column)
        for column in rows.columns
        if not column.is_int and matched[column.index] is not None
    }
    dimensions = larger.group.dimensions(tensor)
    return tuple(_source(column, rows.values(column), present) for column in dimensions)


def _source(column: Column, own: tuple[int, ...], present: dict[Column, tuple[int, ...]]) -> Source:
    same = [other for other, values in present.items() if values == own]
    if column.axis == 0:
        batch = [other for other in same if other.axis == 0]
        if batch:
            return Source(column=batch[0])
    if len(set(own)) > 1:
        if same:
            return Source(column=same[0])
        for total, totals in present.items():
            for part, parts in present.items():
                if all(t - p == v for t, p, v in zip(totals, parts, own, strict=True)):
                    return Source(column=total, less=part)
        return Source()
    return Source(constant=own[0])
