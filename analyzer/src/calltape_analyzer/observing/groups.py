"""Groups: calls that differ in sizes and ints only, and a call that is sorted into one.

Shapes alone cannot divide the calls of a group over several programs: they have one layout, and the
same constants, dtypes and ranks (rule 2 of docs/decisions/export-strategies.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calltape_analyzer.observing.columns import Column, SizeRow
from calltape_analyzer.observing.layout import ArgumentLayout, LeafPath, counter_key_of
from calltape_analyzer.observing.memory_facts import Shared
from calltape_analyzer.observing.memory_layout import CONTIGUOUS, layout_name
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.observing.tallies import Seen, Span
from calltape_analyzer.reading.call_ref import CallRef
from calltape_schema.tree import Leaf

__all__ = ["Group", "GroupKey", "SortedCall", "TensorFacts", "layout_in_memory"]


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

    def takes(self, other: GroupKey) -> bool:
        """Whether this key stands for all calls of another one, which has the value of every
        constant."""
        return self._differs_in_constants_only(other) and all(
            own is None or own == given
            for own, given in zip(self.constants, other.constants, strict=True)
        )

    def meets(self, other: GroupKey) -> bool:
        """Whether a call can be of both keys."""
        return self._differs_in_constants_only(other) and all(
            own is None or given is None or own == given
            for own, given in zip(self.constants, other.constants, strict=True)
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


_WORDS = ("", "of rank ", "of layout ", "laid out in memory as ")


class TensorFacts(NamedTuple):
    """What is the same of a tensor in all calls of a program: dtype, rank, torch's layout, and if
    the model reads it, the layout in memory by its name
    (:func:`~calltape_analyzer.observing.memory_layout.layout_name`)."""

    dtype: str
    rank: int
    layout: str
    memory: str = ""

    @classmethod
    def of(cls, leaf: Leaf, *, reads_memory: bool = False) -> TensorFacts:
        memory = layout_in_memory(leaf) if reads_memory else ""
        return cls(leaf.dtype, len(leaf.shape), leaf.layout, memory)

    def unlike(self, other: TensorFacts) -> str:
        """In what it differs from another one: ``float16, not int64, and of rank 3, not 2``."""
        words = [
            f"{word}{own}, not {known}"
            for word, own, known in zip(_WORDS, self, other, strict=True)
            if own != known
        ]
        return ", and ".join(words)


@dataclass
class Group:
    """Calls of one layout, with equal constants, dtypes and ranks.

    Attributes:
        key, facts: what its calls have in common.
        layout, constants: of the first call (by tape and number).
        first: that call.
        calls: how many there are.
        rows: their sizes and ints.
        ranges: the smallest and largest element of each integer tensor, by its number.
        devices, formats: per tensor how many calls had which device, and which layout in memory, by
            :func:`~calltape_analyzer.observing.memory_layout.layout_name`.
    """

    key: GroupKey
    layout: ArgumentLayout
    facts: tuple[TensorFacts, ...]
    constants: tuple[Any, ...]
    first: CallRef
    calls: int = 0
    rows: SizeTable = field(default_factory=SizeTable)
    ranges: dict[int, Span] = field(default_factory=dict)
    devices: tuple[Counter[str], ...] = ()
    formats: tuple[Counter[str], ...] = ()

    @property
    def ints(self) -> tuple[LeafPath, ...]:
        """The paths of :attr:`SizeRow.ints`."""
        return self.layout.ints

    @property
    def others(self) -> tuple[LeafPath, ...]:
        """The paths of :attr:`constants`."""
        return self.layout.others

    @property
    def varying(self) -> tuple[LeafPath, ...]:
        """The texts and floats that are not constant. Their values in :attr:`constants` are of one
        call only."""
        return tuple(place for place, typed, _ in self._constants() if typed is None)

    def fixed(self) -> Iterator[tuple[LeafPath, Any]]:
        """The constants that are equal in all calls, without private ones."""
        return ((place, value) for place, typed, value in self._constants() if typed is not None)

    def _constants(self) -> Iterator[tuple[LeafPath, tuple[str, str] | None, Any]]:
        every = zip(self.others, self.constants, strict=True)
        shown = ((place, value) for place, value in every if not place.private)
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
        self.devices = self.devices or tuple(Counter() for _ in leaves)
        self.formats = self.formats or tuple(Counter() for _ in leaves)
        for leaf, devices, formats in zip(leaves, self.devices, self.formats, strict=True):
            devices[leaf.device] += seen.calls
            formats[layout_in_memory(leaf)] += seen.calls

    def widen_range(self, tensor: int, span: Span) -> None:
        """Widens the range of the elements of an integer tensor."""
        known = self.ranges.get(tensor)
        self.ranges[tensor] = span if known is None else known.merge(span)

    def merge(self, other: Group, key: GroupKey | None = None) -> Group:
        """The group of the calls of both.

        Args:
            other: a group of equal layout and facts.
            key: of the new group; by default the key that both have.
        """
        earlier = self if self.first <= other.first else other
        ranges = dict(self.ranges)
        for tensor, span in other.ranges.items():
            ranges[tensor] = ranges[tensor].merge(span) if tensor in ranges else span
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
    """The sums of counts per tensor. A group without calls has none."""
    if not one or not other:
        return tuple(map(Counter, one or other))
    return tuple(a + b for a, b in zip(one, other, strict=True))


def layout_in_memory(leaf: Leaf) -> str:
    """The name of a tensor's layout in memory; torch's layout of one that is not strided."""
    if leaf.layout != "strided":
        return leaf.layout
    if leaf.strides is None and not leaf.expanded:
        return CONTIGUOUS
    return layout_name(leaf.shape, leaf.strides, leaf.expanded)


class SortedCall(NamedTuple):
    """A call with the key of its group and its row.

    Attributes:
        key: of the group.
        layout: of the arguments.
        facts, leaves: of each tensor of the layout.
        constants: the values of the scalars that are not ints.
        row: the sizes and ints.
        signature: of the recorded method.
    """

    key: GroupKey
    layout: ArgumentLayout
    facts: tuple[TensorFacts, ...]
    constants: tuple[Any, ...]
    row: SizeRow
    leaves: tuple[Leaf, ...]
    signature: Signature

    def counter_key(self) -> Hashable:
        """Equal for calls that traffic counters cannot tell apart."""
        facts = tuple((fact.dtype, fact.rank) for fact in self.facts)
        return counter_key_of(self.layout, facts, self.signature)
