"""How long an export may take as a whole, and who is told what it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from calltape_analyzer.programs.reasons import TimeUp

__all__ = ["Budget", "Progress"]

Progress = Callable[[str], None]
"""Is called with what is done now, in words."""

_LEAST = 0.001
"""Seconds of a limit; 0 would be none."""


@dataclass
class Budget:
    """The time of one export.

    What was found when the time is up is kept: no more is tried, and what is missing is said.

    Attributes:
        seconds: from its making, for all of it; None for no limit.
        progress: is told what is tried.
    """

    seconds: float | None = None
    progress: Progress | None = None
    _begin: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether the time is up."""
        return self._left <= 0

    @property
    def reason(self) -> TimeUp:
        """Why something was not tried after that."""
        return TimeUp(self.seconds or 0)

    def within(self, seconds: float) -> float:
        """So many seconds, or what is left if that is less; never 0."""
        return max(min(seconds, self._left), _LEAST)

    def say(self, text: str) -> None:
        """Tells what is done now, and since when the export runs."""
        if self.progress is not None:
            self.progress(f"{time.monotonic() - self._begin:.0f} s: {text}")

    @property
    def _left(self) -> float:
        if self.seconds is None:
            return math.inf
        return self.seconds - (time.monotonic() - self._begin)
