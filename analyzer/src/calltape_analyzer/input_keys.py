"""What the inputs of calls look like, numbered: calls of equal inputs have the same number, so
that they can be told apart without a look at their records."""

from __future__ import annotations

from typing import Any, NamedTuple

from calltape_schema.packing import pack
from calltape_schema.skimming import TreeBytes

__all__ = ["NOT_INTERNED", "InputKeys", "InputsKey"]

NOT_INTERNED = 0xFFFF_FFFF

_MAX_KEYS = 65_536
_MAX_BYTES = 16 * 1024 * 1024
# What an encoded scalar can cost as a Python object, per byte.
_SCALAR_COST = 64


class InputsKey(NamedTuple):
    """``structure``, ``leaves`` and ``scalars`` of a call's inputs, as they stand in its record
    and not decoded yet, and whether the call raised."""

    structure: bytes
    leaves: bytes
    scalars: tuple[Any, ...]
    raised: bool


class InputKeys:
    """The distinct inputs of a tape, as far as they fit a fixed budget: a tape on which no two
    calls are alike costs no more memory than one of few."""

    def __init__(self) -> None:
        self.keys: list[InputsKey] = []
        self._ids: dict[tuple[bytes, bytes, bytes, bool], int] = {}
        self._parts: dict[bytes, bytes] = {}
        self._room = _MAX_BYTES

    def id_of(self, tree: TreeBytes, raised: bool) -> int:
        """Index among ``keys``, or :data:`NOT_INTERNED`."""
        structure, leaves, scalars = tree
        # Encoded, since 1 and 1.0 are equal, 0.0 and -0.0 too, and NaN is not equal to itself.
        packed = pack(scalars) if scalars else b""
        found = self._ids.get((structure, leaves, packed, raised))
        return self._add(tree, packed, raised) if found is None else found

    def _add(self, tree: TreeBytes, packed: bytes, raised: bool) -> int:
        structure, leaves, scalars = tree
        # Structures return with other leaves, and leaves with other scalars: counted and kept once.
        cost = len(packed) * _SCALAR_COST + sum(
            len(part) for part in {structure, leaves} if part not in self._parts
        )
        if cost > self._room or len(self.keys) >= _MAX_KEYS:
            return NOT_INTERNED
        self._room -= cost
        structure = self._parts.setdefault(structure, structure)
        leaves = self._parts.setdefault(leaves, leaves)
        found = self._ids[structure, leaves, packed, raised] = len(self.keys)
        self.keys.append(InputsKey(structure, leaves, scalars, raised))
        return found
