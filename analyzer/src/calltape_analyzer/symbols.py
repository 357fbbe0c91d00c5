"""Which sizes of a set of calls vary, which of them are one, and how they relate.

A *column* is one dimension of one tensor, or one int, over the rows of a group. Columns that were
equal in every row are one symbol. A symbol that always was a sum or a multiple of others is
dependent on them. Such relations serve to resize a call consistently and to explain a shape to
people; they are never imposed on an export, which finds its own (rule 3 of docs/decisions/0012:
named, shared dimensions made fewer than half as many exports succeed).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import gcd
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from calltape_analyzer.rows import Row

__all__ = [
    "MAX_SYMBOLS_FOR_SUMS",
    "Column",
    "Relation",
    "Symbol",
    "columns_of",
    "refuted",
    "symbols_of",
    "value_in",
]

MAX_SYMBOLS_FOR_SUMS = 24
"""Which of many symbols are the sum of two others cannot be found in less than quadratic time: sums
are sought among so many of them (docs/decisions/0027)."""

_MAX_ALIKE = 64


class Column(NamedTuple):
    """A dimension (``tensor`` is a place among the layout's tensors) or, with ``axis`` None, an
    int (a place among the ints)."""

    place: int
    axis: int | None


def value_in(row: Row, column: Column) -> int:
    """The size, or the int, that a row has in a column."""
    if column.axis is None:
        return row.ints[column.place]
    return row.shapes[column.place][column.axis]


def columns_of(row: Row) -> list[Column]:
    """All columns of a group's rows: dimensions first, then ints."""
    dimensions = [
        Column(i, axis) for i, shape in enumerate(row.shapes) for axis in range(len(shape))
    ]
    return dimensions + [Column(i, None) for i in range(len(row.ints))]


class Relation(NamedTuple):
    """``sum(factor * symbol) + constant``, over symbols by their number."""

    terms: tuple[tuple[int, int], ...]
    constant: int = 0

    def value(self, values: Sequence[int] | Mapping[int, int]) -> int:
        """What it gives for values of all symbols."""
        return sum(factor * values[symbol] for factor, symbol in self.terms) + self.constant


def refuted(relation: Relation, every: Sequence[Sequence[int]], own: Sequence[int]) -> int | None:
    """The place of the first row in which a relation does not hold.

    Args:
        relation: what was found in some rows.
        every: per symbol its value in each row; ``own`` those of the symbol that is to follow.
    """
    terms = [(factor, every[symbol]) for factor, symbol in relation.terms]
    if len(terms) == 1:
        ((factor, values),) = terms
        made = (factor * value + relation.constant for value in values)
    else:
        columns = zip(*(values for _, values in terms), strict=True)
        factors = [factor for factor, _ in terms]
        made = (sum(map(mul, factors, values)) + relation.constant for values in columns)
    pairs = zip(made, own, strict=True)
    return next((at for at, (value, got) in enumerate(pairs) if value != got), None)


@dataclass
class Symbol:
    """Columns that were always equal.

    Attributes:
        columns: the columns, in order.
        values: their value per row, in the order of the rows.
        relation: how it followed from other symbols, where it always did.
        name: for people and ONNX, unique among the symbols of a variant.
        ambiguous: whether another symbol never differed from this one in these calls, and only
            other calls tell them apart.
        capped: whether it may follow from symbols that it was not compared with, of very many.
    """

    columns: list[Column]
    values: tuple[int, ...]
    relation: Relation | None = None
    name: str = ""
    ambiguous: bool = False
    capped: bool = False

    @cached_property
    def varied(self) -> bool:
        """Whether more than one value was seen."""
        return len(set(self.values)) > 1


def symbols_of(
    groups: Sequence[Sequence[Column]], rows: Sequence[Row], preferred: Sequence[int] = ()
) -> list[Symbol]:
    """Symbols with their relations.

    Args:
        groups: columns that are one symbol, each with the same value in every row.
        rows: the distinct rows.
        preferred: numbers of groups that should rather be what others depend on.

    Returns:
        One symbol per group, in the same order.
    """
    symbols = [
        Symbol(list(columns), tuple(value_in(row, columns[0]) for row in rows))
        for columns in groups
    ]
    first = set(preferred)
    order = [*preferred, *(i for i in range(len(symbols)) if i not in first)]
    free, known = _Parts(symbols), _Parts(symbols)
    for i in order:
        if not symbols[i].varied:
            continue  # it follows from nothing, and nothing from it
        symbols[i].relation = _relation(symbols, i, free, known)
        if symbols[i].relation is None:
            free.add(i)
        known.add(i)
    _relate_totals(symbols, free)
    return symbols


def _relate_totals(symbols: Sequence[Symbol], free: _Parts) -> None:
    """A total that came before its parts looked free: whether it follows from what came later."""
    used = {f for s in symbols if s.relation is not None for _, f in s.relation.terms}
    every = _Parts(symbols)
    for i, symbol in enumerate(symbols):
        if symbol.varied:
            every.add(i)
    for i in list(free):
        if i in used:
            continue
        relation = symbols[i].relation = _relation(symbols, i, free, every)
        if relation is not None:
            used.update(f for _, f in relation.terms)
            free.remove(i)


def _relation(symbols: Sequence[Symbol], i: int, free: _Parts, known: _Parts) -> Relation | None:
    """How a symbol follows from other ones that are free: from one, or from the sum of two.

    Args:
        symbols: all, those in ``known`` with their relations.
        i: the symbol in question, which varied.
        free: those that it may follow from.
        known: these, and those that follow from them.
    """
    relation = free.line_to(i)
    # Of free ones where there are such, else also of one that follows from a third: mask =
    # ids + past, where past happened to be another dimension plus a constant.
    for parts in (free, known):
        pair = parts.sum_to(i) if relation is None else None
        if pair is not None:
            relation = _sum(symbols, *pair)
    symbols[i].capped = relation is None and (free.is_capped(i) or known.is_capped(i))
    return relation


class _Look:
    """What symbols that are on one line have in common: ``target = factor * given + constant``.

    Two points lie on some line, so that two distinct values are evidence for a difference or a
    multiple only; a factor with a constant wants three.

    Attributes:
        values: of a symbol that varied.
        step: the divisor of all differences, which the line multiplies by its factor.
        exact: equal for symbols that differ by a constant.
        alike: equal for those that are multiples of something, with a constant where there are
            three points; ``size`` is what it was multiplied by.
    """

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values
        first = values[0]
        differences = [value - first for value in values]
        self.step = gcd(*differences)
        shape = tuple(difference // self.step for difference in differences)
        self.exact: Hashable = (self.step, shape)
        if len(set(values)) > 2:
            self.size = self.step
            self.alike: Hashable = shape
        else:
            self.size = gcd(*values)
            self.alike = tuple(value // self.size for value in values)

    def line_to(self, target: _Look) -> tuple[int, int]:
        """Factor and constant, where there is a line."""
        factor = target.step // self.step
        return factor, target.values[0] - factor * self.values[0]


class _Parts:
    """Symbols that others may follow from, in order. They are found by hash of what they would
    have to look like, because to compare each with each takes quadratic time."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self._symbols = symbols
        self._place: dict[int, int] = {}
        self._looks: dict[int, _Look] = {}
        self._exact: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._alike: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._head: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] | None = None

    def __iter__(self) -> Iterator[int]:
        return iter(self._place)

    def add(self, i: int) -> None:
        """Appends a symbol, which varied."""
        look = self._look(i)
        self._place[i] = len(self._place)
        self._exact[look.exact][i] = look.size
        self._alike[look.alike][i] = look.size
        if len(self._head) <= MAX_SYMBOLS_FOR_SUMS:
            self._head.append(i)
            self._ends = None

    def remove(self, i: int) -> None:
        """Takes a symbol out; no other is added afterwards."""
        look = self._look(i)
        del self._place[i], self._exact[look.exact][i], self._alike[look.alike][i]
        if i in self._head:
            self._head = list(islice(self._place, MAX_SYMBOLS_FOR_SUMS + 1))
            self._ends = None

    def line_to(self, i: int) -> Relation | None:
        """How a symbol follows from the first that it follows from alone."""
        look = self._look(i)
        exact = (f for f in self._exact.get(look.exact, ()) if f != i)
        multiples = (
            f
            for f, size in islice(self._alike.get(look.alike, {}).items(), _MAX_ALIKE)
            if f != i and look.size % size == 0
        )
        found = [f for f in (next(exact, None), next(multiples, None)) if f is not None]
        if not found:
            return None
        given = min(found, key=self._place.__getitem__)
        factor, constant = self._looks[given].line_to(look)
        return Relation(((factor, given),), constant)

    def sum_to(self, i: int) -> tuple[int, int] | None:
        """The first two others that a symbol is the sum of."""
        values = self._symbols[i].values
        parts = [part for part in self._head if part != i][:MAX_SYMBOLS_FOR_SUMS]
        ends = self._by_ends()
        for at, part in enumerate(parts):
            own = self._symbols[part].values
            for other in ends.get((values[0] - own[0], values[-1] - own[-1]), ()):
                if other in parts[at + 1 :] and self._is_sum(own, other, values):
                    return part, other
        return None

    def is_capped(self, i: int) -> bool:
        """Whether there were more symbols than this one was compared with."""
        many = len(self._place) - (i in self._place) > MAX_SYMBOLS_FOR_SUMS
        return many or len(self._alike.get(self._look(i).alike, ())) > _MAX_ALIKE

    def _look(self, i: int) -> _Look:
        if i not in self._looks:
            self._looks[i] = _Look(self._symbols[i].values)
        return self._looks[i]

    def _by_ends(self) -> dict[tuple[int, int], list[int]]:
        """The parts that sums are made of, by their first and last value."""
        if self._ends is None:
            self._ends = {}
            for part in self._head:
                values = self._symbols[part].values
                self._ends.setdefault((values[0], values[-1]), []).append(part)
        return self._ends

    def _is_sum(self, own: Sequence[int], other: int, values: Sequence[int]) -> bool:
        pairs = zip(own, self._symbols[other].values, values, strict=True)
        return all(x + y == z for x, y, z in pairs)


def _sum(symbols: Sequence[Symbol], *parts: int) -> Relation:
    """The sum of symbols, over the free ones that they follow from."""
    factors: dict[int, int] = {}
    constant = 0
    for part in parts:
        relation = symbols[part].relation or Relation(((1, part),))
        constant += relation.constant
        for factor, symbol in relation.terms:
            factors[symbol] = factors.get(symbol, 0) + factor
    return Relation(tuple((factor, symbol) for symbol, factor in factors.items()), constant)
