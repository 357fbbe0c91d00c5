"""Traffic counters: what a recorder counted of all calls, also of calls that are not on the tape.

Takes the tables of counted inputs of a tape's files; returns :class:`TrafficCounters`: calls per
structure, and the sizes of every axis. A table was compared with the calls of its file when that
was scanned, and with the number of calls seen when it was read. What it says of calls that are not
on the tape, nobody can check.

A call that raised is no evidence of what a model takes, because the model may have refused what it
was passed. If all calls raised, they are all that is known, and all of them are evidence. A call
that had not ended when its process died is evidence, because nobody knows that it failed.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from calltape_analyzer.errors import Damage
from calltape_analyzer.observing.layout import (
    ArgumentLayout,
    Renamed,
    counter_key_of,
    layout_of_inputs,
)
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.recordings import goes_on, places_of, recordings_of
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.text import counted
from calltape_schema.bounds import MAX_SIZES
from calltape_schema.drop_reasons import DropReason
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import Axis, Counts, InputsTable, Kind, Row
from calltape_schema.records import Tree
from calltape_schema.tar import END_MEMBER
from calltape_schema.tree import Structure, decode_structure, parts_of_inputs

__all__ = [
    "CountedGroup",
    "CountedKind",
    "CountedTables",
    "TrafficCounters",
    "Values",
    "counters_of_evidence",
    "has_raised",
    "ints_of",
    "left_out_note",
    "tensors_of",
    "trusted_counters",
]


class CountedKind(NamedTuple):
    """What calls that are counted together have in common: the structure of their inputs, as bytes
    of the tape, and dtype and rank of each leaf."""

    structure: bytes
    dtypes: tuple[str, ...]
    ranks: tuple[int, ...]

    @classmethod
    def of(cls, tree: Tree) -> CountedKind:
        """The kind of a recorded call with these inputs."""
        facts = tree.facts()
        dtypes = tuple(leaf.dtype for leaf in facts)
        return cls(tree.structure, dtypes, tuple(len(leaf.shape) for leaf in facts))

    @classmethod
    def of_counted(cls, kind: Kind) -> CountedKind:
        """What tells a kind of a table from its other ones."""
        return cls(kind.structure, tuple(kind.dtypes), tuple(kind.ranks))


@dataclass(frozen=True)
class Values:
    """The sizes of one axis, or the values of one int, over all calls of a group.

    Attributes:
        min, max: the smallest and the largest value.
        sizes: how many calls had which value, smallest first, for at most 32 values. There may have
            been more such calls in a file whose list was full.
        other_calls: how many calls are not in ``sizes``.
    """

    min: int
    max: int
    sizes: Mapping[int, int] = field(default_factory=dict)
    other_calls: int = 0

    @classmethod
    def of(cls, axis: Axis) -> Values:
        """The values that a table of inputs has of an axis."""
        return cls(min(axis.sizes), axis.max, dict(sorted(axis.sizes.items())), axis.other)

    @property
    def varied(self) -> bool:
        """Whether there is more than one value."""
        return self.min < self.max

    def merge(self, other: Values) -> Values:
        """The values of the calls of both. If there are more than 32, the smallest stay in
        ``sizes``, so that the order in which many are added does not matter."""
        calls = dict(self.sizes)
        for size, number in other.sizes.items():
            calls[size] = calls.get(size, 0) + number
        largest = dict(sorted(calls.items())[:MAX_SIZES])
        omitted = sum(calls.values()) - sum(largest.values())
        low, high = min(self.min, other.min), max(self.max, other.max)
        return Values(low, high, largest, self.other_calls + other.other_calls + omitted)

    def without(self, value: int, calls: int) -> Values | None:
        """The values without some calls that had one value; None if no call is left. A bound stays
        if it is not known whether another call had it."""
        sizes = dict(self.sizes)
        counted_here = min(sizes.get(value, 0), calls)
        if counted_here == sizes.get(value):
            sizes.pop(value, None)
        elif counted_here:
            sizes[value] -= counted_here
        other_calls = max(self.other_calls - (calls - counted_here), 0)
        if other_calls:
            return replace(self, sizes=sizes, other_calls=other_calls)
        return Values(min(sizes), max(sizes), sizes) if sizes else None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        sizes = [list(pair) for pair in self.sizes.items()]
        return {"min": self.min, "max": self.max, "sizes": sizes, "other_calls": self.other_calls}


def _spec_of(kind: Kind, spec: Structure | None = None) -> Structure:
    """The structure of a kind of a table, which fits its leaves, scalars and axes.

    Args:
        kind: of the table.
        spec: its structure, if it was decoded before.

    Raises:
        TapeError: ``invalid`` or ``limit``.
    """
    spec = decode_structure(kind.structure) if spec is None else spec
    if parts_of_inputs(spec.root) is None:
        raise TapeError("invalid", "the inputs are not (args, kwargs)")
    sizes = sum(kind.ranks)
    if (spec.leaves, sizes + spec.scalars) != (len(kind.ranks), len(kind.axes)):
        raise TapeError("invalid", "the structure does not fit its leaves and scalars")
    if any(axis is None or min(axis.sizes) < 0 for axis in kind.axes[:sizes]):
        raise TapeError("invalid", "sizes that cannot be")
    return spec


@dataclass(frozen=True)
class CountedGroup:
    """Calls of one kind.

    Attributes:
        kind: what they have in common.
        spec: the structure, decoded.
        calls: how many.
        leaves: of each leaf the values of each axis.
        scalars: of each scalar that is an int, its values; None for other scalars.
    """

    kind: CountedKind
    spec: Structure
    calls: int
    leaves: tuple[tuple[Values, ...], ...]
    scalars: tuple[Values | None, ...]

    @classmethod
    def of(cls, kind: Kind, spec: Structure | None = None) -> CountedGroup:
        """The group of a kind of a table of inputs.

        Args:
            kind: of the table.
            spec: its structure, if it was compared with the kind.

        Raises:
            TapeError: ``invalid`` or ``limit`` if it contradicts itself.
        """
        spec = _spec_of(kind) if spec is None else spec
        # Layers have the same sizes: one object for all that are equal.
        values_by_text: dict[str, Values] = {}
        axis_values = [None if axis is None else Values.of(axis) for axis in kind.axes]
        values = iter(
            [None if v is None else values_by_text.setdefault(repr(v), v) for v in axis_values]
        )
        leaves = tuple(
            tuple(
                values_of_axis
                for values_of_axis in islice(values, rank)
                if values_of_axis is not None
            )
            for rank in kind.ranks
        )
        return cls(CountedKind.of_counted(kind), spec, kind.seen, leaves, tuple(values))

    def without(self, tree: Tree, calls: int) -> CountedGroup | None:
        """The group without some of its calls, which had these inputs; None if none is left."""
        if calls >= self.calls:
            return None
        leaves = []
        for axes, facts in zip(self.leaves, tree.facts(), strict=True):
            pairs = zip(axes, facts.shape, strict=True)
            leaves.append(tuple(axis.without(size, calls) or axis for axis, size in pairs))
        scalars = tuple(
            values.without(scalar, calls) if values is not None and type(scalar) is int else values
            for values, scalar in zip(self.scalars, tree.scalars, strict=True)
        )
        return replace(self, calls=self.calls - calls, leaves=tuple(leaves), scalars=scalars)

    def layout(self, signature: Signature, renamed: Renamed = str) -> ArgumentLayout:
        """The layout of its calls, by the names of a signature's parameters. No argument is left
        out, because it is not known of every call whether it equals its default."""
        bare = tuple(p.model_copy(update={"has_default": False}) for p in signature.parameters)
        bare_signature = replace(signature, parameters=bare, varying=frozenset())
        return layout_of_inputs(self.spec.root, (), bare_signature, renamed)


@dataclass(frozen=True)
class TrafficCounters:
    """Counts of all calls, on the tape or not, calls that raised included.

    Attributes:
        groups: the calls by kind. Each counted call is in one group, or in ``other_calls``.
        other_calls: how many calls of further kinds there were. Nothing else is known of them.
        missing: the files that have no counters, because they have no end (the process was killed,
            or still records), or one without a table of inputs.
    """

    groups: Mapping[CountedKind, CountedGroup] = field(default_factory=dict)
    other_calls: int = 0
    missing: frozenset[str] = frozenset()

    @cached_property
    def calls(self) -> int:
        """How many calls were counted."""
        return self.other_calls + sum(group.calls for group in self.groups.values())

    @property
    def complete(self) -> bool:
        """Whether every file of the tape has counters."""
        return not self.missing

    def in_order(self) -> list[CountedGroup]:
        """The groups, sorted by how many calls they have, most first."""
        return sorted(self.groups.values(), key=lambda group: (-group.calls, group.kind))

    def without(self, calls: Iterable[tuple[Tree, int]]) -> TrafficCounters:
        """The counters without some calls of the tape.

        Args:
            calls: inputs, and how many calls had them.
        """
        groups = dict(self.groups)
        for tree, number in calls:
            kind = CountedKind.of(tree)
            if kind in groups:
                remaining = groups.pop(kind).without(tree, number)
                if remaining is not None:
                    groups[kind] = remaining
        return TrafficCounters(groups, self.other_calls, self.missing)

    def by_counter_key(
        self, signature: Signature, renamed: Renamed = str
    ) -> dict[Hashable, list[tuple[ArgumentLayout, CountedGroup]]]:
        """The groups with their layouts, by
        :func:`~calltape_analyzer.observing.layout.counter_key_of`.

        Args:
            signature, renamed: as for :func:`~calltape_analyzer.observing.layout.layout_of_inputs`.
        """
        groups: dict[Hashable, list[tuple[ArgumentLayout, CountedGroup]]] = {}
        for group in self.groups.values():
            # The value of a scalar in one call is not known: it equals no default.
            unknown = [object()] * group.spec.scalars
            layout = layout_of_inputs(group.spec.root, unknown, signature, renamed)
            kind = group.kind
            facts = [(kind.dtypes[p.number], kind.ranks[p.number]) for p in layout.tensors]
            groups.setdefault(counter_key_of(layout, facts, signature), []).append((layout, group))
        return groups

    def as_dict(
        self, signature: Signature, kept: Mapping[CountedKind, int] | None = None
    ) -> dict[str, Any]:
        """Plain data, for JSON.

        Args:
            signature: gives the names.
            kept: how many calls of each kind are on the tape, if that is wanted too.
        """
        return {
            "calls": self.calls,
            "other_calls": self.other_calls,
            "complete": self.complete,
            "files_without_counters": sorted(self.missing),
            "groups": [
                {
                    "calls": group.calls,
                    **({} if kept is None else {"kept": kept.get(group.kind, 0)}),
                    "tensors": [
                        {"name": name, "dtype": dtype, "axes": [v.as_dict() for v in axes]}
                        for name, dtype, axes in tensors_of(group, signature)
                    ],
                    "ints": [
                        {"name": name, **values.as_dict()}
                        for name, values in ints_of(group, signature)
                    ],
                }
                for group in self.in_order()
            ],
        }


class CountedTables:
    """Adds up the tables of the files of a tape, in any order."""

    def __init__(self) -> None:
        self._kinds: dict[CountedKind, tuple[Kind, Structure]] = {}
        self._other_calls = 0

    def add(self, table: InputsTable) -> list[TapeError]:
        """Adds the table of a file. It gives an error per kind that is left out, whose calls are
        among ``other_calls`` unless they are on the tape, and damaged there."""
        kinds: dict[tuple[CountedKind, int], Kind] = {}
        errors: list[TapeError] = []
        self._other_calls += table.other.seen
        rows_and_kinds: list[Row | Kind] = [*table.rows.values(), *table.kinds.values()]
        for row in rows_and_kinds:
            try:
                # A copy, because kinds that are added up are changed.
                kind = row.kind() if isinstance(row, Row) else copy.deepcopy(row)
            except TapeError as error:
                errors.append(self._left_out(row, error))
                continue
            known_kind = kinds.setdefault((CountedKind.of_counted(kind), len(kind.axes)), kind)
            if known_kind is not kind:
                known_kind.absorb(kind)
        for (key, _), kind in kinds.items():
            sum_of, spec = self._kinds.get(key, (None, None))
            try:
                spec = _spec_of(kind, spec)
            except TapeError as error:
                errors.append(self._left_out(kind, error))
                continue
            if sum_of is None:
                self._kinds[key] = kind, spec
            else:
                sum_of.absorb(kind)
        return errors

    def _left_out(self, counted: Counts, error: TapeError) -> TapeError:
        self._other_calls += counted.seen - counted.kept  # a kept one is a damaged call
        return error

    def counters(self, missing: Iterable[str] = ()) -> TrafficCounters:
        """The counters of all that was added.

        Args:
            missing: the files that have no table.
        """
        groups = {key: CountedGroup.of(*k) for key, k in self._kinds.items()}
        return TrafficCounters(groups, self._other_calls, frozenset(missing))


def tensors_of(
    group: CountedGroup, signature: Signature
) -> Iterator[tuple[str, str, tuple[Values, ...]]]:
    """Name, dtype and axes of each tensor, in the order of the signature."""
    for place in group.layout(signature).tensors:
        yield str(place), group.kind.dtypes[place.number], group.leaves[place.number]


def ints_of(group: CountedGroup, signature: Signature) -> Iterator[tuple[str, Values]]:
    """Name and values of each int that is not private."""
    for place in group.layout(signature).ints:
        values = group.scalars[place.number]
        if values is not None and not place.private:
            yield str(place), values


def trusted_counters(segments: Sequence[Segment], damage: Damage) -> TrafficCounters:
    """The counters of all files that have some. Two files that are the same part of a recording
    count the same calls: that is damage, and only the first is used. If a file of a survey had no
    end, or only a part of the calls, the calls of the survey are at least so many; and so are those
    of a recording that goes on."""
    counted, missing = CountedTables(), set[str]()
    for parts in recordings_of(segments):
        for same_place in places_of(parts):
            first = None
            for segment in same_place:
                if segment.is_survey:
                    _count(segment, counted, damage)
                    if segment.coverage.at_least or _is_part(segment):
                        missing.add(segment.path)
                elif segment.table is None or segment.left_out or _is_part(segment):
                    missing.add(segment.path)
                elif first is not None:
                    reason = f"it counts the same calls as {first.path}: this is not used"
                    damage.add(TapeError("damaged", reason, path=segment.path, member=END_MEMBER))
                    missing.add(segment.path)
                else:
                    first = segment
                    _count(segment, counted, damage)
        if goes_on(parts):
            missing.add(parts[-1].path)  # the files after it count more
    return counted.counters(missing)


def _count(segment: Segment, counted: CountedTables, damage: Damage) -> None:
    for error in counted.add(segment.table or InputsTable()):
        damage.add(error.at(path=segment.path, member=END_MEMBER))


def _is_part(segment: Segment) -> bool:
    """Whether a tool left calls out: then the table counts the others, and not what was seen."""
    end = segment.end
    return end is not None and DropReason.NOT_EXTRACTED in end.coverage.dropped


def has_raised(call: Call) -> bool:
    """Whether a call raised; then it is evidence only if all calls did."""
    return call.record.error is not None


def counters_of_evidence(counters: TrafficCounters, calls: Calls, left_out: int) -> TrafficCounters:
    """Traffic counters without the kept calls that are no evidence. Calls that were not kept stay
    in: counters do not tell which of them raised.

    Args:
        counters: of all calls.
        calls: the kept calls.
        left_out: how many of the kept calls raised and are no evidence.
    """
    if not left_out:
        return counters
    raised = (seen for seen in calls.by_inputs() if seen.raised)
    return counters.without((seen.inputs, seen.calls) for seen in raised)


def left_out_note(count: int) -> str:
    """For people, that calls are left out because they raised."""
    return f"{counted(count, 'call')} raised and {'is' if count == 1 else 'are'} left out"
