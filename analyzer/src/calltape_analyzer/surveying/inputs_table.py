"""The distinct inputs of the calls of many tapes, with how many calls had them.

Tables add up, in any order and any grouping, to the table of all calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from calltape_analyzer.pytree.inputs import parts_of_inputs
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.surveying.bounds import digest_of, first_beyond
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack, unpack
from calltape_schema.records import Tree
from calltape_schema.summary import SCALAR_COST, InputsRow

__all__ = ["MAX_BYTES", "MAX_ROWS", "InputsTable", "SurveyedRow", "checked"]

MAX_ROWS = 1_048_576
MAX_BYTES = 512 * 1024 * 1024
_SPARE = 5 / 4  # so that a full table is not sorted for each new row


class SurveyedRow(NamedTuple):
    """Inputs that calls had, with these calls.

    Attributes:
        structure, leaves: as in the ``inputs`` of their records.
        scalars: the encoded array of the scalars.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: of these calls, in the order of recordings by their id.
        ranges: per integer leaf the smallest and the largest element in all these calls.
    """

    structure: bytes
    leaves: bytes
    scalars: bytes
    raised: bool
    calls: int
    first: CallRef
    last: CallRef
    ranges: tuple[tuple[int, int, int], ...] = ()

    @classmethod
    def of_summary(cls, row: InputsRow, tape: bytes) -> SurveyedRow:
        """A row of the summary of a file. It is not validated."""
        return cls(
            row.structure, row.leaves, pack(row.scalars), row.raised, row.calls,
            CallRef(tape, row.first), CallRef(tape, row.last),
            tuple((leaf, *row.ranges[leaf]) for leaf in sorted(row.ranges)),
        )  # fmt: skip

    @property
    def digest(self) -> bytes:
        """Tells these inputs from all others."""
        return digest_of(self.structure, self.leaves, self.scalars, bytes([self.raised]))

    def merge(self, other: SurveyedRow) -> SurveyedRow:
        """The calls of both, which have equal inputs."""
        return self._replace(
            calls=self.calls + other.calls,
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            ranges=_widened(self.ranges, other.ranges),
        )

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


_MAX_SOUND = 65_536
_sound: set[bytes] = set()


def checked(row: SurveyedRow) -> SurveyedRow:
    """The row itself. Whether inputs are valid depends on structure, leaves, the types of the
    scalars and the leaves of ranges; what was valid once is not validated again.

    Raises:
        TapeError: ``invalid``, ``damaged`` or ``limit``.
    """
    scalars = unpack(row.scalars)
    if type(scalars) is not tuple:
        raise TapeError("invalid", "the scalars of a row are no array")
    kinds = repr(tuple(map(type, scalars))).encode()
    leaves = repr([leaf for leaf, _, _ in row.ranges]).encode()
    digest = digest_of(row.structure, row.leaves, kinds, leaves)
    if digest not in _sound:
        row.tree()
        if len(_sound) >= _MAX_SOUND:
            _sound.clear()
        _sound.add(digest)
    return row


def _widened(
    one: tuple[tuple[int, int, int], ...], other: tuple[tuple[int, int, int], ...]
) -> tuple[tuple[int, int, int], ...]:
    if one == other or not other:
        return one
    found = {leaf: (low, high) for leaf, low, high in one}
    for leaf, low, high in other:
        least, most = found.get(leaf, (low, high))
        found[leaf] = min(least, low), max(most, high)
    return tuple((leaf, *found[leaf]) for leaf in sorted(found))


class InputsTable:
    """Rows of distinct inputs. There are at most ``MAX_ROWS``, of at most ``MAX_BYTES``; of more,
    those with the smallest digests stay, which are as good as drawn by lot. Their counts are
    those of all calls.

    Attributes:
        limit: the smallest digest that was left out; None if none was.
    """

    def __init__(self, rows: Iterable[SurveyedRow] = (), limit: bytes | None = None) -> None:
        self.limit = limit
        self._rows: dict[bytes, SurveyedRow] = {}
        self._parts: dict[bytes, bytes] = {}
        self._nbytes = 0
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[SurveyedRow]:
        """The rows by their digests."""
        self.bound()
        return (self._rows[digest] for digest in sorted(self._rows))

    @property
    def calls(self) -> int:
        """How many calls the rows have."""
        self.bound()
        return sum(row.calls for row in self._rows.values())

    def in_order(self) -> list[SurveyedRow]:
        """The rows in the order of their first calls."""
        self.bound()
        return sorted(self._rows.values(), key=lambda row: (row.first, row.raised))

    def add(self, row: SurveyedRow) -> None:
        """Adds the calls of a row."""
        digest = row.digest
        if self.limit is not None and digest >= self.limit:
            return
        known = self._rows.get(digest)
        if known is not None:
            self._rows[digest] = known.merge(row)
            return
        self._rows[digest] = row._replace(
            structure=self._once(row.structure), leaves=self._once(row.leaves)
        )
        self._nbytes += len(row.scalars) * SCALAR_COST
        if len(self._rows) > MAX_ROWS * _SPARE or self._nbytes > MAX_BYTES * _SPARE:
            self.bound()

    def add_all(self, other: InputsTable) -> None:
        """Adds the calls of another table."""
        if other.limit is not None:
            self._leave_out(other.limit)
        for row in other._rows.values():
            self.add(row)

    def bound(self) -> None:
        """Leaves out what is beyond the bounds."""
        if len(self._rows) > MAX_ROWS or self._nbytes > MAX_BYTES:
            limit = first_beyond(self._rows, MAX_ROWS, MAX_BYTES, SurveyedRow.cost)
            if limit is not None:
                self._leave_out(limit)

    def _once(self, part: bytes) -> bytes:
        """One object for all equal parts."""
        found = self._parts.setdefault(part, part)
        if found is part:
            self._nbytes += len(part)
        return found

    def _leave_out(self, limit: bytes) -> None:
        self.limit = limit if self.limit is None else min(self.limit, limit)
        kept = {digest: row for digest, row in self._rows.items() if digest < self.limit}
        self._rows, self._parts, self._nbytes = {}, {}, 0
        for digest, row in kept.items():
            self._rows[digest] = row
            self._once(row.structure)
            self._once(row.leaves)
            self._nbytes += len(row.scalars) * SCALAR_COST
