"""Which calls add evidence to the calls before them.

What an analysis learns from sizes are relations that always hold: a size is constant, two are
equal, one is a sum or a multiple of others. These are affine, so a call whose sizes are in the
affine span of earlier calls cannot refute any of them (docs/decisions/0016). In come the sizes of
calls, in order. Out goes whether a call is new; and, when all were seen, which calls have the
smallest and the largest sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from calltape_analyzer.observing.groups import SortedCall

__all__ = ["Novelty"]

_PRIME = 2**61 - 1
# So much is remembered at most. Beyond it, every call counts as new: nothing is left out wrongly.
_MAX_PATTERNS = 65_536
_MAX_NUMBERS = 4_000_000
_MAX_CONSTANTS = 256


class Novelty:
    """Looks at calls one by one."""

    def __init__(self) -> None:
        self._patterns: dict[Hashable, _Span] = {}
        self._extremes: dict[Hashable, _Extremes] = {}
        self._constants: dict[Hashable, set[Hashable]] = {}
        self._room = _MAX_NUMBERS

    def is_new(self, placed: SortedCall, raised: str | None, index: int) -> bool:
        """Whether a call adds evidence.

        Args:
            placed: its group and sizes.
            raised: the type of its exception, if it raised one.
            index: its place among the calls.
        """
        flat = [size for shape in placed.row.shapes for size in shape] + list(placed.row.ints)
        kind = (placed.key.layout, placed.key.facts, self._constants_of(placed), raised)
        heads, pattern = _pattern_of(flat)
        key = (kind, pattern)
        span = self._patterns.get(key)
        if span is None:
            if len(self._patterns) >= _MAX_PATTERNS or self._room < len(heads):
                return True
            span = self._patterns[key] = _Span()
        extremes = self._extremes.get(kind)
        if extremes is None:
            extremes = self._extremes[kind] = _Extremes(len(flat))
        extremes.add(flat, index)
        if not span.add([flat[head] for head in heads]):
            return False
        self._room -= len(heads)
        return True

    def _constants_of(self, placed: SortedCall) -> Hashable:
        """Texts and floats, which tell kinds of calls apart as long as there are few of them."""
        known = self._constants.setdefault(placed.key[:2], set())
        if placed.key.constants in known:
            return placed.key.constants
        if len(known) >= _MAX_CONSTANTS:
            return None
        known.add(placed.key.constants)
        return placed.key.constants

    def extremes(self) -> Iterator[int]:
        """The places of calls with the smallest and the largest value of each size."""
        for one in self._extremes.values():
            yield from one.places()


def _pattern_of(flat: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Which sizes are equal, and which are 0 or 1; and one place for each of the others' values."""
    first: dict[int, int] = {}
    pattern = [
        -1 - size if size in (0, 1) else first.setdefault(size, at) for at, size in enumerate(flat)
    ]
    return list(first.values()), tuple(pattern)


class _Span:
    """The affine span of rows, modulo a prime."""

    def __init__(self) -> None:
        self._origin: list[int] | None = None
        self._rows: dict[int, list[int]] = {}

    def add(self, row: Sequence[int]) -> bool:
        """Adds a row. Returns whether it was outside of the span."""
        if self._origin is None:
            self._origin = [value % _PRIME for value in row]
            return True
        rest = [(a - b) % _PRIME for a, b in zip(row, self._origin, strict=True)]
        for at in range(len(rest)):
            if not rest[at]:
                continue
            known = self._rows.get(at)
            if known is None:
                inverse = pow(rest[at], -1, _PRIME)
                self._rows[at] = [value * inverse % _PRIME for value in rest]
                return True
            factor = rest[at]
            rest = [(a - factor * b) % _PRIME for a, b in zip(rest, known, strict=True)]
        return False


class _Extremes:
    """For each size the smallest and the largest value, and the first call that had it."""

    def __init__(self, sizes: int) -> None:
        self._low: list[tuple[int, int] | None] = [None] * sizes
        self._high: list[tuple[int, int] | None] = [None] * sizes

    def add(self, flat: Sequence[int], index: int) -> None:
        for at, value in enumerate(flat):
            low, high = self._low[at], self._high[at]
            if low is None or value < low[0]:
                self._low[at] = value, index
            if high is None or value > high[0]:
                self._high[at] = value, index

    def places(self) -> Iterator[int]:
        yield from (found[1] for found in (*self._low, *self._high) if found is not None)
