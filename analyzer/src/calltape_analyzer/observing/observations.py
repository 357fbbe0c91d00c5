"""What was seen of a model's arguments: the evidence from which everything else is inferred.

Takes sorted calls; returns groups, with counts and ranges of all calls. Memory follows the number
of distinct sizes, and the observations of two tapes add up to the observations of all their calls.

A group is divided further by texts and floats that are switches: a few values, such as
``mode="mean"``, come back again and again. A prompt, a file name or a temperature that is drawn
anew for each call is none (docs/decisions/variants-and-shapes.md has the rule).
"""

from __future__ import annotations

import hashlib
import re
from ast import literal_eval
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from calltape_analyzer.observing.groups import Group, GroupKey, SortedCall
from calltape_analyzer.observing.layout import counter_key_of
from calltape_analyzer.observing.tallies import Seen, Span, Tally
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import counted

__all__ = [
    "MAX_VALUES",
    "LeafObservation",
    "Observations",
    "leaf_observations",
    "looks_like_name",
    "may_select",
    "shown_constant",
    "switches_of",
    "typed_constant",
]


MAX_VALUES = 8
_MAX_COMBINATIONS = 64
_MAX_TEXT = 64
_MAX_TYPED = 1024
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,32}", re.ASCII)

Constants = tuple["tuple[str, str] | None", ...]
"""Type and ``repr`` of each scalar of a call that is not an int."""


def switches_of(calls: Collection[Constants], places: Collection[int], every: int) -> set[int]:
    """The numbers of the texts and floats that are switches, or never varied.

    A switch has at most 8 values, each of which comes twice on average; texts must be short,
    printable and without white space. All switches together have at most 64 combinations of values,
    which come twice on average too. If not all can be switches, the ones with fewer values are.

    Args:
        calls: the combinations of constants that calls have; None stands for too many values.
        places: the numbers of the constants that may be switches.
        every: how many calls there were.
    """
    values = {i: {constants[i] for constants in calls} for i in places}
    chosen = {i for i in places if len(values[i]) == 1 and None not in values[i]}
    varying = [i for i in places if i not in chosen and all(map(_may_switch, values[i]))]
    every_call = list(calls)
    part = [0] * len(every_call)  # calls of equal values of all switches so far have one number
    for i in sorted(varying, key=lambda i: (len(values[i]), i)):
        if len(values[i]) > MAX_VALUES:
            break
        together: dict[Any, int] = {}
        parts = [
            together.setdefault((at, constants[i]), len(together))
            for at, constants in zip(part, every_call, strict=True)
        ]
        if len(together) <= _MAX_COMBINATIONS and 2 * len(together) <= every:
            chosen.add(i)
            part = parts
    return chosen


def _may_switch(typed: tuple[str, str] | None) -> bool:
    if typed is None:
        return False
    kind, text = typed
    if kind not in ("str", "bytes"):
        return True
    if len(text) > 4 * _MAX_TEXT + 3:
        return False
    value = literal_eval(text)
    return may_select(value.decode("latin-1") if isinstance(value, bytes) else value)


def may_select(text: str) -> bool:
    """Whether a text can be a switch: it is short and printable, and has no white space."""
    return len(text) <= _MAX_TEXT and text.isprintable() and not re.search(r"\s", text)


def looks_like_name(text: str) -> bool:
    """Whether a text is shown to people as it is."""
    return _NAME.fullmatch(text) is not None


def shown_constant(value: Any) -> str:
    """A constant for people. A text that looks like a name is shown; of other texts only the length
    is, because they may be private."""
    if isinstance(value, bytes):
        return f"{len(value)} byte{'' if len(value) == 1 else 's'}"
    if isinstance(value, str) and not looks_like_name(value):
        return f"text of {len(value)} character{'' if len(value) == 1 else 's'}"
    return f"{value!r:.40}"


def typed_constant(value: Any) -> tuple[str, str]:
    """Type and ``repr`` of a value; of a long text its start and a hash."""
    kind = type(value).__name__
    if not isinstance(value, (str, bytes)) or len(value) <= _MAX_TYPED:
        return kind, repr(value)
    data = value if isinstance(value, bytes) else value.encode(errors="surrogatepass")
    return kind, f"{value[:_MAX_TYPED]!r} {hashlib.blake2b(data).hexdigest()}"


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
        self.range = span.merge(self.range)


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
    for column, place in zip(group.layout.int_columns, group.layout.ints, strict=True):
        leaf = found[place.argument, place.path]
        for value, seen in group.rows.sizes(column).items():
            leaf.values.add(value, seen)
        leaf.widen(group.rows.span(column))
    varying = set(group.varying)
    for place, value in zip(group.layout.others, group.constants, strict=True):
        if place.private or place not in varying:
            leaf = found[place.argument, place.path]
            leaf.values.add(value, Seen(group.calls, group.first))


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
            counter_key = counter_key_of(layout, key.facts, call.signature)
            known = self._structures[key[:2]] = _Structure(counter_key)
        group = known.part(key)
        if group is None:
            group = known.add(Group(key, layout, constants, first))
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
