"""What the traffic counters of a tape say of its variants: sizes that no call on the tape has.

Counters tell calls apart by structure, dtypes and ranks only. If texts, floats or sizes divide such
calls into several variants, nobody knows to which variant a counted size belongs: people are told
of it, and it decides nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from calltape_analyzer.observing.layout import (
    ArgumentLayout,
    Renamed,
    counter_key_of,
    layout_of_inputs,
)
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.observing.tallies import Span
from calltape_analyzer.observing.traffic_counters import CountedGroup, TrafficCounters, Values
from calltape_analyzer.variants.derivation import pool_key
from calltape_analyzer.variants.facts import CountedSizes, VariantFacts

__all__ = ["add_counted_sizes", "constant_pools", "counted_calls"]

_Name = tuple[str, int | None]
"""Path and axis of a column; the axis of an int is None."""


def add_counted_sizes(
    counters: TrafficCounters,
    variants: Sequence[VariantFacts],
    signature: Signature,
    renamed: Renamed = str,
) -> None:
    """Gives each variant what the counters say of its columns (:attr:`VariantFacts.counted`).

    Args:
        counters: of the tape; without the calls that raised, as far as they are known.
        variants: all variants of the tape, with their names.
        signature, renamed: as the variants were laid out with.
    """
    counted = _by_counter_key(counters, signature, renamed)
    alike: dict[Hashable, list[VariantFacts]] = defaultdict(list)
    for variant in variants:
        group = variant.group
        alike[counter_key_of(group.layout, group.facts, signature)].append(variant)
    for key, same in alike.items():
        if key in counted:
            _add_to(same, counted[key])


def counted_calls(
    counters: TrafficCounters, signature: Signature, renamed: Renamed = str
) -> dict[Hashable, int]:
    """How many calls were counted, by :func:`~calltape_analyzer.observing.layout.counter_key_of`.

    Args:
        counters, signature, renamed: as for :func:`add_counted_sizes`.
    """
    every = _by_counter_key(counters, signature, renamed)
    return {key: sum(group.calls for _, group in same) for key, same in every.items()}


def _by_counter_key(
    counters: TrafficCounters, signature: Signature, renamed: Renamed
) -> dict[Hashable, list[tuple[ArgumentLayout, CountedGroup]]]:
    counted: dict[Hashable, list[tuple[ArgumentLayout, CountedGroup]]] = defaultdict(list)
    for group in counters.groups.values():
        # The value of a scalar in one call is not known: it equals no default.
        unknown = [object()] * group.spec.scalars
        layout = layout_of_inputs(group.spec.root, unknown, signature, renamed)
        kind = group.kind
        facts = [(kind.dtypes[p.number], kind.ranks[p.number]) for p in layout.tensors]
        counted[counter_key_of(layout, facts, signature)].append((layout, group))
    return dict(counted)


def constant_pools(
    counters: TrafficCounters, signature: Signature, renamed: Renamed = str
) -> set[Hashable]:
    """The pools (by :func:`~calltape_analyzer.variants.derivation.pool_key`) that had one size in
    several counted calls. The second call is evidence that they are constant, and need not be kept
    for that.

    Args:
        counters, signature, renamed: as for :func:`add_counted_sizes`.
    """
    calls: Counter[Hashable] = Counter()
    spans: dict[Hashable, Span] = {}
    for group in counters.groups.values():
        own: set[Hashable] = set()
        for path in group.layout(signature, renamed).tensors:
            axes = group.leaves[path.number]
            for axis, values in enumerate(axes):
                key, span = pool_key(path, len(axes), axis), Span(values.min, values.max)
                spans[key] = span.merge(spans.get(key))
                own.add(key)
        calls.update(dict.fromkeys(own, group.calls))
    return {key for key, span in spans.items() if calls[key] > 1 and span.min == span.max}


def _add_to(
    variants: Sequence[VariantFacts], groups: Sequence[tuple[ArgumentLayout, CountedGroup]]
) -> None:
    """Gives variants that counters cannot tell apart what was counted of their calls."""
    values: dict[_Name, Values] = {}
    for layout, group in groups:
        for name, found in _values_of(layout, group):
            values[name] = values[name].merge(found) if name in values else found
    kept: dict[_Name, Span] = {}
    for variant in variants:
        for column, name in _names_of(variant).items():
            kept[name] = variant.every.span(column).merge(kept.get(name))
    calls = sum(group.calls for _, group in groups)
    kept_calls = sum(variant.calls for variant in variants)
    for variant in variants:
        others = tuple(other.name for other in variants if other is not variant)
        variant.all_calls = None if others else max(calls, variant.calls)
        variant.counted = {
            column: CountedSizes(values[name], calls, others, kept[name], kept_calls)
            for column, name in _names_of(variant).items()
            if name in values
        }


def _values_of(layout: ArgumentLayout, group: CountedGroup) -> Iterator[tuple[_Name, Values]]:
    for path in layout.tensors:
        for axis, values in enumerate(group.leaves[path.number]):
            yield (str(path), axis), values
    for path in layout.ints:
        number: Values | None
        if path.number < len(group.scalars):
            number = group.scalars[path.number]
        else:  # these calls leave it out
            value = layout.defaults[path.number - len(group.scalars)]
            number = Values(value, value, {value: group.calls})
        if number is not None:
            yield (str(path), None), number


def _names_of(variant: VariantFacts) -> Mapping[Column, _Name]:
    layout = variant.group.layout
    return {column: (str(layout.path(column)), column.axis) for column in variant.every.columns}
