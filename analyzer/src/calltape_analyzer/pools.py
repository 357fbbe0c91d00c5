"""The same dimension over all variants: what varied elsewhere, and what was equal to it there."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping
from itertools import islice
from typing import Any

from calltape_analyzer.layout import Place
from calltape_analyzer.observations import Group
from calltape_analyzer.splitting import Split
from calltape_analyzer.symbols import Column

__all__ = ["Elsewhere", "Line", "Pools", "opened", "pooled_as"]

_IN_LISTS = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MAX_COMPARED = 64


class Pools:
    """The same dimension over all variants: by argument, path, rank and axis; and over the elements
    of lists, by the path with the numbers in it left open."""

    def __init__(self, splits: Iterable[Split], settled: Container[Hashable] = ()) -> None:
        self.values: dict[Hashable, set[int]] = defaultdict(set)
        self.calls: dict[Hashable, int] = defaultdict(int)
        self._settled = settled
        self._lines: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._elsewhere: dict[Hashable, Elsewhere] = {}
        self._interned: dict[tuple[tuple[int, int], ...], Elsewhere] = {}
        self._presences: dict[tuple[int, ...], int] = {}
        self._differ: dict[tuple[Elsewhere, Elsewhere], bool] = {}
        for number, split in enumerate(splits):
            self._add(number, split)
        self._siblings = self._known_siblings()

    def _add(self, number: int, split: Split) -> None:
        calls = split.rows.calls
        for column in split.rows.columns:
            key = self.key(split.group, column)
            self.values[key] |= split.rows.distinct(column)
            lines = self._lines[key]
            if number not in lines:
                self.calls[key] += calls
                lines[number] = split.rows.line(column)

    @staticmethod
    def key(group: Group, column: Column) -> Hashable:
        if column.axis is None:
            place = group.ints[column.place]
            return place.argument, place.path, "int", None
        place = group.layout.tensors[column.place]
        return pooled_as(place, group.facts[column.place].rank, column.axis)

    def varied(self, key: Hashable) -> bool:
        """Whether a dimension had several sizes."""
        return len(self.values[key]) > 1

    def is_open(self, key: Hashable) -> bool:
        """Whether a dimension was seen in one call only, and no sibling (the same dimension of the
        other elements of the same lists) that was seen in several says that it is constant."""
        if self.calls[key] != 1 or key in self._settled:
            return False
        return self._siblings.get(opened(key)) is not False

    def is_alike(self, key: Hashable) -> bool:
        """The same, where there are such siblings."""
        return self.is_open(key) and opened(key) in self._siblings

    def _known_siblings(self) -> dict[Hashable, bool]:
        """Over the elements of lists that were seen in several calls, whether all varied."""
        found: dict[Hashable, bool] = {}
        for key, calls in self.calls.items():
            if calls > 1 or key in self._settled:
                siblings = opened(key)
                found[siblings] = found.get(siblings, True) and self.varied(key)
        return found

    def elsewhere(self, key: Hashable) -> Elsewhere:
        """Where a dimension is, and which are equal to it there."""
        if key not in self._elsewhere:
            lines = self._lines.get(key, {})
            presence = self._presences.setdefault(tuple(lines), len(self._presences))
            made = Elsewhere(lines, presence)
            self._elsewhere[key] = self._interned.setdefault(tuple(lines.items()), made)
        return self._elsewhere[key]

    def differ(self, one: Elsewhere, other: Elsewhere) -> bool:
        """Whether two dimensions ever had different sizes in one call."""
        if one.presence == other.presence:
            return one is not other
        pair = (one, other)
        if pair not in self._differ:
            few, many = sorted((one.lines, other.lines), key=len)
            self._differ[pair] = any(many.get(number, line) != line for number, line in few.items())
        return self._differ[pair]


class Elsewhere:
    """The variants that a dimension is in, by number, and its line in each. One object for all
    dimensions of which this is equal; ``presence`` is equal for those that are in the same
    variants."""

    def __init__(self, lines: Mapping[int, int], presence: int) -> None:
        self.lines = lines
        self.presence = presence


def pooled_as(place: Place, rank: int, axis: int) -> Hashable:
    """Equal for the dimensions of tensors that are one over all variants."""
    return place.argument, place.path, rank, axis


def opened(key: Any) -> Hashable:
    """Equal for dimensions that are one, or those of elements of one list: of ``.layers.0.keys``
    the key of ``.layers.*.keys``."""
    argument, path, *rest = key
    return argument, _IN_LISTS.sub("*", path), *rest


class Line:
    """The symbols of columns that never differed in a variant. What varied is one; what did not is
    told apart by other variants.

    Attributes:
        groups: numbers of the symbols.
        capped: whether there were more than some column was compared with.
    """

    def __init__(self, pools: Pools) -> None:
        self.groups: list[int] = []
        self.capped = False
        self._pools = pools
        self._equal: dict[Elsewhere, int] = {}
        self._known: list[Elsewhere] = []
        self._presences: Counter[int] = Counter()

    def add(self, elsewhere: Elsewhere | None, number: int) -> None:
        """Makes a symbol."""
        self.groups.append(number)
        if elsewhere is not None:
            self._equal[elsewhere] = number
            self._known.append(elsewhere)
            self._presences[elsewhere.presence] += 1

    def group_of(self, elsewhere: Elsewhere | None) -> int | None:
        """The first symbol that never differed from a column elsewhere."""
        if elsewhere is None:
            return self.groups[0] if self.groups else None
        equal = self._equal.get(elsewhere)
        # Of those that are in the same variants a look tells which; others are compared.
        others = len(self._known) - self._presences[elsewhere.presence]
        if not others:
            return equal
        for number, known in islice(zip(self.groups, self._known, strict=True), _MAX_COMPARED):
            if not self._pools.differ(known, elsewhere):
                return number
            others -= known.presence != elsewhere.presence
        self.capped |= equal is None and others > 0
        return equal
