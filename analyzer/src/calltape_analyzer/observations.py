"""What was seen of a model's arguments: the evidence that everything else is inferred from.

Calls are bound to the recorded signature and sorted into *groups* that no single program could tell
apart by shape alone: one layout, the same constants, dtypes and ranks (rule 2 of
docs/decisions/0012). Within a group calls differ in sizes and ints only; each distinct combination
is a :class:`Row`. Memory follows the number of distinct rows, up to a bound, not the number of
calls, and two observations add up to what one of all calls would be (:mod:`tallies`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calltape_analyzer.layout import Layout, Place
from calltape_analyzer.tallies import CallRef, Seen, Span, Tally
from calltape_schema.leaves import Leaf

__all__ = ["Group", "LeafObservation", "Observations", "Row", "TensorFacts"]


class Row(NamedTuple):
    """The sizes of each tensor and the value of each int of a call, in the layout's order."""

    shapes: tuple[tuple[int, ...], ...]
    ints: tuple[int, ...]


class TensorFacts(NamedTuple):
    """What of a tensor tells programs apart."""

    dtype: str
    rank: int
    layout: str

    @classmethod
    def of(cls, leaf: Leaf) -> TensorFacts:
        return cls(leaf.dtype, len(leaf.shape), leaf.layout)


@dataclass
class Group:
    """Calls of one layout, with equal constants, dtypes and ranks.

    ``layout`` is that of the first call (by tape and number), ``ranges`` the smallest and largest
    element of each integer tensor, ``devices`` and ``formats`` count per tensor.
    """

    key: Hashable
    layout: Layout
    facts: tuple[TensorFacts, ...]
    constants: tuple[Any, ...]
    first: CallRef
    calls: int = 0
    rows: Tally[Row] = field(default_factory=Tally[Row])
    ranges: dict[int, Span] = field(default_factory=dict)
    devices: tuple[Counter[str], ...] = ()
    formats: tuple[Counter[str], ...] = ()

    @property
    def ints(self) -> tuple[Place, ...]:
        """The places of :attr:`Row.ints`."""
        return tuple(place for place in self.layout.scalars if place.kind == "int")

    def add(self, row: Row, leaves: tuple[Leaf, ...], seen: Seen) -> None:
        """Counts calls that have one row."""
        self.calls += seen.calls
        self.rows.add(row, seen)
        self.devices = self.devices or tuple(Counter() for _ in leaves)
        self.formats = self.formats or tuple(Counter() for _ in leaves)
        for leaf, devices, formats in zip(leaves, self.devices, self.formats, strict=True):
            devices[leaf.device] += seen.calls
            formats[_format_of(leaf)] += seen.calls

    def spans(self, place: int, span: Span) -> None:
        """Widens the range of an integer tensor."""
        known = self.ranges.get(place)
        self.ranges[place] = span if known is None else known.merge(span)

    def merge(self, other: Group) -> Group:
        """The group of the calls of both."""
        earlier = self if self.first <= other.first else other
        ranges = dict(self.ranges)
        for place, span in other.ranges.items():
            ranges[place] = ranges[place].merge(span) if place in ranges else span
        return Group(
            self.key,
            earlier.layout,
            self.facts,
            earlier.constants,
            earlier.first,
            self.calls + other.calls,
            self.rows.merge(other.rows),
            ranges,
            tuple(a + b for a, b in zip(self.devices, other.devices, strict=True)),
            tuple(a + b for a, b in zip(self.formats, other.formats, strict=True)),
        )


def _format_of(leaf: Leaf) -> str:
    """Contiguous, or the order of its axes by stride (``"0,2,3,1"`` is channels last)."""
    if leaf.expanded:
        return "expanded"
    if leaf.strides is None:
        return "contiguous"
    strides = leaf.strides
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    return ",".join(map(str, order))


@dataclass
class LeafObservation:
    """What was seen of one tensor or scalar over all groups, by kind of it.

    Attributes:
        argument, path: where it stands.
        calls: the calls that have it; the others of :attr:`Observations.calls` do not.
        kinds: calls by kind: tensor, array, int, float, str, ...
        dtypes, ranks, devices, formats: calls by these, of tensors.
        sizes: per (rank, axis) the sizes seen.
        values: the values of an int, or the constants; None for a tensor.
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


@dataclass
class Observations:
    """Everything that was seen, by group.

    Attributes:
        calls: the calls that returned; what they were called with is evidence.
        raised: the calls that raised; they are none, unless all did.
        groups: the calls by group.
        of_raised: whether no call returned, so that ``calls`` and ``groups`` are of those that
            raised.
    """

    calls: int = 0
    raised: int = 0
    groups: dict[Hashable, Group] = field(default_factory=dict)
    of_raised: bool = True

    def merge(self, other: Observations) -> Observations:
        """The observations of the calls of both; associative and commutative.

        Tapes of the same call, or of one model under two signatures, are the caller's to keep
        apart.
        """
        of_raised = self.of_raised and other.of_raised
        made = Observations(raised=self.raised + other.raised, of_raised=of_raised)
        for part in (self, other):
            if part.of_raised is not of_raised:
                continue  # calls that raised, beside some that returned
            made.calls += part.calls
            for key, group in part.groups.items():
                known = made.groups.get(key)
                made.groups[key] = group if known is None else known.merge(group)
        return made

    def in_order(self) -> list[Group]:
        """The groups in the order of their first call."""
        return sorted(self.groups.values(), key=lambda group: group.first)

    def leaves(self) -> list[LeafObservation]:
        """What was seen of each tensor and scalar, in the order of appearance."""
        found: dict[tuple[str, str], LeafObservation] = {}
        for group in self.in_order():
            for place in (*group.layout.tensors, *group.layout.scalars):
                at = (place.argument, place.path)
                known = found.setdefault(at, LeafObservation(*at))
                known.calls += group.calls
                known.kinds[place.kind] += group.calls
            for i, leaf in _tensors(group, found):
                _add_tensor(leaf, group, i)
            _add_scalars(group, found)
        return list(found.values())


def _tensors(
    group: Group, found: dict[tuple[str, str], LeafObservation]
) -> Iterator[tuple[int, LeafObservation]]:
    for i, place in enumerate(group.layout.tensors):
        yield i, found[place.argument, place.path]


def _add_tensor(leaf: LeafObservation, group: Group, i: int) -> None:
    facts = group.facts[i]
    leaf.dtypes[facts.dtype] += group.calls
    leaf.ranks[facts.rank] += group.calls
    leaf.devices += group.devices[i]
    leaf.formats += group.formats[i]
    for row, seen in group.rows.items():
        for axis, size in enumerate(row.shapes[i]):
            leaf.sizes.setdefault((facts.rank, axis), Tally()).add(size, seen)
    if i in group.ranges:
        leaf.widen(group.ranges[i])


def _add_scalars(group: Group, found: dict[tuple[str, str], LeafObservation]) -> None:
    for row, seen in group.rows.items():
        for place, value in zip(group.ints, row.ints, strict=True):
            leaf = found[place.argument, place.path]
            leaf.values.add(value, seen)
            leaf.widen(Span(value, value))
    others = [place for place in group.layout.scalars if place.kind != "int"]
    constants = dict(zip(others, group.constants, strict=True))
    for place, value in constants.items():
        found[place.argument, place.path].values.add(value, Seen(group.calls, group.first))
