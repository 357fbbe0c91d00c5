"""What was made of the latest inputs: files of one model have many inputs in common."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

V = TypeVar("V")

_ROOM = 16 * 1024 * 1024


class Recent(Generic[V]):
    """Values by key, of at most 16 MiB together. When that is full, all are forgotten: what is
    common comes again soon.

    Args:
        cost: what each takes by itself, in bytes.
    """

    def __init__(self, cost: int) -> None:
        self._cost = cost
        self._known: dict[Hashable, V] = {}
        self._room = _ROOM

    def get(self, key: Hashable) -> V | None:
        """What was kept for a key; None if it was forgotten, or never there."""
        return self._known.get(key)

    def keep(self, key: Hashable, value: V, size: int) -> None:
        """Keeps a value that takes ``size`` bytes more, unless it is larger than all that may be
        kept."""
        needed = self._cost + size
        if needed > self._room:
            self._known.clear()
            self._room = _ROOM
        if needed <= self._room:
            self._known[key] = value
            self._room -= needed
