"""Inputs that calls had, with these calls: what a survey counts.

In comes a row of a file, from its summary or from its records. Out goes the same as plain data,
with a digest that tells equal inputs of several files.
"""

from __future__ import annotations

from typing import NamedTuple

from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.reading.recent import Recent
from calltape_analyzer.surveying.bounds import digest_of
from calltape_schema.errors import TapeError
from calltape_schema.packing import unpack
from calltape_schema.records import Tree
from calltape_schema.summary import SCALAR_COST, InputsRow

__all__ = ["Ranges", "SurveyedRow", "sound_row", "widened"]

Ranges = tuple[tuple[int, int, int], ...]
"""Per integer leaf, in their order, its number and the smallest and the largest element."""


class SurveyedRow(NamedTuple):
    """Inputs that calls had, with these calls.

    Attributes:
        digest: tells these inputs from all others.
        structure, leaves: as in the ``inputs`` of their records.
        scalars: the encoded array of the scalars.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: of these calls, in the order of recordings by their id.
        ranges: of integer leaves, in all these calls.
    """

    digest: bytes
    structure: bytes
    leaves: bytes
    scalars: bytes
    raised: bool
    calls: int
    first: CallRef
    last: CallRef
    ranges: Ranges = ()

    @classmethod
    def of(
        cls, structure: bytes, leaves: bytes, scalars: bytes, raised: bool,
        calls: int, first: CallRef, last: CallRef, ranges: Ranges = (),
    ) -> SurveyedRow:  # fmt: skip
        """A row of these inputs, which are not validated."""
        digest = digest_of(structure, leaves, scalars, bytes([raised]))
        return cls(digest, structure, leaves, scalars, raised, calls, first, last, ranges)

    def tree(self) -> Tree:
        """The inputs as in a record.

        Raises:
            TapeError: ``invalid``, ``damaged`` or ``limit``.
        """
        scalars = unpack(self.scalars)
        if type(scalars) is not tuple:
            raise TapeError("invalid", "the scalars of a row are no array")
        ranges = {leaf: (low, high) for leaf, low, high in self.ranges}
        row = InputsRow(self.structure, self.leaves, scalars, self.raised, 1, 0, 0, ranges)
        tree = row.tree()
        if parts_of_inputs(tree.spec().root) is None:
            raise TapeError("invalid", "the inputs are not (args, kwargs)")
        return tree

    def cost(self) -> tuple[int, tuple[bytes, ...]]:
        """What it takes memory for: by itself, and parts that rows share. A scalar takes more than
        its bytes."""
        return len(self.scalars) * SCALAR_COST, (self.structure, self.leaves)


# The digests of the latest valid inputs.
_digests: Recent[bytes] = Recent(256)
_INT64 = range(-(2**63), 2**63)


def sound_row(
    structure: bytes, leaves: bytes, scalars: bytes, raised: bool,
    calls: int, first: CallRef, last: CallRef, ranges: Ranges = (),
) -> SurveyedRow:  # fmt: skip
    """A row of these inputs, after they were validated; those that were valid lately are not
    validated again.

    Raises:
        TapeError: ``invalid``, ``damaged`` or ``limit``.
    """
    sound = tuple([leaf for leaf, low, high in ranges if low in _INT64 and high in _INT64])
    key = structure, leaves, scalars, raised, sound
    digest = _digests.get(key) if len(sound) == len(ranges) else None
    if digest is not None:
        return SurveyedRow(digest, structure, leaves, scalars, raised, calls, first, last, ranges)
    row = SurveyedRow.of(structure, leaves, scalars, raised, calls, first, last, ranges)
    row.tree()
    _digests.keep(key, row.digest, len(structure) + len(leaves) + len(scalars))
    return row


def widened(one: Ranges, other: Ranges) -> Ranges:
    """Ranges that cover both."""
    if one == other or not other:
        return one
    found = {leaf: (low, high) for leaf, low, high in one}
    for leaf, low, high in other:
        least, most = found.get(leaf, (low, high))
        found[leaf] = min(least, low), max(most, high)
    return tuple((leaf, *found[leaf]) for leaf in sorted(found))
