"""Counts of what was seen, in bounded memory, that add up in any order.

A tally counts exactly while there are few distinct values. Beyond that it keeps the values whose
hashes are smallest (the bottom-k sketch of Cohen and Kaplan, "Summarizing data using bottom-k
sketches", 2007): a uniform sample of the distinct values, each with its exact count. A value that a
sum keeps was kept in every part. So adding tallies is associative and commutative, and gives the
same as one tally of everything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from typing_extensions import Self

from calltape_analyzer.plain_data import PlainData
from calltape_analyzer.reading.call_ref import CallRef

__all__ = [
    "MAX_DISTINCT",
    "MAX_SIZES_SHOWN",
    "Seen",
    "SizeSeen",
    "Span",
    "Tally",
]


MAX_SIZES_SHOWN = 64
"""How many sizes of a dimension a finding lists."""


class SizeSeen(PlainData):
    """One size of a dimension, or one value of an int.

    Attributes:
        size: the size, or the value.
        calls: how many calls had it.
        first_call: the number of the first of them.
    """

    size: int
    calls: int
    first_call: int


MAX_DISTINCT = 1024

T = TypeVar("T")


class Seen(NamedTuple):
    """How many calls have something, and the first of them."""

    calls: int
    first: CallRef


def _hash(value: object) -> bytes:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).digest()


def _key(value: Any) -> Hashable:
    """Equal for values of equal type and ``repr``. To Python, 1 and 1.0 are equal, 0.0 and -0.0
    too, and no NaN equals another. Complex numbers are tuples of floats."""
    return (type(value), repr(value)) if type(value) in (float, tuple) else value


@dataclass
class Tally(Generic[T]):
    """How often each of many values was seen. Values must be plain data: values of equal ``repr``
    count as one.

    Attributes:
        limit: the number of distinct values that are kept.
    """

    limit: int = MAX_DISTINCT
    _seen: dict[Hashable, tuple[T, Seen]] = field(default_factory=dict)
    _bound: bytes | None = None

    def __len__(self) -> int:
        self._enforce_limit()
        return len(self._seen)

    def __iter__(self) -> Iterator[T]:
        self._enforce_limit()
        return (value for value, _ in self._seen.values())

    def __getitem__(self, value: T) -> Seen:
        self._enforce_limit()
        return self._seen[_key(value)][1]

    @property
    def complete(self) -> bool:
        """Whether all distinct values are there."""
        self._enforce_limit()
        return self._bound is None

    def items(self) -> list[tuple[T, Seen]]:
        """The kept values, in the order of the first call."""
        self._enforce_limit()
        return sorted(self._seen.values(), key=lambda item: (item[1].first, repr(item[0])))

    @property
    def distinct(self) -> int:
        """The number of distinct values: exact if ``complete``, else the estimate of the sketch
        ((k - 1) / the largest kept hash, as a fraction of all hashes)."""
        self._enforce_limit()
        if self._bound is None:
            return len(self._seen)
        fraction = (int.from_bytes(self._bound, "big") + 1) / 2**64
        return max(round((len(self._seen) - 1) / fraction), len(self._seen))

    def add(self, value: T, seen: Seen) -> None:
        """Counts a value."""
        key = _key(value)
        known = self._seen.get(key)
        if known is not None:
            kept, before = known
            first = min(before.first, seen.first)
            self._seen[key] = kept, Seen(before.calls + seen.calls, first)
            return
        if self._bound is not None and _hash(value) > self._bound:
            return
        self._seen[key] = value, seen
        if len(self._seen) > 2 * self.limit:  # not each time, because it sorts
            self._enforce_limit()

    def _enforce_limit(self) -> None:
        """Drops the values beyond the limit, those with the largest hashes."""
        if len(self._seen) <= self.limit:
            return
        hashes = sorted((_hash(value), repr(value), key) for key, (value, _) in self._seen.items())
        for _, _, key in hashes[self.limit :]:
            del self._seen[key]
        self._bound = hashes[self.limit - 1][0]

    def merge(self, other: Self) -> Self:
        """The tally of the values of both."""
        self._enforce_limit()
        other._enforce_limit()
        made = type(self)(self.limit)
        bounds = [bound for bound in (self._bound, other._bound) if bound is not None]
        made._bound = min(bounds, default=None)
        for tally in (self, other):
            for value, seen in tally._seen.values():
                made.add(value, seen)
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tally):
            return NotImplemented
        self._enforce_limit()
        other._enforce_limit()
        return (self.limit, self.complete, self._counts()) == (
            other.limit,
            other.complete,
            other._counts(),
        )

    def _counts(self) -> dict[Hashable, Seen]:
        return {key: seen for key, (_, seen) in self._seen.items()}

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Span:
    """Smallest and largest of some numbers."""

    min: int
    max: int

    def merge(self, other: Span | None) -> Span:
        """The span of both; this one if there is no other."""
        if other is None:
            return self
        return Span(min(self.min, other.min), max(self.max, other.max))
