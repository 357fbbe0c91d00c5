"""The flight recorder: holds the latest calls that no policy keeps, until something asks for them.

A call that raises, :meth:`~calltape_recorder.Recorder.dump` or an exception that ends the process
asks for them. Calls that were not asked for are dropped, the oldest first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calltape_recorder.bounds import MAX_DUMPS, MAX_REASON_CHARACTERS
from calltape_recorder.threads import RLock
from calltape_schema import TapeError
from calltape_schema.end import Dump
from calltape_schema.fields import now_ns

if TYPE_CHECKING:  # it imports torch, and calltape-record reads policies without it
    from calltape_recorder.snapshot.call import Call


@dataclass(frozen=True)
class FlightRecorder:
    """The limits of a flight recorder, which holds the latest calls that ``keep`` did not select.
    Their memory is in addition to ``max_queue_bytes``.

    Args:
        calls: how many calls it holds at most.
        bytes: how many bytes of their tensors, texts and large new structures it holds at most.

    Raises:
        TapeError: ``usage`` for anything but positive ints.
    """

    calls: int = 100
    bytes: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        for name, value in (("calls", self.calls), ("bytes", self.bytes)):
            if type(value) is not int or value < 1:
                reason = f"FlightRecorder({name}={value!r})"
                raise TapeError("usage", reason, advice="pass an int, 1 or more")


class FlightCalls:
    """The ended calls that a flight recorder holds. Any thread may use it.

    Args:
        limits: how many calls and bytes it holds.
        put: takes the calls that are dumped.
        drop: takes the calls for which there is no more room.
    """

    def __init__(
        self, limits: FlightRecorder, put: Callable[[Call], None], drop: Callable[[Call], None]
    ) -> None:
        self._limits = limits
        self._put = put
        self._drop = drop
        self.lock = RLock()
        self._calls: deque[Call] = deque()
        self._bytes = 0
        self._dumps: list[Dump] = []

    def add(self, call: Call) -> None:
        """Takes a call, and drops the oldest ones if there are too many."""
        old: list[Call] = []
        with self.lock:
            self._bytes += call.nbytes
            self._calls.append(call)
            while len(self._calls) > self._limits.calls or self._bytes > self._limits.bytes:
                oldest = self._calls[0]
                self._bytes -= oldest.nbytes
                self._calls.popleft()  # no interrupt comes between
                old.append(oldest)
        for oldest in old:
            self._drop(oldest)

    def dump(self, reason: str, *more: Call) -> int:
        """Hands all calls, and ``more`` after them, to the writer. Returns how many they are."""
        with self.lock:
            calls = [*self._calls, *more]
            if len(self._dumps) < MAX_DUMPS:
                text = reason.encode("utf-8", "backslashreplace").decode()[:MAX_REASON_CHARACTERS]
                self._dumps.append(Dump(time_ns=now_ns(), reason=text, calls=len(calls)))
            self._calls.clear()
            self._bytes = 0
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
        """The dumps since the last call of this method."""
        with self.lock:
            dumps, self._dumps = self._dumps, []
        return tuple(dumps)
