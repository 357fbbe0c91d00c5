"""Columns of a size table that never differed, kept once: a *line*.

A model of 32 cache layers has hundreds of sizes per call, and almost all of them are the same few.
A line that never varied is one number. A row that tells two columns apart divides their line.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

__all__ = ["Line", "array_of"]


class Line:
    """Columns that never differed.

    Attributes:
        columns: their numbers.
        constant: their value while they have one only.
        values: their value in each row, once they have several; else None.
    """

    def __init__(self, columns: Sequence[int], constant: int, values: Any = None) -> None:
        self.columns = tuple(columns)
        self.constant = constant
        self.values = values
        self._get = itemgetter(*self.columns) if len(self.columns) > 1 else None

    def is_one(self, flat: Sequence[int]) -> bool:
        """Whether its columns are equal in a row."""
        if self._get is None:
            return True
        found = self._get(flat)
        return bool(found.count(found[0]) == len(found))

    def divided(self, flat: Sequence[int]) -> Iterator[Line]:
        """A line per value that its columns have in a row, each with the values of earlier rows."""
        parts: dict[int, list[int]] = {}
        for column in self.columns:
            parts.setdefault(flat[column], []).append(column)
        for columns in parts.values():
            values = None if self.values is None else self.values[:]
            yield Line(columns, self.constant, values)

    def vary(self, rows: int) -> None:
        """Gives it a value per row, because the next row has another one."""
        self.values = array_of([self.constant], rows)

    def append(self, value: int) -> None:
        """Adds its value in a further row."""
        try:
            self.values.append(value)
        except OverflowError:  # a Python int may be larger than any size
            self.values = [*self.values, value]

    def chosen(self, choose: Callable[[Any], Iterable[int]]) -> Line:
        """The same columns with some of the rows, in any order.

        Args:
            choose: from one value per row to the values of the wanted rows.
        """
        if self.values is None:
            return Line(self.columns, self.constant)
        return Line(self.columns, self.constant, array_of(choose(self.values)))


def array_of(values: Iterable[int], times: int = 1) -> Any:
    """Ints as an array of 64 bits each; as a list if one is larger.

    Args:
        values: the ints.
        times: how often to repeat them.
    """
    every = list(values)
    try:
        return array("q", every) * times
    except OverflowError:
        return every * times
