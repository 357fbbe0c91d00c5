"""The table of counted inputs: with which inputs a model was called, and how often.

The recorder fills it, the end of a tape contains it, the analyzer makes variants of it, and the
tables of many tapes can be added. It is bounded. As long as there is room, each of the distinct
inputs has a *row*. Calls without a row are counted by *kind* (structure, dtypes and ranks), with
the sizes of each axis. Calls for which there is no room there either are counted as ``other``. No
call is left out.

Room goes to the rows and kinds with the lowest signatures, not to those that came first. So a table
depends only on the calls. Adding tables gives the same table in any order and grouping, and the
inputs that have rows are a fair sample of all inputs.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pydantic import TypeAdapter

from calltape_schema.bounds import (
    MAX_AXES,
    MAX_COUNT,
    MAX_KIND_BYTES,
    MAX_ROW_BYTES,
    MAX_ROWS,
    MAX_SIZES,
)
from calltape_schema.errors import TapeError
from calltape_schema.fields import validated
from calltape_schema.packing import is_array, pack, unpack
from calltape_schema.records import Tree
from calltape_schema.tree import (
    decode_structure,
    lengths_in,
    parts_of_inputs,
    sized_leaves_in,
)

Ranges = Iterable[tuple[int, int, int]]
"""Of integer leaves: the leaf, its smallest and its largest element."""


def contradiction(what: str) -> TapeError:
    """The error for a table that contradicts itself."""
    return TapeError("invalid", f"the table of inputs: {what}")


def signature_of(
    structure: bytes,
    leaves: bytes,
    scalars: bytes,
    begun: dict[tuple[bytes, int], blake2b] | None = None,
) -> int:
    """The signature of inputs: a hash of 128 bits over everything but the contents of tensors.

    Args:
        structure: the document of a tree's structure.
        leaves: the document of its leaves.
        scalars: its scalars, as one packed array.
        begun: remembers digests of structures for other inputs, because thousands of inputs may
            share a structure of a mebibyte.
    """
    key = structure, len(leaves)
    digest = None if begun is None else begun.get(key)
    if digest is None:
        lengths = len(structure).to_bytes(8, "little") + len(leaves).to_bytes(8, "little")
        digest = blake2b(lengths + structure, digest_size=16)
        if begun is not None:
            begun[key] = digest
    if begun is not None:
        digest = digest.copy()
    digest.update(leaves)
    digest.update(scalars)
    return int.from_bytes(digest.digest(), "little")


def widen(widest: dict[int, tuple[int, int]], ranges: Ranges) -> None:
    """Adds ranges to the widest ones of each leaf."""
    for leaf, low, high in ranges:
        bounds = widest.get(leaf)
        if bounds is None:
            widest[leaf] = low, high
        elif low < bounds[0] or high > bounds[1]:
            widest[leaf] = min(low, bounds[0]), max(high, bounds[1])


@dataclass(slots=True, eq=False)
class Counts:
    """How many calls: ``seen``, of which ``kept`` are on a tape and ``raised`` an exception."""

    seen: int = 0
    kept: int = 0
    raised: int = 0

    def add(self, other: Counts) -> None:
        self.seen += other.seen
        self.kept += other.kept
        self.raised += other.raised


class Row(Counts):
    """Distinct inputs, and the calls that had them.

    Attributes:
        structure, leaves: the documents of the inputs, as in a record.
        scalars: the packed array of their scalars.
        first, last: the lowest and the highest number of these calls.
        example: the lowest number of those that were kept; None if none was.
        ranges: per integer leaf its smallest and largest element in the kept calls that returned.
    """

    __slots__ = ("example", "first", "last", "leaves", "ranges", "scalars", "structure")
    bulk = 1  # for the bound of rows

    def __init__(
        self, structure: bytes, leaves: bytes, scalars: bytes, first: int, last: int
    ) -> None:
        super().__init__()
        self.structure = structure
        self.leaves = leaves
        self.scalars = scalars
        self.first = first
        self.last = last
        self.example: int | None = None
        self.ranges: dict[int, tuple[int, int]] = {}

    @property
    def cost(self) -> int:
        """How much room the row takes. It depends only on the inputs. Many rows share a structure,
        so only a part of it counts."""
        ranged = self.leaves.count(b"int")
        return row_cost(len(self.structure), len(self.leaves), len(self.scalars), ranged)

    def count(
        self, numbers: Sequence[int], *, kept: bool, raised: bool, ranges: Ranges = ()
    ) -> None:
        """Counts calls with these numbers."""
        first = min(numbers)
        self.seen += len(numbers)
        self.raised += raised and len(numbers)
        self.first = min(self.first, first)
        self.last = max(self.last, max(numbers))
        if kept:
            self.kept += len(numbers)
            if self.example is None or first < self.example:
                self.example = first
            if ranges and not raised:  # a call that raises shows no range that the model takes
                self.widen(ranges)

    def widen(self, ranges: Ranges) -> None:
        """Adds the ranges of other calls."""
        widen(self.ranges, ranges)

    def absorb(self, row: Row) -> None:
        """Adds the calls of the same inputs elsewhere."""
        self.add(row)
        self.first, self.last = min(self.first, row.first), max(self.last, row.last)
        examples = [one for one in (self.example, row.example) if one is not None]
        self.example = min(examples, default=None)
        self.widen(row.spans())

    def spans(self) -> list[tuple[int, int, int]]:
        """Its ranges, by leaf."""
        return [(leaf, low, high) for leaf, (low, high) in sorted(self.ranges.items())]

    def tree(self) -> Tree:
        """The inputs, as in a record.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        ranges = tuple({"leaf": leaf, "min": low, "max": high} for leaf, low, high in self.spans())
        document = {
            "structure": self.structure, "leaves": self.leaves, "ranges": ranges,
            "scalars": unpack(self.scalars),
        }  # fmt: skip
        return validated(_trees, document, "a row of the table of inputs")

    def kind(self) -> Kind:
        """The calls of this row as a kind, without their ranges. Only the parts of the inputs that
        a kind has are validated: a recorder converts thousands of rows at once.

        Raises:
            TapeError: as :meth:`tree`.
        """
        lengths = lengths_in(self.structure)
        leaves = sized_leaves_in(self.leaves)
        scalars = unpack(self.scalars)
        if not is_array(scalars) or lengths != (len(leaves), len(scalars)):
            raise TapeError("invalid", "the structure does not fit its leaves and scalars")
        shapes = [leaf.shape for leaf in leaves]
        ints = [value if type(value) is int else None for value in scalars]
        return Kind.of(self.structure, [leaf.dtype for leaf in leaves], shapes, ints, self)


