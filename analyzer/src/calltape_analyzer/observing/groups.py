"""Groups: calls that differ in sizes and ints only, and everything that was observed, by group.

Shapes alone cannot divide the calls of a group over several programs: they have one layout, and the
same constants, dtypes and ranks, and the same arguments are one object, or share memory (rule 2 of
docs/decisions/export-strategies.md).

Texts and floats that are switches divide a group further: they have a few values that recur, such
as ``mode="mean"``. A prompt, a file name, or a temperature that is drawn for each call is not a
switch (docs/decisions/variants-and-shapes.md has the rule). The memory that this takes depends on
the number of distinct sizes, not of calls.
"""

from __future__ import annotations

import hashlib
import re
from ast import literal_eval
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from calltape_analyzer.observing.layout import ArgumentLayout, LeafPath, Renamed, counter_key_of
from calltape_analyzer.observing.memory_layout import Shared, layout_in_memory
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import (
    Column,
    Seen,
    SizeRow,
    SizeTable,
    Span,
    value_in,
)
from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.reading.call_ref import CallRef
from calltape_schema.tree import Leaf

__all__ = [
    "Completion",
    "Group",
    "GroupKey",
    "Observations",
    "SizeSource",
    "SortedCall",
    "TensorFacts",
    "looks_like_name",
    "may_be_switch",
    "shown_constant",
    "switches_of",
    "typed_constant",
]


class GroupKey(NamedTuple):
    """What the calls of a group have in common.

    Attributes:
        layout: the keys of an :class:`~calltape_analyzer.observing.layout.ArgumentLayout`.
        facts: of each tensor.
        constants: type and ``repr`` of each scalar that is neither an int nor private; None for a
            scalar that may have any value.
        shared: the tensors that are one object, or share memory.
    """

    layout: Hashable
    facts: tuple[TensorFacts, ...]
    constants: tuple[tuple[str, str] | None, ...]
    shared: tuple[Shared, ...] = ()

    def covers(self, other: GroupKey) -> bool:
        """Whether this key stands for all calls of another one, which has the value of every
        constant."""
        return self._differs_in_constants_only(other) and all(
            constant is None or constant == other_constant
            for constant, other_constant in zip(self.constants, other.constants, strict=True)
        )

    def overlaps(self, other: GroupKey) -> bool:
        """Whether a call can be of both keys."""
        return self._differs_in_constants_only(other) and all(
            constant is None or other_constant is None or constant == other_constant
            for constant, other_constant in zip(self.constants, other.constants, strict=True)
        )

    def _differs_in_constants_only(self, other: GroupKey) -> bool:
        return self._replace(constants=()) == other._replace(constants=())

    def without(self, places: frozenset[int]) -> GroupKey:
        """The key of calls in which some constants may be anything."""
        return self._replace(
            constants=tuple(
                None if i in places else value for i, value in enumerate(self.constants)
            )
        )


_WORDS = ("", "of rank ", "of layout ", "laid out in memory as ", "of requires_grad ")


class TensorFacts(NamedTuple):
    """What is the same of a tensor in all calls of a program: dtype, rank, torch's layout, and if
    the model reads them, the layout in memory by its name
    (:func:`~calltape_analyzer.observing.memory_layout.layout_name`) and ``requires_grad``."""

    dtype: str
    rank: int
    layout: str
    memory: str = ""
    grad: bool | None = None

    @classmethod
    def of(cls, leaf: Leaf, *, reads_memory: bool = False, reads_grad: bool = False) -> TensorFacts:
        memory = layout_in_memory(leaf) if reads_memory else ""
        grad = leaf.requires_grad if reads_grad else None
        return cls(leaf.dtype, len(leaf.shape), leaf.layout, memory, grad)

    def unlike(self, other: TensorFacts) -> str:
        """In what it differs from another one: ``float16, not int64, and of rank 3, not 2``."""
        words = [
            f"{word}{fact}, not {other_fact}"
            for word, fact, other_fact in zip(_WORDS, self, other, strict=True)
            if fact != other_fact
        ]
        return ", and ".join(words)


