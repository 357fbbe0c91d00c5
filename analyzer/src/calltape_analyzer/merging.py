"""Two variants as one program: the calls that lack a cache get one of length zero.

A prefill is a decode step with nothing cached (rule 6 of docs/decisions/0012). Whether one program
may serve both is not for the shapes to say: for some models the merged program exports cleanly and
returns other values, so that a merge stands only where replaying every recorded call proves it
(:mod:`calltape_analyzer.exporting.attempts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calltape_analyzer.completion import Completion, Source
from calltape_analyzer.layout import Place
from calltape_analyzer.observations import Group, Row
from calltape_analyzer.symbols import Column, columns_of, value_in
from calltape_analyzer.variants import VariantFacts
from calltape_schema.tree import FieldsNode, Node, children_of

__all__ = ["can_merge", "completion_of"]


def can_merge(smaller: VariantFacts, larger: VariantFacts) -> bool:
    """Whether the larger one has all that the smaller has, and more only inside caches."""
    if smaller.conditions or smaller.group.key == larger.group.key:
        return False
    if smaller.group.varying or larger.group.varying:
        return False  # whether their values matter is asked of a variant at a time
    one, other = smaller.group.layout, larger.group.layout
    if set(one.arguments) - set(other.arguments):
        return False
    mine = {(p.argument, p.path) for p in one.tensors}
    theirs = {(p.argument, p.path) for p in other.tensors}
    if not mine < theirs:
        return False
    missing = {argument for argument, _ in theirs - mine}
    return all(_is_state(name, other.nodes[name]) for name in missing) and _rest_is_equal(
        smaller, larger, missing
    )


def _is_state(name: str, node: Node) -> bool:
    if isinstance(node, FieldsNode):
        return node.type.endswith("Cache") or any(_is_state(name, c) for c in children_of(node))
    return "past" in name or "cache" in name


def _rest_is_equal(one: VariantFacts, other: VariantFacts, but: set[str]) -> bool:
    def rest(variant: VariantFacts) -> Any:
        group = variant.group
        layout = group.layout
        keys = [key for key in layout.keys if key[0] not in but]
        facts = {
            (p.argument, p.path): fact
            for p, fact in zip(layout.tensors, group.facts, strict=True)
            if p.argument not in but
        }
        constants = [p for p in layout.scalars if p.kind != "int"]
        values = {
            (p.argument, p.path): repr(value)
            for p, value in zip(constants, group.constants, strict=True)
            if p.argument not in but
        }
        return keys, facts, values

    return bool(rest(one) == rest(other))


def completion_of(smaller: Group, larger: VariantFacts, scalars: Sequence[Any]) -> Completion:
    """How calls of the smaller group are completed.

    Args:
        smaller: a group with :func:`can_merge`.
        larger: the variant that they become part of.
        scalars: those of a call of the larger one, in its layout's order.
    """
    one, other = smaller.layout, larger.group.layout
    tensors = _matched(one.tensors, other.tensors)
    missing = {i: _sources(larger, i, tensors) for i, at in enumerate(tensors) if at is None}
    return Completion(
        smaller.key,
        tensors,
        _matched(one.scalars, other.scalars),
        missing,
        {i: larger.group.facts[i].dtype for i in missing},
        tuple(scalars),
        tuple(place.kind for place in other.scalars),
        larger.counters,
    )


def _matched(have: Sequence[Place], want: Sequence[Place]) -> tuple[int | None, ...]:
    places = {(p.argument, p.path): i for i, p in enumerate(have)}
    return tuple(places.get((p.argument, p.path)) for p in want)


def _sources(
    larger: VariantFacts, tensor: int, matched: Sequence[int | None]
) -> tuple[Source, ...]:
    rows = [row for row, _ in larger.rows]
    present = [
        column
        for column in columns_of(rows[0])
        if column.axis is not None and matched[column.place] is not None
    ]
    values = {column: tuple(value_in(row, column) for row in rows) for column in present}
    rank = larger.group.facts[tensor].rank
    return tuple(_source(Column(tensor, axis), rows, values) for axis in range(rank))


def _source(column: Column, rows: Sequence[Row], present: dict[Column, tuple[int, ...]]) -> Source:
    own = tuple(value_in(row, column) for row in rows)
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
