"""How calls are referred to: by what tells one apart from all others, and by equal inputs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

from calltape_schema.bounds import MAX_ALIKE
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import InputsTable, Row, widen
from calltape_schema.packing import pack
from calltape_schema.records import Tree
from calltape_schema.tar import END_MEMBER
from calltape_schema.tree import parts_of_inputs

__all__ = [
    "CallRef",
    "CallRefs",
    "SeenInputs",
    "WideInts",
    "checked_inputs",
    "has_ranges",
    "inputs_in",
    "row_of",
]


class CallRef(NamedTuple):
    """Refers to a call: the id of its tape, and the call's number on that tape.

    References sort by ``order`` first: when the recording began (Unix time in nanoseconds) and,
    of the recordings that a survey counts, which of them it is. References are equal without it.
    """

    tape: bytes
    number: int
    order: tuple[int, int] = (0, 0)

    def __lt__(self, other: CallRef) -> bool:  # type: ignore[override]
        return (self.order, self.tape, self.number) < (other.order, other.tape, other.number)

    def __le__(self, other: CallRef) -> bool:  # type: ignore[override]
        return not other < self

    def __gt__(self, other: CallRef) -> bool:  # type: ignore[override]
        return other < self

    def __ge__(self, other: CallRef) -> bool:  # type: ignore[override]
        return not self < other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallRef) and self[:2] == other[:2]

    def __hash__(self) -> int:
        return hash(self[:2])

    def __str__(self) -> str:
        """Its address: the first 8 digits of the tape's id, and the number (``3f9a01bc:12``)."""
        return f"{self.tape.hex()[:8]}:{self.number}"


class CallRefs:
    """The references to the calls of a file.

    Args:
        tape: the id of the file's tape.
        recordings: of a survey, the ids of the recordings whose calls it counts, each with what was
            added to the numbers of its calls; else empty.
    """

    def __init__(self, tape: bytes, recordings: Mapping[bytes, int]) -> None:
        self._firsts = sorted((first, recorded) for recorded, first in recordings.items())
        self._of_tape = 0, tape  # for numbers before all recordings

    def ref(self, number: int, began_ns: int) -> CallRef:
        """The call of a number, whose recording began at this time."""
        before = bisect_right(self._firsts, number, key=itemgetter(0))
        first, tape = self._firsts[before - 1] if before else self._of_tape
        return CallRef(tape, number - first, (began_ns, first))


class SeenInputs(NamedTuple):
    """Equal inputs of several calls: what an analysis reads of a tape.

    Attributes:
        inputs: as in the record of each, with the ranges of all of them.
        raised: whether the calls raised.
        calls: how many they are.
        first, last: of these calls.
    """

    inputs: Tree
    raised: bool
    calls: int
    first: CallRef
    last: CallRef


class WideInts:
    """The ints of more than 64 bits among the scalars of a file. Of those of one hash, few are
    taken: whoever asks which values there were makes sets of them, and a set of ints that have one
    hash takes quadratic time. Narrower ints cannot have one: at most sixteen do."""

    def __init__(self) -> None:
        self._known: dict[int, set[int]] = {}

    def take(self, scalars: Iterable[Any]) -> None:
        """Takes the scalars of a call.

        Raises:
            TapeError: ``limit``.
        """
        for value in scalars:
            if type(value) is int and value.bit_length() > _WIDE:
                same_hash = self._known.setdefault(hash(value), set())
                if value not in same_hash and len(same_hash) >= MAX_ALIKE:
                    raise TapeError("limit", f"more than {MAX_ALIKE} ints that have one hash")
                same_hash.add(value)


_WIDE = 64


def checked_inputs(tree: Tree) -> Tree:
    """The inputs of a call, as they are.

    Raises:
        TapeError: they break the format, or are not ``(args, kwargs)``.
    """
    if parts_of_inputs(tree.spec().root) is None:
        raise TapeError("invalid", "the inputs are not (args, kwargs)")
    return tree


def inputs_in(
    table: InputsTable,
    ref: Callable[[int], CallRef],
    wide: WideInts,
    leave_out: Callable[[TapeError], None] | None,
) -> list[SeenInputs] | None:
    """The inputs that the table of a file counts, in the order of their first calls.

    Args:
        table: of the file.
        ref: gives the call of a number.
        wide: takes the scalars.
        leave_out: gets what the table does not tell, if there is nothing else: of a survey.

    Returns:
        None if there is something else, and some calls have no row, calls of one row are not all
        on the tape, or some of them raised and others did not.

    Raises:
        TapeError: a row breaks the format.
    """
    uncounted = sum(kind.kept for kind in (*table.kinds.values(), table.other))
    rows = [row for row in table.rows.values() if row.kept]
    if leave_out is None:
        if uncounted or any(r.kept != r.seen or r.raised not in (0, r.seen) for r in rows):
            return None
    elif uncounted:
        reason = (
            f"the inputs of {uncounted:,} calls are left out: there are too many different ones"
        )
        leave_out(TapeError("limit", reason, advice="survey fewer tapes at once"))
    inputs_seen: list[SeenInputs] = []
    colliding = 0  # calls of which an int has the hash of too many others
    for row in rows:
        raised = min(row.raised, row.kept)
        for calls, has_raised in ((row.kept - raised, False), (raised, True)):
            if calls:
                inputs = checked_inputs(row.tree())
                try:
                    wide.take(inputs.scalars)
                except TapeError:
                    if leave_out is None:
                        raise
                    colliding += calls
                    continue
                inputs_seen.append(
                    SeenInputs(inputs, has_raised, calls, ref(row.first), ref(row.last))
                )
    if leave_out is not None and colliding:
        reason = f"the inputs of {colliding:,} calls are left out: their ints have one hash"
        leave_out(TapeError("limit", reason, member=END_MEMBER))
    return sorted(inputs_seen, key=lambda seen: (seen.first, seen.raised))


def has_ranges(table: InputsTable, by_number: Mapping[int, Mapping[int, tuple[int, int]]]) -> bool:
    """Whether the table of a file has the ranges of integers of its records.

    Args:
        table: of the file.
        by_number: the ranges by :meth:`Scan.inputs_number` and leaf.
    """
    by_key: dict[int, dict[int, tuple[int, int]]] = {}
    for number, spans in by_number.items():
        all_ranges = [(leaf, *span) for leaf, span in spans.items()]
        widen(by_key.setdefault(number >> 1, {}), all_ranges)
    return all(row.ranges == by_key.get(key, {}) for key, row in table.rows.items())


def row_of(seen: SeenInputs) -> Row:
    """Equal inputs as a table counts them."""
    inputs, first, last = seen.inputs, seen.first.number, seen.last.number
    row = Row(inputs.structure, inputs.leaves, pack(inputs.scalars), first, last)
    row.seen = row.kept = seen.calls
    row.raised = seen.calls if seen.raised else 0
    row.example = first
    row.widen((range_.leaf, range_.min, range_.max) for range_ in inputs.ranges)
    return row
