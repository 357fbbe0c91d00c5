"""Names of symbols: why a dynamic dimension is called ``batch_size`` or ``x_dim_1``.

The first of a symbol's dimensions that has a usual name (``sequence_length`` of ``input_ids``)
gives it to the symbol, if no other symbol has it. Otherwise the name is made of the path of the
first dimension. The vocabulary is in :mod:`calltape_analyzer.observing.usual_names`.
"""

from __future__ import annotations

from calltape_analyzer.observing.usual_names import FLAT, own_dimension_name, usual_dimension_name
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["name_symbols"]


def name_symbols(variant: VariantFacts) -> None:
    """Gives the symbols of a variant unique names."""
    taken = UniqueNames()
    for symbol in variant.symbols:
        usual = _usual_name(variant, symbol)
        is_free = usual is not None and usual not in taken.names
        symbol.name = taken.add(usual if usual and is_free else _own_name(variant, symbol))


def _usual_name(variant: VariantFacts, symbol: Symbol) -> str | None:
    """The first usual name of its dimensions. That of a flat batch comes last: one token of each
    sequence of a batch is a row of tokens, too."""
    group = variant.group
    found: str | None = None
    for column in symbol.columns:
        if column.axis is None:
            continue
        path = group.layout.path(column)
        rank = group.facts[column.index].rank
        usual = usual_dimension_name(
            path.argument, path.path, rank, column.axis, group.layout.arguments
        )
        if usual is not None and usual != FLAT:
            return usual
        found = found or usual
    return found


def _own_name(variant: VariantFacts, symbol: Symbol) -> str:
    first = symbol.columns[0]
    path = variant.group.layout.path(first)
    return own_dimension_name(path.argument, path.path, first.axis)
