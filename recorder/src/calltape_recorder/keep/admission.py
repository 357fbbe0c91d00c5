"""Decides whether a call is kept: first by its number alone, then by its inputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from calltape_recorder.bounds import MAX_REMEMBER_SECONDS, REMEMBER_SECONDS
from calltape_recorder.keep.policies import CallView, Decider, settled, start_over

if TYPE_CHECKING:  # these import torch, and calltape-record reads policies without it
    from calltape_recorder.keep.ledger import Ledger
    from calltape_recorder.snapshot.side_cache import SideCache

R = TypeVar("R")

Answer = Callable[[int, Any], int | None] | Literal[True] | None
"""Says by the number of a call whether it is kept. True if all calls are kept. None, or a function
that returns None, if the policies have to see the inputs."""


class Admission(Generic[R]):
    """What the recorder needs for every call, kept or not.

    If few calls are kept, most calls use nothing else of the recorder. The processor's caches are
    cold for them, so this is small and lies in one place.

    Attributes:
        recording: takes the calls that are kept.
        ledger: numbers calls, and counts them.
        gap: a list with one range of numbers, by its first number and its end: calls in it are not
            kept.
        by_number: says whether any other call is kept.
        side_cache: recognizes calls that look like an earlier one.
        holds_unkept: whether calls that are not kept stay in memory for a while.
    """

    __slots__ = ("by_number", "gap", "holds_unkept", "ledger", "recording", "side_cache")

    def __init__(
        self, recording: R, ledger: Ledger, side_cache: SideCache, *, holds_unkept: bool
    ) -> None:
        self.recording = recording
        self.ledger = ledger
        self.side_cache = side_cache
        self.holds_unkept = holds_unkept
        self.gap = [(0, 0)]
        self.by_number: Answer = None

    def follow(self, answer: Answer, sample: Decider | None = None) -> None:
        """From now on, keeps a call if ``answer`` says so and, if there is a sample, the call is in
        it."""
        # Each sample gets a new list. A late thread writes to the old one, which is not read.
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


class Decisions:
    """Decides about calls by their inputs, if their numbers do not suffice.

    Policies remember which calls they kept, so that they keep nothing twice. If kept calls are
    lost, policies start over: they must keep calls like these again.
    """

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self._is_novelty_lost = False
        self._is_short_of_room = False
        self._remember_seconds = REMEMBER_SECONDS
        self._remembers_until = 0.0

    def decide(self, view: CallView) -> int:
        """Whether a call is kept. An exception of the application's predicate passes through; no
        lock is held while the predicate runs."""
        if self._is_novelty_lost:
            self._start_over()
        return settled(self._decider(view.number, view))

    def lose_novelty(self, *, made_room: bool = False) -> None:
        """Notes that a kept call will not be on the tape, or that its file is gone. Takes no lock.

        Args:
            made_room: whether a file with novel calls made room for others. If the bound is too
                small for all of them, keeping them again each time would delete them each time. So
                policies start over more and more seldom.
        """
        self._is_novelty_lost = True
        self._is_short_of_room = self._is_short_of_room or made_room

    def _start_over(self) -> None:
        now = time.monotonic()
        if now >= self._remembers_until:
            longer = min(2 * self._remember_seconds, MAX_REMEMBER_SECONDS)
            self._remember_seconds = longer if self._is_short_of_room else REMEMBER_SECONDS
            self._remembers_until = now + self._remember_seconds
            self._is_novelty_lost = self._is_short_of_room = False
            start_over(self._decider)
