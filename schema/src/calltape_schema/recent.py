"""What was made last of the bytes of tapes, for who asks again soon."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

__all__ = ["Recent"]

_ROOM = 32 * 1024 * 1024
_COST = 500  # of a value by itself


class Recent:
    """Values by key, of at most 32 MiB together: those that were asked for last. Any thread may use
    it."""

    def __init__(self, room: int = _ROOM) -> None:
        self._room = room
        self._known: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._used = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Any:
        """What was kept for a key; None if it was forgotten, or never there."""
        found = self._known.get(key)
        if found is None:
            return None
        try:
            self._known.move_to_end(key)
        except KeyError:  # another thread made room just now
            return found[0]
        return found[0]

    def keep(self, key: Hashable, value: Any, size: int) -> None:
        """Keeps a value that takes about ``size`` bytes. The one that was kept last stays, however
        large it is."""
        with self._lock:
            known = self._known.pop(key, None)
            if known is not None:
                self._used -= known[1]
            while self._known and self._used + size + _COST > self._room:
                self._used -= self._known.popitem(last=False)[1][1]
            self._known[key] = value, size + _COST
            self._used += size + _COST
