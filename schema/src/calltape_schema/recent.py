"""What was made of the bytes of tapes, within a bound, for who asks again."""

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

    Which ones make room is left to chance: the oldest would be the next that is asked for, if
    somebody goes through all of them again, and one value too many would cost all of them.
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
        """What was kept for a key; None if it was forgotten, or never there."""
        found = self._entries.get(key)
        return None if found is None else found[0]

    def once(self, key: Hashable, make: Callable[[], T], size: int | Callable[[T], int] = 0) -> T:
        """What was kept for a key, or else what is made now, and kept. ``size`` is, or says of the
        value, about how many bytes it takes beyond those of any small object."""
        found = self._entries.get(key)
        if found is None:
            made = make()
            self.keep(key, made, size(made) if callable(size) else size)
            return made
        return found[0]  # type: ignore[no-any-return]

    def keep(self, key: Hashable, value: Any, size: int) -> None:
        """Keeps a value that takes about ``size`` bytes, if none of this key is there. The one that
        was kept last stays, however large it is."""
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
    """Decodes equal bytes once, also those that are refused: thousands of calls may share them.
    What it remembers has 4 MiB of encoded bytes at most, so that a tape with a new structure in
    each call takes little memory."""

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
        # What is refused, or taken, under some limits may not be under others.
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
            raise copy(known)  # each gets the place of its own call
        if key is data:
            self._last = data, known
        return known  # type: ignore[no-any-return]
