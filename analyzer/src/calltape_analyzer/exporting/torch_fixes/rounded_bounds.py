"""Bounds of sizes that torch rounds up by one.

A model that replaces tokens by features checks that their numbers are equal: ``torch._check(
places == 512 * batch)``. torch divides the largest number of places, 2**63 - 2, by 512 as floats,
gets a bound of the batch that is too large by one, and its own assertion fails (torch 2.15). Here
the bound is reduced by one.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from calltape_analyzer.foreign_errors import ErrorMeaning, meanings_of

__all__ = ["rounded_bounds"]

_LARGE = 2**53
"""Floats have every integer below."""


@contextlib.contextmanager
def rounded_bounds() -> Iterator[None]:
    """Corrects a bound of a size that torch rounded, so that a trace does not fail. Does nothing if
    this torch keeps bounds in another way."""
    # Not imported above, because torch imports a computer algebra system for it.
    environment: Any = importlib.import_module("torch.fx.experimental.symbolic_shapes").ShapeEnv
    replace = getattr(environment, "_set_replacement", None)
    if replace is None:
        yield
        return

    def replacing(self: Any, symbol: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return replace(self, symbol, target, *args, **kwargs)
        except AssertionError as error:
            kinds = meanings_of(str(error))
            if ErrorMeaning.ROUNDED_BOUND not in kinds or not _corrected(self, target):
                raise
        return replace(self, symbol, target, *args, **kwargs)

    try:
        environment._set_replacement = replacing
        yield
    finally:
        environment._set_replacement = replace


def _corrected(environment: Any, target: Any) -> bool:
    """Lowers the bound of the only symbol in an expression by one, if it is too large for a float.
    Returns whether it did."""
    ranges = importlib.import_module("torch.utils._sympy.value_ranges")
    found = target.free_symbols
    known = environment.var_to_range.get(next(iter(found))) if len(found) == 1 else None
    if known is None or not known.is_int or not _LARGE <= known.upper < 2**63:
        return False
    (symbol,) = found
    environment._update_var_to_range(symbol, ranges.ValueRanges(known.lower, known.upper - 1))
    return True
