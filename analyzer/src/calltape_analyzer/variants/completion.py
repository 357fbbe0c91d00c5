"""Calls of a smaller layout as calls of a larger one: tensors that they lack get size zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from calltape_analyzer.observing.columns import Column, SizeRow, value_in
from calltape_analyzer.observing.groups import GroupKey
from calltape_analyzer.observing.layout import ArgumentLayout

__all__ = ["Completion", "Source"]


@dataclass(frozen=True)
class Source:
    """Where the size of a missing dimension comes from: it is a constant, a dimension that the call
    has (``column``), or the difference of two (``column`` and ``less``); otherwise 0."""

    constant: int | None = None
    column: Column | None = None
    less: Column | None = None


@dataclass(frozen=True)
class Completion:
    """How the values of one layout become values of a larger one.

    Attributes:
        key: of the group with the smaller layout.
        layout: the larger one. Numbers of tensors, scalars and columns below are in it.
        tensors: per tensor its number in the smaller layout, or None.
        scalars: likewise, per scalar.
        missing: per missing tensor where each of its sizes comes from, over the columns that the
            call does have.
        dtypes: of the missing tensors.
        constants: per scalar its value, for the scalars that the smaller layout lacks.
        counting_ints: ints that are the size of a tensor.
    """

    key: GroupKey
    layout: ArgumentLayout
    tensors: tuple[int | None, ...]
    scalars: tuple[int | None, ...]
    missing: dict[int, tuple[Source, ...]]
    dtypes: dict[int, str]
    constants: tuple[Any, ...]
    counting_ints: dict[Column, Column]

    def row(self, row: SizeRow) -> SizeRow:
        """A row of the smaller layout as a row of the larger one."""
        shapes: list[tuple[int, ...] | None] = [
            None if at is None else row.shapes[at] for at in self.tensors
        ]
        known = SizeRow(tuple(shape or () for shape in shapes), ())
        for tensor, sources in self.missing.items():
            shapes[tensor] = tuple(_size(source, known) for source in sources)
        made = SizeRow(tuple(shape or () for shape in shapes), ())
        return SizeRow(made.shapes, self._ints(row, made))

    def _ints(self, row: SizeRow, made: SizeRow) -> tuple[int, ...]:
        columns = self.layout.column_of_scalar
        shared = sorted(
            (at, i) for i, at in enumerate(self.scalars) if at is not None and i in columns
        )
        own = iter(row.ints)  # in the order of the smaller layout
        given = {i: next(own) for _, i in shared}
        ints: list[int] = []
        for scalar, column in columns.items():
            if scalar in given:
                ints.append(given[scalar])
            elif column in self.counting_ints:
                ints.append(value_in(made, self.counting_ints[column]))
            else:
                ints.append(self.constants[scalar])
        return tuple(ints)


def _size(source: Source, row: SizeRow) -> int:
    if source.constant is not None:
        return source.constant
    if source.column is None:
        return 0
    size = value_in(row, source.column)
    return max(size - value_in(row, source.less), 0) if source.less is not None else size
