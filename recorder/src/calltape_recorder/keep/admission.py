"""The first decision about every call: do the policies keep it, as far as its number tells?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from calltape_recorder.keep.policies import Decider

if TYPE_CHECKING:  # these import torch, and calltape-record reads policies without it
    from calltape_recorder.keep.ledger import Ledger
    from calltape_recorder.snapshot.side_cache import SideCache

P = TypeVar("P")

Answer = Callable[[int, Any], int | None] | Literal[True] | None
"""Tells by a call's number whether the call is kept. True if all calls are kept. None, or a
function that returns None, if the recorder has to look at the call to know."""


class Admission(Generic[P]):
    """What the recorder needs for every call, kept or not.

    If few calls are kept, most calls use nothing else of the recorder. The processor's caches are
    cold for them, so this is small and lies in one place.

    Attributes:
        recording: takes the calls that are kept.
        ledger: numbers calls, and counts them.
        gap: a list with one range of numbers, by its first number and its end: calls in it are not
            kept.
        by_number: tells whether any other call is kept.
        side_cache: recognizes calls that look like an earlier one.
        holds_unkept: whether calls that are not kept stay in memory for a while.
    """

    __slots__ = ("by_number", "gap", "holds_unkept", "ledger", "recording", "side_cache")

    def __init__(
        self, recording: P, ledger: Ledger, side_cache: SideCache, *, holds_unkept: bool
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
