"""The distinct inputs of the calls of many tapes, with how many calls had them.

Tables add up, in any order and any grouping, to the table of all calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.surveying.bounds import first_beyond
from calltape_analyzer.surveying.surveyed_row import Ranges, SurveyedRow, widened
from calltape_schema.summary import SCALAR_COST

__all__ = ["MAX_BYTES", "MAX_ROWS", "InputsTable"]

MAX_ROWS = 1_048_576
MAX_BYTES = 512 * 1024 * 1024
_SPARE = 5 / 4  # so that a full table is not sorted for each new row


class _Entry:
    """A row that calls are added to."""

    __slots__ = ("calls", "first", "last", "ranges", "row")

    def __init__(self, row: SurveyedRow) -> None:
        self.row = row
        self.calls: int = row.calls
        self.first: CallRef = row.first
        self.last: CallRef = row.last
        self.ranges: Ranges = row.ranges

    def add(self, row: SurveyedRow) -> None:
        self.calls += row.calls
        if row.first < self.first:
            self.first = row.first
        if row.last > self.last:
            self.last = row.last
        if row.ranges:
            self.ranges = widened(self.ranges, row.ranges)

    def whole(self) -> SurveyedRow:
        return self.row._replace(
            calls=self.calls, first=self.first, last=self.last, ranges=self.ranges
        )


class InputsTable:
    """Rows of distinct inputs. There are at most ``MAX_ROWS``, of at most ``MAX_BYTES``; of more,
    those with the smallest digests stay, which are as good as drawn by lot. Their counts are
    those of all calls.

    Attributes:
        limit: the smallest digest that was left out; None if none was.
    """

    def __init__(self, rows: Iterable[SurveyedRow] = (), limit: bytes | None = None) -> None:
        self.limit = limit
        self._rows: dict[bytes, _Entry] = {}
        self._parts: dict[bytes, bytes] = {}
        self._nbytes = 0
        for row in rows:
            self.add(row)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[SurveyedRow]:
        """The rows by their digests."""
        self.bound()
        return (self._rows[digest].whole() for digest in sorted(self._rows))

    @property
    def calls(self) -> int:
        """How many calls the rows have."""
        self.bound()
        return sum(entry.calls for entry in self._rows.values())

    def in_order(self) -> list[SurveyedRow]:
        """The rows in the order of their first calls."""
        self.bound()
        rows = (entry.whole() for entry in self._rows.values())
        return sorted(rows, key=lambda row: (row.first, row.raised))

    def add(self, row: SurveyedRow) -> None:
        """Adds the calls of a row."""
        digest = row.digest
        if self.limit is not None and digest >= self.limit:
            return
        known = self._rows.get(digest)
        if known is not None:
            known.add(row)
            return
        structure, leaves = self._once(row.structure), self._once(row.leaves)
        if structure is not row.structure or leaves is not row.leaves:
            row = row._replace(structure=structure, leaves=leaves)
        self._rows[digest] = _Entry(row)
        self._nbytes += len(row.scalars) * SCALAR_COST
        if len(self._rows) > MAX_ROWS * _SPARE or self._nbytes > MAX_BYTES * _SPARE:
            self.bound()

    def add_rows(self, rows: Iterable[SurveyedRow], limit: bytes | None) -> None:
        """Adds the calls of rows of a table with this limit."""
        if limit is not None:
            self._leave_out(limit)
        for row in rows:
            self.add(row)

    def add_all(self, other: InputsTable) -> None:
        """Adds the calls of another table."""
        if other.limit is not None:
            self._leave_out(other.limit)
        for entry in other._rows.values():
            self.add(entry.whole())

    def bound(self) -> None:
        """Leaves out what is beyond the bounds."""
        if len(self._rows) > MAX_ROWS or self._nbytes > MAX_BYTES:
            limit = first_beyond(self._rows, MAX_ROWS, MAX_BYTES, lambda entry: entry.row.cost())
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
        kept = {digest: entry for digest, entry in self._rows.items() if digest < self.limit}
        self._rows, self._parts, self._nbytes = {}, {}, 0
        for digest, entry in kept.items():
            self._rows[digest] = entry
            self._once(entry.row.structure)
            self._once(entry.row.leaves)
            self._nbytes += len(entry.row.scalars) * SCALAR_COST
