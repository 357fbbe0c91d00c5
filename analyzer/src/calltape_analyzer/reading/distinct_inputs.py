"""The distinct inputs of a segment's calls, numbered.

In come the inputs of each record, still encoded. Out goes a number: calls with equal inputs have
the same one, so that they are found without decoding their records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_schema.packing import pack
from calltape_schema.skimming import TreeBytes
from calltape_schema.summary import MAX_COST, MAX_INPUTS, SCALAR_COST

__all__ = ["NOT_NUMBERED", "DistinctInputs", "EncodedInputs"]

NOT_NUMBERED = 0xFFFF_FFFF

# The bounds of a summary: what fits there fits here.
_MAX_ENTRIES, _MAX_BYTES = MAX_INPUTS, MAX_COST


class EncodedInputs(NamedTuple):
    """The inputs of a call as they stand in its record: ``structure`` and ``leaves`` are not
    decoded. ``raised`` tells whether the call raised."""

    structure: bytes
    leaves: bytes
    scalars: tuple[Any, ...]
    raised: bool


class DistinctInputs:
    """A table of inputs in which each entry is different. Its memory is bounded: inputs that no
    longer fit get no number."""

    def __init__(self) -> None:
        self.entries: list[EncodedInputs] = []
        self._numbers: dict[tuple[bytes, bytes, bytes, bool], int] = {}
        self._parts: dict[bytes, bytes] = {}
        self._bytes_left = _MAX_BYTES

    def number_of(self, tree: TreeBytes, raised: bool) -> int:
        """The position of these inputs in ``entries``, or :data:`NOT_NUMBERED`."""
        structure, leaves, scalars = tree
        # Scalars are compared as bytes: 1 and 1.0 are equal, 0.0 and -0.0 too, and NaN is not
        # equal to itself.
        packed = pack(scalars) if scalars else b""
        found = self._numbers.get((structure, leaves, packed, raised))
        return self._add(tree, packed, raised) if found is None else found

    def _add(self, tree: TreeBytes, packed: bytes, raised: bool) -> int:
        structure, leaves, scalars = tree
        # One structure comes with many leaves, and leaves with many scalars: kept and counted once.
        cost = len(packed) * SCALAR_COST + sum(
            len(part) for part in {structure, leaves} if part not in self._parts
        )
        if cost > self._bytes_left or len(self.entries) >= _MAX_ENTRIES:
            return NOT_NUMBERED
        self._bytes_left -= cost
        structure = self._parts.setdefault(structure, structure)
        leaves = self._parts.setdefault(leaves, leaves)
        found = self._numbers[structure, leaves, packed, raised] = len(self.entries)
        self.entries.append(EncodedInputs(structure, leaves, scalars, raised))
        return found
