"""Which dimensions were always equal, found without comparing each with each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

__all__ = ["EqualSizes"]


class EqualSizes:
    """Groups of dimensions that had equal sizes in all calls that have both of them.

    A group takes each dimension that agrees with all known sizes of the group, and learns its other
    sizes. Some calls lack a dimension, so that its sizes cannot be the key of a dict. Instead, a
    set of groups is an int with a bit per group, and there is one set for each binary digit of a
    size.
    So the groups that have a size are found with a few operations, however many there are.
    """

    def __init__(self) -> None:
        self._sizes: list[list[int | None]] = []
        self._names: list[str | None] = []
        self._named: dict[str | None, int] = defaultdict(int)
        self._known: list[int] = []
        self._digits: list[list[int]] = []
        self._numbers: dict[int, int] = {}
        self._complete: dict[tuple[tuple[int | None, ...], str | None], int] = {}

    def place(self, sizes: Sequence[int | None], name: str | None) -> int:
        """Puts a dimension into the first group that it fits, or into a new one.

        Args:
            sizes: by structure of calls; None for those that do not have it.
            name: its usual name, if it has one. Dimensions of different names are never in one
                group.

        Returns:
            The number of the group.
        """
        if not self._known:
            self._known = [0] * len(sizes)
            self._digits = [[] for _ in sizes]
        key = (tuple(sizes), name)
        # The group of complete sizes is final. Others may fit an earlier group later.
        at = self._complete.get(key)
        if at is None:
            at = self._first(sizes, name)
            if None not in sizes:
                self._complete[key] = at
        self._learn(at, sizes, name)
        return at

    def _first(self, sizes: Sequence[int | None], name: str | None) -> int:
        fits = (1 << len(self._sizes)) - 1
        if name is not None:
            fits &= self._named[name] | self._named[None]
        met = 0
        for place, number in self._numbered(sizes):
            known = self._known[place]
            met |= known
            differ = 0
            digits = self._digits[place]
            for digit, having in enumerate(digits):
                differ |= having ^ known if number >> digit & 1 else having
            if number >> len(digits):
                differ = known
            fits &= ~differ
            if not fits:
                break
        fits &= met
        return (fits & -fits).bit_length() - 1 if fits else len(self._sizes)

    def _numbered(self, sizes: Sequence[int | None]) -> Iterator[tuple[int, int]]:
        """Sizes as small numbers, which have few digits, by place."""
        numbers = self._numbers
        for place, size in enumerate(sizes):
            if size is not None:
                yield place, numbers.setdefault(size, len(numbers))

    def _learn(self, at: int, sizes: Sequence[int | None], name: str | None) -> None:
        bit = 1 << at
        if at == len(self._sizes):
            self._sizes.append([None] * len(sizes))
            self._names.append(None)
            self._named[None] |= bit
        if name is not None and self._names[at] is None:
            self._names[at] = name
            self._named[None] ^= bit
            self._named[name] |= bit
        own = self._sizes[at]
        for place, number in self._numbered(sizes):
            if own[place] is not None:
                continue
            own[place] = sizes[place]
            self._known[place] |= bit
            digits = self._digits[place]
            digits.extend(0 for _ in range(number.bit_length() - len(digits)))
            for digit in range(number.bit_length()):
                if number >> digit & 1:
                    digits[digit] |= bit
