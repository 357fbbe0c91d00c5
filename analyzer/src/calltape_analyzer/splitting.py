"""Which calls of one structure one program cannot serve, by their sizes and ints alone.

Two rules of docs/decisions/0012: an axis that is 1 in some calls and n in others is broadcasting,
unless a sum explains it (rule 9); a sliding-window cache is another program once its window is
full, because its token counter then no longer follows from its tensors (rule 7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

from calltape_analyzer.counters import COUNTED
from calltape_analyzer.layout import Layout
from calltape_analyzer.observations import Group, Row
from calltape_analyzer.rows import Rows
from calltape_analyzer.symbols import Column, value_in

__all__ = ["Condition", "CounterIs", "Fixed", "Split", "counters_of", "splits_of"]


class Condition(Protocol):
    """What a row must satisfy to belong to a split."""

    def holds(self, row: Row) -> bool:
        """Whether it is so."""
        ...

    def among(self, rows: Rows) -> list[bool]:
        """Whether it is so, for each of some rows."""
        ...

    def text(self, layout: Layout) -> str:
        """In words."""
        ...


@dataclass(frozen=True)
class Fixed:
    """A column has this value, or (``negated``) another."""

    column: Column
    value: int
    negated: bool = False

    def holds(self, row: Row) -> bool:
        return (value_in(row, self.column) == self.value) is not self.negated

    def among(self, rows: Rows) -> list[bool]:
        return [(value == self.value) is not self.negated for value in rows.values(self.column)]

    def text(self, layout: Layout) -> str:
        sign = ">" if self.negated else "="
        return f"{column_name(layout, self.column)} {sign} {self.value}"


@dataclass(frozen=True)
class CounterIs:
    """The token counter of a cache layer equals the length of its keys, or no longer does."""

    counter: int
    keys: Column
    open: bool

    def holds(self, row: Row) -> bool:
        return (row.ints[self.counter] == value_in(row, self.keys)) is self.open

    def among(self, rows: Rows) -> list[bool]:
        counts, lengths = rows.values(Column(self.counter, None)), rows.values(self.keys)
        return [(a == b) is self.open for a, b in zip(counts, lengths, strict=True)]

    def text(self, layout: Layout) -> str:
        return "window open" if self.open else "window full"


def column_name(layout: Layout, column: Column) -> str:
    """A column for people: ``x[0]``, or the place of an int."""
    if column.axis is not None:
        return f"{layout.tensors[column.place]}[{column.axis}]"
    ints = [place for place in layout.scalars if place.kind == "int"]
    return str(ints[column.place])


@dataclass
class Split:
    """Rows of a group that one program can serve, and what they have in common."""

    group: Group
    rows: Rows
    conditions: tuple[Condition, ...] = ()

    def having(self, condition: Condition) -> Split:
        """The part of it that satisfies one more condition."""
        rows = self.rows.where(condition.among(self.rows))
        return Split(self.group, rows, (*self.conditions, condition))


def splits_of(group: Group) -> list[Split]:
    """A group, taken apart by the rules above."""
    done: list[Split] = []
    waiting = [Split(group, group.rows)]
    while waiting:
        split = waiting.pop(0)
        parts = _by_window(split) or _by_broadcast(split)
        if parts:
            waiting[:0] = parts
        else:
            done.append(split)
    return done


def counters_of(group: Group) -> dict[int, Column]:
    """The ints of cache layers that count a dimension of a tensor beside them, with it."""
    paths = {(p.argument, p.path): i for i, p in enumerate(group.layout.tensors)}
    found: dict[int, Column] = {}
    for i, place in enumerate(group.ints):
        if place.owner is None or place.attribute not in COUNTED:
            continue
        name, axis = COUNTED[place.attribute]
        beside = f"{place.path.rpartition('.')[0]}.{name}"
        tensor = paths.get((place.argument, beside))
        if tensor is not None and group.facts[tensor].rank >= 2:
            found[i] = Column(tensor, axis % group.facts[tensor].rank)
    return found


def _by_window(split: Split) -> list[Split]:
    for counter, keys in counters_of(split.group).items():
        conditions = [CounterIs(counter, keys, open) for open in (True, False)]
        if len(set(conditions[0].among(split.rows))) > 1:
            return [split.having(condition) for condition in conditions]
    return []


def _by_broadcast(split: Split) -> list[Split]:
    rows = split.rows
    if len(rows) < 2:
        return []
    columns = rows.columns
    values = {column: rows.values(column) for column in columns}
    lines = {rows.line(column): own for column, own in values.items()}
    row = rows.row(0)
    for column, own in values.items():
        seen = rows.distinct(column)
        if column.axis is None or 1 not in seen or len(seen) < 2 or 0 in seen:
            continue
        aligned = {rows.line(other) for other in columns if _is_aligned(column, other, row)}
        others = [lines[line] for line in sorted(aligned - {rows.line(column)})]
        if _is_broadcast(own, others) and not _is_explained(own, set(lines.values())):
            one = Fixed(column, 1)
            return [split.having(one), split.having(Fixed(column, 1, negated=True))]
    return []


def _is_aligned(one: Column, other: Column, row: Row) -> bool:
    """Whether two tensors that are added would meet in these dimensions."""
    if one.axis is None or other.axis is None or one.place == other.place:
        return False
    ranks = len(row.shapes[one.place]), len(row.shapes[other.place])
    return one.axis - ranks[0] == other.axis - ranks[1]


def _is_broadcast(own: Sequence[int], others: Sequence[tuple[int, ...]]) -> bool:
    """Whether another dimension equals this one wherever it is not 1, and once not where it is."""
    return any(
        all(a in (1, b) for a, b in zip(own, other, strict=True))
        and any(a == 1 < b for a, b in zip(own, other, strict=True))
        for other in others
    )


def _is_explained(own: tuple[int, ...], others: set[tuple[int, ...]]) -> bool:
    """Whether a sum that always held has this dimension in it."""
    varied = [other for other in others if len(set(other)) > 1 and other != own]
    for other in varied:
        total = tuple(a + b for a, b in zip(own, other, strict=True))
        if total in others:
            return True
    return any(
        all(a + b == c for a, b, c in zip(one, two, own, strict=True))
        for one, two in combinations(varied[:32], 2)
    )
