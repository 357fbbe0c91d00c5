"""Sums of a size and a remainder, where the remainder pads the size to whole strides.

A picture is padded to whole windows by ``n + (-n) % w``. torch (2.15) does not simplify the
remainder: ``((n + (-n) % w) // w) * w`` differs from ``n + (-n) % w``, and the expression doubles
with each layer, so that a trace of four layers takes minutes. During a trace, such a sum becomes
``w * ((n + w - 1) // w)``, in which multiples of ``w`` cancel.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

__all__ = ["padded_strides", "without_remainders"]

_MODULE, _SUM = "torch.fx.experimental.sym_node", "_optimized_add"


@contextlib.contextmanager
def padded_strides() -> Iterator[None]:
    """Makes a trace recognize that a padded size is a multiple of its stride. Does nothing if this
    torch has no function that adds symbols."""
    module = importlib.import_module(_MODULE)
    add = getattr(module, _SUM, None)
    if add is None:
        yield
        return

    def added(one: Any, other: Any, *how: Any) -> Any:
        is_summation, total = add(one, other, *how)
        simpler = without_remainders(total)
        return (is_summation, total) if simpler is None else (False, simpler)

    setattr(module, _SUM, added)
    try:
        yield
    finally:
        setattr(module, _SUM, add)


@lru_cache(maxsize=4096)
def without_remainders(total: Any) -> Any:
    """A sum with quotients for its remainders, if fewer terms are left then; else None."""
    sympy: Any = importlib.import_module("sympy")
    functions: Any = importlib.import_module("torch.utils._sympy.functions")
    remainders = functions.Mod, functions.PythonMod
    if not total.is_Add or not total.has(*remainders):
        return None

    def by_quotient(remainder: Any) -> Any:
        number, divisor = remainder.args
        if divisor == 2:  # n % 2 is (-n) % 2, which is what pads a size
            number = -number
        return sympy.expand(number - divisor * _quotient(sympy.expand(number), divisor))

    def is_by_number(one: Any) -> bool:
        return isinstance(one, remainders) and one.args[1].is_Integer and one.args[1] > 0

    simpler = sympy.expand(total.replace(is_by_number, by_quotient))
    is_shorter = len(sympy.Add.make_args(simpler)) < len(total.args)
    return simpler if is_shorter and not simpler.has(*remainders) else None


def _quotient(number: Any, divisor: Any) -> Any:
    """``number // divisor`` without a sign within: ``-n // d`` is ``-((n + d - 1) // d)``."""
    sympy: Any = importlib.import_module("sympy")
    functions: Any = importlib.import_module("torch.utils._sympy.functions")
    whole = sympy.S.Zero
    for term in sympy.Add.make_args(number):
        if (term / divisor).is_integer:
            whole += term / divisor
    left = sympy.expand(number - whole * divisor)
    factors = [factor for term, factor in left.as_coefficients_dict().items() if term != 1]
    if factors and all(factor < 0 for factor in factors):
        return whole - functions.FloorDiv(divisor - 1 - left, divisor)
    return whole + functions.FloorDiv(left, divisor)
