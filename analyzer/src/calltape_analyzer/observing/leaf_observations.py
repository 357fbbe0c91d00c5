"""What was seen of each tensor and scalar: presence, kinds, dtypes, ranks, sizes, values, ranges.

In come the groups of all calls. Out goes one :class:`LeafObservation` per path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.tallies import Seen, Span, Tally

__all__ = ["LeafObservation", "leaf_observations"]


@dataclass
class LeafObservation:
    """What was seen at one path over all groups: a tensor or a scalar.

    Attributes:
        argument, path: where it stands.
        calls: how many calls have it.
        kinds: how many calls have which kind: tensor, array, int, float, str, ...
        dtypes, ranks, devices, formats: how many calls have which of these, for a tensor.
        sizes: per (rank, axis) the sizes seen.
        values: the values of an int; of another scalar, if they are few.
        range: smallest and largest element of an integer tensor, or value of an int.
    """

    argument: str
    path: str
    calls: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    dtypes: Counter[str] = field(default_factory=Counter)
    ranks: Counter[int] = field(default_factory=Counter)
    devices: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    sizes: dict[tuple[int, int], Tally[int]] = field(default_factory=dict)
    values: Tally[Any] = field(default_factory=Tally)
    range: Span | None = None

    def widen(self, span: Span) -> None:
        """Widens the range."""
        self.range = span if self.range is None else self.range.merge(span)


def leaf_observations(groups: Iterable[Group]) -> list[LeafObservation]:
    """What was seen of each tensor and scalar, in the order of appearance.

    Args:
        groups: all groups, divided by every text and float that has few values.
    """
    found: dict[tuple[str, str], LeafObservation] = {}
    for group in groups:
        for path in (*group.layout.tensors, *group.layout.scalars):
            at = (path.argument, path.path)
            known = found.setdefault(at, LeafObservation(*at))
            known.calls += group.calls
            known.kinds[path.kind] += group.calls
        for i, path in enumerate(group.layout.tensors):
            _add_tensor(found[path.argument, path.path], group, i)
        _add_scalars(group, found)
    return list(found.values())


def _add_tensor(leaf: LeafObservation, group: Group, i: int) -> None:
    facts = group.facts[i]
    leaf.dtypes[facts.dtype] += group.calls
    leaf.ranks[facts.rank] += group.calls
    leaf.devices += group.devices[i]
    leaf.formats += group.formats[i]
    for axis, column in enumerate(group.dimensions(i)):
        tally = leaf.sizes.setdefault((facts.rank, axis), Tally())
        for size, seen in group.rows.sizes(column).items():
            tally.add(size, seen)
    if i in group.ranges:
        leaf.widen(group.ranges[i])


def _add_scalars(group: Group, found: dict[tuple[str, str], LeafObservation]) -> None:
    for column, place in zip(group.layout.int_columns, group.ints, strict=True):
        leaf = found[place.argument, place.path]
        for value, seen in group.rows.sizes(column).items():
            leaf.values.add(value, seen)
        leaf.widen(group.rows.span(column))
    varying = set(group.varying)
    for place, value in zip(group.others, group.constants, strict=True):
        if place.private or place not in varying:
            leaf = found[place.argument, place.path]
            leaf.values.add(value, Seen(group.calls, group.first))