@dataclass
class Group:
    """Calls of one layout, with equal constants, dtypes and ranks.

    Attributes:
        key: what its calls have in common.
        layout, constants: of the first call (by tape and number).
        first: that call.
        calls: how many there are.
        rows: their sizes and ints.
        ranges: the smallest and largest element of each integer tensor, by its number.
        formats: per tensor how many calls had which layout in memory, by
            :func:`~calltape_analyzer.observing.memory_layout.layout_name`.
    """

    key: GroupKey
    layout: ArgumentLayout
    constants: tuple[Any, ...]
    first: CallRef
    calls: int = 0
    rows: SizeTable = field(default_factory=SizeTable)
    ranges: dict[int, Span] = field(default_factory=dict)
    formats: tuple[Counter[str], ...] = ()

    @property
    def facts(self) -> tuple[TensorFacts, ...]:
        """What is the same of each tensor in all calls."""
        return self.key.facts

    @property
    def varying(self) -> tuple[LeafPath, ...]:
        """The texts and floats that are not constant. Their values in :attr:`constants` are of one
        call only."""
        return tuple(place for place, typed, _ in self._constants() if typed is None)

    def fixed(self) -> Iterator[tuple[LeafPath, Any]]:
        """The constants that are equal in all calls, without private ones."""
        return ((place, value) for place, typed, value in self._constants() if typed is not None)

    def _constants(self) -> Iterator[tuple[LeafPath, tuple[str, str] | None, Any]]:
        constants = zip(self.layout.others, self.constants, strict=True)
        shown = ((place, value) for place, value in constants if not place.private)
        for (place, value), typed in zip(shown, self.key.constants, strict=True):
            yield place, typed, value

    def dimensions(self, tensor: int) -> tuple[Column, ...]:
        """The columns of a tensor, by axis."""
        return self.layout.dimensions(tensor, self.facts[tensor].rank)

    def dtype(self, column: Column) -> str | None:
        """The dtype of the tensor that a column is a dimension of; None for an int."""
        return None if column.is_int else self.facts[column.index].dtype

    def add(self, row: SizeRow, leaves: tuple[Leaf, ...], seen: Seen) -> None:
        """Counts calls that have the same row."""
        self.calls += seen.calls
        self.rows.add(row, seen)
        self.formats = self.formats or tuple(Counter() for _ in leaves)
        for leaf, formats in zip(leaves, self.formats, strict=True):
            formats[layout_in_memory(leaf)] += seen.calls

    def merge(self, other: Group, key: GroupKey | None = None) -> Group:
        """The group of the calls of both.

        Args:
            other: a group of equal layout and facts.
            key: of the new group; by default the key that both have.
        """
        earlier = self if self.first <= other.first else other
        ranges = dict(self.ranges)
        for tensor, span in other.ranges.items():
            ranges[tensor] = span.merge(ranges.get(tensor))
        return Group(
            key or self.key,
            earlier.layout,
            earlier.constants,
            earlier.first,
            self.calls + other.calls,
            self.rows.merge(other.rows),
            ranges,
            _added(self.formats, other.formats),
        )


def _added(
    first: tuple[Counter[str], ...], second: tuple[Counter[str], ...]
) -> tuple[Counter[str], ...]:
    """The sums of counts per tensor. A group without calls has none."""
    if not first or not second:
        return tuple(map(Counter, first or second))
    return tuple(a + b for a, b in zip(first, second, strict=True))


class SortedCall(NamedTuple):
    """A call with the key of its group and its row.

    Attributes:
        key: of the group.
        layout: of the arguments.
        leaves: of each tensor of the layout.
        constants: the values of the scalars that are not ints.
        row: the sizes and ints.
        signature: of the recorded method.
    """

    key: GroupKey
    layout: ArgumentLayout
    constants: tuple[Any, ...]
    row: SizeRow
    leaves: tuple[Leaf, ...]
    signature: Signature


MAX_VALUES = 8


_MAX_COMBINATIONS = 64


_MAX_TEXT = 64


_MAX_TYPED = 1024


_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,32}", re.ASCII)


Constants = tuple["tuple[str, str] | None", ...]
"""Type and ``repr`` of each scalar of a call that is not an int."""


