"""Groups: calls that differ in sizes and ints only, and a call that is sorted into one.

Shapes alone cannot divide the calls of a group over several programs: they have one layout, and the
same constants, dtypes and ranks (rule 2 of docs/decisions/export-strategies.md). The same arguments
are one object, or share memory: a model may ask, or write to one and read the other.

The layout of a tensor in memory has a name that people know (contiguous, channels last, with gaps);
tensors of one name may have different sizes. Axes of size 1 say nothing of a layout, and neither
does a tensor without elements.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from calltape_analyzer.observing.layout import ArgumentLayout, LeafPath
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column, SizeRow, SizeTable
from calltape_analyzer.observing.tallies import Seen, Span
from calltape_analyzer.plain_data import PlainData, Text
from calltape_analyzer.pytree.memory import (
    Place,
    contiguous_strides,
    is_dense,
    overlap,
    place_of_leaf,
)
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import counted
from calltape_schema.blob import contiguous
from calltape_schema.tree import Leaf

__all__ = [
    "CONTIGUOUS",
    "Group",
    "GroupKey",
    "LayoutSeen",
    "Shared",
    "SortedCall",
    "TensorFacts",
    "layout_in_memory",
    "layout_name",
    "layouts_in_words",
    "shared_memory",
]


CONTIGUOUS = "contiguous"
_GAPS = "with gaps"
_OVERLAPPING = "overlapping"
_KNOWN = {(0, 2, 3, 1): "channels_last", (0, 2, 3, 4, 1): "channels_last_3d"}
"""The names that torch has for an order of the axes by stride, as in ``torch.memory_format``."""


class LayoutSeen(PlainData):
    """One layout in memory that a tensor had, by its name (``channels_last``), and
    how many calls had it."""

    name: Text
    calls: int


def layout_name(
    shape: Sequence[int], strides: Sequence[int] | None, expanded: Collection[int] = ()
) -> str:
    """The name of a layout.

    ``contiguous`` is torch's order without gaps, ``channels_last`` and ``channels_last_3d`` are
    those of ``torch.memory_format``, and ``transposed (stride order 1,0)`` is any other order of
    the axes, from the largest stride to the smallest. ``with gaps`` stands behind an order, or
    alone, if there is memory between the elements that is none of theirs (a slice, a step);
    ``overlapping`` is a tensor of which two elements share memory (sliding windows);
    ``expanded (axis 0)`` is one whose elements are the same along an axis.

    Args:
        shape: its sizes.
        strides: its strides in elements; None for the contiguous ones.
        expanded: its axes of stride 0, besides those that ``strides`` has.
    """
    if 0 in shape:
        return CONTIGUOUS
    once = [1 if axis in expanded else size for axis, size in enumerate(shape)]
    given = strides if strides is not None else contiguous_strides(once)
    sized = [axis for axis, size in enumerate(shape) if size > 1]
    same = [axis for axis in sized if axis in expanded or given[axis] == 0]
    kept = [axis for axis in sized if axis not in same]
    words = [f"expanded ({'axis' if len(same) == 1 else 'axes'} {_listed(same)})"] if same else []
    pairs = [(given[axis], shape[axis]) for axis in kept]
    if _overlaps(pairs):
        return " and ".join([*words, _OVERLAPPING])
    order = _order_in_words(given, kept, len(shape))
    rest = " ".join(
        [
            *([order] if order else []),
            *([] if is_dense([shape[i] for i in kept], [given[i] for i in kept]) else [_GAPS]),
        ]
    )
    return " and ".join([*words, *([rest] if rest else [])]) or CONTIGUOUS


def layouts_in_words(layouts: Sequence[LayoutSeen]) -> str | None:
    """The layouts of one tensor for people: ``contiguous in 3 calls, channels_last in 1``. None if
    it was contiguous in all calls, as nearly all are."""
    if all(one.name == CONTIGUOUS for one in layouts):
        return None
    first, *others = layouts
    if not others:
        return f"{first.name} in {'the only call' if first.calls == 1 else 'all calls'}"
    more = (f"{one.name} in {one.calls}" for one in others)
    return ", ".join([f"{first.name} in {counted(first.calls, 'call')}", *more])


def _order_in_words(strides: Sequence[int], kept: Sequence[int], rank: int) -> str | None:
    """The order of the axes that count, if it is not that of their numbers."""
    order = sorted(range(len(strides)), key=lambda axis: -strides[axis])
    own = [axis for axis in order if axis in kept]
    if own == sorted(own):
        return None
    for known, name in _KNOWN.items():
        if len(known) == rank and own == [axis for axis in known if axis in kept]:
            return name
    return f"transposed (stride order {_listed(order)})"


def _overlaps(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether two elements share memory. Not found are overlaps that need three axes and leave
    gaps."""
    if math.prod(size for _, size in pairs) > sum((n - 1) * step for step, n in pairs) + 1:
        return True
    # Two steps along one axis may end where steps along another one do.
    return any(
        other // math.gcd(one, other) < size and one // math.gcd(one, other) < others_size
        for (one, size), (other, others_size) in combinations(pairs, 2)
    )


