"""Which sizes of a set of calls vary, which of them are one, and how they relate.

A *column* is one dimension of one tensor, or one int, over the rows of a group. Columns that were
equal in every row are one symbol. A symbol that always was a sum or a multiple of others is
dependent on them. Such relations serve to resize a call consistently and to explain a shape to
people; they are never imposed on an export, which finds its own (rule 3 of docs/decisions/0012:
named, shared dimensions made fewer than half as many exports succeed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import mul
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from calltape_analyzer.rows import Row

__all__ = ["Column", "Relation", "Symbol", "columns_of", "refuted", "symbols_of", "value_in"]

MAX_SYMBOLS_FOR_SUMS = 24


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

    def value(self, values: Sequence[int]) -> int:
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
    """

    columns: list[Column]
    values: tuple[int, ...]
    relation: Relation | None = None
    name: str = ""
    ambiguous: bool = False

    @property
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
    order = [*preferred, *(i for i in range(len(symbols)) if i not in preferred)]
    free: list[int] = []
    for at, i in enumerate(order):
        relation = _relation(symbols, i, free, order[:at])
        if relation is None:
            free.append(i)
        else:
            symbols[i].relation = relation
    _relate_totals(symbols, free)
    return symbols


def _relate_totals(symbols: Sequence[Symbol], free: list[int]) -> None:
    """A total that came before its parts looked free: whether it follows from what came later."""
    used = {f for s in symbols if s.relation is not None for _, f in s.relation.terms}
    for i in list(free):
        if i in used:
            continue
        others = [f for f in free if f != i]
        relation = _relation(symbols, i, others, [j for j in range(len(symbols)) if j != i])
        if relation is not None:
            symbols[i].relation = relation
            used.update(f for _, f in relation.terms)
            free.remove(i)


def _relation(
    symbols: Sequence[Symbol], i: int, free: Sequence[int], known: Sequence[int]
) -> Relation | None:
    """How a symbol follows from free ones: from one, or from the sum of two. A symbol that never
    varied follows from nothing.

    Args:
        symbols: all, those in ``known`` with their relations.
        i: the symbol in question.
        free: those that it may follow from.
        known: these, and those that follow from them.
    """
    target = symbols[i].values
    if not symbols[i].varied:
        return None
    for f in free:
        found = _affine(symbols[f].values, target) if symbols[f].varied else None
        if found is not None:
            return Relation(((found[0], f),), found[1])
    # Of free ones where there are such, else also of one that follows from a third: mask =
    # ids + past, where past happened to be another dimension plus a constant.
    for parts in (free, known):
        varied = [p for p in parts if symbols[p].varied][:MAX_SYMBOLS_FOR_SUMS]
        for a, b in combinations(varied, 2):
            pairs = zip(symbols[a].values, symbols[b].values, target, strict=True)
            if all(x + y == z for x, y, z in pairs):
                return _sum(symbols, a, b)
    return None


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


def _affine(given: Sequence[int], target: Sequence[int]) -> tuple[int, int] | None:
    """``factor`` and ``constant`` with ``target = factor * given + constant``.

    Two points lie on some line, so that two distinct values are evidence for a difference or a
    multiple only; a factor with a constant wants three.
    """
    points = sorted(set(zip(given, target, strict=True)))
    (x0, y0), (x1, y1) = points[0], points[-1]
    if x0 == x1 or (y1 - y0) % (x1 - x0):
        return None
    factor = (y1 - y0) // (x1 - x0)
    constant = y0 - factor * x0
    if factor < 1 or any(y != factor * x + constant for x, y in points):
        return None
    is_simple = factor == 1 or constant == 0
    return (factor, constant) if is_simple or len(points) > 2 else None
