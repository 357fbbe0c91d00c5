"""``max(0, ...)`` of symbols, if one of two values is the larger one at every size.

A picture is padded to whole strides (``"same"``) by ``max((ceil(n / s) - 1) * s + k - n, 0)``.
torch cannot simplify through the maximum: the size of a feature map becomes an expression that
grows with each layer, and the trace of five layers takes minutes. Without the maximum the terms
cancel.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import torch

__all__ = ["bounds", "known_max", "known_min"]

_MAX_QUOTIENTS = 16


def known_max(*args: Any, **kwargs: Any) -> Any:
    """``max`` that returns one of two values if it is the larger one at every size."""
    larger = _larger(*args) if len(args) == 2 and not kwargs else None
    return builtins.max(*args, **kwargs) if larger is None else args[larger]


def known_min(*args: Any, **kwargs: Any) -> Any:
    """``min`` that returns one of two values if it is the smaller one at every size."""
    larger = _larger(*args) if len(args) == 2 and not kwargs else None
    return builtins.min(*args, **kwargs) if larger is None else args[1 - larger]


def _larger(one: Any, other: Any) -> int | None:
    """Which of two values is the larger one at every size; None if that depends on the size."""
    kinds = {type(one), type(other)}
    if torch.SymInt not in kinds or not kinds <= {torch.SymInt, int}:
        return None
    low, high = bounds(_expression(one) - _expression(other))
    if low is not None and low >= 0:
        return 0
    return 1 if high is not None and high <= 0 else None


def _expression(value: Any) -> Any:
    return value.node.expr if isinstance(value, torch.SymInt) else value


def bounds(expression: Any) -> tuple[Fraction | None, Fraction | None]:
    """The least and the largest value of an expression in which everything but remainders cancels.

    ``n // d`` is ``(n - r) / d`` with a remainder ``r`` of 0 to ``d - 1``, and ``ceil(n / d)`` is
    ``(n + r) / d`` with such a one.
    """
    sympy: Any = importlib.import_module("sympy")
    remainders: dict[Any, int] = {}
    reduced = sympy.expand(expression)
    for _ in range(_MAX_QUOTIENTS):
        outer = next(_outer_quotients(reduced), None)
        if outer is None:
            break
        quotient, number, divisor, sign = outer
        remainder = sympy.Dummy("r", integer=True)
        remainders[remainder] = int(divisor) - 1
        reduced = sympy.expand(reduced.xreplace({quotient: (number + sign * remainder) / divisor}))
    low = high = Fraction(0)
    for term, factor in reduced.as_coefficients_dict().items():
        is_constant = term == 1
        most = 1 if is_constant else remainders.get(term)
        if most is None or not factor.is_Rational:
            return None, None
        exact = Fraction(int(factor.p), int(factor.q))
        ends = (exact if is_constant else Fraction(0), exact * most)
        low, high = low + min(ends), high + max(ends)
    return low, high


def _outer_quotients(expression: Any) -> Iterator[tuple[Any, Any, Any, int]]:
    """Quotients that are in no other quotient: each with its number, its divisor, and whether the
    remainder is taken away (-1) or added (1)."""
    functions: Any = importlib.import_module("torch.utils._sympy.functions")
    quotients: list[tuple[Any, Any, Any, int]] = []
    for quotient in expression.atoms(functions.FloorDiv, functions.CeilToInt, functions.FloorToInt):
        sign = 1 if isinstance(quotient, functions.CeilToInt) else -1
        divided = quotient if isinstance(quotient, functions.FloorDiv) else quotient.args[0]
        if isinstance(divided, functions.FloorDiv | functions.IntTrueDiv):
            number, divisor = divided.args
            if divisor.is_Integer and divisor > 0:
                quotients.append((quotient, number, divisor, sign))
    for known in quotients:
        if not any(other[0] is not known[0] and other[0].has(known[0]) for other in quotients):
            yield known
