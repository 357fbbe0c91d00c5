"""What the recorder asks first of every call: is it kept, as far as its number tells?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from calltape_recorder.keep.ledger import Ledger
from calltape_recorder.keep.policies import Decider
from calltape_recorder.snapshot.known_calls import KnownCalls

__all__ = ["Admission", "Answer"]

Answer = Callable[[int, Any], int | None] | Literal[True] | None
"""Tells by a call's number whether the call is kept. True if all calls are kept. None, or a
function that returns None, if the recorder has to look at the call to know."""


P = TypeVar("P")


class Admission(Generic[P]):
    """What every call is asked, kept or not.

    If few calls are kept, most calls use nothing else of the recorder. The processor's caches are
    cold when they come, so this is small and lies in one place.

    Attributes:
        pipeline: takes the calls that are kept.
        ledger: numbers calls, and counts them.
        passes_over: a list with one pair of numbers. Calls from the first number up to the second,
            without it, are not kept.
        by_number: tells whether any other call is kept.
        known_calls: recognizes calls that look like an earlier one.
        holds: whether calls that are not kept stay in memory for a while.
    """

    __slots__ = ("by_number", "holds", "known_calls", "ledger", "passes_over", "pipeline")

    def __init__(
        self, pipeline: P, ledger: Ledger, known_calls: KnownCalls, *, holds: bool
    ) -> None:
        self.pipeline = pipeline
        self.ledger = ledger
        self.known_calls = known_calls
        self.holds = holds
        self.passes_over = [(0, 0)]
        self.by_number: Answer = None

    def follow(self, answer: Answer, sample: Decider | None = None) -> None:
        """From now on keeps a call if ``answer`` says so and, if there is a sample, the call is in
        it."""
        # Each sample gets a new list. A late thread writes to the old one, which nobody reads.
        passes_over = [(0, 0)]
        gap: Callable[[int], tuple[int, int]] | None = getattr(sample or answer, "gap", None)

        def by_number(number: int, view: Any) -> int | None:
            if gap is not None:
                passes_over[0] = gap(number)
            if sample is not None and not sample(number, view):
                return False
            return answer if answer is None or answer is True else answer(number, view)

        self.by_number = answer if sample is None and gap is None else by_number
        self.passes_over = passes_over
