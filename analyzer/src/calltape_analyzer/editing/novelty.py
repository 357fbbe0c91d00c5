"""Which calls add evidence to the calls before them.

A call whose sizes are in the affine span of those of earlier calls adds none
(:mod:`calltape_schema.affine_span`). In come the sizes of calls, in order. Out goes whether a call
is new; and, when all were seen, which calls have the smallest and the largest sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from calltape_analyzer.observing.groups import SortedCall
from calltape_schema.affine_span import AffineSpan

__all__ = ["Novelty"]

# So much is remembered at most. Beyond it, every call counts as new: nothing is left out wrongly.
_MAX_PATTERNS = 65_536
_MAX_NUMBERS = 4_000_000
_MAX_CONSTANTS = 256


class Novelty:
    """Looks at calls one by one."""

    def __init__(self) -> None:
        self._patterns: dict[Hashable, AffineSpan] = {}
        # By kind, for each size its smallest value, and then for each its largest one negated, each
        # with the first call that had it.
        self._extremes: dict[Hashable, list[tuple[int, int]]] = {}
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
            span = self._patterns[key] = AffineSpan()
        values = [*flat, *(-size for size in flat)]
        known = self._extremes.get(kind) or [(value, index) for value in values]
        pairs = zip(known, values, strict=True)
        self._extremes[kind] = [one if one[0] <= value else (value, index) for one, value in pairs]
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
        for found in self._extremes.values():
            yield from (index for _, index in found)


def _pattern_of(flat: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Which sizes are equal, and which are 0 or 1; and one place for each of the others' values."""
    first: dict[int, int] = {}
    pattern = [
        -1 - size if size in (0, 1) else first.setdefault(size, at) for at, size in enumerate(flat)
    ]
    return list(first.values()), tuple(pattern)
