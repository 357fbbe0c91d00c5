"""The flight recorder keeps calls in memory until something asks for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from calltape_recorder.bounds import MAX_DUMPS, MAX_REASON_CHARACTERS
from calltape_recorder.call import Call
from calltape_recorder.keep.policies import FlightRecorder
from calltape_recorder.threads import RLock
from calltape_schema.end import Dump

__all__ = ["HeldCalls"]


class HeldCalls:
    """Holds ended calls, the oldest first. Any thread may use it."""

    def __init__(
        self, size: FlightRecorder, put: Callable[[Call], None], drop: Callable[[Call], None]
    ) -> None:
        self._size = size
        self._put = put
        self._drop = drop
        self.lock = RLock()
        self._calls: deque[Call] = deque()
        self._bytes = 0
        self._dumps: list[Dump] = []

    def hold(self, call: Call) -> None:
        """Takes a call, and drops the oldest ones if there are too many."""
        old: list[Call] = []
        with self.lock:
            self._bytes += call.nbytes
            self._calls.append(call)
            while len(self._calls) > self._size.calls or self._bytes > self._size.bytes:
                oldest = self._calls.popleft()
                self._bytes -= oldest.nbytes
                old.append(oldest)
        for oldest in old:
            self._drop(oldest)

    def dump(self, reason: str, *more: Call) -> int:
        """Hands all calls, and ``more`` after them, to the writer. Returns how many they are."""
        with self.lock:
            calls = [*self._calls, *more]
            self._calls.clear()
            self._bytes = 0
            if len(self._dumps) < MAX_DUMPS:
                text = reason.encode("utf-8", "backslashreplace").decode()[:MAX_REASON_CHARACTERS]
                dump = Dump(time_ns=time.time_ns(), reason=text, calls=len(calls))
                self._dumps.append(dump)
        for call in calls:
            self._put(call)
        return len(calls)

    def clear(self) -> None:
        """Drops all calls."""
        with self.lock:
            calls = list(self._calls)
            self._calls.clear()
            self._bytes = 0
        for call in calls:
            self._drop(call)

    def drain_dumps(self) -> tuple[Dump, ...]:
        """The dumps since this was asked last."""
        with self.lock:
            dumps, self._dumps = self._dumps, []
        return tuple(dumps)
