"""The sizes of all calls of a group, exactly, and in little memory.

What an analysis says of ranges, counts and kinds must hold for every call, and a model of 32 cache
layers has hundreds of sizes per call. Almost all of them are one and the same few, so that sizes
are kept by *line*: the columns (dimensions and ints) that were equal in every call so far share one
line, and a line that never varied is one number. A row that tells two columns apart divides their
line. Lines are at the same time what is known of equality: two columns are on one line exactly if
they never differed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import compress
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from typing_extensions import Self

from calltape_analyzer.symbols import Column, columns_of
from calltape_analyzer.tallies import CallRef, Seen, Span

__all__ = ["Row", "Rows"]

T = TypeVar("T")

_MAX_KNOWN = 65_536
_MAX_SAMPLE = 1024
_MAX_TELLING = 8


class Row(NamedTuple):
    """The sizes of each tensor and the value of each int of a call, in the layout's order."""

    shapes: tuple[tuple[int, ...], ...]
    ints: tuple[int, ...]


class _Line:
    """Columns that never differed: one value while they are constant, else one per row."""

    def __init__(self, columns: Sequence[int], constant: int, values: Any = None) -> None:
        self.columns = tuple(columns)
        self.constant = constant
        self.values = values
        self._get = itemgetter(*self.columns) if len(self.columns) > 1 else None

    def is_one(self, flat: Sequence[int]) -> bool:
        if self._get is None:
            return True
        found = self._get(flat)
        return bool(found.count(found[0]) == len(found))

    def divided(self, flat: Sequence[int]) -> Iterator[_Line]:
        """A line per value that its columns have in a row, each with what was before."""
        parts: dict[int, list[int]] = {}
        for column in self.columns:
            parts.setdefault(flat[column], []).append(column)
        for columns in parts.values():
            values = None if self.values is None else self.values[:]
            yield _Line(columns, self.constant, values)

    def open(self, rows: int) -> None:
        """Makes room for other values."""
        self.values = _numbers([self.constant], rows)

    def append(self, value: int) -> None:
        try:
            self.values.append(value)
        except OverflowError:  # an int of Python's may be larger than any size
            self.values = [*self.values, value]

    def taken(self, wanted: Callable[[Any], Iterable[int]]) -> _Line:
        """With some of its values."""
        if self.values is None:
            return _Line(self.columns, self.constant)
        return _Line(self.columns, self.constant, _numbers(wanted(self.values)))


def _numbers(values: Iterable[int], times: int = 1) -> Any:
    every = list(values)
    try:
        return array("q", every) * times
    except OverflowError:
        return every * times


