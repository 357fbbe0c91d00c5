"""Floats that are whole numbers, which torch mistakes for ints.

A detector pads a picture to a multiple of 32: ``int(math.ceil(float(height) / 32.0) * 32.0)``.
torch computes the smallest value of that, gets the float 0.0 instead of an int, and fails to
compare it (torch 2.15: ``TruncToInt`` of 0.0, which has ``is_integer``, is 0.0). Here the result is
the int.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

__all__ = ["integral_floats"]


@contextlib.contextmanager
def integral_floats() -> Iterator[None]:
    """Makes ``int`` of a whole float an int in the ranges of sizes. Does nothing if this torch
    truncates in another way."""
    # Not imported above, because torch imports a computer algebra system for it.
    functions: Any = importlib.import_module("torch.utils._sympy.functions")
    sympy: Any = importlib.import_module("sympy")
    truncated: Any = getattr(functions, "TruncToInt", object)
    evaluate: Any = vars(truncated).get("eval")
    if evaluate is None:
        yield
        return

    def evaluated(cls: Any, number: Any) -> Any:
        if isinstance(number, sympy.Float):
            return sympy.Integer(int(number))
        return evaluate.__func__(cls, number)

    try:
        truncated.eval = classmethod(evaluated)
        yield
    finally:
        truncated.eval = evaluate
