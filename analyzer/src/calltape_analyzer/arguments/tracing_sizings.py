"""Sizes to trace a program with.

torch makes constants of sizes 0 and 1, and one symbol of equal sizes (rule 4 of
docs/decisions/export-strategies.md). So every dynamic size should be at least 2, and the sizes of
different symbols should differ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count as count_from
from itertools import islice, product

from calltape_analyzer.arguments.sizings import (
    GROWTH,
    Sizing,
    elements_at,
    followed,
    is_batch,
    values_at,
)
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["sizing_of_batch", "sizings_for_tracing"]

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
    order = sorted(rows, key=lambda r: (_unfit(variant, r), variant.rows.elements(r)))
    best = order[0]
    recorded = Sizing(best, values_at(variant, best), False)
    if _unfit(variant, best) == 0:
        return [recorded]
    found = next(_nearby(variant, best), None)
    return [found, recorded] if found is not None else [recorded]


def sizing_of_batch(variant: VariantFacts, row: int) -> Sizing | None:
    """A recorded row with first dimensions that are fit for tracing, and all else as it was; None
    if nothing but first dimensions is dynamic, or none is."""
    batch = {i for i, symbol in enumerate(variant.symbols) if is_batch(symbol)}
    if not batch or len(batch) == len(variant.symbols):
        return None
    values = values_at(variant, row)
    free = {i for i in batch if variant.symbols[i].relation is None}
    others = {value for i, value in enumerate(values) if i not in batch}
    moved: dict[int, int] = {}
    for i in sorted(free):
        taken = others | set(moved.values())
        moved[i] = next(v for v in count_from(max(values[i], 2)) if v not in taken)
    completed = tuple(moved.get(i, value) for i, value in enumerate(values))
    return Sizing(row, completed, completed != values)


def _unfit(variant: VariantFacts, row: int) -> int:
    """How many symbols have a size below 2, or the size of another symbol."""
    values = values_at(variant, row)
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
        completed = followed(variant.symbols, values, moved)
        if completed is None or not _is_fit(completed):
            continue
        sizing = Sizing(row, completed, True)
        if elements_at(variant, sizing) <= max(_MAX_TRACED, GROWTH * variant.rows.elements(row)):
            yield sizing


def _steps(count: int) -> Iterable[tuple[int, ...]]:
    """Steps for so many symbols: all combinations, the smallest first, if they are not too many."""
    if _MAX_STEPS**count > _MAX_TRIED:
        return _diagonal(count)
    return sorted(product(range(_MAX_STEPS), repeat=count), key=lambda step: (sum(step), step))


def _diagonal(count: int) -> Iterator[tuple[int, ...]]:
    """Steps for symbols that are too many to try all combinations: all steps differ."""
    for start in range(_MAX_STEPS):
        yield tuple(start + i for i in range(count))


def _concerned(symbols: Sequence[Symbol], values: Sequence[int]) -> set[int]:
    """The symbols whose values are unfit, and the symbols from which these follow."""
    counts = Counter(values)
    unfit = {i for i, value in enumerate(values) if value < 2 or counts[value] > 1}
    relations = ((i, symbol.relation) for i, symbol in enumerate(symbols) if i in unfit)
    return unfit | {term for _, known in relations if known for _, term in known.terms}


def _is_fit(values: Sequence[int]) -> bool:
    return all(v >= 2 for v in values) and len(set(values)) == len(values)
