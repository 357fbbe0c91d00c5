"""The tests on sizes that decide which of two variants a call belongs to.

In comes a size row, or a table of them. Out goes whether each row meets the condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from calltape_analyzer.facts import Rejection
from calltape_analyzer.observing.columns import Column, SizeRow, value_in
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.size_table import SizeTable
from calltape_analyzer.variants.rejections import ExcludedSize, OtherVariant

__all__ = ["Condition", "CounterIs", "Fixed"]


class Condition(Protocol):
    """What the rows of a variant have in common, besides their group."""

    def holds(self, row: SizeRow) -> bool:
        """Whether a row meets the condition."""
        ...

    def among(self, rows: SizeTable) -> list[bool]:
        """Whether each row of a table meets the condition."""
        ...

    def text(self, layout: ArgumentLayout) -> str:
        """The condition in words."""
        ...

    def rejection(self, layout: ArgumentLayout) -> Rejection:
        """Why a row that does not meet it is rejected."""
        ...


@dataclass(frozen=True)
class Fixed:
    """A column has this value, or (``negated``) another one."""

    column: Column
    value: int
    negated: bool = False

    def holds(self, row: SizeRow) -> bool:
        return (value_in(row, self.column) == self.value) is not self.negated

    def among(self, rows: SizeTable) -> list[bool]:
        return [(value == self.value) is not self.negated for value in rows.values(self.column)]

    def text(self, layout: ArgumentLayout) -> str:
        sign = "=" if not self.negated else ">" if self.value == 1 else "!="
        return f"{layout.column_name(self.column)} {sign} {self.value}"

    def rejection(self, layout: ArgumentLayout) -> Rejection:
        place = layout.column_name(self.column)
        if not self.negated:
            return OtherVariant(self.text(layout), place)
        return ExcludedSize(place, self.value, self.column.is_int)


@dataclass(frozen=True)
class CounterIs:
    """The token counter of a cache layer equals the length of its keys (``open``: the window is not
    full yet), or no longer does.

    Attributes:
        counter: the int that counts tokens.
        keys: the dimension that it counts until the window is full.
    """

    counter: Column
    keys: Column
    open: bool

    def holds(self, row: SizeRow) -> bool:
        return (value_in(row, self.counter) == value_in(row, self.keys)) is self.open

    def among(self, rows: SizeTable) -> list[bool]:
        counts, lengths = rows.values(self.counter), rows.values(self.keys)
        return [(a == b) is self.open for a, b in zip(counts, lengths, strict=True)]

    def text(self, layout: ArgumentLayout) -> str:
        return "window open" if self.open else "window full"

    def rejection(self, layout: ArgumentLayout) -> Rejection:
        return OtherVariant(self.text(layout))
