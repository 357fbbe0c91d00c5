"""Fewest parts that are enough, found by halves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

__all__ = ["fewest", "smallest_number", "without_most"]

T = TypeVar("T")


def fewest(parts: Sequence[T], enough: Callable[[list[T]], bool]) -> list[T]:
    """Parts of which none can be left out, by delta debugging: one of n is found in about
    2 log2(n) tries.

    Args:
        parts: enough together, at least one.
        enough: whether some of them are enough.
    """
    kept, count = list(parts), 2
    while len(kept) > 1:
        bounds = [len(kept) * i // count for i in range(count + 1)]
        pieces = [kept[a:b] for a, b in pairwise(bounds)]
        rests = [kept[:a] + kept[b:] for a, b in pairwise(bounds)]
        found = next((one for one in pieces if enough(one)), None)
        if found is not None:
            kept, count = found, 2
            continue
        found = next((one for one in rests if enough(one)), None) if count > 2 else None
        if found is not None:
            kept, count = found, max(count - 1, 2)
        elif count >= len(kept):
            break
        else:
            count = min(2 * count, len(kept))
    return kept


def without_most(
    parts: Sequence[T], enough: Callable[[list[T]], bool], *, tries: int = 200
) -> list[T]:
    """Parts without those that can be left out, all of them perhaps: halves are left out, then
    halves of halves.

    Args:
        parts: enough together.
        enough: whether some of them are enough.
        tries: how often to ask.
    """
    kept = list(range(len(parts)))
    waiting = [list(kept)] if parts else []
    while waiting and tries > 0:
        chunk = waiting.pop(0)
        taken = set(chunk)
        rest = [place for place in kept if place not in taken]
        tries -= 1
        if enough([parts[place] for place in rest]):
            kept = rest
        elif len(chunk) > 1:
            waiting += [chunk[: len(chunk) // 2], chunk[len(chunk) // 2 :]]
    return [parts[place] for place in kept]


def smallest_number(number: int, unit: int, enough: Callable[[int], bool]) -> int:
    """The smallest number that is enough, if all larger ones are: small ones are tried first, then
    halves.

    Args:
        number: enough.
        unit: multiples of it are tried first, then any.
        enough: whether another one, above 0, is.
    """
    for step in dict.fromkeys((unit, 1)):
        low = 0
        for small in (step, 2 * step):
            if low < small < number:
                if enough(small):
                    number = small
                    break
                low = small
        while number - low > step:
            middle = low + max((number - low) // (2 * step), 1) * step
            if enough(middle):
                number = middle
            else:
                low = middle
    return number
