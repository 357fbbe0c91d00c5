"""The affine span of sizes: which calls add evidence to the calls before them.

An analysis learns relations between sizes that always hold: a size is constant, two are equal, one
is a sum or a multiple of others. All of these are affine, so they hold for every point in the
affine span of the points for which they hold (docs/decisions/novelty.md). A call whose sizes are in
the span of other calls cannot refute the relations of these. The recorder's ``novelty()`` and
``calltape filter --novel`` ask the same class.
"""

from __future__ import annotations

from collections.abc import Sequence

_PRIME = 2**61 - 1


class AffineSpan:
    """The affine span of points (lists of ints), all of one length.

    It is computed modulo a prime. An independent point could be taken for a dependent one only if a
    determinant of sizes is a multiple of 2^61 - 1.

    Args:
        most: once it has this many numbers, the span does not change any more. None means no bound.
            Adding a point takes a step for each number of the span.
    """

    __slots__ = ("_basis", "_most")

    def __init__(self, most: int | None = None) -> None:
        self._basis: list[tuple[int, list[int]]] = []  # pivot, and a row that is 1 there
        self._most = most

    def copy(self) -> AffineSpan:
        """A span of the same points, to which others can be added."""
        span = AffineSpan(self._most)
        span._basis = self._basis.copy()
        return span

    def add(self, values: Sequence[int]) -> bool:
        """Adds a point. Returns whether it was outside of the span; False if the span does not
        change any more."""
        point = [1, *values]
        if self._most is not None and len(self._basis) * len(point) >= self._most:
            return False
        for pivot, known in self._basis:
            factor = point[pivot]
            if factor:
                point = [(a - factor * b) % _PRIME for a, b in zip(point, known, strict=True)]
        pivot = next((at for at, value in enumerate(point) if value % _PRIME), -1)
        if pivot < 0:
            return False
        inverse = pow(point[pivot], -1, _PRIME)
        self._basis.append((pivot, [value * inverse % _PRIME for value in point]))
        return True
