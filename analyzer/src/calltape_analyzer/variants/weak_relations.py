"""Equal sizes and relations that too few calls suggest to be facts.

Any two points lie on a line: after two calls the length may always have been three times the batch,
or equal to it. In comes a variant. Out come looser ones, in which such sizes are symbols of their
own. Whether the model takes them is for whoever runs it (docs/decisions/variants-and-shapes.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace

from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbol_names import name_symbols
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["breaks", "looser_variants"]

_FEW = 2
"""So many distinct values are no evidence."""


def looser_variants(variant: VariantFacts) -> Iterator[VariantFacts]:
    """The variant without what few calls suggest, the loosest first: dimensions of different axes
    are different symbols, then only first dimensions and others; no size follows from another."""
    made: list[list[list[Column]]] = []
    for kind in (_by_axis, _by_batch, _as_they_are):
        groups = [part for symbol in variant.symbols for part in _parts(symbol, kind)]
        is_new = groups not in made and (
            len(groups) > len(variant.symbols) or any(map(_follows_weakly, variant.symbols))
        )
        if is_new:
            made.append(groups)
            yield _loosened(variant, groups)


def breaks(variant: VariantFacts, looser: VariantFacts, values: Sequence[int]) -> bool:
    """Whether sizes of a looser variant contradict all that it is looser in.

    Args:
        variant: as it was.
        looser: of :func:`looser_variants`.
        values: of the symbols of the looser one.
    """
    by_column = {
        column: value
        for symbol, value in zip(looser.symbols, values, strict=True)
        for column in symbol.columns
    }
    parts: dict[Column, list[int]] = {}
    for symbol, value in zip(looser.symbols, values, strict=True):
        own = next(s for s in variant.symbols if symbol.columns[0] in s.columns)
        parts.setdefault(own.columns[0], []).append(value)
    if any(len(set(given)) < len(given) for given in parts.values()):
        return False
    firsts = [by_column[symbol.columns[0]] for symbol in variant.symbols]
    weak = [(i, s.relation) for i, s in enumerate(variant.symbols) if _follows_weakly(s)]
    return all(known is None or known.value(firsts) != firsts[i] for i, known in weak)


def _follows_weakly(symbol: Symbol) -> bool:
    return symbol.relation is not None and len(set(symbol.values)) <= _FEW


def _parts(symbol: Symbol, kind: Callable[[Column], Hashable]) -> list[list[Column]]:
    if len(set(symbol.values)) > _FEW:
        return [symbol.columns]
    parts: dict[Hashable, list[Column]] = {}
    for column in symbol.columns:
        parts.setdefault(kind(column), []).append(column)
    return list(parts.values())


def _by_axis(column: Column) -> Hashable:
    return column.axis


def _by_batch(column: Column) -> Hashable:
    return column.axis == 0


def _as_they_are(column: Column) -> Hashable:
    return None


def _loosened(variant: VariantFacts, groups: Sequence[list[Column]]) -> VariantFacts:
    """The variant with a symbol for each group of columns, and the relations that are strong."""
    number = {columns[0]: i for i, columns in enumerate(groups)}
    of_symbol = {i: number[symbol.columns[0]] for i, symbol in enumerate(variant.symbols)}
    made = [Symbol(columns, variant.rows.values(columns[0])) for columns in groups]
    for i, symbol in enumerate(variant.symbols):
        if symbol.relation is not None and not _follows_weakly(symbol):
            terms = tuple((factor, of_symbol[term]) for factor, term in symbol.relation.terms)
            made[of_symbol[i]].relation = symbol.relation._replace(terms=terms)
    looser = replace(variant, symbols=made)
    name_symbols(looser)
    return looser
