"""What runs of a model cost, predicted from runs that were measured.

In come measured runs at recorded sizes. Out go the bytes and seconds that a run at other sizes
takes (docs/decisions/guards-and-verdicts.md).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from calltape_analyzer.arguments.sizings import Sizing, elements_at, values_at
from calltape_analyzer.exporting.session.budget import time_limit
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Cost", "Imagine", "RunCosts", "variant_key"]

Imagine = Callable[[Sizing], int]
"""Finds the bytes that a run takes without one, by tensors that have no memory. It may raise."""

_MAX_POWER = 3.0
"""No model that we know needs more memory than the fourth power of a size."""
_NEAR = 2
"""What a run with half the elements of another one took tells what that takes."""
_SECONDS = 10.0
"""How long a run without memory may take."""


class Cost(NamedTuple):
    """What one run took: the values of all symbols, the elements of its inputs, the bytes of its
    tensors, its time."""

    values: tuple[int, ...]
    elements: int
    memory: int
    seconds: float


@dataclass
class RunCosts:
    """The runs of all variants that were measured, and what others would cost. What a recorded call
    cost holds for each variant that has the call.

    Memory grows like all inputs together, and once more like the symbol that grows most
    (attention), or like a power of it where the measured runs grew so. That is rather too much than
    too little. Where it matters, the model is asked with tensors that have no memory.
    """

    _measured: dict[Hashable, list[Cost]] = field(default_factory=lambda: defaultdict(list))
    _of_calls: dict[CallRef, Cost] = field(default_factory=dict)
    _imagined: dict[Hashable, float] = field(default_factory=dict)

    def add(self, variant: VariantFacts, cost: Cost, call: CallRef | None = None) -> None:
        """Learns from a run, of a recorded call if there is one."""
        self._measured[variant_key(variant)].append(cost)
        if call is not None:
            self._of_calls[call] = cost

    def _costs(self, variant: VariantFacts) -> list[Cost]:
        """The runs of a variant; as long as there are none, of its calls in other variants."""
        costs = self._measured[variant_key(variant)]
        if not costs and self._of_calls:
            for row, (_, seen) in enumerate(variant.rows.items()):
                if seen.first in self._of_calls:
                    known, elements = self._of_calls[seen.first], variant.rows.elements(row)
                    costs.append(known._replace(values=values_at(variant, row), elements=elements))
        return costs

    def has(self, variant: VariantFacts, values: tuple[int, ...] | None = None) -> bool:
        """Whether any run was measured, or one at these sizes."""
        costs = self._costs(variant)
        return any(values is None or cost.values == values for cost in costs)

    def memory(self, variant: VariantFacts, sizing: Sizing) -> float:
        """The most bytes that a run may take; infinity if none was measured."""
        costs = self._costs(variant)
        powers = _powers(costs)
        grown = [(cost, *_grown(variant, sizing, cost, powers)) for cost in costs]
        return min((c.memory * inputs * more for c, inputs, _, more in grown), default=math.inf)

    def seconds(self, variant: VariantFacts, sizing: Sizing) -> float:
        """How long a run may take; 0 if none was measured."""
        costs = self._costs(variant)
        grown = [(cost, *_grown(variant, sizing, cost, _powers(costs))) for cost in costs]
        return min((c.seconds * max(inputs, size) for c, inputs, size, _ in grown), default=0.0)

    def imagined(self, variant: VariantFacts, sizing: Sizing, imagine: Imagine) -> float:
        """The bytes that a run takes, by one with tensors that have no memory; infinity if what the
        model does depends on values, or takes long even so."""
        key = variant_key(variant), sizing.values
        if key not in self._imagined:
            try:
                with time_limit(_SECONDS):
                    self._imagined[key] = imagine(sizing)
            except Exception:  # the model's own
                self._imagined[key] = math.inf
        return self._imagined[key]

    def recorded(self, variant: VariantFacts, imagine: Imagine) -> float:
        """The bytes that the largest recorded call of a variant takes."""
        rows = variant.rows
        row = max(range(len(rows)), key=rows.elements)
        values = values_at(variant, row)
        costs = self._costs(variant)
        least = max(
            (c.memory * max(rows.elements(row) / max(c.elements, 1), 1.0) for c in costs),
            default=0.0,
        )
        if any(_NEAR * cost.elements >= rows.elements(row) for cost in costs):
            return least  # a run like it was measured
        imagined = self.imagined(variant, Sizing(row, values, False), imagine)
        return least if math.isinf(imagined) else max(least, imagined)


def variant_key(variant: VariantFacts) -> Hashable:
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
