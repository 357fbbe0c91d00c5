"""The sizes of all calls of a group, exactly, and in little memory.

A column is one dimension of one tensor, or one int, over the calls of a group. A row has the value
of each column in one call. :class:`~calltape_analyzer.observing.layout.ArgumentLayout` says which
columns there are and what they are called.

Ranges, counts and kinds must hold for every call. A model of 32 cache layers has hundreds of sizes
per call, and almost all of them are the same few: columns that were equal in every row so far share
one :class:`Line`, and a line that never varied is one number. A row that tells two columns apart
divides their line. So two columns are on one line exactly if they never differed.
"""

from __future__ import annotations

import marshal
import math
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from typing_extensions import Self

from calltape_analyzer.reading.call_ref import CallRef

__all__ = [
    "Column",
    "Line",
    "Seen",
    "SizeRow",
    "SizeTable",
    "Span",
    "array_of",
    "columns_of",
    "value_in",
]


class Seen(NamedTuple):
    """How many calls have something, and the first of them."""

    calls: int
    first: CallRef


@dataclass(frozen=True)
class Span:
    """Smallest and largest of some numbers."""

    min: int
    max: int

    def merge(self, other: Span | None) -> Span:
        """The span of both; this one if there is no other."""
        if other is None:
            return self
        return Span(min(self.min, other.min), max(self.max, other.max))


