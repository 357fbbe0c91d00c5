"""The sizes that no call had and that a model is run at, and which of them would cost too much."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple

from calltape_analyzer.arguments.sizings import (
    GROWTH,
    Bound,
    Sizing,
    elements_at,
    sizings_around,
    sizings_between,
    sizings_beyond,
    sizings_far,
    sizings_of_one,
    sizings_unrelated,
    sizings_unseen,
)
from calltape_analyzer.exporting.free_memory import half_of_free
from calltape_analyzer.exporting.time_limit import time_limit
from calltape_analyzer.programs.attempts import Attempt, error_text
from calltape_analyzer.text import counted
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Probe", "Probing"]

Probe = Literal["near", "far", "none"]

_MAX_OF_A_KIND = 3
_SECONDS = 60.0
_MIN_PATIENCE = 3.0
"""A proof should not take as long as what it proves; of small models it may."""
_MAX_POWER = 3.0
"""No model that we know needs more memory than the fourth power of a size."""
_AT_ONCE = 2
"""What the model returned is in memory while the program runs."""


class Cost(NamedTuple):
    """What one run took: the values of all symbols, the elements of its inputs, the bytes of its
    tensors, its time."""

    values: tuple[int, ...]
    elements: int
    memory: int
    seconds: float


@dataclass
class Probing:
    """Runs a model at sizes that no call had, within bounds (docs/decisions/0030).

    The memory of a run is predicted from runs that were measured; the first of them has recorded
    sizes. It grows like all inputs together, and once more like the symbol that grows most
    (attention), or like a power of it where the measured runs grew so.

    Attributes:
        probe: ``"near"`` for sizes within :class:`~calltape_analyzer.arguments.sizings.Bound`: no
            run has more than 4 times the elements of the largest recorded call, in all input
            tensors together, and no size or int is more than 4 times its largest recorded value.
            ``"far"`` for these and sizes up to 500 times the recorded ones, as long as the inputs
            stay small: only this finds what a model does from some size on. ``"none"`` for recorded
            sizes only.
        memory: the most bytes that a run and the run that it is compared with may take; None for
            half of what is free at that moment. A run that is predicted to take more is not made,
            and ``attempts`` and the notes of the report say so.
        seconds: how long a run may take.
        bound: of the tape.
    """

    probe: Probe = "near"
    memory: int | None = None
    seconds: float = _SECONDS
    bound: Bound = field(default_factory=lambda: Bound(0))
    _costs: dict[Hashable, list[Cost]] = field(default_factory=lambda: defaultdict(list))
    _slow: set[Hashable] = field(default_factory=set)

    def sizings(
        self, variant: VariantFacts, around: Sequence[Sizing], *, narrow: bool = False
    ) -> list[Sizing]:
        """The sizes to run.

        Args:
            variant: what is run.
            around: sizes that must be among them, with some a little larger.
            narrow: whether these alone are run.
        """
        if self.probe == "none":
            return []
        if narrow:
            return [sizing for sizing in around if self.bound.allows(variant, sizing)]
        kinds = (
            sizings_unseen,
            sizings_of_one,
            sizings_beyond,
            sizings_unrelated,
            sizings_between,
        )
        found_of_kind = [kind(variant, _MAX_OF_A_KIND) for kind in kinds]
        # One of each kind comes first: there may be no time for all.
        in_turn = chain.from_iterable(zip_longest(*found_of_kind))
        near = [*around, *sizings_around(variant, around), *filter(None, in_turn)]
        found = [sizing for sizing in near if self.bound.allows(variant, sizing)]
        found += sizings_far(variant) if self.probe == "far" else []
        return list(dict.fromkeys(found))

    def patience(self, seconds: float) -> float:
        """How long all runs at sizes that no call had may take together.

        Args:
            seconds: how long the trace and the runs of recorded calls took.
        """
        return math.inf if self.probe == "far" else max(seconds / 2, _MIN_PATIENCE)

    def refuses(
        self, variant: VariantFacts, sizing: Sizing, run: Callable[[Sizing], Any], device: str
    ) -> str | None:
        """Why the model is not run at sizes that no call had; None if it may be run.

        Args:
            variant: what would be run.
            sizing: the sizes.
            run: runs the model. It is called at recorded sizes, to measure.
            device: of the model.
        """
        if self.probe == "none":
            return "only recorded sizes are run (probe='none')"
        if self.probe == "near" and not self.bound.allows(variant, sizing):
            return f"more than {GROWTH} times what was recorded"
        if _key(variant) in self._slow:
            return f"a run before it took more than {self.seconds:.0f} s"
        reason = self._too_much(variant, sizing, device)
        if reason is None:
            return None
        # No run like it was measured yet, or the measured ones are too far from it.
        values = tuple(symbol.values[sizing.row] for symbol in variant.symbols)
        recorded = Sizing(sizing.row, values, False)
        if any(cost.values == values for cost in self._costs[_key(variant)]):
            return reason
        try:
            self.run(variant, recorded, lambda: run(recorded))
        except Exception as error:  # the model's own
            return f"the model itself, at recorded sizes: {error_text(error)}"
        return self._too_much(variant, sizing, device)

    def _too_much(self, variant: VariantFacts, sizing: Sizing, device: str) -> str | None:
        """Why a run would cost too much, as predicted from runs that were measured."""
        costs = self._costs[_key(variant)]
        powers = _powers(costs)
        grown = [(cost, *_grown(variant, sizing, cost, powers)) for cost in costs]
        memory = min((c.memory * inputs * more for c, inputs, _, more in grown), default=math.inf)
        seconds = min((c.seconds * max(inputs, size) for c, inputs, size, _ in grown), default=0.0)
        allowed = half_of_free(device) if self.memory is None else self.memory
        if memory * _AT_ONCE > allowed:
            needed = f"may take {_shown(memory * _AT_ONCE)} of memory"
            return f"{needed}; max_memory is {_shown(allowed)}"
        if seconds > self.seconds:
            return f"would take more than {self.seconds:.0f} s"
        return None

    def run(
        self,
        variant: VariantFacts,
        sizing: Sizing,
        function: Callable[[], Any],
        seconds: float | None = None,
    ) -> Any:
        """Runs a function at some sizes, and measures it if other runs are predicted from it.

        Args:
            variant: what is run.
            sizing: the sizes.
            function: runs it.
            seconds: how long it may take; ``self.seconds`` by default.

        Raises:
            TimeoutError: it takes too long.
        """
        from calltape_analyzer.exporting.memory import measured

        try:
            with time_limit(self.seconds if seconds is None else seconds):
                if sizing.resized and self.probe != "far":
                    return function()
                begin = time.perf_counter()
                value, peak = measured(function)
                seconds = time.perf_counter() - begin
        except TimeoutError:
            self._slow.add(_key(variant))
            raise
        cost = Cost(sizing.values, elements_at(variant, sizing), peak, seconds)
        self._costs[_key(variant)].append(cost)
        return value

    def notes(self, variant: VariantFacts, attempt: Attempt) -> list[str]:
        """At which sizes a program was tried, in words."""
        if not variant.symbols:
            return []
        tried = f"tried at {counted(attempt.probed, 'size')} beside the recorded ones"
        if self.probe == "near" and attempt.probed:
            tried += f", none more than {GROWTH} times as large"
        found = [f"{tried} (probe={self.probe!r})"]
        if attempt.untried:
            more = len(attempt.untried) - 1
            found.append(
                f"not tried: {attempt.untried[0]}" + (f", and {more} more" if more else "")
            )
        return found


def _key(variant: VariantFacts) -> Hashable:
    """The same for all attempts at a variant."""
    columns = tuple(tuple(symbol.columns) for symbol in variant.symbols)
    return variant.group.key, columns, len(variant.completions)


def _grown(
    variant: VariantFacts, sizing: Sizing, cost: Cost, powers: Sequence[float]
) -> tuple[float, float, float]:
    """How many times larger than in a run that was measured all inputs together are, the symbol
    that grew most, and the memory beside the inputs; at least 1."""
    inputs = max(elements_at(variant, sizing), 1) / max(cost.elements, 1)
    sizes = [max(n, 1) / max(o, 1) for n, o in zip(sizing.values, cost.values, strict=True)]
    more = [max(size, 1.0) ** power for size, power in zip(sizes, powers, strict=True)]
    return max(inputs, 1.0), max([1.0, *sizes]), max([1.0, *more])


def _powers(costs: Sequence[Cost]) -> list[float]:
    """By which power of each symbol memory grows beside the inputs: 1 for the length of attention,
    2 for that of all triples of a sequence's rows.

    It is 1 unless measured runs show more: at small sizes what grows fastest may not show yet.
    """
    import torch

    if not costs:
        return []
    sizes = torch.tensor([[1, *cost.values] for cost in costs], dtype=torch.float64)
    sizes[:, 1:] = sizes[:, 1:].clamp(min=1).log()
    memory = torch.tensor([[max(cost.memory, 1)] for cost in costs], dtype=torch.float64).log()
    fitted = torch.linalg.pinv(sizes) @ memory
    return [min(max(power - 1, 1.0), _MAX_POWER) for power in fitted.flatten().tolist()[1:]]


def _shown(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
