"""Whether a difference between a program and the model proves anything at sizes that no call had.

The values are made up there, and the model may have no answer to them: it returns NaN, something
else each time, or what the last digit of an input decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from calltape_analyzer.arguments.samples import Sample, nudged
from calltape_analyzer.comparison.comparing import Tolerances, compared
from calltape_analyzer.programs.reasons import Because, Why

__all__ = ["doubt_of"]

_ROUNDING = 16
"""A program adds and fuses in another order than the model: its rounding may be off by so many
times what one unit in the last place of all inputs makes of the model's results."""


def doubt_of(
    eager: Callable[..., Mapping[str, Any]],
    sample: Sample,
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    tolerances: Tolerances,
) -> Because | None:
    """Why other results than those of the model prove nothing. None if they prove that the program
    is wrong.

    Args:
        eager: gives the leaves of what the model returns for a sample; with ``seed``, from
            another state of the generators of random numbers.
        sample: the values that were tried.
        expected: what the model returned.
        got: what the program returned.
        tolerances: how far results of a program may be off.
    """
    if any(map(_has_nan, expected.values())):
        return Because(Why.MODEL_IS_NAN)
    try:
        again = eager(sample, seed=0)
        if not compared(expected, again, tolerances).agrees:
            return Because(Why.MODEL_VARIES)
        near = eager(nudged(sample))
    except Exception:  # models raise errors of any type
        return Because(Why.MODEL_MAY_FAIL)
    if _is_within(expected, got, near, tolerances):
        return Because(Why.INEXACT)
    return None


def _has_nan(leaf: Any) -> bool:
    is_inexact = getattr(leaf, "is_floating_point", bool)() or getattr(leaf, "is_complex", bool)()
    return is_inexact and bool(leaf.isnan().any())


def _is_within(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    near: Mapping[str, Any],
    tolerances: Tolerances,
) -> bool:
    """Whether each result that differs does so by little more than the model's own does if its
    inputs change in their last digit."""
    if not expected.keys() == got.keys() == near.keys():
        return False
    for path, value in expected.items():
        found = compared({path: value}, {path: got[path]}, tolerances)
        if found.agrees:
            continue
        own = compared({path: value}, {path: near[path]}, tolerances)
        if not found.max_abs <= _ROUNDING * own.max_abs < math.inf:
            return False
    return True
