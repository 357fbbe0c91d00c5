"""What was seen of a model's arguments: the evidence that everything else is inferred from.

Calls are bound to the recorded signature and sorted into *groups* that no single program could tell
apart by shape alone: one layout, the same constants, dtypes and ranks (rule 2 of
docs/decisions/0012). Within a group calls differ in sizes and ints, and in texts and floats that
are values and no switches (docs/decisions/0026). Counts and ranges are those of all calls
(:mod:`rows`), memory follows the number of distinct sizes, and two observations add up to what one
of all calls would be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from calltape_analyzer.layout import Layout, Place
from calltape_analyzer.rows import Row, Rows
from calltape_analyzer.switches import MAX_VALUES, switches_of
from calltape_analyzer.symbols import Column
from calltape_analyzer.tallies import CallRef, Seen, Span, Tally
from calltape_schema.leaves import Leaf

__all__ = ["Group", "Key", "LeafObservation", "Observations", "Row", "TensorFacts"]


class Key(NamedTuple):
    """What the calls of a group have in common: structure, facts of the tensors, and the type and
    ``repr`` of each scalar that is no int and not private; None for one that may be anything."""

    layout: Hashable
    facts: tuple[TensorFacts, ...]
    constants: tuple[tuple[str, str] | None, ...]

    def takes(self, other: Key) -> bool:
        """Whether calls of another key (which says of every constant what it is) are of this."""
        return self[:2] == other[:2] and all(
            own is None or own == given
            for own, given in zip(self.constants, other.constants, strict=True)
        )

    def meets(self, other: Key) -> bool:
        """Whether there can be calls of both."""
        return self[:2] == other[:2] and all(
            own is None or given is None or own == given
            for own, given in zip(self.constants, other.constants, strict=True)
        )

    def without(self, places: frozenset[int]) -> Key:
        """The key of calls in which some constants may be anything."""
        return self._replace(
            constants=tuple(
                None if i in places else value for i, value in enumerate(self.constants)
            )
        )


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

    ``layout`` and ``constants`` are those of the first call (by tape and number), ``ranges`` the
    smallest and largest element of each integer tensor, ``devices`` and ``formats`` count per
    tensor.
    """

    key: Key
    layout: Layout
    facts: tuple[TensorFacts, ...]
    constants: tuple[Any, ...]
    first: CallRef
    calls: int = 0
    rows: Rows = field(default_factory=Rows)
    ranges: dict[int, Span] = field(default_factory=dict)
    devices: tuple[Counter[str], ...] = ()
    formats: tuple[Counter[str], ...] = ()

    @property
    def ints(self) -> tuple[Place, ...]:
        """The places of :attr:`Row.ints`."""
        return self.layout.ints

    @property
    def others(self) -> tuple[Place, ...]:
        """The places of :attr:`constants`."""
        return self.layout.others

    @property
    def varying(self) -> tuple[Place, ...]:
        """The texts and floats that are no constants: those of :attr:`constants` are of one
        call."""
        return tuple(place for place, typed, _ in self._constants() if typed is None)

    def fixed(self) -> Iterator[tuple[Place, Any]]:
        """The constants that all calls have, but for private ones."""
        return ((place, value) for place, typed, value in self._constants() if typed is not None)

    def _constants(self) -> Iterator[tuple[Place, tuple[str, str] | None, Any]]:
        every = zip(self.others, self.constants, strict=True)
        shown = ((place, value) for place, value in every if not place.private)
        for (place, value), typed in zip(shown, self.key.constants, strict=True):
            yield place, typed, value

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

    def merge(self, other: Group, key: Key | None = None) -> Group:
        """The group of the calls of both, by the key that both have, or another one."""
        earlier = self if self.first <= other.first else other
        ranges = dict(self.ranges)
        for place, span in other.ranges.items():
            ranges[place] = ranges[place].merge(span) if place in ranges else span
        return Group(
            key or self.key,
            earlier.layout,
            self.facts,
            earlier.constants,
            earlier.first,
            self.calls + other.calls,
            self.rows.merge(other.rows),
            ranges,
            _added(self.devices, other.devices),
            _added(self.formats, other.formats),
        )


def _added(
    one: tuple[Counter[str], ...], other: tuple[Counter[str], ...]
) -> tuple[Counter[str], ...]:
    """Counts per tensor; none of a group without calls."""
    if not one or not other:
        return tuple(map(Counter, one or other))
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _format_of(leaf: Leaf) -> str:
    """Contiguous, or the order of its axes by stride (``"0,2,3,1"`` is channels last)."""
    if leaf.expanded:
        return "expanded"
    if leaf.strides is None:
        return "contiguous"
    strides = leaf.strides
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    return ",".join(map(str, order))


class Placed(Protocol):
    """A call, laid out."""

    @property
    def layout(self) -> Layout: ...

    @property
    def constants(self) -> tuple[Any, ...]: ...

    def likeness(self) -> Hashable: ...


