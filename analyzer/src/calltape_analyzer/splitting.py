"""Which calls of one structure one program cannot serve, by their sizes and ints alone.

Two rules of docs/decisions/0012: an axis that is 1 in some calls and n in others is broadcasting,
unless a sum explains it (rule 9); a sliding-window cache is another program once its window is
full, because its token counter then no longer follows from its tensors (rule 7).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from calltape_analyzer.counters import COUNTED
from calltape_analyzer.layout import Layout
from calltape_analyzer.observations import Group, Row
from calltape_analyzer.rows import Rows
from calltape_analyzer.symbols import Column, value_in

__all__ = ["Condition", "CounterIs", "Fixed", "Split", "counters_of", "splits_of"]

_MAX_COMPARED = 256
"""To find which of many dimensions are broadcast to which, or are a sum, takes quadratic time: one
is compared with so many of them (docs/decisions/0027)."""

_FEW = 16
_MAX_PLACES = 64

Values = tuple[int, ...]


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
    return str(layout.ints[column.place])


@dataclass
class Split:
    """Rows of a group that one program can serve, and what they have in common. ``capped`` tells
    whether its dimensions are so many that not all were compared."""

    group: Group
    rows: Rows
    conditions: tuple[Condition, ...] = ()
    capped: bool = False

    def having(self, condition: Condition) -> Split:
        """The part of it that satisfies one more condition."""
        rows = self.rows.where(condition.among(self.rows))
        return Split(self.group, rows, (*self.conditions, condition), self.capped)


def splits_of(group: Group) -> list[Split]:
    """A group, taken apart by the rules above."""
    done: list[Split] = []
    waiting = [Split(group, group.rows)]
    while waiting:
        split = waiting.pop()
        parts = _by_window(split) or _by_broadcast(split)
        if parts:
            waiting += reversed(parts)
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
    asked = [column for column in split.rows.columns if _may_be_broadcast(split.rows, column)]
    if not asked:
        return []
    lines = _Lines(split)
    # Dimensions of one line that are aligned with the same ones get the same answer.
    each: dict[tuple[int, int], Column] = {}
    for column in asked:
        each.setdefault((lines.line(column), lines.alignment(column)), column)
    for column in each.values():
        if lines.is_broadcast(column) and not lines.is_explained(column):
            split.capped |= lines.capped
            one = Fixed(column, 1)
            return [split.having(one), split.having(Fixed(column, 1, negated=True))]
    split.capped |= lines.capped
    return []


def _may_be_broadcast(rows: Rows, column: Column) -> bool:
    seen = rows.distinct(column)
    return column.axis is not None and 1 in seen and len(seen) > 1 and 0 not in seen


class _Lines:
    """The dimensions and ints of a split, equal ones once, to look up those that another would have
    to be equal to.

    Attributes:
        capped: whether there were more than one was compared with.
    """

    def __init__(self, split: Split) -> None:
        self.capped = False
        self._rows = rows = split.rows
        self._ranks = [fact.rank for fact in split.group.facts]
        first: dict[int, Column] = {}
        for column in rows.columns:
            first.setdefault(rows.line(column), column)
        self._values = {line: rows.values(column) for line, column in first.items()}
        self._every = set(self._values.values())
        self._ends = {(own[0], own[-1]) for own in self._every}
        self._varied = {
            self._values[line]: None
            for line, column in first.items()
            if len(rows.distinct(column)) > 1
        }
        self._aligned: dict[int, _Aligned] = defaultdict(_Aligned)
        for column in rows.columns:
            if column.axis is not None:
                line = rows.line(column)
                self._aligned[self.alignment(column)].lines[line] = self._values[line]

    def line(self, column: Column) -> int:
        """Equal for columns that never differed."""
        return self._rows.line(column)

    def alignment(self, column: Column) -> int:
        """Equal for dimensions that would meet if their tensors were added."""
        assert column.axis is not None
        return column.axis - self._ranks[column.place]

    def is_broadcast(self, column: Column) -> bool:
        """Whether a dimension that is aligned with this one equals it wherever it is not 1, and
        once not where it is."""
        own = self._values[self.line(column)]
        candidates = self._aligned[self.alignment(column)].with_one_of(own)
        found = any(_is_broadcast_to(own, other) for other in candidates[:_MAX_COMPARED])
        self.capped |= not found and len(candidates) > _MAX_COMPARED
        return found

    def is_explained(self, column: Column) -> bool:
        """Whether a sum that always held has this dimension in it."""
        own = self._values[self.line(column)]
        varied = (other for other in self._varied if other != own)
        found = any(self._are_in_a_sum(own, other) for other in islice(varied, _MAX_COMPARED))
        self.capped |= not found and len(self._varied) > _MAX_COMPARED
        return found

    def _are_in_a_sum(self, own: Values, other: Values) -> bool:
        if self._made(own, 1, other) is not None:
            return True
        rest, part = self._made(other, -1, own), self._made(own, -1, other)
        return (rest in self._varied and rest != own) or (
            part in self._varied and part not in (own, other)
        )

    def _made(self, one: Values, sign: int, two: Values) -> Values | None:
        """The sum or difference of two, where there is such a line."""
        if (one[0] + sign * two[0], one[-1] + sign * two[-1]) not in self._ends:
            return None
        made = tuple(a + sign * b for a, b in zip(one, two, strict=True))
        return made if made in self._every else None


class _Aligned:
    """Lines of dimensions that would meet if their tensors were added, by number."""

    def __init__(self) -> None:
        self.lines: dict[int, Values] = {}
        self._having: dict[tuple[int, int], list[Values]] = {}

    def with_one_of(self, own: Values) -> Sequence[Values]:
        """The lines, without most of those that differ from one where that is not 1."""
        every = list(self.lines.values()) if not self._having else []
        if every and len(every) <= _FEW:
            return every
        places = range(0, len(own), -(-len(own) // _MAX_PLACES))
        for line in every:
            for at in places:
                self._having.setdefault((at, line[at]), []).append(line)
        told = [at for at in places if own[at] != 1]
        if not told:
            return list(self.lines.values())
        return min((self._having[at, own[at]] for at in told), key=len)


def _is_broadcast_to(own: Values, other: Values) -> bool:
    return all(a in (1, b) for a, b in zip(own, other, strict=True)) and any(
        a == 1 < b for a, b in zip(own, other, strict=True)
    )
