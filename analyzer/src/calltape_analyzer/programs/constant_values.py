"""Texts and floats that vary from call to call, and that are constants of a program.

``torch.export`` makes a constant of every text and float. If the model does something else for
another value, a program is for calls with one value only.
"""

from __future__ import annotations

from typing import Any

from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.observations import shown_constant
from calltape_analyzer.programs.rejections import OtherValue
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["constants_of", "rejects_constants"]


def constants_of(call: SortedCall) -> dict[tuple[str, str], Any]:
    """The texts and floats of a call, by argument and path."""
    every = zip(call.layout.others, call.constants, strict=True)
    return {(place.argument, place.path): value for place, value in every}


def rejects_constants(variant: VariantFacts, call: SortedCall) -> OtherValue | None:
    """Why a program that is for one value is not for a call; None if it is."""
    given = constants_of(call) if variant.held else {}
    for i, value in variant.held.items():
        place = variant.group.layout.scalars[i]
        got = given.get((place.argument, place.path))
        if repr(got) != repr(value):
            shown, own = shown_constant(got), shown_constant(value)
            return OtherValue(str(place), shown, own if own != shown else None)
    return None
