"""Loops over what is hit: ``for expert in (tokens_per_expert > 0).nonzero()``.

How often such a loop runs only values tell, so no trace can follow it. A mixture of experts skips
the experts that have no token only to save time: their results would be empty. Here such a loop
runs once for every item while a trace runs, whether it is hit or not. That is another program
wherever the loop does something for an item that is not hit, so it is tried only for a model that
gives the same results in this way at recorded calls, and its program is compared with every
recorded call like each other one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["LoopEvidence", "every_item"]

_MAX_ITEMS = 128
_FINDS = {torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere}

Line = tuple[str, int]
"""The file and the line of a loop."""


class _Loops(TorchFunctionMode):
    """Knows which tensors say what is hit, of how many items, and gives loops over them other
    items. ``Tensor.__iter__`` is replaced meanwhile: torch asks no mode about it."""

    def __init__(self) -> None:
        super().__init__()
        # Holds the tensors too, so that no other one gets the same id meanwhile.
        self._hits: dict[int, tuple[torch.Tensor, int]] = {}

    def __enter__(self) -> Any:
        iterate: Callable[..., Any] = torch.Tensor.__iter__
        self._iterate = iterate

        def looped(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
            known = self._hits.get(id(tensor))
            return self.loop(*known) if known else iterate(tensor)

        vars(looped)["__wrapped__"] = iterate
        torch.Tensor.__iter__ = looped  # type: ignore[method-assign]
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: Any) -> None:
        torch.Tensor.__iter__ = self._iterate  # type: ignore[method-assign]
        super().__exit__(*exception)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func in _FINDS and isinstance(found, torch.Tensor):
            asked = args[0] if args else kwargs["input"]
            if asked.ndim == 1 and type(asked.shape[0]) is int and asked.shape[0] <= _MAX_ITEMS:
                self._hits[id(found)] = found, asked.shape[0]
        return found

    def loop(self, hits: torch.Tensor, items: int) -> Iterator[torch.Tensor]:
        """What a loop over such a tensor is given.

        Args:
            hits: the places of the items that are hit, of shape (hits, 1).
            items: how many items there are.
        """
        raise NotImplementedError


class _EveryItem(_Loops):
    """Runs such a loop for every item.

    Attributes:
        depth: how many such loops run now.
    """

    depth = 0

    def loop(self, hits: torch.Tensor, items: int) -> Iterator[torch.Tensor]:
        self.depth += 1
        try:
            for item in range(items):
                yield torch.tensor([item], device=hits.device)
        finally:
            self.depth -= 1


class _PartialLoops(_Loops):
    """Notes which loops run, and which of them do not run for every item.

    Attributes:
        lines: of all loops that ran.
        partial: of those where an item was not hit.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: set[Line] = set()
        self.partial: set[Line] = set()

    def loop(self, hits: torch.Tensor, items: int) -> Iterator[torch.Tensor]:
        line = _line_of_caller()
        self.lines.add(line)
        if len(hits) < items:
            self.partial.add(line)
        return iter(hits.unbind(0))


@dataclass
class LoopEvidence:
    """What recorded calls show about the loops of a model.

    Attributes:
        harmless: loops that ran for all items in a call where some were not hit, and the results
            were the same.
        harmful: loops of calls whose results were others then.
    """

    harmless: set[Line] = field(default_factory=set)
    harmful: set[Line] = field(default_factory=set)
    _lines: set[Line] = field(default_factory=set)

    @property
    def is_enough(self) -> bool:
        """Whether there are such loops, and all of them may run for every item."""
        return bool(self._lines) and self._lines <= self.harmless - self.harmful

    def look(self, run: Callable[[], Any], are_same: Callable[[Any, Any], bool]) -> None:
        """Runs the model twice, as it is and with its loops over every item.

        Args:
            run: the model with a recorded call.
            are_same: compares two results.
        """
        with _PartialLoops() as loops:
            expected = run()
        self._lines |= loops.lines
        if not loops.partial:
            return
        with _EveryItem():
            got = run()
        (self.harmless if are_same(expected, got) else self.harmful).update(loops.partial)


def _line_of_caller() -> Line:
    """The first line on the stack that is not here."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@contextmanager
def every_item(wanted: bool) -> Iterator[None]:
    """Lets a trace run such loops for every item. Within a loop, a result whose size only values
    tell is taken for one that is not empty where the model asks (``if tokens.numel() == 0``): an
    empty one goes the same way.

    Args:
        wanted: does nothing if it is False.
    """
    if not wanted:
        yield
        return
    # Not imported above, because torch imports a computer algebra system for it.
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    sympy = importlib.import_module("sympy")
    environment: Any = shapes.ShapeEnv
    evaluate: Callable[..., Any] | None = getattr(environment, "evaluate_sym_node", None)
    loops = _EveryItem()

    def assuming(self: Any, node: Any, *args: Any, **more: Any) -> Any:
        condition = node.expr
        asks = isinstance(condition, sympy.Eq | sympy.Ne) and condition.rhs == 0
        if loops.depth and asks and shapes.free_unbacked_symbols(condition):
            return isinstance(condition, sympy.Ne)
        assert evaluate is not None
        return evaluate(self, node, *args, **more)

    with contextlib.ExitStack() as stack:
        stack.enter_context(loops)
        if evaluate is not None:
            environment.evaluate_sym_node = assuming
            stack.callback(setattr, environment, "evaluate_sym_node", evaluate)
        yield