def _listed(axes: Sequence[int]) -> str:
    return ",".join(map(str, axes))


_MAX_PARTNERS = 16
"""Of one tensor, so many others that it shares memory with are noted."""


class Shared(NamedTuple):
    """Two tensors of a call that are one object, or share memory.

    Attributes:
        one, other: their numbers in the layout; ``one`` is the first.
        is_one: whether they are one object.
    """

    one: int
    other: int
    is_one: bool

    def text(self, places: Sequence[object], *, negated: bool = False) -> str:
        """``value is key``, or ``window shares memory with store``.

        Args:
            places: the paths of the tensors.
            negated: whether it is not so: ``value is not key``.
        """
        how = "is" if self.is_one else "shares memory with"
        if negated:
            how = "is not" if self.is_one else "shares no memory with"
        return f"{places[self.other]} {how} {places[self.one]}"


def shared_memory(leaves: Sequence[Leaf], objects: Sequence[Hashable]) -> tuple[Shared, ...]:
    """Which tensors are one object, and which have a byte in common. Empty tensors have none.

    Args:
        leaves: in the order of a layout.
        objects: of each, what is equal for one object only; None for what is never shared.
    """
    first: dict[Hashable, int] = {}
    found: list[Shared] = []
    groups: dict[int, list[int]] = defaultdict(list)
    for i, (leaf, known) in enumerate(zip(leaves, objects, strict=True)):
        if known is None or 0 in leaf.shape:
            continue
        earlier = first.setdefault(known, i)
        if earlier != i:
            found.append(Shared(earlier, i, True))
        elif leaf.storage is not None:
            groups[leaf.storage].append(i)
    for members in groups.values():
        if len(members) > 1:
            places: dict[int, Place] = {}
            for i in members:
                one = contiguous(leaves[i].dtype, (1,))
                places[i] = place_of_leaf(leaves[i], one.nbytes if one is not None else 1)
            found += _overlapping(places)
    return tuple(sorted(found))


def _overlapping(places: dict[int, Place]) -> list[Shared]:
    """The pairs with a byte in common. In the order of where they begin, each is compared with
    those that have not ended there."""
    found: list[Shared] = []
    active: list[int] = []
    for i in sorted(places, key=lambda i: (places[i].offset, i)):
        active = [j for j in active if places[j].end > places[i].offset]
        partners = [j for j in active[-_MAX_PARTNERS:] if overlap(places[j], places[i])]
        found += [Shared(min(i, j), max(i, j), False) for j in partners]
        active.append(i)
    return found


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
    (:func:`~calltape_analyzer.observing.groups.layout_name`)."""

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
        key: what its calls have in common.
        layout, constants: of the first call (by tape and number).
        first: that call.
        calls: how many there are.
        rows: their sizes and ints.
        ranges: the smallest and largest element of each integer tensor, by its number.
        devices, formats: per tensor how many calls had which device, and which layout in memory, by
            :func:`~calltape_analyzer.observing.groups.layout_name`.
    """

    key: GroupKey
    layout: ArgumentLayout
    constants: tuple[Any, ...]
    first: CallRef
    calls: int = 0
    rows: SizeTable = field(default_factory=SizeTable)
    ranges: dict[int, Span] = field(default_factory=dict)
    devices: tuple[Counter[str], ...] = ()
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
        every = zip(self.layout.others, self.constants, strict=True)
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
