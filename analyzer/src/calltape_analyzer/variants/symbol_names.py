"""Names of symbols: why a dynamic dimension is called ``batch_size`` or ``x_dim_1``.

The first of a symbol's dimensions that has a usual name (``sequence_length`` of ``input_ids``)
gives it to the symbol. Otherwise the name is made of the path of the first dimension. The
vocabulary is in :mod:`calltape_analyzer.observing.usual_names`.
"""

from __future__ import annotations

from calltape_analyzer.observing.usual_names import own_dimension_name, usual_dimension_name
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["name_symbols"]


def name_symbols(variant: VariantFacts) -> None:
    """Gives the symbols of a variant unique names."""
    taken = UniqueNames()
    for symbol in variant.symbols:
        symbol.name = taken.add(_name_of(variant, symbol))


def _name_of(variant: VariantFacts, symbol: Symbol) -> str:
    group = variant.group
    for column in symbol.columns:
        if column.axis is None:
            continue
        path = group.layout.path(column)
        rank = group.facts[column.index].rank
        usual = usual_dimension_name(path.argument, path.path, rank, column.axis)
        if usual is not None:
            return usual
    first = symbol.columns[0]
    path = group.layout.path(first)
    return own_dimension_name(path.argument, path.path, first.axis)
