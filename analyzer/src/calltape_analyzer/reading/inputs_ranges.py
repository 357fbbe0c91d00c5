"""The ranges of integer tensors over all calls that have equal inputs.

In come the ranges of each record, as the walk over a file finds them. Out go the ranges of all
calls together, by the number of the inputs, so that no record is read again for them.
"""

from __future__ import annotations

from calltape_schema.skimming import RangesBytes, ranges_of

__all__ = ["InputsRanges"]

_MAX_RANGES = 65_536
"""As many as a summary can have."""
_MAX_KNOWN, _KNOWN_BYTES = 4096, 256


class InputsRanges:
    """The ranges in one file. Memory is bounded: of too many, nothing is told.

    Attributes:
        complete: whether they are those of all calls.
    """

    def __init__(self) -> None:
        self.complete = True
        self._spans: dict[int, dict[int, tuple[int, int]]] = {}
        self._count = 0
        self._known: set[tuple[int, bytes]] = set()

    def add(self, inputs: int, ranges: RangesBytes) -> None:
        """Adds the ranges of one call."""
        if not self.complete:
            return
        if isinstance(ranges, bytes) and len(ranges) <= _KNOWN_BYTES:
            # Many calls have the ranges of an earlier one: those of a mask, of a decode step.
            if (inputs, ranges) in self._known:
                return
            if len(self._known) < _MAX_KNOWN:
                self._known.add((inputs, ranges))
        spans = self._spans.setdefault(inputs, {})
        before = len(spans)
        for leaf, low, high in ranges_of(ranges):
            known = spans.get(leaf)
            if known is None:
                spans[leaf] = low, high
            elif low < known[0] or high > known[1]:
                spans[leaf] = min(low, known[0]), max(high, known[1])
        self._count += len(spans) - before
        if self._count > _MAX_RANGES:
            self.complete = False
            self._spans.clear()
            self._known.clear()

    def of(self, inputs: int) -> tuple[tuple[int, int, int], ...]:
        """Leaf, smallest and largest element, by leaf, of all calls that have these inputs."""
        spans = self._spans.get(inputs, {})
        return tuple((leaf, *spans[leaf]) for leaf in sorted(spans))