RANGE_COST = 32
_trees: TypeAdapter[Tree] = TypeAdapter(Tree)


def row_cost(structure: int, leaves: int, scalars: int, ranged: int) -> int:
    """The cost of a row, by the bytes of its documents, and how many of its leaves may have
    ranges."""
    return 64 + structure // 4 + leaves + scalars + RANGE_COST * ranged


@dataclass(slots=True, eq=False)
class Axis:
    """The sizes of one axis, or the values of one int, in the calls of a kind.

    Attributes:
        sizes: the smallest 32 values, and how many calls had each.
        other: how many calls had a larger value than all of these.
        max: the largest value.
    """

    sizes: dict[int, int]
    other: int
    max: int

    def absorb(self, axis: Axis) -> None:
        """Adds the calls of another one."""
        if not axis.other and axis.sizes.keys() <= self.sizes.keys():  # nearly always
            for size, calls in axis.sizes.items():
                self.sizes[size] += calls
            return
        # Values above the sizes of an axis with others were not counted separately there.
        full = min((max(one.sizes) for one in (self, axis) if one.other), default=None)
        for size, calls in axis.sizes.items():
            self.sizes[size] = self.sizes.get(size, 0) + calls
        self.other += axis.other
        self.max = max(self.max, axis.max)
        for size in sorted(self.sizes, reverse=True):
            if len(self.sizes) <= MAX_SIZES and (full is None or size <= full):
                return
            self.other += self.sizes.pop(size)


