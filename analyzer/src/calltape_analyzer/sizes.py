"""Which sizes a call should have to be traced with, and which were never recorded.

torch specializes sizes of 0 and 1, and takes equal sizes for one (rule 4 of docs/decisions/0012):
every dynamic size should be at least 2, and sizes of different symbols pairwise different.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product

from calltape_analyzer.observations import Row
from calltape_analyzer.symbols import Symbol
from calltape_analyzer.variants import VariantFacts

__all__ = [
    "Sizing",
    "sizings_around",
    "sizings_far",
    "sizings_for_tracing",
    "sizings_of_one",
    "sizings_unseen",
]

_MAX_STEPS = 6
_FAR, _FAREST, _MAX_FAR = (4, 32), 500, 5
_MAX_FAR_ELEMENTS = 2**20
_MAX_TRIED = 20_000


@dataclass(frozen=True)
class Sizing:
    """A recorded row (by its place among the variant's), and the value of each symbol instead.

    ``resized`` tells whether any value differs from the recorded one.
    """

    row: int
    values: tuple[int, ...]
    resized: bool


def sizings_for_tracing(variant: VariantFacts, wanted: Sequence[Row] | None = None) -> list[Sizing]:
    """Good sizes first: a recorded row that is fit for tracing, or the nearest to one that is,
    resized; then the best recorded row as it is.

    Args:
        variant: what is to be traced.
        wanted: the rows to start from; all by default.
    """
    rows = [r for r, (row, _) in enumerate(variant.rows) if wanted is None or row in wanted]
    order = sorted(rows, key=lambda r: (_unfit(variant, r), _elements(variant, r)))
    best = order[0]
    recorded = Sizing(best, _values(variant, best), False)
    if _unfit(variant, best) == 0:
        return [recorded]
    found = next(_nearby(variant, best), None)
    return [found, recorded] if found is not None else [recorded]


def sizings_unseen(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes that no recorded call has, each symbol moved by little: some up by one or two, all
    apart from each other."""
    recorded = {_values(variant, r) for r in range(len(variant.rows))}
    found: list[Sizing] = []
    for r in sorted(range(len(variant.rows)), key=lambda r: _elements(variant, r)):
        values = _values(variant, r)
        for step in (1, 2):
            free = {i: v + step + i % 2 for i, v in enumerate(values) if v > 0}
            moved = _completed(variant.symbols, values, free)
            if moved is not None and moved not in recorded:
                recorded.add(moved)
                found.append(Sizing(r, moved, True))
            if len(found) == count:
                return found
    return found


def sizings_of_one(variant: VariantFacts, count: int) -> list[Sizing]:
    """Sizes that no recorded call has, with one symbol at 1. A trace is made with sizes of at least
    2, and a model may treat 1 in another way (``squeeze``, broadcasting)."""
    recorded = {_values(variant, r) for r in range(len(variant.rows))}
    found: list[Sizing] = []
    row = min(range(len(variant.rows)), key=lambda r: _elements(variant, r))
    values = _values(variant, row)
    for i, symbol in enumerate(variant.symbols):
        if symbol.relation is None and values[i] > 1 and len(found) < count:
            moved = _completed(variant.symbols, values, {i: 1})
            if moved is not None and moved not in recorded:
                found.append(Sizing(row, moved, True))
    free = {i: 1 for i, s in enumerate(variant.symbols) if s.relation is None and values[i] > 1}
    moved = _completed(variant.symbols, values, free)
    if len(free) > 1 and moved is not None and moved not in recorded:
        found.append(Sizing(row, moved, True))
    return found


def sizings_far(variant: VariantFacts) -> list[Sizing]:
    """Sizes far beyond the recorded ones, as far as their tensors stay small: a model may do
    something else from some size on, and nothing of that is in a trace."""
    row = min(range(len(variant.rows)), key=lambda r: _elements(variant, r))
    values = _values(variant, row)
    elements = max(_elements(variant, row), 1)
    found: list[Sizing] = []
    for factor in _FAR:
        free = {i: v * factor + i for i, v in enumerate(values) if v > 0}
        moved = _completed(variant.symbols, values, free)
        grown = elements * factor ** min(len(set(free.values())), 3)
        if moved is not None and free and grown <= _MAX_FAR_ELEMENTS:
            found.append(Sizing(row, moved, True))
    for i, symbol in enumerate(variant.symbols):
        if symbol.relation is None and values[i] > 0 and elements * _FAREST <= _MAX_FAR_ELEMENTS:
            moved = _completed(variant.symbols, values, {i: values[i] * _FAREST})
            if moved is not None and len(found) < _MAX_FAR:
                found.append(Sizing(row, moved, True))
    return found


def sizings_around(variant: VariantFacts, centers: Sequence[Sizing]) -> list[Sizing]:
    """Sizes a little beyond given ones."""
    found: list[Sizing] = []
    for center in centers:
        for step in (1, 2):
            free = {i: v + step + i % 2 for i, v in enumerate(center.values) if v > 0}
            moved = _completed(variant.symbols, center.values, free)
            if moved is not None:
                found.append(Sizing(center.row, moved, True))
    return found


def _values(variant: VariantFacts, row: int) -> tuple[int, ...]:
    return tuple(symbol.values[row] for symbol in variant.symbols)


def _unfit(variant: VariantFacts, row: int) -> int:
    """How many symbols have a size below 2, or one that another has."""
    values = _values(variant, row)
    return sum(v < 2 for v in values) + len(values) - len(set(values))


def _elements(variant: VariantFacts, row: int) -> int:
    total = 0
    for shape in variant.rows[row][0].shapes:
        elements = 1
        for size in shape:
            elements *= size
        total += elements
    return total


def _nearby(variant: VariantFacts, row: int) -> Iterator[Sizing]:
    """The row with some free symbols a little larger, smallest change first."""
    values = _values(variant, row)
    free = [i for i, symbol in enumerate(variant.symbols) if symbol.relation is None]
    # Only what is unfit, or what an unfit one depends on, has a reason to change.
    moving = [i for i in free if _concerned(variant.symbols, values, i)][:8]
    steps = (
        sorted(product(range(_MAX_STEPS), repeat=len(moving)), key=lambda s: (sum(s), s))
        if (_MAX_STEPS ** len(moving) <= _MAX_TRIED)
        else _diagonal(len(moving))
    )
    for step in islice(steps, _MAX_TRIED):
        moved = {i: max(values[i], 2) + by for i, by in zip(moving, step, strict=True)}
        completed = _completed(variant.symbols, values, moved)
        if completed is not None and _is_fit(completed):
            yield Sizing(row, completed, True)


def _diagonal(count: int) -> Iterator[tuple[int, ...]]:
    """Steps where there are too many symbols to try all: all apart from each other."""
    for start in range(_MAX_STEPS):
        yield tuple(start + i for i in range(count))


def _concerned(symbols: Sequence[Symbol], values: Sequence[int], i: int) -> bool:
    def unfit(j: int) -> bool:
        return values[j] < 2 or sum(v == values[j] for v in values) > 1

    depending = [
        j
        for j, symbol in enumerate(symbols)
        if symbol.relation is not None and any(term == i for _, term in symbol.relation.terms)
    ]
    return unfit(i) or any(map(unfit, depending))


def _completed(
    symbols: Sequence[Symbol], values: Sequence[int], moved: dict[int, int]
) -> tuple[int, ...] | None:
    """Values of all symbols, where free ones are moved and the others follow."""
    made = list(values)
    for i, symbol in enumerate(symbols):
        if symbol.relation is None:
            made[i] = moved.get(i, made[i])
    for i, symbol in enumerate(symbols):
        if symbol.relation is not None:
            made[i] = symbol.relation.value(made)
    return tuple(made) if all(v >= 0 for v in made) else None


def _is_fit(values: Sequence[int]) -> bool:
    return all(v >= 2 for v in values) and len(set(values)) == len(values)
