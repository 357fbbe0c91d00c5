"""Counts the calls that are not on the tape: their structures, and the sizes of every axis.

The call itself only raises a number, which calls that look the same share. The writer's thread adds
these numbers to a table of counted inputs, which stays small however long a server runs. The calls
on a tape are counted where they are written.
"""

from __future__ import annotations

from calltape_recorder.bounds import MAX_TOLD_STRUCTURES, MAX_WAITING_PARTS, MAX_WAITING_ROWS
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.facts import Row, with_ints
from calltape_recorder.snapshot.known_calls import KnownCalls
from calltape_recorder.snapshot.side import Side
from calltape_recorder.threads import RLock
from calltape_schema.inputs_table import Counts, InputsTable, Kind


class UnkeptCounter:
    """Counts calls from any thread. :meth:`fold` and :meth:`drain` are for the writer's thread.

    Args:
        known: has a counter for calls of each structure and sizes.
        written_only: whether to name only structures that calls on the tape have. The keys of other
            structures would tell of calls that are not to be on the tape. These calls are counted
            without a structure.
    """

    def __init__(self, known: KnownCalls, *, written_only: bool = False) -> None:
        self._known = known
        self._may_be_told: set[bytes] | None = set() if written_only else None
        self.lock = RLock()
        self._other = 0
        self._table = InputsTable()

    def count(self, structure: Structure, row: Row) -> None:
        """Counts a call. If keys in its structure are data, it is counted without one."""
        known = None
        if structure.core is None:
            if structure.told is not None:
                row = _without_untold(row, structure.told)
            known = self._known.of(structure, row)
        if known is not None:
            next(known.calls)
            return
        with self.lock:
            self._other += 1

    def count_side(self, side: Side) -> None:
        """Counts a call whose inputs were copied, and that is not written after all."""
        facts = side.look.facts
        row = (*[fact.dtype for fact in facts], *[fact.shape for fact in facts])
        self.count(side.structure, with_ints(row, side.structure.numbers(side.scalars)))

    def may_tell(self, structure: Structure) -> None:
        """Allows to name a structure, because a call of it is on the tape."""
        told = self._may_be_told
        if told is not None and len(told) < MAX_TOLD_STRUCTURES:
            told.add(structure.encoded)

    def fold(self, *, always: bool = False) -> None:
        """Adds the counters to the table, if many were forgotten, or if ``always``."""
        waiting = self._known
        is_due = (
            waiting.forgotten >= MAX_WAITING_ROWS
            or waiting.forgotten_parts >= MAX_WAITING_PARTS // 2
        )
        if not is_due and not always:
            return
        for structure, row, calls in waiting.counted():
            dtypes, shapes, ints = _parts(row)
            self._table.add_kind(Kind.of(structure.encoded, dtypes, shapes, ints, Counts(calls)))

    def drain(self) -> InputsTable:
        """What was counted since this was asked last."""
        self.fold(always=True)
        table, self._table = self._table, InputsTable()
        with self.lock:
            other, self._other = self._other, 0
        table.other.add(Counts(other))
        told = self._may_be_told
        if told is not None:
            table.forget(lambda structure: structure not in told)
        return table

    def absorb(self, table: InputsTable) -> None:
        """Counts the calls of a file again that is gone."""
        self._table.merge(table.unkept())


def _without_untold(row: Row, told: tuple[bool, ...]) -> Row:
    first = len(row) - len(told)
    return *row[:first], *[v if may else None for v, may in zip(row[first:], told, strict=True)]


def _parts(row: Row) -> tuple[list[str], list[tuple[int, ...]], list[int | None]]:
    """Splits a row: the dtype and the shape of each leaf, and per scalar its value if it is an
    int."""
    dtypes: list[str] = []
    shapes: list[tuple[int, ...]] = []
    ints: list[int | None] = []
    for part in row:
        if isinstance(part, tuple):
            shapes.append(part)
        elif part is None or type(part) is int:
            ints.append(part)
        else:
            dtypes.append(str(part).removeprefix("torch.")[:64])
    return dtypes, shapes, ints