class Rows:
    """The distinct rows of calls with one layout, each with its calls. Rows of two tapes add up,
    in any order, to those of both."""

    def __init__(self) -> None:
        self._ranks: tuple[int, ...] | None = None
        self._columns: dict[Column, int] = {}
        self._lines: list[_Line] = []
        self._at: list[int] = []
        self._shared: list[_Line] = []
        self._constant: list[_Line] = []
        self._varying: list[_Line] = []
        self._heads: list[int] = []
        self._calls = array("Q")
        self._tapes: dict[bytes, int] = {}
        self._ids: list[bytes] = []
        self._tape = array("L")
        self._number = array("Q")
        self._known: dict[tuple[int, ...], int] = {}
        self._is_settled = True
        self._cache: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, rows: Iterable[tuple[Row, Seen]]) -> Self:
        """These rows."""
        made = cls()
        for row, seen in rows:
            made.add(row, seen)
        return made

    def add(self, row: Row, seen: Seen) -> None:
        """Counts calls that have a row."""
        flat = _flat(row)
        if self._ranks is None:
            self._begin(row, flat)
        if not all(line.is_one(flat) for line in self._shared):
            self._divide(flat)
        opened = [line for line in self._constant if flat[line.columns[0]] != line.constant]
        if opened:
            for line in opened:
                line.open(len(self._calls))
            self._index()
        key = tuple([flat[column] for column in self._heads])
        at = self._known.get(key)
        if at is None:
            self._append(key, seen)
            return
        self._calls[at] += seen.calls
        if seen.first < self._ref(at):
            self._tape[at], self._number[at] = self._tape_of(seen.first), seen.first.number
            self._is_settled = False
        self._cache.clear()

    def _begin(self, row: Row, flat: Sequence[int]) -> None:
        self._columns = {column: at for at, column in enumerate(columns_of(row))}
        self._ranks = tuple(map(len, row.shapes))
        columns: dict[int, list[int]] = {}
        for column, value in enumerate(flat):
            columns.setdefault(value, []).append(column)
        self._lines = [_Line(same, value) for value, same in columns.items()]
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

    def _divide(self, flat: Sequence[int]) -> None:
        parts = ([line] if line.is_one(flat) else [*line.divided(flat)] for line in self._lines)
        self._lines = [line for divided in parts for line in divided]
        self._index()

    def _append(self, key: tuple[int, ...], seen: Seen) -> None:
        for line, value in zip(self._varying, key, strict=True):
            line.append(value)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        at = self._known[key] = len(self._calls)
        self._calls.append(seen.calls)
        self._tape.append(self._tape_of(seen.first))
        self._number.append(seen.first.number)
        is_new = len(self._known) == len(self._calls)
        is_last = at == 0 or self._ref(at - 1) < seen.first
        self._is_settled = self._is_settled and is_new and is_last
        self._cache.clear()

    def _ref(self, at: int) -> CallRef:
        return CallRef(self._ids[self._tape[at]], self._number[at])

    def _tape_of(self, call: CallRef) -> int:
        if call.tape not in self._tapes:
            self._tapes[call.tape] = len(self._ids)
            self._ids.append(call.tape)
        return self._tapes[call.tape]

    def _settle(self) -> None:
        """Makes one of equal rows, and puts them in the order of their first call."""
        if self._is_settled:
            return
        varying = [line.values for line in self._varying]
        first: dict[tuple[int, ...], int] = {}
        count = len(self._calls)
        for at, key in enumerate(zip(*varying, strict=True) if varying else [()] * count):
            known = first.setdefault(key, at)
            if known != at:
                self._calls[known] += self._calls[at]
                if self._ref(at) < self._ref(known):
                    self._tape[known], self._number[known] = self._tape[at], self._number[at]
        order = sorted(first.values(), key=self._ref)
        self._take(lambda values: [values[at] for at in order])
        self._is_settled = True

    def _take(self, wanted: Callable[[Any], Iterable[int]]) -> None:
        self._lines = [line.taken(wanted) for line in self._lines]
        self._index()
        self._calls = array("Q", wanted(self._calls))
        self._tape = array("L", wanted(self._tape))
        self._number = array("Q", wanted(self._number))
        self._cache.clear()

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        self._settle()
        return len(self._calls)

    def __iter__(self) -> Iterator[Row]:
        return (self.row(at) for at in range(len(self)))

    @property
    def calls(self) -> int:
        """How many calls there are."""
        return sum(self._calls)

    @property
    def first(self) -> CallRef:
        """The first call."""
        return self.seen(0).first

    @property
    def columns(self) -> Sequence[Column]:
        """The dimensions and ints of a row."""
        return tuple(self._columns)

    def row(self, at: int) -> Row:
        """A row by its place in the order of first calls."""
        self._settle()
        values = [line.constant if line.values is None else line.values[at] for line in self._lines]
        flat = iter([values[line] for line in self._at])
        shapes = tuple(tuple(next(flat) for _ in range(rank)) for rank in self._ranks or ())
        return Row(shapes, tuple(flat))

    def seen(self, at: int) -> Seen:
        """How many calls have a row, and the first of them."""
        self._settle()
        return Seen(self._calls[at], self._ref(at))

    def items(self) -> list[tuple[Row, Seen]]:
        """The rows with their calls, in the order of the first call."""
        return [(self.row(at), self.seen(at)) for at in range(len(self))]

    def same(self, one: Column, other: Column) -> bool:
        """Whether two columns never differed."""
        return self.line(one) == self.line(other)

    def line(self, column: Column) -> int:
        """Equal for columns that never differed."""
        return self._at[self._columns[column]]

    def values(self, column: Column) -> tuple[int, ...]:
        """The value of a column in each row, in their order. Equal columns give the same object."""
        self._settle()
        number = self.line(column)
        return self._once(("values", number), lambda: self._values(self._lines[number]))

    def distinct(self, column: Column) -> frozenset[int]:
        """The values that a column had."""
        number = self.line(column)
        return self._once(("distinct", number), lambda: frozenset(self.values(column)))

    def span(self, column: Column) -> Span:
        """The smallest and the largest value of a column."""
        found = self.distinct(column)
        return self._once(("span", self.line(column)), lambda: Span(min(found), max(found)))

    def sizes(self, column: Column) -> dict[int, Seen]:
        """The calls of each value of a column, in the order of first calls."""
        return self._once(("sizes", self.line(column)), lambda: self._sizes(column))

    def where(self, wanted: Sequence[bool]) -> Rows:
        """Some of the rows, in which more columns may be equal and constant."""
        self._settle()
        made = Rows()
        made._columns, made._ranks = self._columns, self._ranks
        made._tapes, made._ids = dict(self._tapes), list(self._ids)
        made._lines, made._tape, made._number = self._lines, self._tape, self._number
        made._calls = self._calls
        made._take(lambda values: compress(values, wanted))
        made._unite()
        return made

    def merge(self, other: Rows) -> Rows:
        """The rows of both."""
        if self._ranks is None or other._ranks is None:
            full = other if self._ranks is None else self
            return full.where([True] * len(full))
        self._settle()
        other._settle()
        made = Rows()
        made._columns, made._ranks = self._columns, self._ranks
        pairs: dict[tuple[int, int], list[int]] = {}
        for column, pair in enumerate(zip(self._at, other._at, strict=True)):
            pairs.setdefault(pair, []).append(column)
        for (one, two), columns in pairs.items():
            values = [*self._values(self._lines[one]), *other._values(other._lines[two])]
            made._lines.append(_Line(columns, values[0], _numbers(values)))
        made._unite()
        made._calls = self._calls + other._calls
        for part in (self, other):
            for at in range(len(part._calls)):
                ref = part._ref(at)
                made._tape.append(made._tape_of(ref))
                made._number.append(ref.number)
        made._is_settled = False
        return made

    def sample(self, limit: int = _MAX_SAMPLE) -> list[int]:
        """Places of rows to learn from: all of few; of many those in which a column has one of its
        first values, its smallest or largest one, and others at equal distances."""
        count = len(self)
        if count <= limit:
            return list(range(count))
        chosen = set(range(0, count, -(-count // limit)))
        for line in self._varying:
            chosen.update(_telling(line.values))
        return sorted(chosen)

    def most_common(self) -> list[int]:
        """The place of a row for each combination of shapes that most calls had."""
        columns = self.columns
        varying = [
            line.values
            for line in self._varying
            if any(columns[c].axis is not None for c in line.columns)
        ]
        calls: Counter[tuple[int, ...]] = Counter()
        first: dict[tuple[int, ...], int] = {}
        for at in range(len(self)):
            shapes = tuple(values[at] for values in varying)
            calls[shapes] += self._calls[at]
            first.setdefault(shapes, at)
        most = max(calls.values())
        return [at for shapes, at in first.items() if calls[shapes] == most]

    def _unite(self) -> None:
        """Makes one line of equal ones, and a constant of what does not vary."""
        lines: dict[Hashable, list[_Line]] = {}
        for line in self._lines:
            if line.values and min(line.values) == max(line.values):
                line.constant, line.values = line.values[0], None
            values = line.constant if line.values is None else tuple(line.values)
            lines.setdefault((line.values is None, values), []).append(line)
        self._lines = [
            _Line([c for line in same for c in line.columns], same[0].constant, same[0].values)
            for same in lines.values()
        ]
        self._index()

    def _values(self, line: _Line) -> tuple[int, ...]:
        if line.values is None:
            return (line.constant,) * len(self._calls)
        return tuple(line.values)

    def _sizes(self, column: Column) -> dict[int, Seen]:
        calls: dict[int, int] = {}
        first: dict[int, int] = {}
        for at, (value, count) in enumerate(zip(self.values(column), self._calls, strict=True)):
            if value in calls:
                calls[value] += count
            else:
                calls[value], first[value] = count, at
        return {value: Seen(calls[value], self._ref(at)) for value, at in first.items()}

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._cache:
            self._cache[key] = make()
        found: T = self._cache[key]
        return found


def _flat(row: Row) -> list[int]:
    flat = [size for shape in row.shapes for size in shape]
    flat.extend(row.ints)
    return flat


def _telling(values: Sequence[int]) -> Iterator[int]:
    """The places of the smallest, the largest and the first distinct values."""
    seen: set[int] = set()
    yield values.index(min(values))
    yield values.index(max(values))
    for at, value in enumerate(values):
        if value not in seen:
            seen.add(value)
            yield at
            if len(seen) == _MAX_TELLING:
                return
