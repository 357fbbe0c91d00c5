"""The traffic counters of many tapes, which add up in any order, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from calltape_analyzer.observing.traffic_counters import (
    CountedGroup,
    CountedKind,
    TrafficCounters,
    Values,
)
from calltape_analyzer.surveying.bounds import digest_of, first_beyond
from calltape_schema.tree import decode_structure

__all__ = ["MAX_KINDS", "KindCounts", "KindTable", "bare", "digest_of_kind"]

MAX_KINDS = 65_536
_MAX_BYTES = 256 * 1024 * 1024
_AXIS_BYTES = 1024

KindCounts: TypeAlias = tuple[
    CountedKind, int, tuple[tuple[Values, ...], ...], tuple[Values | None, ...]
]
"""The kind, calls, leaves and scalars of a :class:`CountedGroup`, without its decoded structure."""


def bare(group: CountedGroup) -> KindCounts:
    """A group as it goes from one process to another."""
    return group.kind, group.calls, group.leaves, group.scalars


def digest_of_kind(kind: CountedKind) -> bytes:
    """Tells a kind from all others."""
    return digest_of(
        kind.structure, "\0".join(kind.dtypes).encode(), repr(kind.ranks).encode("ascii")
    )


class KindTable:
    """The counted groups of all calls, by kind. Beyond ``MAX_KINDS``, those with the smallest
    digests stay, and the calls of the others are counted together.

    Attributes:
        limit: the smallest digest that was left out; None if none was.
        other_calls: how many calls of further kinds there were.
    """

    def __init__(
        self,
        groups: Iterable[KindCounts] = (),
        other_calls: int = 0,
        limit: bytes | None = None,
    ) -> None:
        self.limit = limit
        self.other_calls = other_calls
        self._kinds: dict[bytes, CountedGroup] = {}
        self._axes = 0
        for one in groups:
            self.add(one)

    def __iter__(self) -> Iterator[KindCounts]:
        """The groups by their digests."""
        self.bound()
        return (bare(self._kinds[digest]) for digest in sorted(self._kinds))

    def add(self, counts: KindCounts) -> None:
        """Adds the calls of a group."""
        kind, calls, leaves, scalars = counts
        digest = digest_of_kind(kind)
        if self.limit is not None and digest >= self.limit:
            self.other_calls += calls
            return
        known = self._kinds.get(digest)
        made = CountedGroup(kind, decode_structure(kind.structure), calls, leaves, scalars)
        if known is not None:
            self._kinds[digest] = known.merge(made)
            return
        self._kinds[digest] = made
        self._axes += _cost(made)[0]
        if len(self._kinds) > 2 * MAX_KINDS or self._axes > 2 * _MAX_BYTES:
            self.bound()

    def add_all(self, other: KindTable) -> None:
        """Adds the calls of another table."""
        self.other_calls += other.other_calls
        if other.limit is not None:
            self._leave_out(other.limit)
        for group in other._kinds.values():
            self.add(bare(group))

    def bound(self) -> None:
        """Leaves out what is beyond the bounds."""
        limit = None
        if len(self._kinds) > MAX_KINDS or self._axes > _MAX_BYTES:
            limit = first_beyond(self._kinds, MAX_KINDS, _MAX_BYTES, _cost)
        if limit is not None:
            self._leave_out(limit)

    def counters(self, missing: Iterable[str] = ()) -> TrafficCounters:
        """The counters, as an analysis takes them.

        Args:
            missing: the files that have none.
        """
        self.bound()
        groups = (self._kinds[digest] for digest in sorted(self._kinds))
        return TrafficCounters(
            {group.kind: group for group in groups}, self.other_calls, frozenset(missing)
        )

    def _leave_out(self, limit: bytes) -> None:
        self.limit = limit if self.limit is None else min(self.limit, limit)
        for digest in [digest for digest in self._kinds if digest >= self.limit]:
            self.other_calls += self._kinds.pop(digest).calls
        self._axes = sum(_cost(group)[0] for group in self._kinds.values())


def _cost(group: CountedGroup) -> tuple[int, tuple[bytes, ...]]:
    """Layers share their values, but nobody knows how many do."""
    axes = sum(map(len, group.leaves)) + len(group.scalars)
    return axes * _AXIS_BYTES + len(group.kind.structure), ()
