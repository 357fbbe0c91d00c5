"""One variant as data: its calls, its dynamic dimensions with the reasons, its symbols.

:mod:`calltape_analyzer.variants.derivation` fills it in. Findings, explanations, programs and
targets read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from calltape_analyzer.facts import Rejection
from calltape_analyzer.observing.columns import Column, SizeRow, value_in
from calltape_analyzer.observing.groups import Group, GroupKey, SortedCall
from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.observing.tallies import Span
from calltape_analyzer.variants.completion import Completion
from calltape_analyzer.variants.counted_sizes import CountedSizes
from calltape_analyzer.variants.counting_ints import counting_ints_of
from calltape_analyzer.variants.rejections import FixedSize
from calltape_analyzer.variants.row_conditions import Condition
from calltape_analyzer.variants.symbols import Symbol
from calltape_analyzer.variants.zero_sizes import ZeroSizes

__all__ = ["DimensionDecision", "Reason", "VariantFacts"]

Reason = Literal["varied", "pooled", "neighbour", "constant", "one", "declared", "counter"]


@dataclass(frozen=True)
class DimensionDecision:
    """Whether a column is dynamic, and why.

    ``reason`` is one of:

    - ``varied``: it has several values in this variant.
    - ``pooled``: it has several values in another variant; or it was seen once, and the same
      dimension of other elements of its list varied.
    - ``neighbour``: a dimension of another argument with the same axis and size is dynamic, and its
      own argument was seen once, or it is a first dimension that never differed from the other one.
    - ``declared``: the user said so.
    - ``constant``: it has one value.
    - ``one``: it varied elsewhere, and is always 1 here.
    - ``counter``: it is an int that follows from a tensor beside it.
    """

    dynamic: bool
    reason: Reason


@dataclass(eq=False)
class VariantFacts:
    """One variant as data.

    Attributes:
        group, conditions: the calls that belong to it.
        rows: distinct sizes, by first call: all of them, or some of very many. The symbols have
            their values in this order. What is said of the calls (their number, ranges, symbols
            and relations) holds for :attr:`every` row.
        dimensions: for each column whether it is dynamic, and why.
        symbols: the dynamic columns, by symbol.
        completions: of a merged variant, how the calls of other groups become calls of this one.
        frozen: small integer tensors, by their number in the layout, whose values are constants of
            the program, because the model reads them with Python (``grid.tolist()``).
        counted: per column its sizes over all counted calls, if the tape has traffic counters.
        all_calls: how many calls were counted, kept or not; None if that is unknown.
        name: unique among the variants of a tape.
        public_name: likewise, and it has nothing that was passed.
        capped: whether it has so many dimensions that not all were compared with each other, to
            find broadcasting, or equal dimensions that differ in other variants.
        held: texts and floats, by their number among the layout's scalars, that vary over the calls
            and are constants of the program, because the model does something else with others.
        zeros: what is known of sizes of 0 that no call had.
    """

    group: Group
    rows: SizeTable
    conditions: tuple[Condition, ...]
    dimensions: dict[Column, DimensionDecision] = field(default_factory=dict)
    symbols: list[Symbol] = field(default_factory=list)
    completions: dict[GroupKey, Completion] = field(default_factory=dict)
    frozen: dict[int, Any] = field(default_factory=dict)
    counted: dict[Column, CountedSizes] = field(default_factory=dict)
    all_calls: int | None = None
    name: str = ""
    public_name: str = ""
    held: dict[int, Any] = field(default_factory=dict)
    capped: bool = False
    zeros: ZeroSizes = field(default_factory=ZeroSizes)
    _every: SizeTable | None = None

    @property
    def every(self) -> SizeTable:
        """All distinct rows, however many there are."""
        return self.rows if self._every is None else self._every

    @property
    def calls(self) -> int:
        """How many calls it has."""
        return self.every.calls

    def dynamic(self) -> list[Column]:
        """The dynamic columns."""
        return [column for column, found in self.dimensions.items() if found.dynamic]

    def span(self, *columns: Column) -> Span:
        """The smallest and the largest value of columns: over all counted calls if these are known
        to be calls of this variant alone, else over the calls on the tape."""
        values: list[int] = []
        for column in columns:
            seen = self.every.span(column)
            values += (seen.min, seen.max)
            counted = self.counted.get(column)
            if counted is not None and not counted.shared_with:
                values += (counted.values.min, counted.values.max)
        return Span(min(values), max(values))

    @property
    def counting_ints(self) -> dict[Column, Column]:
        """The ints that follow from a dimension of a tensor, each with that dimension."""
        every = counting_ints_of(self.group)
        return {
            column: every[column]
            for column, found in self.dimensions.items()
            if found.reason == "counter"
        }

    def with_ints(self, scalars: Sequence[Any], ints: Sequence[int]) -> list[Any]:
        """Scalars of a call in the layout's order, with other ints."""
        made = list(scalars)
        for number, value in zip(self.group.layout.int_scalars, ints, strict=True):
            made[number] = value
        return made

    def completion_of(self, key: GroupKey) -> Completion | None:
        """How a call of another group becomes a call of this variant."""
        return next((c for known, c in self.completions.items() if known.takes(key)), None)

    def has(self, placed: SortedCall) -> bool:
        """Whether a call is of its group, or can be completed, and meets its conditions."""
        row = self.row_in(placed.key, placed.row)
        return row is not None and all(condition.holds(row) for condition in self.conditions)

    def row_in(self, key: GroupKey, row: SizeRow) -> SizeRow | None:
        """A row of any group as a row of this variant; None if it takes no calls of the group.

        Args:
            key: of the group.
            row: in the group's layout.
        """
        if self.group.key.takes(key):
            return row
        completion = self.completion_of(key)
        return None if completion is None else completion.row(row)

    def new_zeros(self, row: SizeRow) -> list[Column]:
        """The dynamic dimensions of a row that are 0, and were not in any call."""
        return [
            column
            for column in self.dynamic()
            if not column.is_int
            and value_in(row, column) == 0
            and 0 not in self.every.distinct(column)
        ]

    def rejects(self, row: SizeRow) -> Rejection | None:
        """Why a row of the same group does not belong to it; None if it does."""
        layout = self.group.layout
        for condition in self.conditions:
            if not condition.holds(row):
                return condition.rejection(layout)
        zeros = self.new_zeros(row)
        if zeros:
            rejection = self.zeros.rejection(set(zeros), [*map(layout.column_name, zeros)])
            if rejection is not None:
                return rejection
        for column, found in self.dimensions.items():
            if not found.dynamic and found.reason != "counter":
                expected, got = self.rows.value(0, column), value_in(row, column)
                if expected != got:
                    return FixedSize(layout.column_name(column), got, expected)
        return None
