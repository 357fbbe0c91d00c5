"""Symbols, and the relations between them: what each symbol always was of others.

Takes columns that were equal in every row, and the rows; returns symbols. A symbol that always was
a sum or a multiple of others follows from them. Such relations are used to resize a call
consistently, and to explain a shape to people. They are never imposed on an export, which finds its
own (rule 3 of docs/decisions/export-strategies.md: named, shared dimensions made fewer than half as
many exports succeed).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import gcd
from operator import mul
from typing import NamedTuple

from calltape_analyzer.observing.size_table import Column, SizeTable

__all__ = ["MAX_SYMBOLS_FOR_SUMS", "Relation", "Symbol", "refuted", "symbols_of"]

MAX_SYMBOLS_FOR_SUMS = 24
"""To find the symbols that are the sum of two others takes quadratic time: sums are sought among so
many symbols (docs/decisions/variants-and-shapes.md)."""

_MAX_MULTIPLES = 64
_MAX_UNIT_OF_ONE = 32
_MIN_UNIT = 4


class Relation(NamedTuple):
    """``sum(factor * symbol) + constant``, over symbols by their number."""

    terms: tuple[tuple[int, int], ...]
    constant: int = 0

    def value(self, values: Sequence[int] | Mapping[int, int]) -> int:
        """The value of the symbol that follows, for values of all symbols."""
        return sum(factor * values[symbol] for factor, symbol in self.terms) + self.constant


def refuted(
    relation: Relation, values_of: Sequence[Sequence[int]], expected: Sequence[int]
) -> int | None:
    """The number of the first row in which a relation does not hold; None if it always holds.

    Args:
        relation: found in some rows.
        values_of: per symbol its value in each row.
        expected: the values of the symbol that follows.
    """
    terms = [(factor, values_of[symbol]) for factor, symbol in relation.terms]
    if len(terms) == 1:
        ((factor, values),) = terms
        products = (factor * value + relation.constant for value in values)
    else:
        columns = zip(*(values for _, values in terms), strict=True)
        factors = [factor for factor, _ in terms]
        products = (sum(map(mul, factors, values)) + relation.constant for values in columns)
    pairs = zip(products, expected, strict=True)
    return next((place for place, (value, got) in enumerate(pairs) if value != got), None)


@dataclass
class Symbol:
    """Columns that were always equal.

    Attributes:
        columns: the columns, in order.
        values: their value per row, in the order of the rows.
        relation: how it follows from other symbols, if it always did.
        name: for people and ONNX, unique among the symbols of a variant.
        ambiguous: whether another symbol never differed from this one in these calls, so that only
            other calls show that they are two.
        capped: whether there were so many symbols that it was not compared with all of them.
    """

    columns: list[Column]
    values: tuple[int, ...]
    relation: Relation | None = None
    name: str = ""
    ambiguous: bool = False
    capped: bool = False

    @cached_property
    def unit(self) -> int:
        """What all values are multiples of, if that is 4 or more (images, patches, blocks), else 1:
        their greatest common divisor. Of a single value, which says little, a power of two that
        divides it, 32 at most."""
        unit = gcd(*self.values) if self.varied else gcd(self.values[0], _MAX_UNIT_OF_ONE)
        return unit if unit >= _MIN_UNIT and any(self.values) else 1

    @cached_property
    def varied(self) -> bool:
        """Whether more than one value was seen."""
        return len(set(self.values)) > 1


def symbols_of(
    groups: Sequence[Sequence[Column]], rows: SizeTable, preferred: Sequence[int] = ()
) -> list[Symbol]:
    """Symbols with their relations.

    Args:
        groups: columns that are one symbol, each with the same value in every row.
        rows: the distinct rows.
        preferred: numbers of groups from which others should follow, rather than the reverse.

    Returns:
        One symbol per group, in the same order.
    """
    symbols = [Symbol(list(columns), rows.values(columns[0])) for columns in groups]
    first = set(preferred)
    order = [*preferred, *(i for i in range(len(symbols)) if i not in first)]
    free, known = _Parts(symbols), _Parts(symbols)
    for i in order:
        if not symbols[i].varied:
            continue  # it follows from no symbol, and no symbol from it
        symbols[i].relation = _relation(symbols, i, free, known)
        if symbols[i].relation is None:
            free.add(i)
        known.add(i)
    _relate_totals(symbols, free)
    return symbols


def _relate_totals(symbols: Sequence[Symbol], free: _Parts) -> None:
    """Relates totals that came before their parts, and so seemed to follow from nothing."""
    used = {f for s in symbols if s.relation is not None for _, f in s.relation.terms}
    parts = _Parts(symbols)
    for i, symbol in enumerate(symbols):
        if symbol.varied:
            parts.add(i)
    for i in list(free):
        if i in used:
            continue
        relation = symbols[i].relation = _relation(symbols, i, free, parts)
        if relation is not None:
            used.update(f for _, f in relation.terms)
            free.remove(i)


def _relation(symbols: Sequence[Symbol], i: int, free: _Parts, known: _Parts) -> Relation | None:
    """How a symbol follows from other ones that are free: from one, or from the sum of two.

    Args:
        symbols: all, those in ``known`` with their relations.
        i: the symbol in question, which varied.
        free: the symbols that it may follow from.
        known: these, and the symbols that follow from them.
    """
    relation = free.line_to(i)
    # A sum of free symbols, or else of symbols that follow from a third one: mask = ids + past,
    # and past happened to be another dimension plus a constant.
    for parts in (free, known):
        pair = parts.sum_to(i) if relation is None else None
        if pair is not None:
            relation = _sum(symbols, *pair)
    symbols[i].capped = relation is None and (free.is_capped(i) or known.is_capped(i))
    return relation


class _LinearForm:
    """The values of a symbol that varied, in a form that is equal for symbols of which one is a
    linear function of the other: ``target = factor * given + constant``.

    Any two points lie on a line. So two distinct values are evidence for a difference or a multiple
    only; a factor with a constant needs three.

    Attributes:
        values: of the symbol.
        step: the greatest common divisor of all differences of its values.
        up_to_constant: equal for symbols that differ by a constant.
        up_to_factor: equal for symbols that are multiples of the same values, plus a constant if
            there are three distinct values; ``size`` is the factor.
    """

    def __init__(self, values: Sequence[int]) -> None:
        self.values = values
        first = values[0]
        differences = [value - first for value in values]
        self.step = gcd(*differences)
        shape = tuple(difference // self.step for difference in differences)
        self.up_to_constant: Hashable = (self.step, shape)
        if len(set(values)) > 2:
            self.size = self.step
            self.up_to_factor: Hashable = shape
        else:
            self.size = gcd(*values)
            self.up_to_factor = tuple(value // self.size for value in values)

    def line_to(self, target: _LinearForm) -> tuple[int, int]:
        """Factor and constant of the line to a symbol of equal form."""
        factor = target.step // self.step
        return factor, target.values[0] - factor * self.values[0]


class _Parts:
    """Symbols from which others may follow, in order. They are found by the hash of their linear
    form, because to compare each with each takes quadratic time."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self._symbols = symbols
        self._place: dict[int, int] = {}
        self._forms: dict[int, _LinearForm] = {}
        self._by_constant: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._by_factor: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._head: list[int] = []
        self._ends: dict[tuple[int, int], list[int]] | None = None

    def __iter__(self) -> Iterator[int]:
        return iter(self._place)

    def add(self, i: int) -> None:
        """Appends a symbol, which varied."""
        form = self._form(i)
        self._place[i] = len(self._place)
        self._by_constant[form.up_to_constant][i] = form.size
        self._by_factor[form.up_to_factor][i] = form.size
        if len(self._head) <= MAX_SYMBOLS_FOR_SUMS:
            self._head.append(i)
            self._ends = None

    def remove(self, i: int) -> None:
        """Removes a symbol; none is added afterwards."""
        form = self._form(i)
        del (
            self._place[i],
            self._by_constant[form.up_to_constant][i],
            self._by_factor[form.up_to_factor][i],
        )
        if i in self._head:
            self._head = list(islice(self._place, MAX_SYMBOLS_FOR_SUMS + 1))
            self._ends = None

    def line_to(self, i: int) -> Relation | None:
        """How a symbol follows from one other symbol, the first from which it does."""
        form = self._form(i)
        shifted = (f for f in self._by_constant.get(form.up_to_constant, ()) if f != i)
        multiples = (
            f
            for f, size in islice(
                self._by_factor.get(form.up_to_factor, {}).items(), _MAX_MULTIPLES
            )
            if f != i and form.size % size == 0
        )
        candidates = [f for f in (next(shifted, None), next(multiples, None)) if f is not None]
        if not candidates:
            return None
        nearest = min(candidates, key=self._place.__getitem__)
        factor, constant = self._forms[nearest].line_to(form)
        return Relation(((factor, nearest),), constant)

    def sum_to(self, i: int) -> tuple[int, int] | None:
        """The first two other symbols whose sum a symbol always is."""
        values = self._symbols[i].values
        parts = [part for part in self._head if part != i][:MAX_SYMBOLS_FOR_SUMS]
        ends = self._by_ends()
        for position, part in enumerate(parts):
            part_values = self._symbols[part].values
            for other_part in ends.get(
                (values[0] - part_values[0], values[-1] - part_values[-1]), ()
            ):
                if other_part in parts[position + 1 :] and self._is_sum(
                    part_values, other_part, values
                ):
                    return part, other_part
        return None

    def is_capped(self, i: int) -> bool:
        """Whether a symbol was not compared with all symbols."""
        others = len(self._place) - (i in self._place) > MAX_SYMBOLS_FOR_SUMS
        return others or len(self._by_factor.get(self._form(i).up_to_factor, ())) > _MAX_MULTIPLES

    def _form(self, i: int) -> _LinearForm:
        if i not in self._forms:
            self._forms[i] = _LinearForm(self._symbols[i].values)
        return self._forms[i]

    def _by_ends(self) -> dict[tuple[int, int], list[int]]:
        """The symbols among which sums are sought, by their first and last value."""
        if self._ends is None:
            self._ends = {}
            for part in self._head:
                values = self._symbols[part].values
                self._ends.setdefault((values[0], values[-1]), []).append(part)
        return self._ends

    def _is_sum(self, part_values: Sequence[int], other_part: int, values: Sequence[int]) -> bool:
        pairs = zip(part_values, self._symbols[other_part].values, values, strict=True)
        return all(x + y == z for x, y, z in pairs)


def _sum(symbols: Sequence[Symbol], *parts: int) -> Relation:
    """The sum of symbols, in terms of the free symbols from which they follow."""
    factors: dict[int, int] = {}
    constant = 0
    for part in parts:
        relation = symbols[part].relation or Relation(((1, part),))
        constant += relation.constant
        for factor, symbol in relation.terms:
            factors[symbol] = factors.get(symbol, 0) + factor
    return Relation(tuple((factor, symbol) for symbol, factor in factors.items()), constant)
