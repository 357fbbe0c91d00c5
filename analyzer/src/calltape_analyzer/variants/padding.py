"""Padding: the few sizes of a symbol that waste least over its calls.

An engine for fixed sizes, or one that compiles per size, serves a dimension that varies by padding
each call to the next of k sizes. Which k sizes add the least is a shortest path with k edges over
the distinct sizes (the one-dimensional k-median problem in which each median is the largest of its
cluster), solved exactly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from calltape_analyzer.errors import UsageError
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.symbols import Symbol

__all__ = ["Buckets", "Weighs", "buckets_of", "calls_by_size", "padding_sizes"]

Weighs = Literal["kept", "all", "kept and largest"]


class Buckets(BaseModel):
    """The sizes that one symbol is padded to.

    Everything is counted along this one symbol, in units of it (tokens, images): what a unit costs
    depends on the tensors it stands for and on the other symbols, and is not weighed.

    Attributes:
        symbol: its name in the variant.
        sizes: the sizes to pad to, smallest first; the last is the largest size seen, or the next
            multiple.
        calls: how many calls each of them serves.
        recorded: the sum of the sizes over all calls.
        padded: what padding adds to that sum.
        waste: the share of the padded sum that is padding, from 0 up to but not including 1.
        weighs: which calls count: those on the tape (``kept``), all of the traffic (``all``), or
            those on the tape and one of the largest size (``kept and largest``).
    """

    model_config = ConfigDict(frozen=True)

    symbol: str
    sizes: tuple[int, ...]
    calls: tuple[int, ...]
    recorded: int
    padded: int
    waste: float
    weighs: Weighs = "kept"


def buckets_of(facts: VariantFacts, symbol: Symbol, count: int, multiple_of: int = 1) -> Buckets:
    """The best sizes to pad one symbol of a variant to.

    Args:
        facts: the variant.
        symbol: one of its symbols.
        count: how many sizes, at most.
        multiple_of: what each size must be a multiple of.

    Raises:
        UsageError: a number is below 1.
    """
    calls, weighs = calls_by_size(facts, symbol)
    sizes = padding_sizes(calls, count, multiple_of=multiple_of)
    served = Counter(dict.fromkeys(sizes, 0))
    padded = 0
    for value, number in calls.items():
        to = sizes[bisect_left(sizes, value)]
        served[to] += number
        padded += (to - value) * number
    recorded = sum(value * number for value, number in calls.items())
    total = recorded + padded
    return Buckets(
        symbol=symbol.name,
        sizes=tuple(sizes),
        calls=tuple(served[size] for size in sizes),
        recorded=recorded,
        padded=padded,
        waste=padded / total if total else 0.0,
        weighs=weighs,
    )


def calls_by_size(facts: VariantFacts, symbol: Symbol) -> tuple[Counter[int], Weighs]:
    """How many calls had each size of a symbol, and which calls these are
    (:attr:`Buckets.weighs`)."""
    sizes = facts.every.sizes(symbol.columns[0])
    calls = Counter({size: seen.calls for size, seen in sizes.items()})
    whole = facts.counted.get(symbol.columns[0])
    if whole is None or whole.shared_with or sum(calls.values()) >= whole.calls:
        return calls, "kept"
    counted = Counter(whole.values.sizes)
    if not whole.values.other_calls and calls.keys() <= counted.keys():
        return counted, "all"
    calls.setdefault(whole.values.max, 1)
    return calls, "kept and largest"


def padding_sizes(calls: Mapping[int, int], count: int, *, multiple_of: int = 1) -> list[int]:
    """At most ``count`` sizes to pad to, so that the padded sizes of all calls have the least sum.

    Exact, in O(count * n) for n distinct sizes: dynamic programming over the last size, with the
    lower envelope of lines in place of the inner minimum ("convex hull trick"), in integers.

    Args:
        calls: how many calls had each size.
        count: the number of sizes.
        multiple_of: what each size must be a multiple of.

    Returns:
        Sizes, smallest first; empty without calls.

    Raises:
        UsageError: a number is below 1.
    """
    if count < 1 or multiple_of < 1:
        raise UsageError("the number of buckets and multiple_of are at least 1")
    rounded: Counter[int] = Counter()
    for size, number in calls.items():
        if number < 1:
            continue
        rounded[-(-size // multiple_of) * multiple_of] += number
    sizes = sorted(rounded)
    if not sizes:
        return []
    before = [0]  # calls with a size before each place
    for size in sizes:
        before.append(before[-1] + rounded[size])
    # cost[j]: the least sum for the first j sizes with the buckets so far; one to begin with
    cost = [0, *(size * before[j] for j, size in enumerate(sizes, 1))]
    steps: list[list[int]] = []
    for used in range(2, min(count, len(sizes)) + 1):
        cost, step = _one_more(cost, before, sizes, used)
        steps.append(step)
    chosen, j = [sizes[-1]], len(sizes)
    for step in reversed(steps):
        j = step[j]
        chosen.append(sizes[j - 1])
    return chosen[::-1]


def _one_more(
    cost: Sequence[int], before: Sequence[int], sizes: Sequence[int], used: int
) -> tuple[list[int], list[int]]:
    """Costs with one bucket more, and where the bucket before the last ends then.

    A last bucket over the places after i up to j costs ``cost[i] + sizes[j] * (before[j] -
    before[i])``: for each i a line in ``sizes[j]``, steeper downwards as i grows. As j grows, so
    does the size at which lines are compared, and a line that has lost never wins again.
    """
    made, step = [0] * len(cost), [0] * len(cost)
    hull: list[int] = []
    at = 0
    for j in range(used, len(cost)):
        i, size = j - 1, sizes[j - 1]
        while len(hull) > 1 and _is_hidden(cost, before, hull[-2], hull[-1], i):
            hull.pop()
        hull.append(i)
        at = min(at, len(hull) - 1)
        while at + 1 < len(hull) and _at(cost, before, hull[at + 1], size) <= _at(
            cost, before, hull[at], size
        ):
            at += 1
        step[j] = hull[at]
        made[j] = _at(cost, before, hull[at], size) + size * before[j]
    return made, step


def _at(cost: Sequence[int], before: Sequence[int], i: int, size: int) -> int:
    return cost[i] - size * before[i]


def _is_hidden(cost: Sequence[int], before: Sequence[int], a: int, b: int, c: int) -> bool:
    """Whether line b is nowhere below both a and c, whose slopes enclose its own."""
    return (cost[c] - cost[a]) * (before[b] - before[a]) <= (cost[b] - cost[a]) * (
        before[c] - before[a]
    )
