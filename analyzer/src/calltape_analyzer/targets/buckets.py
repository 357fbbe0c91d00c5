"""Buckets: the few sizes to pad to that waste least over the recorded traffic.

:mod:`calltape_analyzer.variants.padding` finds them.
"""

from __future__ import annotations

from collections.abc import Mapping

from calltape_analyzer.errors import UsageError
from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.given import variant_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.padding import Buckets, buckets_of, padding_sizes
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["Buckets", "buckets", "buckets_per_symbol", "padding_sizes"]


def buckets(source: Tape | Variant, symbol: str, count: int, *, multiple_of: int = 1) -> Buckets:
    """The best sizes to pad one symbol to.

    Args:
        source: a variant, or a tape whose calls are one. Each call counts, kept or not, if the tape
            has counters of the whole traffic that tell how many calls had which size. If they tell
            its range only, the kept calls count, and the largest size as one more.
        symbol: the name of one of its symbols.
        count: how many sizes, at most; there are never more than distinct sizes were seen.
        multiple_of: what each size must be a multiple of.

    Raises:
        UsageError: no symbol has this name, a number is below 1, or the tape has several variants.
    """
    variant = variant_of(source)
    return _buckets(variant, {s.name: s for s in variant.facts.symbols}, symbol, count, multiple_of)


def _buckets(
    variant: Variant, symbols: Mapping[str, Symbol], symbol: str, count: int, multiple_of: int
) -> Buckets:
    found = symbols.get(symbol)
    if found is None:
        names = ", ".join(s.name for s in variant.facts.symbols) or "none"
        raise UsageError(
            f"variant {variant.name} has no symbol {symbol!r}", advice=f"it has: {names}"
        )
    return buckets_of(variant.facts, found, count, multiple_of)


def buckets_per_symbol(
    source: Tape | Variant, count: int | Mapping[str, int], *, multiple_of: int = 1
) -> list[Buckets]:
    """The best sizes for several symbols, each on its own.

    Symbols that follow from others are left out unless they are named, and so are those that never
    varied. The sizes of a call are then those of one bucket per symbol: with k buckets for each of
    n symbols there are up to k**n combinations, and their joint optimum may be another.

    Args:
        source: a variant, or a tape whose calls are one.
        count: how many sizes for every symbol, or by name for the ones that are wanted.
        multiple_of: what each size must be a multiple of.

    Raises:
        UsageError: as :func:`calltape_analyzer.targets.buckets.buckets` does.
    """
    variant = variant_of(source)
    if not isinstance(count, Mapping):
        free = (s for s in variant.facts.symbols if s.relation is None and s.varied)
        count = {symbol.name: count for symbol in free}
    symbols = {symbol.name: symbol for symbol in variant.facts.symbols}
    return [_buckets(variant, symbols, name, k, multiple_of) for name, k in count.items()]
