"""What the counters of the whole traffic say of a variant: sizes that no call on the tape has.

Counters tell calls apart by structure, dtypes and ranks alone. Where text, floats or sizes make
several variants of such calls, nobody knows of which one a size was that is not on the tape; it is
told then, and decides nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calltape_analyzer.binding import Signature
from calltape_analyzer.explanation import WholeTraffic
from calltape_analyzer.layout import Layout, Renamed, layout_of_inputs, likeness_of
from calltape_analyzer.pools import pooled_as
from calltape_analyzer.symbols import Column
from calltape_analyzer.tallies import Span
from calltape_analyzer.traffic_counters import CountedGroup, Counters, Values

if TYPE_CHECKING:
    from calltape_analyzer.observations import Group
    from calltape_analyzer.variants import VariantFacts

__all__ = ["Whole", "attribute", "calls_by_likeness", "settled"]

_Place = tuple[str, int | None]
"""Name and axis of a column; the axis of an int is None."""


@dataclass(frozen=True)
class Whole:
    """A dimension, or an int, over the whole traffic.

    Attributes:
        values: over all calls that were counted.
        calls: how many calls that are.
        shared_with: the names of other variants whose calls are among them.
        kept: its smallest and largest value in the calls on the tape, of all these variants.
        kept_calls: how many those are.
    """

    values: Values
    calls: int
    shared_with: tuple[str, ...]
    kept: Span
    kept_calls: int

    @property
    def is_wider(self) -> bool:
        """Whether there were values outside the range of the calls on the tape."""
        return self.values.min < self.kept.min or self.values.max > self.kept.max

    def told(self) -> WholeTraffic | None:
        """For people, where there is something to tell."""
        if not self.is_wider:
            return None
        # Of a file without a trailer there are calls, and no counters.
        low, high = min(self.values.min, self.kept.min), max(self.values.max, self.kept.max)
        kept = (self.kept_calls, self.kept.min, self.kept.max)
        return WholeTraffic(low, high, self.calls, *kept, self.shared_with)


def attribute(
    counters: Counters,
    variants: Sequence[VariantFacts],
    signature: Signature,
    renamed: Renamed = str,
) -> None:
    """Gives each variant what the counters say of its columns (:attr:`VariantFacts.whole`).

    Args:
        counters: of the tape; without the calls that raised, as far as they are known.
        variants: all of the tape, with their names.
        signature, renamed: those that the variants were laid out with.
    """
    counted = _by_likeness(counters, signature, renamed)
    alike: dict[Hashable, list[VariantFacts]] = defaultdict(list)
    for variant in variants:
        alike[_likeness_of(variant.group, signature)].append(variant)
    for key, same in alike.items():
        if key in counted:
            _give(same, counted[key])


def calls_by_likeness(
    counters: Counters, signature: Signature, renamed: Renamed = str
) -> dict[Hashable, int]:
    """How many calls there were, by what counters can tell apart.

    Args:
        counters, signature, renamed: as for :func:`attribute`.
    """
    every = _by_likeness(counters, signature, renamed)
    return {key: sum(group.calls for _, group in same) for key, same in every.items()}


def _by_likeness(
    counters: Counters, signature: Signature, renamed: Renamed
) -> dict[Hashable, list[tuple[Layout, CountedGroup]]]:
    counted: dict[Hashable, list[tuple[Layout, CountedGroup]]] = defaultdict(list)
    for group in counters.groups.values():
        # What a scalar was in one call is not known: it equals no default.
        unknown = [object()] * group.spec.scalars
        layout = layout_of_inputs(group.spec.root, unknown, signature, renamed)
        facts = tuple(
            (group.kind.dtypes[p.number], group.kind.ranks[p.number]) for p in layout.tensors
        )
        counted[likeness_of(layout, facts, signature)].append((layout, group))
    return dict(counted)


def settled(counters: Counters, signature: Signature, renamed: Renamed = str) -> set[Hashable]:
    """The dimensions (as :func:`~calltape_analyzer.pools.pooled_as` names them) that had one
    size in several calls: evidence that the second call is, and need not be kept for.

    Args:
        counters, signature, renamed: as for :func:`attribute`.
    """
    calls: Counter[Hashable] = Counter()
    spans: dict[Hashable, Span] = {}
    for group in counters.groups.values():
        own: set[Hashable] = set()
        for place in group.layout(signature, renamed).tensors:
            axes = group.leaves[place.number]
            for axis, values in enumerate(axes):
                key, span = pooled_as(place, len(axes), axis), Span(values.min, values.max)
                spans[key] = spans[key].merge(span) if key in spans else span
                own.add(key)
        calls.update(dict.fromkeys(own, group.calls))
    return {key for key, span in spans.items() if calls[key] > 1 and span.min == span.max}


def _likeness_of(group: Group, signature: Signature) -> Hashable:
    facts = tuple((fact.dtype, fact.rank) for fact in group.facts)
    return likeness_of(group.layout, facts, signature)


def _give(variants: Sequence[VariantFacts], groups: Sequence[tuple[Layout, CountedGroup]]) -> None:
    values: dict[_Place, Values] = {}
    for layout, group in groups:
        for place, found in _values_of(layout, group):
            values[place] = values[place].merge(found) if place in values else found
    kept: dict[_Place, Span] = {}
    for variant in variants:
        for place, span in _kept(variant).items():
            kept[place] = kept[place].merge(span) if place in kept else span
    calls = sum(group.calls for _, group in groups)
    kept_calls = sum(variant.calls for variant in variants)
    for variant in variants:
        others = tuple(other.name for other in variants if other is not variant)
        variant.all_calls = None if others else max(calls, variant.calls)
        variant.whole = {
            column: Whole(values[place], calls, others, kept[place], kept_calls)
            for column, place in _places(variant).items()
            if place in values
        }


def _values_of(layout: Layout, group: CountedGroup) -> Iterator[tuple[_Place, Values]]:
    for place in layout.tensors:
        for axis, values in enumerate(group.leaves[place.number]):
            yield (str(place), axis), values
    for place in layout.scalars:
        number = group.scalars[place.number]
        if place.kind == "int" and number is not None:
            yield (str(place), None), number


def _places(variant: VariantFacts) -> Mapping[Column, _Place]:
    tensors, ints = variant.group.layout.tensors, variant.group.ints
    return {
        column: (
            str(ints[column.place] if column.axis is None else tensors[column.place]),
            column.axis,
        )
        for column in variant.every.columns
    }


def _kept(variant: VariantFacts) -> dict[_Place, Span]:
    return {place: variant.every.span(column) for column, place in _places(variant).items()}