def switches_of(calls: Collection[Constants], places: Collection[int], all_calls: int) -> set[int]:
    """The numbers of the texts that are switches, and of what never varied.

    A switch has at most 8 values, each of which comes twice on average; texts must be short,
    printable and without white space. All switches together have at most 64 combinations of values,
    which come twice on average too. If not all can be switches, the ones with fewer values are.

    Args:
        calls: the combinations of constants that calls have; None stands for too many values.
        places: the numbers of the constants that may be switches.
        all_calls: how many calls there were.
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
            together.setdefault((place, constants[i]), len(together))
            for place, constants in zip(part, every_call, strict=True)
        ]
        if len(together) <= _MAX_COMBINATIONS and 2 * len(together) <= all_calls:
            chosen.add(i)
            part = parts
    return chosen


def _may_switch(typed: tuple[str, str] | None) -> bool:
    if typed is None:
        return False
    kind, text = typed
    if kind not in ("str", "bytes"):
        return kind != "float"  # floats are inputs of a program
    if len(text) > 4 * _MAX_TEXT + 3:
        return False
    value = literal_eval(text)
    return may_be_switch(value.decode("latin-1") if isinstance(value, bytes) else value)


def may_be_switch(text: str) -> bool:
    """Whether a text can be a switch: it is short and printable, and has no white space."""
    return len(text) <= _MAX_TEXT and text.isprintable() and not re.search(r"\s", text)


def looks_like_name(text: str) -> bool:
    """Whether a text may be shown to people, because it looks like a name in code."""
    return _NAME.fullmatch(text) is not None


def shown_constant(value: Any) -> str:
    """A constant for people. A text is shown if it looks like a name; otherwise only its length is,
    because it may be private."""
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
        """Adds a part that is not there yet, and unites parts that differ in too many values.
        Returns the part that has its calls then."""
        key = group.key = group.key.without(self.many)
        self.parts[key] = group
        self.values = self.values or [set() for _ in key.constants]
        for values, constant in zip(self.values, key.constants, strict=True):
            values.add(constant)
        many = {i for i, values in enumerate(self.values) if len(values) > MAX_VALUES}
        if many:
            self.many |= many
            for i in many:
                self.values[i] = {None}
            self.parts = {group.key: group for group in self._without_constants(self.many)}
        return self.parts[key.without(self.many)]

    def _without_constants(self, places: frozenset[int]) -> Iterator[Group]:
        groups_by_key: dict[GroupKey, list[Group]] = {}
        for key, group in self.parts.items():
            groups_by_key.setdefault(key.without(places), []).append(group)
        return (_merged_groups(groups, key) for key, groups in groups_by_key.items())

    @property
    def calls(self) -> int:
        return sum(part.calls for part in self.parts.values())

    def groups(self, all_calls: int) -> Iterator[Group]:
        """The calls, divided by the texts and floats that are switches.

        Args:
            all_calls: how many calls there are with this counter key.
        """
        some = next(iter(self.parts.values()))
        calls = [part.key.constants for part in self.parts.values()]
        places = set(range(len(some.key.constants)))
        yield from self._without_constants(
            frozenset(places - switches_of(calls, places, all_calls))
        )


def _merged_groups(groups: list[Group], key: GroupKey) -> Group:
    """Groups as one. They are merged pair by pair, so that each call is copied a few times only,
    however many groups there are."""
    while len(groups) > 1:
        pairs = zip(groups[::2], groups[1::2], strict=False)
        odd = groups[-1:] if len(groups) % 2 else []
        groups = [*(group.merge(other, key) for group, other in pairs), *odd]
    return replace(groups[0], key=key)


@dataclass
class Observations:
    """Everything that was seen, by group.

    Attributes:
        calls: how many calls returned. Their arguments are evidence.
        raised: how many calls raised. Their arguments are no evidence, unless all calls raised.
        of_raised: whether no call returned, so that ``calls`` and ``groups`` are of the calls that
            raised.
        counted_calls: how many calls were counted, kept or not, by
            :func:`~calltape_analyzer.observing.layout.counter_key_of`. How often a text or float
            comes back is measured by that.
        structures: the calls by layout and facts of their tensors.
    """

    calls: int = 0
    raised: int = 0
    of_raised: bool = True
    counted_calls: Counter[Hashable] = field(default_factory=Counter)
    structures: dict[Hashable, _Structure] = field(default_factory=dict)

    @property
    def left_out(self) -> int:
        """How many calls raised and are no evidence."""
        return 0 if self.of_raised else self.raised

    @cached_property
    def groups(self) -> dict[GroupKey, Group]:
        """The calls by the key of their group, once all of them were counted."""
        calls_on_tape: Counter[Hashable] = Counter()
        for structure in self.structures.values():
            calls_on_tape[structure.counter_key] += structure.calls
        all_calls = calls_on_tape | self.counted_calls
        groups_of_structures = (
            s.groups(all_calls[s.counter_key]) for s in self.structures.values()
        )
        return {group.key: group for groups in groups_of_structures for group in groups}

    def with_counters(
        self, counters: TrafficCounters, signature: Signature, renamed: Renamed = str
    ) -> Observations:
        """The same calls, with how many such calls were counted, kept or not.

        Args:
            counters: of the tape, without calls that are no evidence.
            signature, renamed: as the calls were laid out with.
        """
        counted_groups = counters.by_counter_key(signature, renamed)
        calls = {key: sum(group.calls for _, group in g) for key, g in counted_groups.items()}
        return replace(self, counted_calls=Counter(calls))

    def group_of(self, key: GroupKey, call: SortedCall, first: CallRef) -> Group:
        """The group in which a call with this key is counted.

        Args:
            key: with the value of every constant.
            call: any call of the key.
            first: the first call that is to be counted.
        """
        layout, constants = call.layout, call.constants
        structure = self.structures.get(key[:2])
        if structure is None:
            counter_key = counter_key_of(layout, key.facts, call.signature)
            structure = self.structures[key[:2]] = _Structure(counter_key)
        group = structure.part(key)
        if group is None:
            group = structure.add(Group(key, layout, constants, first))
        if first < group.first:
            group.first, group.layout, group.constants = first, layout, constants
        return group

    def in_order(self) -> list[Group]:
        """The groups in the order of their first call."""
        return sorted(self.groups.values(), key=lambda group: group.first)

    def parts(self) -> list[Group]:
        """The groups, divided by every text and float that has few values, also if it is no switch,
        in the order of their first call."""
        parts = (part for s in self.structures.values() for part in s.parts.values())
        return sorted(parts, key=lambda part: part.first)


@dataclass(frozen=True)
class SizeSource:
    """Where the size of a missing dimension comes from: it is a constant, a dimension that the call
    has (``column``), or the difference of two (``column`` and ``less``); otherwise 0."""

    constant: int | None = None
    column: Column | None = None
    less: Column | None = None


@dataclass(frozen=True)
class Completion:
    """How the values of one layout become values of a larger one.

    Attributes:
        key: of the group with the smaller layout.
        layout: the larger one. Numbers of tensors, scalars and columns below are in it.
        tensors: per tensor its number in the smaller layout, or None.
        scalars: likewise, per scalar.
        missing: per missing tensor where each of its sizes comes from, over the columns that the
            call does have.
        dtypes: of the missing tensors.
        constants: per scalar its value, for the scalars that the smaller layout lacks.
        counting_ints: ints that are the size of a tensor.
    """

    key: GroupKey
    layout: ArgumentLayout
    tensors: tuple[int | None, ...]
    scalars: tuple[int | None, ...]
    missing: dict[int, tuple[SizeSource, ...]]
    dtypes: dict[int, str]
    constants: tuple[Any, ...]
    counting_ints: dict[Column, Column]

    def row(self, row: SizeRow) -> SizeRow:
        """A row of the smaller layout as a row of the larger one."""
        shapes: list[tuple[int, ...] | None] = [
            None if number is None else row.shapes[number] for number in self.tensors
        ]
        partial_row = SizeRow(tuple(shape or () for shape in shapes), ())
        for tensor, sources in self.missing.items():
            shapes[tensor] = tuple(_size(source, partial_row) for source in sources)
        completed = SizeRow(tuple(shape or () for shape in shapes), ())
        return SizeRow(completed.shapes, self._ints(row, completed))

    def _ints(self, row: SizeRow, completed: SizeRow) -> tuple[int, ...]:
        columns = self.layout.column_of_scalar
        shared = sorted(
            (number, i)
            for i, number in enumerate(self.scalars)
            if number is not None and i in columns
        )
        ints_left = iter(row.ints)  # in the order of the smaller layout
        shared_ints = {i: next(ints_left) for _, i in shared}
        ints: list[int] = []
        for scalar, column in columns.items():
            if scalar in shared_ints:
                ints.append(shared_ints[scalar])
            elif column in self.counting_ints:
                ints.append(value_in(completed, self.counting_ints[column]))
            else:
                ints.append(self.constants[scalar])
        return tuple(ints)


def _size(source: SizeSource, row: SizeRow) -> int:
    if source.constant is not None:
        return source.constant
    if source.column is None:
        return 0
    size = value_in(row, source.column)
    return max(size - value_in(row, source.less), 0) if source.less is not None else size
