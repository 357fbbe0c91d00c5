"""Which variants of a tape somebody means, by name, position or the variants themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from calltape_analyzer.errors import UsageError
from calltape_analyzer.text import variant_names
from calltape_analyzer.variant import Variant

__all__ = ["Chosen", "chosen_variants"]

Chosen: TypeAlias = str | int | Variant | Iterable[str | int | Variant]
"""Variants of a tape: names, positions, or the variants."""

_MAX_NAMED = 12


def chosen_variants(variants: Sequence[Variant], wanted: Chosen) -> tuple[list[int], list[Variant]]:
    """Some of the variants of a tape, with their positions.

    Args:
        variants: all.
        wanted: a name, a position, a variant, or several of these. ``"2"`` is a position unless
            it is a name.

    Raises:
        UsageError: there is no such variant; says which there are.
    """
    names = [variant.name for variant in variants]
    places: list[int] = []
    given = [wanted] if isinstance(wanted, str | int | Variant) else list(wanted)
    for one in given:
        name = one.name if isinstance(one, Variant) else one
        at = int(name) if isinstance(name, str) and name.isdecimal() else name
        if name in names:
            places.append(names.index(str(name)))
        elif isinstance(at, int) and at in range(len(names)):
            places.append(at)
        else:
            known = variant_names(names, _MAX_NAMED) or "none"
            raise UsageError(f"there is no variant {one!r}", advice=f"there are: {known}")
    places = sorted(set(places))
    return places, [variants[place] for place in places]
