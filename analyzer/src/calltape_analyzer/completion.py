"""Calls of a smaller layout as calls of a larger one: what they lack has size zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.observations import Key, Row
from calltape_analyzer.symbols import Column, value_in

__all__ = ["Completion", "Source"]


@dataclass(frozen=True)
class Source:
    """Where the size of a missing dimension comes from: a constant, a dimension that the call has,
    or the difference of two."""

    constant: int | None = None
    column: Column | None = None
    less: Column | None = None


@dataclass(frozen=True)
class Completion:
    """How the values of one layout become those of a larger one.

    Attributes:
        tensors: per tensor of the larger layout the place among the smaller one's, or None.
        scalars: likewise.
        missing: per missing tensor of the larger layout where each of its sizes comes from, over
            the columns of the *larger* layout that the call does have.
        dtypes: of the missing tensors.
        constants: the scalars of the larger layout, for those that the smaller one lacks.
        counters: ints of the larger layout that are the size of one of its tensors.
    """

    key: Key
    tensors: tuple[int | None, ...]
    scalars: tuple[int | None, ...]
    missing: dict[int, tuple[Source, ...]]
    dtypes: dict[int, str]
    constants: tuple[Any, ...]
    kinds: tuple[str, ...]
    counters: dict[int, Column]

    def row(self, row: Row) -> Row:
        """A row of the smaller group as one of the larger."""
        shapes: list[tuple[int, ...] | None] = [
            None if at is None else row.shapes[at] for at in self.tensors
        ]
        known = Row(tuple(shape or () for shape in shapes), ())
        for place, sources in self.missing.items():
            shapes[place] = tuple(_size(source, known) for source in sources)
        return Row(tuple(shape or () for shape in shapes), self._ints(row, shapes))

    def _ints(self, row: Row, shapes: Sequence[tuple[int, ...] | None]) -> tuple[int, ...]:
        own = iter(row.ints)
        given = {}
        # The ints of the smaller layout stand in its own order.
        for place, _ in sorted(
            ((p, a) for p, a in enumerate(self.scalars) if a is not None), key=lambda pair: pair[1]
        ):
            if self.kinds[place] == "int":
                given[place] = next(own)
        ints: list[int] = []
        for place, kind in enumerate(self.kinds):
            if kind != "int":
                continue
            counter = self.counters.get(len(ints))
            if place in given:
                ints.append(given[place])
            elif counter is not None and counter.axis is not None:
                shape = shapes[counter.place]
                assert shape is not None
                ints.append(shape[counter.axis])
            else:
                ints.append(self.constants[place])
        return tuple(ints)


def _size(source: Source, row: Row) -> int:
    if source.constant is not None:
        return source.constant
    if source.column is None:
        return 0
    size = value_in(row, source.column)
    return max(size - value_in(row, source.less), 0) if source.less is not None else size
