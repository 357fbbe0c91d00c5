"""Texts and floats that vary from call to call, as constants of programs.

``torch.export`` makes a constant of every text and float. Whether that matters is for replay to
say: a program that reproduces calls with other values serves all; where it does not, a program is
for one value, as many of them as a variant may have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.call import Calls
from calltape_analyzer.gathering import Gatherer, Sorted
from calltape_analyzer.observations import Row
from calltape_analyzer.switches import shown_constant
from calltape_analyzer.tallies import CallRef, Seen
from calltape_analyzer.variants import VariantFacts

__all__ = ["Held", "held_parts", "lengths_of", "refused_value", "values_in"]

_MAX_KNOWN = 1024


@dataclass
class Held:
    """The calls of a variant that have one value for each text and float that varies.

    Attributes:
        values: by place among the scalars.
        rows: the distinct sizes, each with its calls.
    """

    values: Mapping[int, Any]
    rows: dict[Row, Seen] = field(default_factory=dict)

    @property
    def calls(self) -> int:
        """How many calls that are."""
        return sum(seen.calls for seen in self.rows.values())

    @property
    def first(self) -> CallRef:
        """The first of them."""
        return min(seen.first for seen in self.rows.values())


def values_in(variant: VariantFacts, calls: Calls, gatherer: Gatherer) -> list[Held]:
    """The calls of a variant by the values that vary in it, those with most calls first; of more
    than 1,024 of them the earliest."""
    found: dict[str, Held] = {}
    for call, count in calls.by_inputs():
        if call.record.error is not None:
            continue
        placed = gatherer.sorted(call.record.inputs)
        if not variant.group.key.takes(placed.key):
            continue
        if not all(condition.holds(placed.row) for condition in variant.conditions):
            continue
        values = _values_of(variant, placed)
        if repr(values) not in found and len(found) >= _MAX_KNOWN:
            continue
        rows = found.setdefault(repr(values), Held(values)).rows
        known = rows.get(placed.row, Seen(0, call.ref))
        rows[placed.row] = Seen(known.calls + count, min(known.first, call.ref))
    return sorted(found.values(), key=lambda held: (-held.calls, held.first))


def lengths_of(values: Sequence[Held]) -> str:
    """How long the texts among values are, in words; nothing where there are none."""
    texts = [v for held in values for v in held.values.values() if isinstance(v, str | bytes)]
    if not texts:
        return ""
    shortest, longest = min(map(len, texts)), max(map(len, texts))
    if shortest == longest:
        return f" (texts of length {shortest})"
    return f" (texts of lengths {shortest}..{longest})"


def _values_of(variant: VariantFacts, placed: Sorted) -> dict[int, Any]:
    given = _constants(placed)
    varying = {(place.argument, place.path) for place in variant.group.varying}
    return {
        i: given[place.argument, place.path]
        for i, place in enumerate(variant.group.layout.scalars)
        if (place.argument, place.path) in varying
    }


def _constants(placed: Sorted) -> dict[tuple[str, str], Any]:
    others = (place for place in placed.layout.scalars if place.kind != "int")
    every = zip(others, placed.constants, strict=True)
    return {(place.argument, place.path): value for place, value in every}


def refused_value(variant: VariantFacts, placed: Sorted) -> str | None:
    """Why a program that is for one value is not for a call; None where it is."""
    given = _constants(placed) if variant.held else {}
    for i, value in variant.held.items():
        place = variant.group.layout.scalars[i]
        got = given.get((place.argument, place.path))
        if repr(got) != repr(value):
            shown, own = shown_constant(got), shown_constant(value)
            return f"{place} is {shown}; this program has {own if own != shown else 'another'}"
    return None


def held_parts(variant: VariantFacts, values: Sequence[Held]) -> Iterator[VariantFacts]:
    """A variant per value, with a name that tells them apart and no private text."""
    places = variant.group.layout.scalars
    for number, held in enumerate(values, 1):
        shown = ", ".join(
            f"{places[i]}={text}" if repr(value) == text else f"{places[i]} of value {number}"
            for i, value in held.values.items()
            for text in [shown_constant(value)]
        )
        part = variant.only(held.rows.items(), f"{variant.name}, {shown}")
        part.held = dict(held.values)
        yield part
