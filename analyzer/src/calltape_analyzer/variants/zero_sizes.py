"""Dimensions of size 0 that no call had, and what was found out about them.

Many models treat a size of 0 in a special way, and no trace is made with it. So a program takes one
only if a call had it, or a run of the model and the program showed that both return the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.columns import Column
from calltape_analyzer.variants.rejections import NewZeros

__all__ = ["ZeroSizes"]


@dataclass(frozen=True)
class ZeroSizes:
    """What is known of sizes of 0 that no call had. Each set has the dimensions that were 0 at
    once.

    Attributes:
        taken: where program and model returned the same.
        rejected: where they did not, with the reason.
    """

    taken: frozenset[frozenset[Column]] = frozenset()
    rejected: Mapping[frozenset[Column], Fact] = field(default_factory=dict)

    def rejection(self, columns: Set[Column], names: Sequence[str]) -> NewZeros | None:
        """Why a row is rejected in which some dimensions are 0; None if it is taken.

        Args:
            columns: these dimensions.
            names: what they are called.
        """
        known = frozenset(columns)
        if known in self.taken:
            return None
        return NewZeros(tuple(names), self.rejected.get(known))
