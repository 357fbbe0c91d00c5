"""Counts all calls, kept or not: their structures, and the sizes of every axis.

The call itself only raises a number, which calls that look the same share. The writer's thread
makes counts per axis of these numbers. They stay small however long a server runs.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from calltape_recorder.capture.call_view import Row
from calltape_recorder.capture.structures import Structure
from calltape_recorder.snapshot.repeats import Repeats
from calltape_recorder.threads import RLock
from calltape_schema.traffic import MAX_GROUPS, MAX_SIZES, Axis, Group, Traffic

__all__ = ["TrafficCounter"]

_FOLD = 512  # distinct rows that may wait
_MOST = 200_000  # parts of rows that may wait; if the writer is late, more are not told apart
_MAX_VALUES = 400_000  # in a trailer: well below what a reader takes


_MOST_REPEATS = 64  # repeats whose calls may wait
_MOST_TOLD = 4096  # structures that may be named


class TrafficCounter:
    """Counts calls from any thread. :meth:`fold` and :meth:`drain` are for the writer's thread.

    Args:
        repeats: count the calls that look like the ones before them.
        written_only: whether to name only structures that calls on the tape have. The keys of other
            structures would tell of calls that are not to be on the tape. These calls are counted
            without a structure.
    """

    def __init__(self, repeats: Repeats, *, written_only: bool = False) -> None:
        self._repeats = repeats
        self._may_be_told: set[bytes] | None = set() if written_only else None
        self.lock = RLock()
        self._waiting: dict[tuple[bytes, Row], int] = {}
        self._groups: dict[Any, _Group] = {}
        self._other = 0
        self._parts = 0  # of all waiting rows

    def count(self, structure: Structure, row: Row) -> None:
        """Counts a call that is no repeat. If keys in its structure are data, it is counted without
        one."""
        if structure.core is not None:
            with self.lock:
                self._other += 1
            return
        if structure.told is not None:
            row = _without_untold(row, structure.told)
        key = (structure.encoded, row)
        with self.lock:
            waiting = self._waiting
            if key in waiting:
                waiting[key] += 1
            elif self._parts < _MOST:
                waiting[key] = 1
                self._parts += len(row)
            else:
                self._other += 1

    def may_tell(self, structure: Structure) -> None:
        """Allows to name a structure, because a call of it is on the tape."""
        told = self._may_be_told
        if told is not None and len(told) < _MOST_TOLD:
            told.add(structure.encoded)

    def _drain_waiting(self) -> dict[tuple[bytes, Row], int]:
        with self.lock:
            waiting, self._waiting, self._parts = self._waiting, {}, 0
        for repeat, calls in self._repeats.counted():
            if repeat.structure.core is not None:
                with self.lock:
                    self._other += calls
                continue
            key = (repeat.structure.encoded, repeat.row)
            waiting[key] = waiting.get(key, 0) + calls
        return waiting

    def fold(self, *, always: bool = False) -> None:
        """Makes counts per axis of the waiting rows, if there are many, or if ``always``."""
        is_little = len(self._waiting) < _FOLD and len(self._repeats) < _MOST_REPEATS
        if is_little and not always:
            return
        for (structure, row), calls in self._drain_waiting().items():
            kinds, numbers = _parts(row)
            group = self._groups.get((structure, kinds))
            if group is None:
                if len(self._groups) >= MAX_GROUPS:
                    with self.lock:
                        self._other += calls
                    continue
                group = self._groups[structure, kinds] = _Group(kinds)
            group.add(numbers, calls)

    def drain(self) -> Traffic:
        """What was counted since this was asked last."""
        self.fold(always=True)
        groups, self._groups = self._groups, {}
        with self.lock:
            other, self._other = self._other, 0
        found: list[Group] = []
        left = _MAX_VALUES
        for (structure, _), group in groups.items():
            plain, full = group.values
            told = self._may_be_told
            if plain > left or (told is not None and structure not in told):
                other += group.calls
                continue
            found.append(group.document(structure, sizes=full <= left))
            left -= full if full <= left else plain
        return Traffic(groups=tuple(found), other_calls=other)

    def absorb(self, traffic: Traffic) -> None:
        """Counts again what was drained, because nobody will read the file that it went to."""
        other = traffic.other_calls
        for found in traffic.groups:
            kinds = tuple(
                kind
                for dtype, axes in zip(found.dtypes, found.leaves, strict=True)
                for kind in (dtype, len(axes))
            )
            group = self._groups.get((found.structure, kinds))
            if group is None:
                if len(self._groups) >= MAX_GROUPS:
                    other += found.calls
                    continue
                group = self._groups[found.structure, kinds] = _Group(kinds)
            group.absorb(found)
        if other:
            with self.lock:
                self._other += other


def _without_untold(row: Row, told: tuple[bool, ...]) -> Row:
    first = len(row) - len(told)
    return *row[:first], *[v if may else None for v, may in zip(row[first:], told, strict=True)]


def _parts(row: Row) -> tuple[tuple[str | int, ...], tuple[int | None, ...]]:
    """Splits a row: dtype and rank of each leaf; and all sizes, then the scalars that are ints."""
    kinds: list[str | int] = []
    numbers: list[int | None] = []
    for part in row:
        if isinstance(part, tuple):
            kinds.append(len(part))
            numbers += part
        elif part is None or type(part) is int:
            numbers.append(part if part is None or -(2**63) <= part < 2**63 else None)
        else:
            kinds.append(str(part).removeprefix("torch.")[:64])
    return tuple(kinds), tuple(numbers)


class _Group:
    def __init__(self, kinds: tuple[str | int, ...]) -> None:
        self._dtypes = [str(kind) for kind in kinds[::2]]
        self._ranks = [int(kind) for kind in kinds[1::2]]
        self.calls = 0
        self._columns: list[_Column] = []

    def add(self, numbers: tuple[int | None, ...], calls: int) -> None:
        self.calls += calls
        if not self._columns:
            self._columns = [_Column() for _ in numbers]
        for column, number in zip(self._columns, numbers, strict=True):
            if number is not None:
                column.add(number, calls)

    def absorb(self, group: Group) -> None:
        """Adds the counts of a document."""
        axes = [*(axis for leaf in group.leaves for axis in leaf), *group.scalars]
        self.calls += group.calls
        if not self._columns:
            self._columns = [_Column() for _ in axes]
        for column, axis in zip(self._columns, axes, strict=True):
            if axis is not None:
                column.absorb(axis)

    def document(self, structure: bytes, *, sizes: bool) -> Group:
        columns = iter(self._columns)
        leaves = tuple(
            tuple(next(columns).axis(sizes=sizes) for _ in range(rank)) for rank in self._ranks
        )
        scalars = tuple(column.axis(sizes=sizes) if column.seen else None for column in columns)
        return Group(
            structure=structure, calls=self.calls, dtypes=tuple(self._dtypes), leaves=leaves,
            scalars=scalars,
        )  # fmt: skip

    @property
    def values(self) -> tuple[int, int]:
        """About how many values its document has, without sizes and with them."""
        plain = 16 + 10 * len(self._columns)
        return plain, plain + sum(3 * column.distinct for column in self._columns)


class _Column:
    """The values of one axis, or of one int."""

    __slots__ = ("_high", "_low", "_other", "_sizes")

    def __init__(self) -> None:
        self._low = 2**64
        self._high = -(2**63) - 1
        self._sizes: Counter[int] = Counter()
        self._other = 0

    @property
    def seen(self) -> bool:
        """Whether any value was counted."""
        return self._low <= self._high

    @property
    def distinct(self) -> int:
        """How many values have a count of their own."""
        return len(self._sizes)

    def add(self, value: int, calls: int) -> None:
        self._low = min(self._low, value)
        self._high = max(self._high, value)
        if value in self._sizes or len(self._sizes) < MAX_SIZES:
            self._sizes[value] += calls
        else:
            self._other += calls

    def absorb(self, axis: Axis) -> None:
        """Adds the counts of a document."""
        for size, calls in axis.sizes:
            self.add(size, calls)
        self._low = min(self._low, axis.min)
        self._high = max(self._high, axis.max)
        self._other += axis.other_calls

    def axis(self, *, sizes: bool) -> Axis:
        found = tuple(sorted(self._sizes.items())) if sizes else ()
        other = self._other if sizes else self._other + sum(self._sizes.values())
        return Axis(min=self._low, max=self._high, sizes=found, other_calls=other)
