"""What the recorder asks first of every call: is it kept, as far as its number tells? And the calls
that a flight recorder holds because no policy kept them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from calltape_recorder.bounds import MAX_DUMPS, MAX_REASON_CHARACTERS
from calltape_recorder.keep.policies import Decider, FlightRecorder
from calltape_recorder.threads import RLock
from calltape_schema.end import Dump
from calltape_schema.fields import now_ns

if TYPE_CHECKING:  # these import torch, and calltape-record reads policies without it
    from calltape_recorder.keep.ledger import Ledger
    from calltape_recorder.snapshot.call import Call
    from calltape_recorder.snapshot.side_cache import SideCache

P = TypeVar("P")

Answer = Callable[[int, Any], int | None] | Literal[True] | None
"""Tells by a call's number whether the call is kept. True if all calls are kept. None, or a
function that returns None, if the recorder has to look at the call to know."""


class Admission(Generic[P]):
    """What every call is asked, kept or not.

    If few calls are kept, most calls use nothing else of the recorder. The processor's caches are
    cold when they come, so this is small and lies in one place.

    Attributes:
        pipeline: takes the calls that are kept.
        ledger: numbers calls, and counts them.
        gap: a list with one range of numbers, by its first number and its end: calls in it are not
            kept.
        by_number: tells whether any other call is kept.
        side_cache: recognizes calls that look like an earlier one.
        holds_unkept: whether calls that are not kept stay in memory for a while.
    """

    __slots__ = ("by_number", "gap", "holds_unkept", "ledger", "pipeline", "side_cache")

    def __init__(
        self, pipeline: P, ledger: Ledger, side_cache: SideCache, *, holds_unkept: bool
    ) -> None:
        self.pipeline = pipeline
        self.ledger = ledger
        self.side_cache = side_cache
        self.holds_unkept = holds_unkept
        self.gap = [(0, 0)]
        self.by_number: Answer = None

    def follow(self, answer: Answer, sample: Decider | None = None) -> None:
        """From now on keeps a call if ``answer`` says so and, if there is a sample, the call is in
        it."""
        # Each sample gets a new list. A late thread writes to the old one, which nobody reads.
        gap = [(0, 0)]
        gap_of: Callable[[int], tuple[int, int]] | None = getattr(sample or answer, "gap", None)

        def by_number(number: int, view: Any) -> int | None:
            if gap_of is not None:
                gap[0] = gap_of(number)
            if sample is not None and not sample(number, view):
                return False
            return answer if answer is None or answer is True else answer(number, view)

        self.by_number = answer if sample is None and gap_of is None else by_number
        self.gap = gap


class FlightCalls:
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

    def add(self, call: Call) -> None:
        """Takes a call, and drops the oldest ones if there are too many."""
        old: list[Call] = []
        with self.lock:
            self._bytes += call.nbytes
            self._calls.append(call)
            while len(self._calls) > self._size.calls or self._bytes > self._size.bytes:
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
        """The dumps since this was asked last."""
        with self.lock:
            dumps, self._dumps = self._dumps, []
        return tuple(dumps)