class Kind(Counts):
    """Calls whose inputs have the same structure, dtypes and ranks, and no row of their own.

    Attributes:
        structure: the document.
        dtypes, ranks: of each leaf.
        axes: the axes of all leaves, then per scalar the values of its ints, or None.
    """

    __slots__ = ("axes", "dtypes", "ranks", "structure")

    def __init__(
        self, structure: bytes, dtypes: Sequence[str], ranks: Sequence[int],
        axes: list[Axis | None], calls: Counts,
    ) -> None:  # fmt: skip
        super().__init__(calls.seen, calls.kept, calls.raised)
        self.structure = structure
        self.dtypes = list(dtypes)
        self.ranks = list(ranks)
        self.axes = axes

    @classmethod
    def of(
        cls, structure: bytes, dtypes: Sequence[str], shapes: Sequence[Sequence[int]],
        ints: Iterable[int | None], calls: Counts,
    ) -> Kind:  # fmt: skip
        """Calls with inputs of these sizes. ``ints`` has per scalar its value, if it is an int."""
        values = [*(size for shape in shapes for size in shape), *ints]
        axes = [
            Axis({value: calls.seen}, 0, value)
            if value is not None and -(2**63) <= value < 2**64
            else None
            for value in values
        ]
        return cls(structure, dtypes, list(map(len, shapes)), axes, calls)

    def without_ints(self, structure: bytes, hidden: Callable[[int], bool]) -> Kind:
        """The same calls with another structure of as many scalars, without the values of some of
        these."""
        first = sum(self.ranks)
        axes = [
            None if at >= first and hidden(at - first) else axis
            for at, axis in enumerate(self.axes)
        ]
        return Kind(structure, self.dtypes, self.ranks, axes, self)

    def expect_sound(self) -> None:
        """Compares its parts with its structure.

        Raises:
            TapeError: ``damaged``, ``invalid`` or ``limit``.
        """
        spec, first = decode_structure(self.structure), sum(self.ranks)
        lengths = len(self.dtypes), len(self.axes) - first
        has_others = any(
            python_type is not int and self.axes[first + at] is not None
            for at, python_type in (spec.scalar_types if lengths[1] == spec.scalars else ())
        )
        if parts_of_inputs(spec.root) is None or lengths != (spec.leaves, spec.scalars):
            raise contradiction("a kind does not fit its structure")
        if has_others:
            raise contradiction("a kind has values of a scalar that is no int")

    @property
    def key(self) -> int:
        """The signature that orders kinds."""
        parts = pack([self.dtypes, self.ranks, len(self.axes)])
        return signature_of(self.structure, parts, b"")

    @property
    def cost(self) -> int:
        """How much room it takes, even without leaves, or with leaves that have no axes."""
        return 1 + len(self.axes) + len(self.dtypes)

    @property
    def bulk(self) -> int:
        """The bytes of its structure, which have a bound of their own."""
        return len(self.structure)

    def absorb(self, kind: Kind) -> None:
        """Adds the calls of the same kind elsewhere."""
        self.add(kind)
        for at, axis in enumerate(kind.axes):
            known = self.axes[at]
            if known is None:
                self.axes[at] = axis
            elif axis is not None:
                known.absorb(axis)


_LARGEST_PART = 4


class _Lowest:
    """The rows or the kinds of a table, by signature. Those with the lowest signatures stay, except
    those that take more than a quarter of the room.

    Args:
        max_cost: the bound of the ``cost`` of all parts together.
        max_bulk: the bound of their ``bulk``.
        spill: takes a part for which there is no room.

    Attributes:
        parts: the parts that have room.
        below: the signature from which on there is no room; None if there was room for all.
    """

    def __init__(self, max_cost: int, max_bulk: int, spill: Callable[[Any], None]) -> None:
        self.parts: dict[int, Any] = {}
        self.below: int | None = None
        self._order: list[int] = []  # the signatures, negative, as a heap: the highest first
        self._max_cost, self._max_bulk = max_cost, max_bulk
        self._cost = self._bulk = 0
        self._spill = spill

    def add(self, key: int, part: Any) -> None:
        """Adds calls to those of this signature."""
        known = self.parts.get(key)
        if known is not None:
            known.absorb(part)
        elif part.cost > self._max_cost // _LARGEST_PART or not self._has_room(key):
            self._spill(part)
        else:
            self.parts[key] = part
            heapq.heappush(self._order, -key)
            self._cost += part.cost
            self._bulk += part.bulk
            while self._cost > self._max_cost or self._bulk > self._max_bulk:
                self.lower(-self._order[0])

    def lower(self, below: int | None) -> None:
        """Leaves no room for this signature and higher ones; None changes nothing."""
        if below is None or not self._has_room(below):
            return
        self.below = below
        while self._order and -self._order[0] >= below:
            self._spill(self._removed(-heapq.heappop(self._order)))

    def take(self, is_wanted: Callable[[Any], bool]) -> list[Any]:
        """Removes parts, and returns them."""
        taken = [self._removed(key) for key, part in [*self.parts.items()] if is_wanted(part)]
        self._order = [-key for key in self.parts]
        heapq.heapify(self._order)
        return taken

    def _removed(self, key: int) -> Any:
        part = self.parts.pop(key)
        self._cost -= part.cost
        self._bulk -= part.bulk
        return part

    def _has_room(self, key: int) -> bool:
        return self.below is None or key < self.below


