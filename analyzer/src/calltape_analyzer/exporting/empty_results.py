"""Results whose size only the values tell (``x[x > 0]``), taken not to be empty.

A detector returns early if it found nothing: ``if boxes.numel() == 0``. A trace does not know how
many boxes there are, and fails. Here it goes on as for some boxes while such a trace runs, and
torch leaves an assertion in the program: for a picture without boxes the program raises an error.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

__all__ = ["never_empty"]


@contextlib.contextmanager
def never_empty(wanted: bool) -> Iterator[None]:
    """Lets a trace assume that sizes which only values tell are not 0.

    Args:
        wanted: does nothing if it is False, or if this torch evaluates conditions in another way.
    """
    # Not imported above, because torch imports a computer algebra system for it.
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    environment: Any = shapes.ShapeEnv
    evaluate = getattr(environment, "evaluate_sym_node", None)
    if not wanted or evaluate is None:
        yield
        return

    def assuming(self: Any, node: Any, size_oblivious: bool = False, **more: Any) -> Any:
        filled = _filled(node.expr)
        has_answer = size_oblivious or more.get("fallback_value") is not None
        if filled is None or has_answer or not shapes.free_unbacked_symbols(node.expr):
            return evaluate(self, node, size_oblivious, **more)
        if self._maybe_evaluate_static(node.expr) is None:
            self.guard_or_defer_runtime_assert(filled, "the result is not empty")
        return evaluate(self, node, size_oblivious, **more)

    try:
        environment.evaluate_sym_node = assuming
        yield
    finally:
        environment.evaluate_sym_node = evaluate


def _filled(condition: Any) -> Any:
    """What is assumed where a condition asks whether a size is 0, or more than 0 (``index.max()``
    of a graph network, if there is an index); None for other conditions."""
    sympy: Any = importlib.import_module("sympy")

    if isinstance(condition, sympy.Eq | sympy.Ne) and condition.rhs == 0:
        return sympy.Ne(condition.lhs, 0)
    if isinstance(condition, sympy.Gt | sympy.Le) and condition.rhs == 0:
        return sympy.Gt(condition.lhs, 0)
    if isinstance(condition, sympy.Lt | sympy.Ge) and condition.lhs == 0:
        return sympy.Gt(condition.rhs, 0)
    return None
