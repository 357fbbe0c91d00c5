"""The sizes of a symbol as bars, and two symbols as spots. Both are bounded, however many sizes
there are.

In come the size table of a variant and its symbols. Out go histograms and pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from calltape_analyzer.reporting.contents import Histogram, Pair, cut, table
from calltape_analyzer.text import counted, shown_value
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["calls_by_size", "histogram_of", "pair_of", "pairs_of", "unpaired"]

_MAX_BARS, _MAX_BY_SIZE, _MAX_SPOTS_PER_SIDE, _MAX_COMMON = 48, 30, 16, 12
_MAX_PAIRED, _MAX_DRAWN_BITS = 4, 48

Weighs = Literal["kept", "all", "kept and largest"]
_COUNTS: dict[Weighs, str] = {
    "kept": "the calls on the tape",
    "all": "all calls that the recorder counted",
    "kept and largest": "the calls on the tape, and one of the largest size that was counted",
}


def histogram_of(facts: VariantFacts, symbol: Symbol) -> Histogram:
    """The sizes of a symbol: a bar for each if they are few, else 48 bars of equal width or
    fewer."""
    calls, weighs = calls_by_size(facts, symbol)
    rows = [(shown_value(size), number) for size, number in _most_common(calls)]
    common = table("the most common sizes", ("size", "calls"), rows)
    return Histogram(
        bins=tuple(_bins(calls)),
        distinct=len(calls),
        counts=_COUNTS[weighs],
        common=common,
        is_drawn=_is_small(calls),
    )


def calls_by_size(facts: VariantFacts, symbol: Symbol) -> tuple[Counter[int], Weighs]:
    """How many calls had each size of a symbol, and which calls these are: those on the tape
    (``kept``), all of the traffic (``all``), or those on the tape and one of the largest size."""
    sizes = facts.every.sizes(symbol.columns[0])
    calls = Counter({size: seen.calls for size, seen in sizes.items()})
    whole = facts.counted.get(symbol.columns[0])
    if whole is None or whole.shared_with or sum(calls.values()) >= whole.calls:
        return calls, "kept"
    counted_calls = Counter(whole.values.sizes)
    if not whole.values.other_calls and calls.keys() <= counted_calls.keys():
        return counted_calls, "all"
    calls.setdefault(whole.values.max, 1)
    return calls, "kept and largest"


def _bins(calls: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """The bars. Those of many sizes are without gaps: a size that no call had is a bar of height
    0. Few sizes may be far apart (1, 2, 4, 600), and most of them would share a bar."""
    if len(calls) <= _MAX_BY_SIZE:
        return [(size, size, number) for size, number in sorted(calls.items())]
    low, high = min(calls), max(calls)
    width = -(-(high - low + 1) // _MAX_BARS)
    found: Counter[int] = Counter()
    for size, number in calls.items():
        found[(size - low) // width] += number
    return [
        (low + at * width, min(low + (at + 1) * width - 1, high), found[at])
        for at in range((high - low) // width + 1)
    ]


def _most_common(calls: Mapping[int, int]) -> list[tuple[int, int]]:
    return sorted(calls.items(), key=lambda item: (-item[1], item[0]))[:_MAX_COMMON]


def _is_small(sizes: Mapping[int, int] | Sequence[int]) -> bool:
    return max(abs(min(sizes)), abs(max(sizes))).bit_length() <= _MAX_DRAWN_BITS


def _free(facts: VariantFacts) -> list[Symbol]:
    """The symbols that varied and follow from no other."""
    return [one for one in facts.symbols if one.relation is None and one.varied]


def pairs_of(facts: VariantFacts) -> list[Pair]:
    """The first free symbols, two by two."""
    pairs = combinations(_free(facts)[:_MAX_PAIRED], 2)
    found = (pair_of(facts, one, other) for one, other in pairs)
    return [pair for pair in found if pair is not None]


def unpaired(facts: VariantFacts) -> str | None:
    """Which symbols are in no pair, in words; None if all are."""
    more = len(_free(facts)) - _MAX_PAIRED
    return f"{counted(more, 'symbol')} beside the first {_MAX_PAIRED}" if more > 0 else None


def pair_of(facts: VariantFacts, one: Symbol, other: Symbol) -> Pair | None:
    """How often the sizes of two symbols came together; None if they are too large to draw."""
    rows = facts.every
    ones, others = rows.values(one.columns[0]), rows.values(other.columns[0])
    if not (_is_small(ones) and _is_small(others)):
        return None
    together: Counter[tuple[int, int]] = Counter()
    for at, pair in enumerate(zip(ones, others, strict=True)):
        together[pair] += rows.seen(at).calls
    return _pair(cut(one.name), cut(other.name), together)


def _pair(one: str, other: str, together: Counter[tuple[int, int]]) -> Pair:
    ones = {a for a, _ in together}
    others = {b for _, b in together}
    ranked = sorted(together.items(), key=lambda item: (-item[1], item[0]))[:_MAX_COMMON]
    rows = [(a, b, number) for (a, b), number in ranked]
    return Pair(
        one=one,
        other=other,
        spots=tuple(_spots(together, ones, others)),
        said=_said(one, other, len(ones), len(others), len(together)),
        common=table("the most common combinations", (one, other, "calls"), rows),
    )


def _said(one: str, other: str, ones: int, others: int, together: int) -> str:
    """Whether one symbol tells the other, or how many combinations there are of all possible."""
    if together == ones == others:
        return f"each size of {one} came with one size of {other}, and the reverse"
    if together == ones:
        return f"each size of {one} came with one size of {other}"
    if together == others:
        return f"each size of {other} came with one size of {one}"
    possible = ones * others
    if together == possible:
        return f"all {possible:,} combinations of their sizes came"
    return f"{counted(together, 'combination')} of {possible:,} possible ones came"


def _spots(
    together: Mapping[tuple[int, int], int], ones: set[int], others: set[int]
) -> list[tuple[float, float, int]]:
    found: Counter[tuple[int, int]] = Counter()
    (a_low, a_width), (b_low, b_width) = _grid(ones), _grid(others)
    for (a, b), number in together.items():
        found[(a - a_low) // a_width, (b - b_low) // b_width] += number
    return [
        (a_low + (a + 0.5) * a_width - 0.5, b_low + (b + 0.5) * b_width - 0.5, number)
        for (a, b), number in sorted(found.items())
    ]


def _grid(sizes: set[int]) -> tuple[int, int]:
    low, high = min(sizes), max(sizes)
    return low, -(-(high - low + 1) // _MAX_SPOTS_PER_SIDE)
