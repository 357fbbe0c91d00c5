"""Splits a group of calls by its sizes and ints into parts that one program can serve.

Three rules do that (docs/decisions/export-strategies.md has two of them):

- A tensor with several axes that are 0 in the same calls, one of which has a single size in all
  other calls, stands for "nothing yet": ``zeros(0, 0, 0, 0)`` says nothing about the sizes of a
  cache. Such calls are split off.
- An axis that is 1 in some calls and n in others is broadcast, unless a sum explains it (rule 9).
- A sliding-window cache needs another program once its window is full, because its token counter
  no longer follows from its tensors (rule 7).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice

from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.size_table import Column, SizeTable
from calltape_analyzer.variants.facts import (
    Condition,
    CounterIs,
    Fixed,
    VariantFacts,
    counting_ints_of,
)

__all__ = ["splits_of"]

_MAX_LINES_COMPARED = 256
"""To find which dimension is broadcast to which other, or is a part of a sum, takes quadratic time:
each is compared with so many others (docs/decisions/variants-and-shapes.md)."""
_FEW = 16
_MAX_PLACES = 64

Values = tuple[int, ...]


def splits_of(group: Group) -> list[VariantFacts]:
    """The parts of a group that need programs of their own, as variants without decisions. Each row
    is in one of them."""
    done: list[VariantFacts] = []
    waiting = [VariantFacts(group, group.rows)]
    while waiting:
        split = waiting.pop()
        parts = _by_window(split) or _by_nothing_yet(split) or _by_broadcast(split)
        if parts:
            waiting += reversed(parts)
        else:
            done.append(split)
    return done


def _having(split: VariantFacts, condition: Condition) -> VariantFacts:
    """The part of a split that meets one more condition."""
    rows = split.rows.where(condition.among(split.rows))
    return VariantFacts(split.group, rows, (*split.conditions, condition), capped=split.capped)


def _by_window(split: VariantFacts) -> list[VariantFacts]:
    for counter, keys in counting_ints_of(split.group).items():
        conditions = [CounterIs(counter, keys, is_open) for is_open in (True, False)]
        if len(set(conditions[0].among(split.rows))) > 1:
            return [_having(split, condition) for condition in conditions]
    return []


def _by_nothing_yet(split: VariantFacts) -> list[VariantFacts]:
    rows = split.rows
    zero: dict[int, list[Column]] = defaultdict(list)
    for column in rows.columns:
        if column.axis is not None and 0 in (seen := rows.distinct(column)) and len(seen) > 1:
            zero[column.index].append(column)
    for columns in zero.values():
        for column in columns:
            zeros = [value == 0 for value in rows.values(column)]
            same_columns = [c for c in columns if [v == 0 for v in rows.values(c)] == zeros]
            if len(same_columns) > 1 and len(rows.distinct(column)) == 2:
                empty = Fixed(column, 0)
                return [_having(split, empty), _having(split, Fixed(column, 0, negated=True))]
    return []


def _by_broadcast(split: VariantFacts) -> list[VariantFacts]:
    candidates = [column for column in split.rows.columns if _may_be_broadcast(split.rows, column)]
    if not candidates:
        return []
    lines = _SizeLines(split)
    # Dimensions of one line with equal alignment get the same answer.
    each: dict[tuple[int, int], Column] = {}
    for column in candidates:
        each.setdefault((lines.line(column), lines.alignment(column)), column)
    for column in each.values():
        if lines.is_broadcast(column) and not lines.is_explained(column):
            split.capped |= lines.capped
            fixed = Fixed(column, 1)
            return [_having(split, fixed), _having(split, Fixed(column, 1, negated=True))]
    split.capped |= lines.capped
    return []


def _may_be_broadcast(rows: SizeTable, column: Column) -> bool:
    seen = rows.distinct(column)
    return column.axis is not None and 1 in seen and len(seen) > 1 and 0 not in seen


class _SizeLines:
    """The dimensions and ints of a split, each distinct line once, to look up lines by their
    values.

    Attributes:
        capped: whether there were too many lines to compare some dimension with all of them.
    """

    def __init__(self, split: VariantFacts) -> None:
        self.capped = False
        self._rows = rows = split.rows
        self._ranks = [fact.rank for fact in split.group.facts]
        first: dict[int, Column] = {}
        for column in rows.columns:
            first.setdefault(rows.line(column), column)
        self._values = {line: rows.values(column) for line, column in first.items()}
        self._every = set(self._values.values())
        self._ends = {(line[0], line[-1]) for line in self._every}
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
        return column.axis - self._ranks[column.index]

    def is_broadcast(self, column: Column) -> bool:
        """Whether an aligned dimension equals this one in all rows in which this one is not 1, and
        is larger in a row in which it is 1."""
        line = self._values[self.line(column)]
        candidates = self._aligned[self.alignment(column)].with_one_of(line)
        is_broadcast = any(_is_broadcast_to(line, c) for c in candidates[:_MAX_LINES_COMPARED])
        self.capped |= not is_broadcast and len(candidates) > _MAX_LINES_COMPARED
        return is_broadcast

    def is_explained(self, column: Column) -> bool:
        """Whether this dimension is a part or the total of a sum that always held."""
        line = self._values[self.line(column)]
        varied = (other_line for other_line in self._varied if other_line != line)
        is_sum = any(self._are_in_a_sum(line, o) for o in islice(varied, _MAX_LINES_COMPARED))
        self.capped |= not is_sum and len(self._varied) > _MAX_LINES_COMPARED
        return is_sum

    def _are_in_a_sum(self, line: Values, other_line: Values) -> bool:
        if self._combined_line(line, 1, other_line) is not None:
            return True
        difference, part = (
            self._combined_line(other_line, -1, line),
            self._combined_line(line, -1, other_line),
        )
        return (difference in self._varied and difference != line) or (
            part in self._varied and part not in (line, other_line)
        )

    def _combined_line(self, first: Values, sign: int, two: Values) -> Values | None:
        """The sum or difference of two lines, if there is such a line."""
        if (first[0] + sign * two[0], first[-1] + sign * two[-1]) not in self._ends:
            return None
        line = tuple(a + sign * b for a, b in zip(first, two, strict=True))
        return line if line in self._every else None


class _Aligned:
    """The lines of dimensions of equal alignment, by number."""

    def __init__(self) -> None:
        self.lines: dict[int, Values] = {}
        self._having: dict[tuple[int, int], list[Values]] = {}

    def with_one_of(self, values: Values) -> Sequence[Values]:
        """The lines, without most lines that differ from one in a row in which it is not 1."""
        lines = list(self.lines.values()) if not self._having else []
        if lines and len(lines) <= _FEW:
            return lines
        places = range(0, len(values), -(-len(values) // _MAX_PLACES))
        for line in lines:
            for place in places:
                self._having.setdefault((place, line[place]), []).append(line)
        informative = [place for place in places if values[place] != 1]
        if not informative:
            return list(self.lines.values())
        return min((self._having[place, values[place]] for place in informative), key=len)


def _is_broadcast_to(line: Values, other_line: Values) -> bool:
    return all(a in (1, b) for a, b in zip(line, other_line, strict=True)) and any(
        a == 1 < b for a, b in zip(line, other_line, strict=True)
    )
