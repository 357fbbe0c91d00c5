"""What every call passes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from calltape_recorder.likeness import Familiar
from calltape_recorder.policies import Decider
from calltape_recorder.stats import Ledger

__all__ = ["Answer", "Gate"]

Answer = Callable[[int, Any], bool | None] | Literal[True] | None
"""Whether a call is kept, by its number; True where all are, None (or from it None) where a call
has to be looked at for that."""


class Gate:
    """What is asked of every call, kept or not. Most calls touch nothing else where few are kept;
    and as they come with cold caches, this is small and lies in one place.

    Attributes:
        pipeline: that it leads to.
        ledger: numbers calls, and counts them.
        passes_over: holds two numbers: calls from the first on, up to the second, are known not to
            be kept.
        by_number: whether another call is kept.
        familiar: counts calls that look like those that came before; None where none came twice.
        holds: whether calls that are not kept stay in memory for a while.
    """

    __slots__ = ("by_number", "familiar", "holds", "ledger", "passes_over", "pipeline")

    def __init__(self, pipeline: Any, ledger: Ledger, *, holds: bool) -> None:
        self.pipeline = pipeline
        self.ledger = ledger
        self.familiar: Familiar | None = None
        self.holds = holds
        self.passes_over = [(0, 0)]
        self.by_number: Answer = None

    def follow(self, answer: Answer, sample: Decider | None = None) -> None:
        """From now on a call is kept if it is in the sample, where there is one, and ``answer``
        says so."""
        # Of its own: a thread that is late with what an earlier sample knows says it to nobody.
        passes_over = [(0, 0)]
        gap: Callable[[int], tuple[int, int]] | None = getattr(sample or answer, "gap", None)

        def by_number(number: int, sight: Any) -> bool | None:
            if gap is not None:
                passes_over[0] = gap(number)
            if sample is not None and not sample(number, sight):
                return False
            return answer if answer is None or answer is True else answer(number, sight)

        self.by_number = answer if sample is None and gap is None else by_number
        self.passes_over = passes_over
