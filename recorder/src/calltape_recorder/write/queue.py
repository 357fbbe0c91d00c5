"""Ended calls that wait in memory: for the thread that writes them, or for the flight recorder.

A call that looks like an earlier one waits for the writer as its bytes, beside the two sides that
it shares with that one. To Python's garbage collector these are nothing. If thousands of calls
waited as objects, it would go through all objects of the host each time they became many more:
measured, that took 0.1 s of a host, and a third of what recording small calls cost. The calls of a
flight recorder are objects.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from calltape_recorder.bounds import (
    FEWEST_QUEUED_CALLS,
    MAX_DUMPS,
    MAX_REASON_CHARACTERS,
    QUEUED_CALL_BYTES,
)
from calltape_recorder.call import Call, QueuedCall
from calltape_recorder.keep.policies import FlightRecorder
from calltape_recorder.snapshot.side import Side
from calltape_recorder.threads import Event, RLock
from calltape_schema.end import Dump

# Calls of this size would fill the queue before the next poll, so they wake the writer.
_LARGE_BYTES = 1024 * 1024

_PLACES = 3  # of a call or a task

# Number, times, thread, cost and reserved bytes of a call, and whether it is evidence.
_OWN = struct.Struct("<qqQqqq?")


class Task:
    """Something to do between calls, and whether it is done."""

    __slots__ = ("action", "done")

    def __init__(self, action: Callable[[], None] | None) -> None:
        self.action = action
        self.done = Event()


class CallQueue:
    """Calls and tasks, in order. Any thread may put something in; one takes it out.

    Args:
        max_bytes: the byte bound of the recording.
        batch: how many calls are in memory besides those that wait.

    Attributes:
        is_full: whether so many calls wait that they would reach the byte bound even without
            tensors. Then the next call must not be recorded. The thread that takes calls out says
            when there is room again, by :meth:`look_for_room`.
        wake: is set if the thread that takes calls out is to look at once.
        is_asleep: whether that thread sleeps until ``wake`` is set.
    """

    def __init__(self, max_bytes: int, batch: int) -> None:
        # The two sides without their bytes, and these; or None, None, and a call or a task.
        self._places: deque[Any] = deque()
        calls = max(FEWEST_QUEUED_CALLS, max_bytes // QUEUED_CALL_BYTES - batch)
        self._most = _PLACES * calls
        self.is_full = False
        self.is_asleep = False
        self.wake = Event()

    def __len__(self) -> int:
        return len(self._places) // _PLACES

    def __bool__(self) -> bool:
        return bool(self._places)

    def put(self, call: Call) -> None:
        """Adds an ended call. It takes no lock and makes no system call, unless the other thread
        has to be woken."""
        places, nbytes = self._places, call.nbytes
        shared = _shared(call)
        if shared is None:
            # One step, also where a signal handler comes between two.
            places.extend((None, None, call))
            call.__class__ = QueuedCall  # type: ignore[assignment]
        else:
            own = _OWN.pack(
                call.number, call.time_ns, call.thread, call.duration_ns, call.cost_ns, nbytes,
                call.is_evidence,
            )  # fmt: skip
            if nbytes:
                one, two = call.inputs, call.outputs
                own += ((one and one.joined) or b"") + ((two and two.joined) or b"")
            # No signal handler runs between these two: nobody would be told of a call that is lost.
            call.__class__ = QueuedCall; places.extend((*shared, own))  # type: ignore  # noqa: E702  # fmt: skip
        if len(places) >= self._most:
            self.is_full = True
        # ``is_asleep`` is set before the other thread looks a last time, so no call is left behind.
        if self.is_asleep or nbytes >= _LARGE_BYTES:
            self.wake.set()

    def ask(self, task: Task) -> None:
        """Adds a task."""
        self._places.extend((None, None, task))
        self.wake.set()

    def take(self) -> QueuedCall | Task | None:
        """Takes out what is first; None if there is nothing."""
        if not self._places:
            return None
        take = self._places.popleft
        inputs, outputs, own = take(), take(), take()
        return own if inputs is None else _unpacked(inputs, outputs, own)

    def look_for_room(self) -> None:
        """Finds out whether it is still full."""
        self.is_full = len(self._places) >= self._most


def _shared(call: Call) -> tuple[Side, Side | None] | None:
    """The sides without their bytes, if calls that look the same share them, and the call has
    nothing else of its own; else None."""
    inputs, outputs = call.inputs, call.outputs
    assert inputs is not None
    if inputs.scalars or call.error is not None or call.held:
        return None
    shared = inputs.look.side
    if shared is None or (inputs.look.nbytes and inputs.joined is None):
        return None
    if outputs is None:
        return (shared, None) if call.outputs_missing == "policy" else None
    other = outputs.look.side
    if other is None or (outputs.look.nbytes and outputs.joined is None):
        return None
    return None if outputs.scalars or call.outputs_missing is not None else (shared, other)


def _unpacked(inputs: Side, outputs: Side | None, own: bytes) -> QueuedCall:
    number, time_ns, thread, duration_ns, cost_ns, nbytes, is_evidence = _OWN.unpack_from(own)
    call = QueuedCall(number, time_ns, thread)
    call.duration_ns, call.cost_ns, call.nbytes = duration_ns, cost_ns, nbytes
    call.is_evidence = is_evidence
    call.inputs, call.outputs, call.joined = inputs, outputs, own[_OWN.size :]
    if outputs is None:
        call.outputs_missing = "policy"
    return call


class HeldCalls:
    """The flight recorder: holds ended calls in memory, the oldest first, until something asks for
    them. Any thread may use it."""

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
