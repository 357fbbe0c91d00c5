"""Dimensions of size 0 that no call had, and what was found out about them.

Many models treat a size of 0 in a special way, and no trace is made with it. So a program takes one
only if a call had it, or a run of the model and the program showed that both return the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

from calltape_analyzer.observing.columns import Column

__all__ = ["ZeroSizes"]


@dataclass(frozen=True)
class ZeroSizes:
    """What is known of sizes of 0 that no call had. Each set has the dimensions that were 0 at
    once.

    Attributes:
        taken: where program and model returned the same.
        refused: where they did not, with the reason in words.
    """

    taken: frozenset[frozenset[Column]] = frozenset()
    refused: Mapping[frozenset[Column], str] = field(default_factory=dict)

    def refusal(self, columns: Set[Column], names: str) -> str | None:
        """Why a row is refused in which some dimensions are 0; None if it is taken.

        Args:
            columns: these dimensions.
            names: what they are called.
        """
        known = frozenset(columns)
        if known in self.taken:
            return None
        told = f"{names} {'is' if len(known) == 1 else 'are'} 0, which was never recorded"
        return f"{told}; {self.refused[known]}" if known in self.refused else told
