"""What was seen of a model's arguments: the evidence from which everything else is inferred.

In come sorted calls. Out go groups, with counts and ranges of all calls. A group is divided further
by texts and floats that are switches (docs/decisions/variants-and-shapes.md). Memory follows the
number of distinct sizes, and the observations of two tapes add up to the observations of all their
calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.observing.groups import Group, GroupKey, SortedCall
from calltape_analyzer.observing.leaf_observations import LeafObservation, leaf_observations
from calltape_analyzer.observing.switches import MAX_VALUES, switches_of
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import counted

__all__ = ["Observations"]

_MAX_SKETCHED = 20


@dataclass
class _Structure:
    """The calls that differ in sizes, ints, texts and floats only.

    Attributes:
        counter_key: equal for calls that traffic counters cannot tell apart.
        parts: the calls by the values of their texts and floats.
        many: the texts and floats, by number, that have too many values to divide the calls.
        values: the values of each text and float so far; of ``many`` only None.
    """

    counter_key: Hashable = None
    parts: dict[GroupKey, Group] = field(default_factory=dict)
    many: frozenset[int] = frozenset()
    values: list[set[Any]] = field(default_factory=list)

    def part(self, key: GroupKey) -> Group | None:
        return self.parts.get(key.without(self.many))

    def add(self, group: Group) -> Group:
        key = group.key = group.key.without(self.many)
        known = self.parts.get(key)
        self.parts[key] = group if known is None else known.merge(group)
        self._bound(key)
        return self.parts[key.without(self.many)]

    def _bound(self, key: GroupKey) -> None:
        """Counts the values of a new part, and unites parts that differ in too many values."""
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
        alike: dict[GroupKey, list[Group]] = {}
        for key, group in self.parts.items():
            alike.setdefault(key.without(places), []).append(group)
        return (_together(groups, key) for key, groups in alike.items())

    def merge(self, other: _Structure) -> _Structure:
        made = _Structure(self.counter_key, many=self.many | other.many)
        for group in (*self._without(made.many), *other._without(made.many)):
            made.add(group)
        return made

    @property
    def calls(self) -> int:
        return sum(part.calls for part in self.parts.values())

    def groups(self, every: int) -> Iterator[Group]:
        """The calls, divided by the texts and floats that are switches.

        Args:
            every: how many calls there are with this counter key.
        """
        some = next(iter(self.parts.values()))
        calls = [part.key.constants for part in self.parts.values()]
        places = set(range(len(some.key.constants)))
        yield from self._without(frozenset(places - switches_of(calls, places, every)))


def _together(groups: list[Group], key: GroupKey) -> Group:
    """Groups as one. They are merged pair by pair, so that each call is copied a few times only,
    however many groups there are."""
    while len(groups) > 1:
        pairs = zip(groups[::2], groups[1::2], strict=False)
        odd = groups[-1:] if len(groups) % 2 else []
        groups = [*(one.merge(other, key) for one, other in pairs), *odd]
    return replace(groups[0], key=key)


@dataclass(repr=False)
class Observations(Shown):
    """Everything that was seen, by group.

    Attributes:
        calls: how many calls returned. Their arguments are evidence.
        raised: how many calls raised. Their arguments are no evidence, unless all calls raised.
        of_raised: whether no call returned, so that ``calls`` and ``groups`` are of the calls that
            raised.
    """

    calls: int = 0
    raised: int = 0
    of_raised: bool = True
    _structures: dict[Hashable, _Structure] = field(default_factory=dict)
    _counted_calls: Counter[Hashable] = field(default_factory=Counter)
    _groups: dict[GroupKey, Group] | None = None

    def __repr__(self) -> str:
        return (
            f"<Observations of {counted(self.calls, 'call')} in "
            f"{counted(len(self._structures), 'structure')}, {self.raised} raised>"
        )

    def _sketch(self) -> Sketch:
        rows = [
            (", ".join(next(iter(one.parts.values())).layout.arguments), one.calls)
            for one in islice(self._structures.values(), _MAX_SKETCHED)
        ]
        facts = [("calls", self.calls), ("raised", self.raised)]
        head = ("arguments of a structure", "calls")
        return Sketch("Observations", facts, head=head, rows=rows, total=len(self._structures))

    @property
    def left_out(self) -> int:
        """How many calls raised and are no evidence."""
        return 0 if self.of_raised else self.raised

    @property
    def groups(self) -> dict[GroupKey, Group]:
        """The calls by the key of their group."""
        if self._groups is None:
            here: Counter[Hashable] = Counter()
            for known in self._structures.values():
                here[known.counter_key] += known.calls
            every = here | self._counted_calls
            found = (known.groups(every[known.counter_key]) for known in self._structures.values())
            self._groups = {group.key: group for groups in found for group in groups}
        return self._groups

    def set_counted_calls(self, calls: Mapping[Hashable, int]) -> None:
        """Tells how many calls were counted, kept or not. How often a text or float comes back is
        measured by that.

        Args:
            calls: by :func:`~calltape_analyzer.observing.layout.counter_key_of`.
        """
        self._counted_calls, self._groups = Counter(calls), None

    def group_of(self, key: GroupKey, call: SortedCall, first: CallRef) -> Group:
        """The group in which a call with this key is counted.

        Args:
            key: with the value of every constant.
            call: any call of the key.
            first: the first call that is to be counted.
        """
        self._groups = None
        layout, constants = call.layout, call.constants
        known = self._structures.get(key[:2])
        if known is None:
            known = self._structures[key[:2]] = _Structure(call.counter_key())
        group = known.part(key)
        if group is None:
            group = known.add(Group(key, layout, key.facts, constants, first))
        if first < group.first:
            group.first, group.layout, group.constants = first, layout, constants
        return group

    def merge(self, other: Observations) -> Observations:
        """The observations of the calls of both; associative and commutative.

        The caller keeps tapes apart that have the same calls, or two signatures of one model.
        """
        of_raised = self.of_raised and other.of_raised
        made = Observations(raised=self.raised + other.raised, of_raised=of_raised)
        for part in (self, other):
            if part.of_raised is not of_raised:
                continue  # these calls raised, and others returned
            made.calls += part.calls
            made._counted_calls += part._counted_calls
            for key, structure in part._structures.items():
                known = made._structures.get(key, _Structure(structure.counter_key))
                made._structures[key] = known.merge(structure)
        return made

    def in_order(self) -> list[Group]:
        """The groups in the order of their first call."""
        return sorted(self.groups.values(), key=lambda group: group.first)

    def parts(self) -> list[Group]:
        """The groups, divided by every text and float that has few values, also if it is no switch,
        in the order of their first call."""
        parts = (part for known in self._structures.values() for part in known.parts.values())
        return sorted(parts, key=lambda part: part.first)

    def leaves(self) -> list[LeafObservation]:
        """What was seen of each tensor and scalar, in the order of appearance."""
        return leaf_observations(self.parts())
