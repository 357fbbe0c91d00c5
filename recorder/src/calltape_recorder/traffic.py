"""Counters over all calls, kept or not: their structures, and the sizes of every axis.

In the call only one number is raised, for calls that look the same. The writer's thread folds these
into counts per axis, which stay small however long a server runs.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from calltape_recorder.gate import Gate
from calltape_recorder.likeness import Familiar
from calltape_recorder.patience import Patient
from calltape_recorder.sight import Row, Sight
from calltape_recorder.structures import Structure
from calltape_schema.traffic import MAX_GROUPS, MAX_SIZES, Axis, Group, Traffic

__all__ = ["TrafficCounter"]

_FOLD = 512  # distinct rows that may wait
_MOST = 200_000  # parts of rows, where the writer does not come: no further rows are told apart
_MAX_VALUES = 400_000  # in a trailer: well below what a reader takes


_MOST_FAMILIAR = 64
_MOST_TOLD = 4096  # structures
_PATIENCE = 8  # calls that are not familiar, before another one may become it


class TrafficCounter:
    """Counts calls from any thread; :meth:`fold` and :meth:`take` are for the writer's.

    Args:
        gate: counts calls that look like those that came before, and is asked first.
        written_only: structures that no call on the tape has stay untold: with their keys, calls
            would be on the tape that were not to be there. Such calls are among the others.
    """

    def __init__(self, gate: Gate, *, written_only: bool = False) -> None:
        self._gate = gate
        self._may_be_told: set[bytes] | None = set() if written_only else None
        self._lock = threading.RLock()
        self._waiting: dict[tuple[bytes, Row], int] = {}
        self._groups: dict[Any, _Group] = {}
        self._other = 0
        self._parts = 0  # of the rows that wait
        self._familiars: list[_Counted] = []
        self._strange = 0  # calls that were not familiar
        self._hits = 0

    def count(self, sight: Sight) -> None:
        """Counts a call that is not familiar."""
        again = False
        structure, row = sight.structure, sight.row
        if structure.told is not None:
            row = _without_untold(row, structure.told)
        key = (structure.encoded, row)
        with self._lock:
            waiting = self._waiting
            if key in waiting:
                waiting[key] += 1
                again = True
            elif self._parts < _MOST:
                waiting[key] = 1
                self._parts += len(row)
            else:
                self._other += 1
        self._strange += 1
        if again and (self._gate.familiar is None or self._strange >= _PATIENCE):
            self._get_familiar(sight)

    def may_tell(self, structure: Structure) -> None:
        """A call of this structure is on the tape."""
        told = self._may_be_told
        if told is not None and len(told) < _MOST_TOLD:
            told.add(structure.encoded)

    def _get_familiar(self, sight: Sight) -> None:
        """With a call that came twice, unless the one that is familiar comes more often."""
        strange, self._strange = self._strange, 0
        current = self._gate.familiar
        if current is not None:
            hits = current.calls
            before, self._hits = self._hits, hits
            if hits - before > strange:
                return
        if len(self._familiars) >= _MOST_FAMILIAR:  # where the writer does not come
            return
        found = Familiar.of(sight)
        if found is not None:
            with self._lock:
                self._familiars.append(_Counted(found))
            self._gate.familiar, self._hits = found, 0

    def _take_waiting(self) -> dict[tuple[bytes, Row], int]:
        with Patient(self._lock):
            waiting, self._waiting, self._parts = self._waiting, {}, 0
            current = self._gate.familiar
            for counted in list(self._familiars):
                familiar = counted.familiar
                calls = familiar.calls
                if calls > counted.told:
                    key = (familiar.structure.encoded, familiar.row)
                    waiting[key] = waiting.get(key, 0) + calls - counted.told
                    counted.told = calls
                elif familiar is not current:
                    # A call that found it before it was replaced has raised its count by now.
                    self._familiars.remove(counted)
        return waiting

    def fold(self, *, always: bool = False) -> None:
        """Makes counts per axis of what was counted since, where that is much."""
        is_little = len(self._waiting) < _FOLD and len(self._familiars) < _MOST_FAMILIAR // 2
        if is_little and not always:
            return
        for (structure, row), calls in self._take_waiting().items():
            kinds, numbers = _parts(row)
            group = self._groups.get((structure, kinds))
            if group is None:
                if len(self._groups) >= MAX_GROUPS:
                    with Patient(self._lock):
                        self._other += calls
                    continue
                group = self._groups[structure, kinds] = _Group(kinds)
            group.add(numbers, calls)

    def take(self) -> Traffic:
        """What was counted since the last time."""
        self.fold(always=True)
        groups, self._groups = self._groups, {}
        with Patient(self._lock):
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
        """Counts again what was taken: nobody will read it where it went."""
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
            with Patient(self._lock):
                self._other += other


class _Counted:
    """How many of its calls are in the counts."""

    __slots__ = ("familiar", "told")

    def __init__(self, familiar: Familiar) -> None:
        self.familiar = familiar
        self.told = 0


def _without_untold(row: Row, told: tuple[bool, ...]) -> Row:
    first = len(row) - len(told)
    return *row[:first], *[v if may else None for v, may in zip(row[first:], told, strict=True)]


def _parts(row: Row) -> tuple[tuple[str | int, ...], tuple[int | None, ...]]:
    """Dtype and rank of each leaf in turn; and all sizes, then the scalars that are ints."""
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
        """Adds what a document has."""
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
        """Whether there are any."""
        return self._low <= self._high

    @property
    def distinct(self) -> int:
        """How many are counted each."""
        return len(self._sizes)

    def add(self, value: int, calls: int) -> None:
        self._low = min(self._low, value)
        self._high = max(self._high, value)
        if value in self._sizes or len(self._sizes) < MAX_SIZES:
            self._sizes[value] += calls
        else:
            self._other += calls

    def absorb(self, axis: Axis) -> None:
        """Adds what a document has."""
        for size, calls in axis.sizes:
            self.add(size, calls)
        self._low = min(self._low, axis.min)
        self._high = max(self._high, axis.max)
        self._other += axis.other_calls

    def axis(self, *, sizes: bool) -> Axis:
        found = tuple(sorted(self._sizes.items())) if sizes else ()
        other = self._other if sizes else self._other + sum(self._sizes.values())
        return Axis(min=self._low, max=self._high, sizes=found, other_calls=other)
