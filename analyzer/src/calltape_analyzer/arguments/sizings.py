"""Sizes that were never recorded, to trace a program with, and to probe it with.

torch makes constants of sizes 0 and 1, and one symbol of equal sizes (rule 4 of
docs/decisions/export-strategies.md). So to trace, every dynamic size should be at least 2, and the
sizes of different symbols should differ.

Sizes that were all multiples of a number stay so: an image that is no multiple of the patch is a
case of its own, if the model takes it at all.

A model is run at sizes that no call had, to see whether a program is right there. :class:`Bound`
says how large such a run may be (docs/decisions/guards-and-verdicts.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import islice, product

from calltape_analyzer.arguments.samples import resized_row
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol
from calltape_schema.fields import Many

__all__ = [
    "GROWTH",
    "Bound",
    "Sizing",
    "elements_at",
    "is_batch_symbol",
    "is_between",
    "is_part_way",
    "recorded_sizing",
    "row_at",
    "sizes_in_words",
    "sizing_of_batch",
    "sizings_around",
    "sizings_below",
    "sizings_between",
    "sizings_beyond",
    "sizings_far",
    "sizings_for_tracing",
    "sizings_of_batch",
    "sizings_of_one",
    "sizings_unrelated",
    "sizings_unseen",
    "sizings_with_zero",
    "values_at",
    "with_relations",
]

GROWTH = 4
"""How many times larger than a recorded call a run may be."""

_MAX_ROWS = 6
_BEYOND = 2
_FAR = (8, 64, 500)
_MAX_FAR_ELEMENTS = 2**20
_MAX_FACTOR = 100


@dataclass(frozen=True)
class Sizing:
    """Sizes that a sample is to have.

    Attributes:
        row: the number of a recorded row of the variant, from which the sample is made.
        values: the value of each symbol.
        resized: whether any value differs from the recorded row.
    """

    row: int
    values: Many[int]
    resized: bool


def recorded_sizing(variant: VariantFacts, row: int = 0) -> Sizing:
    """The sizes of a recorded row."""
    return Sizing(row, values_at(variant, row), False)


def sizes_in_words(variant: VariantFacts, sizing: Sizing) -> str:
    """``batch=2, length=7``."""
    values = enumerate(zip(variant.symbols, sizing.values, strict=True))
    return ", ".join(f"{symbol.name or f's{i}'}={value}" for i, (symbol, value) in values)


@dataclass(frozen=True)
class Bound:
    """How large a run may be at sizes that were not recorded.

    All input tensors together have at most :data:`GROWTH` times the elements of the largest
    recorded call of the tape. Each size and each int is at most :data:`GROWTH` times the largest
    value of its symbol, because the number of elements says little about the cost of a run
    (attention is quadratic, a count of steps has no elements). A symbol that follows from others
    counts with the value that follows.

    Attributes:
        elements: of all input tensors of the largest recorded call.
    """

    elements: int

    @classmethod
    def of(cls, variants: Iterable[VariantFacts]) -> Bound:
        """The bound of a tape with these variants."""
        tables = (variant.rows for variant in variants)
        elements = (rows.elements(row) for rows in tables for row in range(len(rows)))
        return cls(max(elements, default=0))

    def allows(self, variant: VariantFacts, sizing: Sizing) -> bool:
        """Whether a run at these sizes is small enough. A run at recorded sizes always is."""
        if not sizing.resized:
            return True
        symbols = zip(variant.symbols, sizing.values, strict=True)
        if any(value > GROWTH * max(symbol.values) for symbol, value in symbols):
            return False
        return elements_at(variant, sizing) <= GROWTH * self.elements


def sizings_of_batch(variant: VariantFacts) -> list[Sizing]:
    """For each recorded size, other first dimensions alone."""
    sizings: list[Sizing] = []
    for row in range(min(len(variant.rows), _MAX_ROWS)):
        values = values_at(variant, row)
        free = {
            i: values[i] + 1
            for i, symbol in enumerate(variant.symbols)
            if is_batch_symbol(symbol) and symbol.relation is None
        }
        sizings.append(Sizing(row, tuple(free.get(i, v) for i, v in enumerate(values)), True))
    return sizings


def is_batch_symbol(symbol: Symbol) -> bool:
    """Whether a symbol is the size of first dimensions."""
    return any(column.axis == 0 for column in symbol.columns)


def sizings_unseen(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes that no recorded call has, each symbol moved by little: some up by one or two, all
    apart from each other."""
    recorded = {values_at(variant, r) for r in range(len(variant.rows))}
    sizings: list[Sizing] = []
    for r in sorted(range(len(variant.rows)), key=variant.rows.elements):
        values = values_at(variant, r)
        for sizing in _moved_sizings(
            variant, r, [_larger(variant, values, step) for step in (1, 2)]
        ):
            if sizing.values not in recorded:
                recorded.add(sizing.values)
                sizings.append(sizing)
            if len(sizings) == count:
                return sizings
    return sizings


