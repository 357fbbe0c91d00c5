"""Bounded caches of what was decoded from tapes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Hashable
from copy import copy
from typing import Any, Generic, TypeVar

from calltape_schema.bounds import allowed
from calltape_schema.errors import TapeError

T = TypeVar("T")
_ROOM = 32 * 1024 * 1024
_COST = 500  # of a value by itself
_INTERNED_BYTES = 4 * 1024 * 1024


class Recent:
    """Values by key, of at most 32 MiB together. Any thread may use it.

    Random values make room. The oldest one would be the next to be needed if a caller goes through
    all values again, and then one value too many would evict all of them.
    """

    def __init__(self, room: int = _ROOM, cost: int = _COST) -> None:
        self._room = room
        self._cost = cost
        self._entries: dict[Hashable, tuple[Any, int]] = {}
        self._keys: list[Hashable] = []
        self._used = 0
        self._lock = threading.Lock()
        self._chance = random.Random(0)  # not the process's own, which belongs to its owner

    def get(self, key: Hashable) -> Any:
        """The value of a key; None if it was evicted or never kept."""
        entry = self._entries.get(key)
        return None if entry is None else entry[0]

    def once(self, key: Hashable, make: Callable[[], T], size: int | Callable[[T], int] = 0) -> T:
        """The value of a key; if there is none, it is made and kept. ``size`` is about how many
        bytes the value takes beyond those of a small object, or a function that says so."""
        entry = self._entries.get(key)
        if entry is None:
            value = make()
            self.keep(key, value, size(value) if callable(size) else size)
            return value
        return entry[0]  # type: ignore[no-any-return]

    def keep(self, key: Hashable, value: Any, size: int) -> None:
        """Keeps a value that takes about ``size`` bytes, unless the key has one. The value that was
        kept last stays, however large it is."""
        # Not to wait: in a fork, the thread that has the lock may not be there.
        if self._lock.acquire(blocking=False):
            try:
                self._add(key, value, size + self._cost)
            finally:
                self._lock.release()

    def _add(self, key: Hashable, value: Any, size: int) -> None:
        if key in self._entries:  # another thread made it at the same time
            return
        keys = self._keys
        while keys and self._used + size > self._room:
            at = self._chance.randrange(len(keys))
            keys[at], keys[-1] = keys[-1], keys[at]
            self._used -= self._entries.pop(keys.pop())[1]
        self._entries[key] = value, size
        keys.append(key)
        self._used += size


class Interner(Generic[T]):
    """Decodes equal bytes once, even if they are rejected: thousands of calls may share them. It
    remembers at most 4 MiB of encoded bytes, so that a tape with a new structure in each call takes
    little memory."""

    def __init__(self, decode: Callable[[bytes], T]) -> None:
        self._decode = decode
        self._recent = Recent(_INTERNED_BYTES, cost=0)
        self._last: tuple[bytes, Any] | None = None

    def __call__(self, data: bytes) -> T:
        # The same bytes object is asked for once per leaf of a call. Comparing it by identity first
        # is faster than by content.
        last = self._last
        if last is not None and last[0] is data:
            return last[1]  # type: ignore[no-any-return]
        # What is rejected or accepted under some limits may not be under others.
        times = allowed()
        key = data if times == 1 else (data, times)
        known = self._recent.get(key)
        if known is None:
            try:
                known = self._decode(data)
            except TapeError as error:
                known = copy(error)
            self._recent.keep(key, known, len(data))
        if isinstance(known, TapeError):
            raise copy(known)  # each call adds its own place to the error
        if key is data:
            self._last = data, known
        return known  # type: ignore[no-any-return]
