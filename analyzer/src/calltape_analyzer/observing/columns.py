"""The columns of a size table, and the rows of it.

A column is one dimension of one tensor, or one int, over the calls of a group. A row has the value
of each column in one call. :class:`~calltape_analyzer.observing.layout.ArgumentLayout` says which
columns there are and what they are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Column", "SizeRow", "columns_of", "value_in"]


class Column(NamedTuple):
    """A dimension of a tensor, or an int.

    Attributes:
        index: the number of the tensor among the tensors of a layout, or of the int among its
            ints.
        axis: the dimension of the tensor; None for an int.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    axis: int | None

    @property
    def is_int(self) -> bool:
        """Whether it is an int, and not a dimension."""
        return self.axis is None


class SizeRow(NamedTuple):
    """The shape of each tensor and the value of each int of one call, in the order of a layout."""

    shapes: tuple[tuple[int, ...], ...]
    ints: tuple[int, ...]

    @property
    def columns(self) -> list[Column]:
        """The columns of a table of such rows."""
        return columns_of(map(len, self.shapes), len(self.ints))

    @property
    def elements(self) -> int:
        """How many elements all tensors have together."""
        return sum(map(math.prod, self.shapes))


def columns_of(ranks: Iterable[int], ints: int) -> list[Column]:
    """All columns of tensors of these ranks, and then of as many ints."""
    dimensions = [Column(i, axis) for i, rank in enumerate(ranks) for axis in range(rank)]
    return dimensions + [Column(i, None) for i in range(ints)]


def value_in(row: SizeRow, column: Column) -> int:
    """The size, or the int, that a single row has in a column. A table of rows has
    :meth:`~calltape_analyzer.observing.size_table.SizeTable.value`."""
    if column.axis is None:
        return row.ints[column.index]
    return row.shapes[column.index][column.axis]