@dataclass
class _Structure:
    """The calls that differ in sizes, ints, texts and floats only: by the values of the latter, as
    long as each place has few (``many`` are those that do not). Equal ``likeness`` is that of
    calls which counters of the whole traffic cannot tell apart."""

    likeness: Hashable = None
    parts: dict[Key, Group] = field(default_factory=dict)
    many: frozenset[int] = frozenset()
    values: list[set[Any]] = field(default_factory=list)

    def part(self, key: Key) -> Group | None:
        return self.parts.get(key.without(self.many))

    def add(self, group: Group) -> Group:
        key = group.key = group.key.without(self.many)
        known = self.parts.get(key)
        self.parts[key] = group if known is None else known.merge(group)
        self._bound(key)
        return self.parts[key.without(self.many)]

    def _bound(self, key: Key) -> None:
        """Counts the values of a new part."""
        self.values = self.values or [set() for _ in key.constants]
        for values, constant in zip(self.values, key.constants, strict=True):
            values.add(constant)
        many = {i for i, values in enumerate(self.values) if len(values) > MAX_VALUES}
        if many:
            self.many |= many
            for i in many:
                self.values[i] = {None}
            self.parts = {group.key: group for group in self._without(self.many)}

    def _without(self, places: frozenset[int]) -> Iterator[Group]:
        alike: dict[Key, list[Group]] = {}
        for key, group in self.parts.items():
            alike.setdefault(key.without(places), []).append(group)
        return (_together(groups, key) for key, groups in alike.items())

    def merge(self, other: _Structure) -> _Structure:
        made = _Structure(self.likeness, many=self.many | other.many)
        for group in (*self._without(made.many), *other._without(made.many)):
            made.add(group)
        return made

    @property
    def calls(self) -> int:
        return sum(part.calls for part in self.parts.values())

    def groups(self, every: int) -> Iterator[Group]:
        """The calls by those texts and floats that are switches, among so many that are alike."""
        some = next(iter(self.parts.values()))
        calls = [part.key.constants for part in self.parts.values()]
        places = set(range(len(some.key.constants)))
        yield from self._without(frozenset(places - switches_of(calls, places, every)))


def _together(groups: list[Group], key: Key) -> Group:
    """Groups as one. Each call is copied a few times, however many groups there are."""
    while len(groups) > 1:
        pairs = zip(groups[::2], groups[1::2], strict=False)
        odd = groups[-1:] if len(groups) % 2 else []
        groups = [*(one.merge(other, key) for one, other in pairs), *odd]
    return replace(groups[0], key=key)


@dataclass
class LeafObservation:
    """What was seen of one tensor or scalar over all groups, by kind of it.

    Attributes:
        argument, path: where it stands.
        calls: the calls that have it; the others of :attr:`Observations.calls` do not.
        kinds: calls by kind: tensor, array, int, float, str, ...
        dtypes, ranks, devices, formats: calls by these, of tensors.
        sizes: per (rank, axis) the sizes seen.
        values: the values of an int, or the constants where these are few; none of a tensor.
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
        of_raised: whether no call returned, so that ``calls`` and ``groups`` are of those that
            raised.
    """

    calls: int = 0
    raised: int = 0
    of_raised: bool = True
    _structures: dict[Hashable, _Structure] = field(default_factory=dict)
    _whole: Counter[Hashable] = field(default_factory=Counter)
    _groups: dict[Key, Group] | None = None

    @property
    def groups(self) -> dict[Key, Group]:
        """The calls by group."""
        if self._groups is None:
            here: Counter[Hashable] = Counter()
            for known in self._structures.values():
                here[known.likeness] += known.calls
            every = here | self._whole
            found = (known.groups(every[known.likeness]) for known in self._structures.values())
            self._groups = {group.key: group for groups in found for group in groups}
        return self._groups

    def know_whole(self, calls: Mapping[Hashable, int]) -> None:
        """How many calls there were by likeness, kept or not: how often texts and floats come back
        is asked of them."""
        self._whole, self._groups = Counter(calls), None

    def group_of(self, key: Key, placed: Placed, first: CallRef) -> Group:
        """Where calls with these very constants are to be counted."""
        self._groups = None
        layout, constants = placed.layout, placed.constants
        known = self._structures.get(key[:2])
        if known is None:
            known = self._structures[key[:2]] = _Structure(placed.likeness())
        group = known.part(key)
        if group is None:
            group = known.add(Group(key, layout, key.facts, constants, first))
        if first < group.first:
            group.first, group.layout, group.constants = first, layout, constants
        return group

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
            made._whole += part._whole
            for key, structure in part._structures.items():
                known = made._structures.get(key, _Structure(structure.likeness))
                made._structures[key] = known.merge(structure)
        return made

    def in_order(self) -> list[Group]:
        """The groups in the order of their first call."""
        return sorted(self.groups.values(), key=lambda group: group.first)

    def parts(self) -> list[Group]:
        """The groups by every text and float that has few values, whether it is a switch or not,
        in the order of their first call."""
        parts = (part for known in self._structures.values() for part in known.parts.values())
        return sorted(parts, key=lambda part: part.first)

    def leaves(self) -> list[LeafObservation]:
        """What was seen of each tensor and scalar, in the order of appearance."""
        found: dict[tuple[str, str], LeafObservation] = {}
        for group in self.parts():
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
    for axis in range(facts.rank):
        tally = leaf.sizes.setdefault((facts.rank, axis), Tally())
        for size, seen in group.rows.sizes(Column(i, axis)).items():
            tally.add(size, seen)
    if i in group.ranges:
        leaf.widen(group.ranges[i])


def _add_scalars(group: Group, found: dict[tuple[str, str], LeafObservation]) -> None:
    for i, place in enumerate(group.ints):
        leaf = found[place.argument, place.path]
        for value, seen in group.rows.sizes(Column(i, None)).items():
            leaf.values.add(value, seen)
        leaf.widen(group.rows.span(Column(i, None)))
    varying = set(group.varying)
    for place, value in zip(group.others, group.constants, strict=True):
        if place.private or place not in varying:
            leaf = found[place.argument, place.path]
            leaf.values.add(value, Seen(group.calls, group.first))
