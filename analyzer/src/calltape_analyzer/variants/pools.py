"""The same dimension over all variants: whether it varied in another one, and which dimensions were
equal to it there.

In come the splits of a tape. Out go answers per *pool*, which is known by its key: argument, path,
rank and axis (:func:`pool_key`).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Container, Hashable, Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.layout import LeafPath
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.variants.splitting import Split

__all__ = ["EqualColumns", "Occurrences", "Pools", "key_over_lists", "pool_key"]

_IN_LISTS = re.compile(r"(?<=\.)\d+(?=\.|$)")
_MAX_COMPARED = 64
_MAX_PATHS = 256  # the columns of one tensor come one after the other


class Pools:
    """The pools of all variants.

    Siblings of a pool are the same dimension of the other elements of the same lists: their keys
    are equal but for the numbers in the path.

    Args:
        splits: of all groups.
        constant: keys of pools that are known to be constant from counted calls.
    """

    def __init__(self, splits: Iterable[Split], constant: Container[Hashable] = ()) -> None:
        self.values: dict[Hashable, set[int]] = defaultdict(set)
        self.calls: dict[Hashable, int] = defaultdict(int)
        self._constant = constant
        self._lines: dict[Hashable, dict[int, int]] = defaultdict(dict)
        self._occurrences: dict[Hashable, Occurrences] = {}
        self._interned: dict[tuple[tuple[int, int], ...], Occurrences] = {}
        self._presences: dict[tuple[int, ...], int] = {}
        self._differ: dict[tuple[Occurrences, Occurrences], bool] = {}
        for number, split in enumerate(splits):
            self._add(number, split)
        self._siblings = self._siblings_that_varied()

    def _add(self, number: int, split: Split) -> None:
        calls, says_nothing = split.rows.calls, split.nothing_yet
        for column in split.rows.columns:
            if column in says_nothing:
                continue
            key = self.key(split.group, column)
            self.values[key] |= split.rows.distinct(column)
            lines = self._lines[key]
            if number not in lines:
                self.calls[key] += calls
                lines[number] = split.rows.line(column)

    @staticmethod
    def key(group: Group, column: Column) -> Hashable:
        """The key of the pool that a column of a group belongs to."""
        path = group.layout.path(column)
        if column.axis is None:
            return path.argument, path.path, "int", None
        return pool_key(path, group.facts[column.index].rank, column.axis)

    def varied(self, key: Hashable) -> bool:
        """Whether a pool has several sizes."""
        return len(self.values[key]) > 1

    def is_open(self, key: Hashable) -> bool:
        """Whether nothing says that a pool is constant: it was seen in one call only, and so were
        its siblings, or they varied."""
        if self.calls[key] != 1 or key in self._constant:
            return False
        return self._siblings.get(key_over_lists(key)) is not False

    def has_varying_siblings(self, key: Hashable) -> bool:
        """Whether a pool was seen in one call only, and has siblings that varied."""
        return self.is_open(key) and key_over_lists(key) in self._siblings

    def _siblings_that_varied(self) -> dict[Hashable, bool]:
        """Per key over lists, whether all of its pools that were seen in several calls varied."""
        found: dict[Hashable, bool] = {}
        for key, calls in self.calls.items():
            if calls > 1 or key in self._constant:
                siblings = key_over_lists(key)
                found[siblings] = found.get(siblings, True) and self.varied(key)
        return found

    def occurrences(self, key: Hashable) -> Occurrences:
        """The variants that have a dimension of a pool."""
        if key not in self._occurrences:
            lines = self._lines.get(key, {})
            presence = self._presences.setdefault(tuple(lines), len(self._presences))
            made = Occurrences(lines, presence)
            self._occurrences[key] = self._interned.setdefault(tuple(lines.items()), made)
        return self._occurrences[key]

    def differ(self, one: Occurrences, other: Occurrences) -> bool:
        """Whether two dimensions ever had different sizes in one call."""
        if one.presence == other.presence:
            return one is not other
        pair = (one, other)
        if pair not in self._differ:
            few, many = sorted((one.lines, other.lines), key=len)
            self._differ[pair] = any(many.get(number, line) != line for number, line in few.items())
        return self._differ[pair]


class Occurrences:
    """The variants that have a dimension, by number, and the line that it is on in each.

    Dimensions with the same lines share one object, so that equality is identity. ``presence`` is
    equal for dimensions that are in the same variants.
    """

    def __init__(self, lines: Mapping[int, int], presence: int) -> None:
        self.lines = lines
        self.presence = presence


def pool_key(path: LeafPath, rank: int, axis: int) -> Hashable:
    """Equal for the dimensions of tensors that are the same dimension in all variants."""
    return path.argument, path.path, rank, axis


def key_over_lists(key: Any) -> Hashable:
    """Equal for pools that are one, or that are of elements of one list: the key of
    ``.layers.0.keys`` becomes the key of ``.layers.*.keys``."""
    argument, path, *rest = key
    return argument, _over_lists(path), *rest


@lru_cache(_MAX_PATHS)
def _over_lists(path: str) -> str:
    return _IN_LISTS.sub("*", path)


class EqualColumns:
    """Columns that never differed in a variant, divided into symbols. Columns that varied are one
    symbol; columns that did not are divided by what they are in other variants.

    Attributes:
        symbols: numbers of the symbols.
        capped: whether there were more symbols than some column was compared with.
    """

    def __init__(self, pools: Pools) -> None:
        self.symbols: list[int] = []
        self.capped = False
        self._pools = pools
        self._equal: dict[Occurrences, int] = {}
        self._known: list[Occurrences] = []
        self._presences: Counter[int] = Counter()

    def add(self, occurrences: Occurrences | None, number: int) -> None:
        """Makes a symbol of a column.

        Args:
            occurrences: of the column, if it did not vary in this variant.
            number: of the symbol.
        """
        self.symbols.append(number)
        if occurrences is not None:
            self._equal[occurrences] = number
            self._known.append(occurrences)
            self._presences[occurrences.presence] += 1

    def symbol_of(self, occurrences: Occurrences | None) -> int | None:
        """The first symbol that never differed from a column with these occurrences."""
        if occurrences is None:
            return self.symbols[0] if self.symbols else None
        equal = self._equal.get(occurrences)
        # Symbols in the same variants are found by identity; only the others are compared.
        others = len(self._known) - self._presences[occurrences.presence]
        if not others:
            return equal
        for number, known in islice(zip(self.symbols, self._known, strict=True), _MAX_COMPARED):
            if not self._pools.differ(known, occurrences):
                return number
            others -= known.presence != occurrences.presence
        self.capped |= equal is None and others > 0
        return equal
