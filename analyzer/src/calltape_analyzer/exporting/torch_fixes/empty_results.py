"""Results whose size depends on values (``x[x > 0]``), which a trace assumes not to be empty.

A detector returns early if it finds nothing: ``if boxes.numel() == 0``. A trace does not know how
many boxes there are, and fails. Here it continues as if there were some, and torch adds an
assertion to the program, which raises an error for a picture without boxes. ``empty_selections``
removes the assertion if it is not needed.
"""

from __future__ import annotations

import contextlib
import importlib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from calltape_analyzer.exporting.causes import place_in_the_model

__all__ = ["NotEmpty", "never_empty"]


@dataclass
class NotEmpty:
    """What a trace assumed not to be empty.

    Attributes:
        places: the line of the model that asked, by the size in torch's words.
    """

    places: dict[str, str] = field(default_factory=dict)
    _sizes: set[Any] = field(default_factory=set)

    def add(self, size: Any) -> None:
        """Notes an expression that is assumed to be more than 0."""
        if _part(size) in self._sizes:
            return
        self._sizes.add(_part(size))
        place = place_in_the_model(traceback.extract_stack())
        self.places[str(_part(size))] = place or "an unknown place"

    def has(self, size: Any) -> bool:
        """Whether a size was assumed to be more than 0."""
        return isinstance(size, torch.SymInt) and _part(size.node.expr) in self._sizes


def _part(size: Any) -> Any:
    """A size without its constant factor: the number of boxes, if there are 4 numbers per box."""
    sympy: Any = importlib.import_module("sympy")
    return sympy.expand(size).as_content_primitive()[1]


@contextlib.contextmanager
def never_empty(enabled: bool) -> Iterator[NotEmpty]:
    """Makes a trace assume that sizes which depend on values are not 0. Yields what it assumed.

    Args:
        enabled: does nothing if it is False.
    """
    # Not imported above, because torch imports a computer algebra system for it.
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    environment: Any = shapes.ShapeEnv
    evaluate = environment.evaluate_sym_node
    assumed = NotEmpty()
    if not enabled:
        yield assumed
        return

    def assuming(self: Any, node: Any, size_oblivious: bool = False, **more: Any) -> Any:
        # A float is no size: 0 may be any of its values.
        is_of_ints = all(symbol.is_integer for symbol in node.expr.free_symbols)
        filled = _filled(node.expr) if is_of_ints else None
        has_answer = size_oblivious or more.get("fallback_value") is not None
        if filled is None or has_answer or not shapes.free_unbacked_symbols(node.expr):
            return evaluate(self, node, size_oblivious, **more)
        if self._maybe_evaluate_static(node.expr) is None:
            assumed.add(filled.lhs - filled.rhs)
            self.guard_or_defer_runtime_assert(filled, "the result is not empty")
        return evaluate(self, node, size_oblivious, **more)

    try:
        environment.evaluate_sym_node = assuming
        with _Extremes(assumed):
            yield assumed
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


class _Extremes(TorchFunctionMode):
    """Gives the greatest and the least element of a result that the model asked about a start, so
    that a program gives a number if the result is empty. The model skips such a result."""

    def __init__(self, assumed: NotEmpty) -> None:
        super().__init__()
        self._assumed = assumed

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        is_whole = func in _EXTREMES and len(args) == 1 and not kwargs
        if is_whole and isinstance(args[0], torch.Tensor) and self._assumed.has(args[0].numel()):
            (x,) = args
            args = (torch.cat([x.flatten(), x.new_full((1,), _start(x.dtype, func))]),)
        return func(*args, **(kwargs or {}))


_GREATEST = torch.max, torch.Tensor.max, torch.amax, torch.Tensor.amax
_EXTREMES = {*_GREATEST, torch.min, torch.Tensor.min, torch.amin, torch.Tensor.amin}


def _start(dtype: torch.dtype, func: Any) -> Any:
    """A number that no element is beyond."""
    is_greatest = func in _GREATEST
    if dtype is torch.bool:
        return not is_greatest
    if dtype.is_floating_point:
        return -float("inf") if is_greatest else float("inf")
    limits = torch.iinfo(dtype)
    return limits.min if is_greatest else limits.max