class InputsTable:
    """Counts inputs, within bounds.

    Attributes:
        rows: by the signature of their inputs.
        kinds: of calls without a row, by their key.
        other: calls without either.

    Args:
        max_rows, max_bytes, max_axes: the bounds.
    """

    def __init__(
        self, max_rows: int = MAX_ROWS, max_bytes: int = MAX_ROW_BYTES, max_axes: int = MAX_AXES
    ) -> None:
        self.other = Counts()
        self._kinds = _Lowest(max_axes, MAX_KIND_BYTES, self.other.add)
        self._rows = _Lowest(max_bytes, max_rows, self._add_coarser)
        self._rooms = self._rows, self._kinds
        self._seen: int | None = None  # all calls, until one is added
        self.rows: dict[int, Row] = self._rows.parts
        self.kinds: dict[int, Kind] = self._kinds.parts

    @property
    def rows_below(self) -> int | None:
        """The signature from which on there was no room for a row; None if there was."""
        return self._rows.below

    @property
    def kinds_below(self) -> int | None:
        """The same for kinds."""
        return self._kinds.below

    def totals(self) -> Counts:
        """All calls."""
        totals = Counts()
        for part in (*self.rows.values(), *self.kinds.values(), self.other):
            totals.add(part)
        return totals

    def add(
        self, structure: bytes, leaves: bytes, scalars: bytes, *numbers: int, kept: bool = True,
        raised: bool = False, ranges: Ranges = (), key: int | None = None,
    ) -> None:  # fmt: skip
        """Counts calls of these numbers, with the same inputs. ``key`` is :func:`signature_of` the
        inputs, if it is known; the other arguments are as for :meth:`Row.count`.

        Raises:
            TapeError: the table is full, and the documents break the format.
        """
        key = signature_of(structure, leaves, scalars) if key is None else key
        known = self.rows.get(key)
        row = known or Row(structure, leaves, scalars, numbers[0], numbers[0])
        row.count(numbers, kept=kept, raised=raised, ranges=ranges)
        self._seen = None
        if known is None:
            self.add_row(key, row)

    def add_row(self, key: int, row: Row) -> None:
        """Adds the calls of a row, which has this signature and must not be used afterwards.

        Raises:
            TapeError: as :meth:`add`.
        """
        self._seen = None
        self._rows.add(key, row)

    def add_kind(self, kind: Kind) -> None:
        """Adds calls whose kind is all that is known. It must not be used afterwards."""
        self._seen = None
        self._kinds.add(kind.key, kind)

    def _add_coarser(self, row: Row) -> None:
        self.add_kind(row.kind())

    def lower(self, rows_below: int | None, kinds_below: int | None) -> None:
        """Leaves no room from these signatures on; None changes nothing."""
        self._rows.lower(rows_below)
        self._kinds.lower(kinds_below)

    def merge(self, other: InputsTable) -> None:
        """Adds the calls of another table, which must not be used afterwards.

        Raises:
            TapeError: as :meth:`add`; ``limit`` for more calls than a count holds.
        """
        # A survey merges a hundred thousand small tables into one that may be large.
        seen = (self.totals().seen if self._seen is None else self._seen) + other.totals().seen
        if seen > MAX_COUNT:
            raise TapeError("limit", "tables of inputs with more than 2^63 calls together")
        self.lower(other.rows_below, other.kinds_below)
        self.other.add(other.other)
        for kind in other.kinds.values():
            self.add_kind(kind)
        for key, row in other.rows.items():
            self.add_row(key, row)
        self._seen = seen

    def unkept(self) -> InputsTable:
        """The calls of a file that is gone, so that none of them is on a tape. This table must not
        be used afterwards."""
        table = InputsTable()
        table.merge(self)
        for row in table._rows.take(lambda row: True):
            table._add_coarser(row)
        for part in (*table.kinds.values(), table.other):
            part.kept = part.raised = 0
        return table

    def others(self) -> InputsTable:
        """The calls that were seen but not kept. If some calls of a kind were kept, only the number
        of its other calls is known."""
        table = InputsTable()
        for part in (*self.kinds.values(), *self.rows.values(), self.other):
            if isinstance(part, Kind) and not part.kept:
                table.add_kind(copy.deepcopy(part))
            else:
                table.other.add(Counts(part.seen - part.kept))
        return table

    def changed(self, change: Callable[[Kind], Kind | None]) -> InputsTable:
        """The calls with changed kinds and without rows. This table must not be used afterwards.

        Args:
            change: returns None for a kind whose calls should be counted as ``other``.

        Raises:
            TapeError: a row breaks the format.
        """
        table = InputsTable()
        table.other.add(self.other)
        for kind in (*self.kinds.values(), *(row.kind() for row in self.rows.values())):
            changed = change(kind)
            if changed is None:
                table.other.add(kind)
            else:
                table.add_kind(changed)
        return table

    def coarsen(self) -> bool:
        """Counts the calls in the next coarser form: those with rows by kind, or those by kind as
        ``other``. False if there is no coarser form."""
        for room in self._rooms:
            if room.below != 0:
                room.lower(0)
                return True
        return False

    def forget(self, is_secret: Callable[[bytes], bool]) -> None:
        """Counts calls of these structures without their structure."""
        for room in self._rooms:
            for part in room.take(lambda part: is_secret(part.structure)):
                self.other.add(part)
