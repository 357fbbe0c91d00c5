"""The variants of a tape by name."""

from __future__ import annotations

from calltape_analyzer import Tape, Variant
from tests.analyzer.observed import (
    by_name,
)


def named(tape: Tape) -> dict[str, Variant]:
    found = {variant.name: variant for variant in tape.variants()}
    assert len(found) == len(tape.variants())
    return found


def numbers(tape: Tape) -> dict[str, list[int]]:
    """The calls of each variant."""
    return {name: [call.number for call in variant.calls] for name, variant in named(tape).items()}


def reasons(variant: Variant) -> dict[str, str]:
    return by_name(variant.facts)