def sizings_between(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes between multiples: where all recorded sizes of a symbol have a common divisor, sizes
    that lack it, one symbol at a time: half way, at another part of the way, and next to a recorded
    size. A model may reject them, and no caller asked for them."""
    row = _smallest(variant)
    values = values_at(variant, row)
    units = {i: s.unit for i, s in _free(variant) if s.unit > 1 and values[i] > 0}
    part_way = _moved_sizings(
        variant, row, ({i: values[i] + _part(unit)} for i, unit in units.items())
    )
    next_to = _moved_sizings(variant, row, ({i: values[i] + 1} for i in units))
    return list(dict.fromkeys(part_way[:count] + next_to[:count]))


def is_part_way(variant: VariantFacts, sizing: Sizing) -> bool:
    """Whether each size is a multiple of a part of what all recorded sizes of its symbol are
    multiples of: a grid of patches that is odd, and not a picture with half a patch."""
    symbols = zip(variant.symbols, sizing.values, strict=True)
    units = [(value, symbol.unit) for symbol, value in symbols if symbol.relation is None]
    return all(
        value % unit == 0 or 1 < _part(unit) == math.gcd(value, unit) for value, unit in units
    )


def _part(unit: int) -> int:
    """The largest number below a unit that the unit is a multiple of; 1 if it has no small
    factor."""
    return next((unit // n for n in range(2, _MAX_FACTOR) if unit % n == 0 and unit > n), 1)


def is_between(variant: VariantFacts, sizing: Sizing) -> bool:
    """Whether a size is no multiple of what all recorded sizes of its symbol are multiples of."""
    symbols = zip(variant.symbols, sizing.values, strict=True)
    return any(symbol.relation is None and value % symbol.unit for symbol, value in symbols)


def sizings_of_one(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes that no recorded call has, with one symbol at 1. A trace is made with sizes of at least
    2, and a model may treat size 1 in another way (``squeeze``, broadcasting)."""
    recorded = {values_at(variant, r) for r in range(len(variant.rows))}
    row = _smallest(variant)
    values = values_at(variant, row)
    ones = {i: 1 for i, _ in _free(variant) if values[i] > 1}
    alone = _moved_sizings(variant, row, ({i: 1} for i in ones))
    together = _moved_sizings(variant, row, [ones] if len(ones) > 1 else [])
    alone, together = ([s for s in of if s.values not in recorded] for of in (alone, together))
    return alone[:count] + together


def sizings_with_zero(variant: VariantFacts) -> list[Sizing]:
    """Sizes that no recorded call has, with one symbol at 0, and those that follow from it."""
    zeros = ({i: 0} for i, symbol in _free(variant) if 0 not in symbol.values)
    return _moved_sizings(variant, _smallest(variant), zeros)


def sizings_beyond(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes beyond the recorded ones: one symbol at twice its largest value, the others small."""
    return _alone(variant, [_BEYOND], math.inf)[:count]


def sizings_below(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes below the recorded ones: one symbol at half its smallest value, the others small. They
    cost less than a recorded call."""
    halves = ((i, min(s.values) // _BEYOND // s.unit * s.unit) for i, s in _free(variant))
    return _moved_sizings(variant, _smallest(variant), ({i: n} for i, n in halves if n > 1))[:count]


def sizings_far(variant: VariantFacts) -> list[Sizing]:
    """Sizes far beyond the recorded ones, the nearest first. A model may do something else from
    some size on, which a trace does not show. The tensors stay small."""
    return _alone(variant, _FAR, _MAX_FAR_ELEMENTS)


def _alone(variant: VariantFacts, factors: Sequence[int], elements: float) -> list[Sizing]:
    """One symbol at a multiple of its largest value, the others as in the smallest row."""
    sizings: list[Sizing] = []
    for factor, (i, symbol) in product(factors, _free(variant)):
        if max(symbol.values) > 0:
            # A tensor without elements has nothing to repeat.
            row = _smallest(variant, [r for r, value in enumerate(symbol.values) if value > 0])
            sizings += _moved_sizings(variant, row, [{i: factor * max(symbol.values)}])
    return [sizing for sizing in sizings if elements_at(variant, sizing) <= elements]


def sizings_unrelated(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes that break a relation which rests on two different calls only, such as a length of
    three times the batch. A model that needs the relation does not take these sizes.

    :func:`~calltape_analyzer.variants.alternatives.looser_variants` drops all such relations at
    once, so they all stay if the model needs one of them. Here one is broken at a time."""
    row = _smallest(variant)
    values = values_at(variant, row)
    sizings: list[Sizing] = []
    for i, symbol in enumerate(variant.symbols):
        factors = [factor for factor, _ in symbol.relation.terms] if symbol.relation else []
        if len(factors) == 1 and factors[0] > 1 and len(set(symbol.values)) == 2:
            sizings.append(Sizing(row, (*values[:i], values[i] + 1, *values[i + 1 :]), True))
    return sizings[:count]


def sizings_around(variant: VariantFacts, centers: Sequence[Sizing]) -> list[Sizing]:
    """Sizes a little beyond given ones."""
    sizings: list[Sizing] = []
    for center in centers:
        larger = [_larger(variant, center.values, step) for step in (1, 2)]
        sizings += _moved_sizings(variant, center.row, larger, center.values)
    return sizings


def _free(variant: VariantFacts) -> list[tuple[int, Symbol]]:
    """The symbols that follow from no others, with their numbers."""
    return [(i, symbol) for i, symbol in enumerate(variant.symbols) if symbol.relation is None]


def _moved_sizings(
    variant: VariantFacts,
    row: int,
    choices: Iterable[Mapping[int, int]],
    values: Sequence[int] | None = None,
) -> list[Sizing]:
    """The sizes of a row with other values of free symbols, without those that
    :func:`with_relations` rejects.

    Args:
        variant: any.
        row: from which samples are made.
        choices: the new values, by the number of the symbol.
        values: of all symbols; by default those of the row.
    """
    before = values_at(variant, row) if values is None else values
    moved = (with_relations(variant.symbols, before, choice) for choice in choices)
    return [Sizing(row, sizes, True) for sizes in moved if sizes is not None]


def _larger(variant: VariantFacts, values: Sequence[int], step: int) -> dict[int, int]:
    """New values of the symbols, a little larger and apart from each other."""
    symbols = enumerate(zip(variant.symbols, values, strict=True))
    return {i: v + (step + i % 2) * symbol.unit for i, (symbol, v) in symbols if v > 0}


def values_at(variant: VariantFacts, row: int) -> tuple[int, ...]:
    """The value of each symbol in a recorded row."""
    return tuple(symbol.values[row] for symbol in variant.symbols)


def _smallest(variant: VariantFacts, among: Iterable[int] | None = None) -> int:
    rows = range(len(variant.rows)) if among is None else among
    return min(rows, key=variant.rows.elements)


def elements_at(variant: VariantFacts, sizing: Sizing) -> int:
    """How many elements all input tensors have together at these sizes."""
    return row_at(variant, sizing).elements


def row_at(variant: VariantFacts, sizing: Sizing) -> SizeRow:
    """The recorded row, with these sizes."""
    return resized_row(variant, sizing.row, sizing.values)


def with_relations(
    symbols: Sequence[Symbol], values: Sequence[int], moved: Mapping[int, int]
) -> tuple[int, ...] | None:
    """Values of all symbols, if free ones get new values and the others follow; None if a value
    would be negative.

    Args:
        symbols: all symbols.
        values: the values before.
        moved: the new values of some free symbols.
    """
    completed = list(values)
    for i, symbol in enumerate(symbols):
        if symbol.relation is None:
            completed[i] = moved.get(i, completed[i])
    for i, symbol in enumerate(symbols):
        if symbol.relation is not None:
            completed[i] = symbol.relation.value(completed)
    return tuple(completed) if all(v >= 0 for v in completed) else None


_MAX_STEPS = 6
_MAX_MOVING = 8
_MAX_TRIED = 20_000
_MAX_TRACED = 2**20
"""Elements of all arguments. A trace computes nothing, but its arguments take memory."""


def sizings_for_tracing(
    variant: VariantFacts, wanted: Collection[SizeRow] | None = None
) -> list[Sizing]:
    """Sizes to trace with, the best first: a recorded row that is fit for tracing; or else sizes
    near the best recorded row that are fit, and then that row as it is.

    Args:
        variant: what is to be traced.
        wanted: the rows to start from; all of them by default.
    """
    rows: Iterable[int] = range(len(variant.rows))
    if wanted is not None:
        rows = [r for r in rows if variant.rows.row(r) in wanted]
    order = sorted(rows, key=lambda r: (_unfit(values_at(variant, r)), variant.rows.elements(r)))
    best = order[0]
    recorded = recorded_sizing(variant, best)
    if not _unfit(recorded.values):
        return [recorded]
    sizing = next(_nearby(variant, best), None)
    return [sizing, recorded] if sizing is not None else [recorded]


def sizing_of_batch(variant: VariantFacts, row: int) -> Sizing | None:
    """A recorded row with first dimensions that are fit for tracing, and all else as it was; None
    if nothing but first dimensions is dynamic, or none is."""
    batch = {i for i, symbol in enumerate(variant.symbols) if is_batch_symbol(symbol)}
    if not batch or len(batch) == len(variant.symbols):
        return None
    values = values_at(variant, row)
    free = {i for i in batch if variant.symbols[i].relation is None}
    other_values = {value for i, value in enumerate(values) if i not in batch}
    moved: dict[int, int] = {}
    for i in sorted(free):
        used_values = other_values | set(moved.values())
        moved[i] = next(v for v in count_from(max(values[i], 2)) if v not in used_values)
    completed = tuple(moved.get(i, value) for i, value in enumerate(values))
    return Sizing(row, completed, completed != values)


def _unfit(values: Sequence[int]) -> int:
    """How many symbols have a size below 2, or the size of another symbol."""
    return sum(v < 2 for v in values) + len(values) - len(set(values))


def _nearby(variant: VariantFacts, row: int) -> Iterator[Sizing]:
    """Sizings in which some free symbols of a row are a little larger, smallest change first."""
    values = values_at(variant, row)
    free = [i for i, symbol in enumerate(variant.symbols) if symbol.relation is None]
    # Only an unfit symbol, or a symbol that an unfit one follows from, has a reason to change.
    concerned = _concerned(variant.symbols, values)
    moving = [i for i in free if i in concerned][:_MAX_MOVING]
    for step in islice(_steps(len(moving)), _MAX_TRIED):
        units = ((i, by, variant.symbols[i].unit) for i, by in zip(moving, step, strict=True))
        moved = {i: (-(-max(values[i], 2) // unit) + by) * unit for i, by, unit in units}
        completed = with_relations(variant.symbols, values, moved)
        if completed is None or _unfit(completed):
            continue
        sizing = Sizing(row, completed, True)
        if elements_at(variant, sizing) <= max(_MAX_TRACED, GROWTH * variant.rows.elements(row)):
            yield sizing


def _steps(count: int) -> Iterable[tuple[int, ...]]:
    """Steps for this many symbols: all combinations, the smallest first; if these are too many,
    some in which all steps differ."""
    if _MAX_STEPS**count > _MAX_TRIED:
        return [tuple(range(start, start + count)) for start in range(_MAX_STEPS)]
    return sorted(product(range(_MAX_STEPS), repeat=count), key=lambda step: (sum(step), step))


def _concerned(symbols: Sequence[Symbol], values: Sequence[int]) -> set[int]:
    """The symbols whose values are unfit, and the symbols from which these follow."""
    counts = Counter(values)
    unfit = {i for i, value in enumerate(values) if value < 2 or counts[value] > 1}
    relations = ((i, symbol.relation) for i, symbol in enumerate(symbols) if i in unfit)
    return unfit | {term for _, relation in relations if relation for _, term in relation.terms}