class Column(NamedTuple):
    """A dimension of a tensor, or an int.

    Attributes:
        index: the number of the tensor among the tensors of a layout, or of the int among its
            ints.
        axis: the dimension of the tensor; None for an int.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    axis: int | None

    @property
    def is_int(self) -> bool:
        """Whether it is an int, and not a dimension."""
        return self.axis is None


class SizeRow(NamedTuple):
    """The shape of each tensor and the value of each int of one call, in the order of a layout."""

    shapes: tuple[tuple[int, ...], ...]
    ints: tuple[int, ...]

    @property
    def columns(self) -> list[Column]:
        """The columns of a table of such rows."""
        return columns_of(map(len, self.shapes), len(self.ints))

    @property
    def elements(self) -> int:
        """How many elements all tensors have together."""
        return sum(map(math.prod, self.shapes))


def columns_of(ranks: Iterable[int], ints: int) -> list[Column]:
    """All columns of tensors of these ranks, and then of as many ints."""
    dimensions = [Column(i, axis) for i, rank in enumerate(ranks) for axis in range(rank)]
    return dimensions + [Column(i, None) for i in range(ints)]


def value_in(row: SizeRow, column: Column) -> int:
    """The size, or the int, that a single row has in a column. A table of rows has
    :meth:`~calltape_analyzer.observing.size_table.SizeTable.value`."""
    if column.axis is None:
        return row.ints[column.index]
    return row.shapes[column.index][column.axis]


class Line:
    """Columns that never differed.

    Attributes:
        columns: their numbers.
        constant: their value while they have one only.
        values: their value in each row, once they have several; else None.
    """

    def __init__(self, columns: Sequence[int], constant: int, values: Any = None) -> None:
        self.columns = tuple(columns)
        self.constant = constant
        self.values = values
        self._get = itemgetter(*self.columns) if len(self.columns) > 1 else None

    def is_one(self, flat: Sequence[int]) -> bool:
        """Whether its columns are equal in a row."""
        if self._get is None:
            return True
        values = self._get(flat)
        return bool(values.count(values[0]) == len(values))

    def divided(self, flat: Sequence[int]) -> Iterator[Line]:
        """A line per value that its columns have in a row, each with the values of earlier rows."""
        parts: dict[int, list[int]] = {}
        for column in self.columns:
            parts.setdefault(flat[column], []).append(column)
        for columns in parts.values():
            values = None if self.values is None else self.values[:]
            yield Line(columns, self.constant, values)

    def vary(self, rows: int) -> None:
        """Gives it a value per row, because the next row has another one."""
        self.values = array_of([self.constant], rows)

    def append(self, value: int) -> None:
        """Adds its value in a further row."""
        try:
            self.values.append(value)
        except OverflowError:  # a Python int may be larger than any size
            self.values = [*self.values, value]

    def chosen(self, choose: Callable[[Any], Iterable[int]]) -> Line:
        """The same columns with some of the rows, in any order.

        Args:
            choose: from one value per row to the values of the wanted rows.
        """
        if self.values is None:
            return Line(self.columns, self.constant)
        return Line(self.columns, self.constant, array_of(choose(self.values)))


def array_of(values: Iterable[int], times: int = 1) -> Any:
    """Ints as an array of 64 bits each; as a list if one is larger.

    Args:
        values: the ints.
        times: how often to repeat them.
    """
    items = list(values)
    try:
        return array("q", items) * times
    except OverflowError:
        return items * times


T = TypeVar("T")

_MAX_KNOWN = 65_536
_MAX_SAMPLE = 1024
_MAX_FIRST_VALUES = 8


class SizeTable:
    """The distinct rows of calls with one layout, each with its calls.

    Rows are numbered in the order of their first call. Tables of two tapes add up, in any order, to
    the table of both. The columns of a table are those of its rows
    (:attr:`SizeRow.columns`).
    """

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] | None = None
        self._columns: dict[Column, int] = {}
        self._lines: list[Line] = []
        self._at: list[int] = []
        self._shared: list[Line] = []
        self._constant: list[Line] = []
        self._varying: list[Line] = []
        self._heads: list[int] = []
        self._calls = array("Q")
        self._tapes: dict[tuple[bytes, tuple[int, int]], int] = {}
        self._recordings: list[tuple[bytes, tuple[int, int]]] = []
        self._tape = array("L")
        self._number = array("Q")
        self._known: dict[bytes, int] = {}
        self._is_in_order = True
        self._cache: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, rows: Iterable[tuple[SizeRow, Seen]]) -> Self:
        """The table of these rows; equal rows become one."""
        table = cls()
        for row, seen in rows:
            table.add(row, seen)
        return table

    def add(self, row: SizeRow, seen: Seen) -> None:
        """Counts calls that have a row."""
        flat = _flat(row)
        if self._ranks is None:
            self._begin(row, flat)
        if not all(line.is_one(flat) for line in self._shared):
            parts = ([line] if line.is_one(flat) else [*line.divided(flat)] for line in self._lines)
            self._lines = [line for divided in parts for line in divided]
            self._index()
        varied = [line for line in self._constant if flat[line.columns[0]] != line.constant]
        if varied:
            for line in varied:
                line.vary(len(self._calls))
            self._index()
        values = tuple([flat[column] for column in self._heads])
        row_number = self._known.get(_key_of(values))
        if row_number is None:
            self._append(values, seen)
            return
        self._calls[row_number] += seen.calls
        if seen.first < self._ref(row_number):
            self._tape[row_number], self._number[row_number] = (
                self._tape_of(seen.first),
                seen.first.number,
            )
            self._is_in_order = False
        self._cache.clear()

    def _begin(self, row: SizeRow, flat: Sequence[int]) -> None:
        self._columns = {column: i for i, column in enumerate(row.columns)}
        self._ranks = tuple(map(len, row.shapes))
        columns: dict[int, list[int]] = {}
        for column, value in enumerate(flat):
            columns.setdefault(value, []).append(column)
        self._lines = [Line(columns_of_value, value) for value, columns_of_value in columns.items()]
        self._index()

    def _index(self) -> None:
        self._at = [0] * len(self._columns)
        for number, line in enumerate(self._lines):
            for column in line.columns:
                self._at[column] = number
        self._shared = [line for line in self._lines if len(line.columns) > 1]
        self._constant = [line for line in self._lines if line.values is None]
        self._varying = [line for line in self._lines if line.values is not None]
        self._heads = [line.columns[0] for line in self._varying]
        self._known.clear()

    def _append(self, values: tuple[int, ...], seen: Seen) -> None:
        for line, value in zip(self._varying, values, strict=True):
            line.append(value)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        row_number = self._known[_key_of(values)] = len(self._calls)
        self._calls.append(seen.calls)
        self._tape.append(self._tape_of(seen.first))
        self._number.append(seen.first.number)
        is_new = len(self._known) == len(self._calls)
        is_last = row_number == 0 or self._ref(row_number - 1) < seen.first
        self._is_in_order = self._is_in_order and is_new and is_last
        self._cache.clear()

    def _ref(self, row_number: int) -> CallRef:
        tape, order = self._recordings[self._tape[row_number]]
        return CallRef(tape, self._number[row_number], order)

    def _tape_of(self, call: CallRef) -> int:
        recording = call.tape, call.order
        if recording not in self._tapes:
            self._tapes[recording] = len(self._recordings)
            self._recordings.append(recording)
        return self._tapes[recording]

    def _put_in_order(self) -> None:
        """Unites equal rows, and sorts the rows by their first call."""
        if self._is_in_order:
            return
        varying = [line.values for line in self._varying]
        first: dict[bytes, int] = {}
        count = len(self._calls)
        for row_number, values in enumerate(
            zip(*varying, strict=True) if varying else [()] * count
        ):
            first_row = first.setdefault(_key_of(values), row_number)
            if first_row != row_number:
                self._calls[first_row] += self._calls[row_number]
                if self._ref(row_number) < self._ref(first_row):
                    self._tape[first_row], self._number[first_row] = (
                        self._tape[row_number],
                        self._number[row_number],
                    )
        order = sorted(first.values(), key=self._ref)
        self._keep_rows(lambda values: [values[i] for i in order])
        self._is_in_order = True

    def _keep_rows(self, choose: Callable[[Any], Iterable[int]]) -> None:
        """Keeps some of the rows, in any order; ``choose`` as for :meth:`Line.chosen`."""
        self._lines = [line.chosen(choose) for line in self._lines]
        self._index()
        self._calls = array("Q", choose(self._calls))
        self._tape = array("L", choose(self._tape))
        self._number = array("Q", choose(self._number))
        self._cache.clear()

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._put_in_order()
        return len(self._calls)

    def __iter__(self) -> Iterator[SizeRow]:
        return (self.row(row_number) for row_number in range(len(self)))

    @property
    def calls(self) -> int:
        """How many calls there are."""
        return sum(self._calls)

    @property
    def first(self) -> CallRef:
        """The first call."""
        return self.calls_of(0).first

    @property
    def columns(self) -> Sequence[Column]:
        """The dimensions and ints of a row."""
        return tuple(self._columns)

    def row(self, row_number: int) -> SizeRow:
        """A row by its number."""
        self._put_in_order()
        values = [
            line.constant if line.values is None else line.values[row_number]
            for line in self._lines
        ]
        flat = iter([values[line] for line in self._at])
        shapes = tuple(tuple(next(flat) for _ in range(rank)) for rank in self._ranks or ())
        return SizeRow(shapes, tuple(flat))

    def calls_of(self, row_number: int) -> Seen:
        """How many calls have a row, and the first of these calls."""
        self._put_in_order()
        return Seen(self._calls[row_number], self._ref(row_number))

    def items(self) -> list[tuple[SizeRow, Seen]]:
        """The rows with their calls."""
        return [(self.row(r), self.calls_of(r)) for r in range(len(self))]

    def same(self, one: Column, other: Column) -> bool:
        """Whether two columns never differed."""
        return self.line(one) == self.line(other)

    def line(self, column: Column) -> int:
        """The number of a column's line: equal for columns that never differed."""
        return self._at[self._columns[column]]

    def value(self, row_number: int, column: Column) -> int:
        """The value of a column in one row."""
        self._put_in_order()
        line = self._lines[self.line(column)]
        return int(line.constant if line.values is None else line.values[row_number])

    def values(self, column: Column) -> tuple[int, ...]:
        """The value of a column in each row. Equal columns give the same object."""
        self._put_in_order()
        number = self.line(column)
        return self._cached(("values", number), lambda: self._values(self._lines[number]))

    def distinct(self, column: Column) -> frozenset[int]:
        """The values that a column had."""
        number = self.line(column)
        return self._cached(("distinct", number), lambda: frozenset(self.values(column)))

    def span(self, column: Column) -> Span:
        """The smallest and the largest value of a column."""
        values = self.distinct(column)
        return self._cached(("span", self.line(column)), lambda: Span(min(values), max(values)))

    def sizes(self, column: Column) -> dict[int, Seen]:
        """The calls of each value of a column, in the order of first calls."""
        return self._cached(("sizes", self.line(column)), lambda: self._sizes(column))

    def elements(self, row_number: int) -> int:
        """How many elements all tensors of a row have together."""
        return self._cached("elements", lambda: [row.elements for row in self])[row_number]

    def part(self, numbers: Collection[int]) -> SizeTable:
        """The table of some rows, by their distinct numbers."""
        if len(numbers) == len(self):
            return self
        chosen = set(numbers)
        return self.where([row_number in chosen for row_number in range(len(self))])

    def where(self, wanted: Sequence[bool]) -> SizeTable:
        """The table of some rows, in which more columns may be equal and constant.

        Args:
            wanted: per row whether it is one of them.
        """
        self._put_in_order()
        table = SizeTable()
        table._columns, table._ranks = self._columns, self._ranks
        table._tapes, table._recordings = dict(self._tapes), list(self._recordings)
        table._lines, table._tape, table._number = self._lines, self._tape, self._number
        table._calls = self._calls
        table._keep_rows(lambda values: compress(values, wanted))
        table._unite()
        return table

    def merge(self, other: SizeTable) -> SizeTable:
        """The table of the rows of both."""
        if self._ranks is None or other._ranks is None:
            full = other if self._ranks is None else self
            return full.where([True] * len(full))
        self._put_in_order()
        other._put_in_order()
        table = SizeTable()
        table._columns, table._ranks = self._columns, self._ranks
        pairs: dict[tuple[int, int], list[int]] = {}
        for column, pair in enumerate(zip(self._at, other._at, strict=True)):
            pairs.setdefault(pair, []).append(column)
        for (one, two), columns in pairs.items():
            values = [*self._values(self._lines[one]), *other._values(other._lines[two])]
            table._lines.append(Line(columns, values[0], array_of(values)))
        table._unite()
        table._calls = self._calls + other._calls
        for part in (self, other):
            for row_number in range(len(part._calls)):
                ref = part._ref(row_number)
                table._tape.append(table._tape_of(ref))
                table._number.append(ref.number)
        table._is_in_order = False
        return table

    def sample(self, limit: int = _MAX_SAMPLE) -> list[int]:
        """Numbers of rows to learn from: all, if they are few. Of many, the rows in which a column
        has one of its first values, its smallest or its largest one, and others at equal
        distances."""
        count = len(self)
        if count <= limit:
            return list(range(count))
        chosen = set(range(0, count, -(-count // limit)))
        for line in self._varying:
            chosen.update(_informative_places(line.values))
        return sorted(chosen)

    def most_common(self) -> list[int]:
        """The combinations of shapes that most calls had, each by the number of its first row."""
        self._put_in_order()
        columns = self.columns
        varying = [
            line.values
            for line in self._varying
            if any(columns[c].axis is not None for c in line.columns)
        ]
        calls: Counter[bytes] = Counter()
        first: dict[bytes, int] = {}
        for row_number in range(len(self)):
            shapes = _key_of(tuple(values[row_number] for values in varying))
            calls[shapes] += self._calls[row_number]
            first.setdefault(shapes, row_number)
        most = max(calls.values())
        return [row_number for shapes, row_number in first.items() if calls[shapes] == most]

    def _unite(self) -> None:
        """Makes one line of equal lines, and a constant of a line that does not vary."""
        lines: dict[Hashable, list[Line]] = {}
        for line in self._lines:
            if line.values and min(line.values) == max(line.values):
                line.constant, line.values = line.values[0], None
            values = line.constant if line.values is None else tuple(line.values)
            lines.setdefault((line.values is None, values), []).append(line)
        self._lines = [
            Line(
                [c for line in columns for c in line.columns],
                columns[0].constant,
                columns[0].values,
            )
            for columns in lines.values()
        ]
        self._index()

    def _values(self, line: Line) -> tuple[int, ...]:
        if line.values is None:
            return (line.constant,) * len(self._calls)
        return tuple(line.values)

    def _sizes(self, column: Column) -> dict[int, Seen]:
        calls: dict[int, int] = {}
        first: dict[int, int] = {}
        for row_number, (value, count) in enumerate(
            zip(self.values(column), self._calls, strict=True)
        ):
            if value in calls:
                calls[value] += count
            else:
                calls[value], first[value] = count, row_number
        return {v: Seen(calls[v], self._ref(row_number)) for v, row_number in first.items()}

    def _cached(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        cached: T = self._cache[key]
        return cached


def _key_of(values: tuple[int, ...]) -> bytes:
    """Equal for equal values. Not the tuple itself: its hash is not salted, 2**k tuples of -1 and
    -2 have one, and a table of these is made in quadratic time."""
    return marshal.dumps(values, 2)  # later versions write an object that comes twice once


def _flat(row: SizeRow) -> list[int]:
    flat = [size for shape in row.shapes for size in shape]
    flat.extend(row.ints)
    return flat


def _informative_places(values: Sequence[int]) -> Iterator[int]:
    """Where the smallest, the largest and the first distinct values are."""
    seen: set[int] = set()
    yield values.index(min(values))
    yield values.index(max(values))
    for place, value in enumerate(values):
        if value not in seen:
            seen.add(value)
            yield place
            if len(seen) == _MAX_FIRST_VALUES:
                return
