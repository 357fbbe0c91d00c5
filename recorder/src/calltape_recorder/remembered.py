"""What is remembered of earlier calls, within bounds of number and of memory.

A host may make calls of thousands of tensors whose structure never comes again: what is remembered
of each then takes a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from calltape_recorder.bounds import MAX_REMEMBERED_PARTS

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Values by key. The oldest are forgotten first. Only one thread at a time may change it; any
    thread may ask it.

    Args:
        most: how many there may be.
        parts: how many parts a key and its value have. What has more than all may have together
            is not remembered.
        forgotten: is called with each value that is forgotten, or not remembered.

    Attributes:
        get: the value of a key, or None.
        values: all values.
    """

    def __init__(
        self, most: int, parts: Callable[[K, V], int],
        forgotten: Callable[[V], object] = lambda _: None,
    ) -> None:  # fmt: skip
        self._known: dict[K, V] = {}
        self._most = most
        self._parts_of = parts
        self._parts = 0
        self._forgotten = forgotten
        self.get: Callable[[K], V | None] = self._known.get
        self.values: Callable[[], Iterable[V]] = self._known.values

    def __len__(self) -> int:
        return len(self._known)

    def keep(self, key: K, value: V) -> None:
        """Remembers a value, in the place of the one that the key had."""
        known, parts = self._known, self._parts_of(key, value)
        if key in known:
            self._forget(key)
        if parts > MAX_REMEMBERED_PARTS:
            self._forgotten(value)
            return
        while known and (len(known) >= self._most or self._parts + parts > MAX_REMEMBERED_PARTS):
            self._forget(next(iter(known)))
        known[key] = value
        self._parts += parts

    def _forget(self, key: K) -> None:
        value = self._known.pop(key)
        self._parts -= self._parts_of(key, value)
        self._forgotten(value)
