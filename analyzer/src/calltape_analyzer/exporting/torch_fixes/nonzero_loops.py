"""Loops over selected items: ``for expert in (tokens_per_expert > 0).nonzero()``.

How often such a loop runs depends on values, so no trace can follow it. A mixture of experts skips
experts without tokens only to save time: their results would be empty. Here such a loop runs for
every item during a trace, selected or not. The program would be wrong if the loop did something for
an item that is not selected. So this is tried only for loops that recorded calls of the variant
show to be harmless: results and buffers are the same when the items that are not selected run as
well, before the others or after them. The program depends on values, so it is compared with each
recorded call.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["Line", "LoopEvidence", "every_item"]

_MAX_ITEMS = 128
_FINDS = {torch.nonzero, torch.Tensor.nonzero, torch.argwhere, torch.Tensor.argwhere}

Line = tuple[str, int]
"""The file and the line of a loop."""


class _Loops(TorchFunctionMode, ABC):
    """Finds the tensors that select items, and makes loops over them run for other items. It
    replaces ``Tensor.__iter__``, which torch does not report to a mode."""

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

    @abstractmethod
    def loop(self, hits: torch.Tensor, items: int) -> Iterator[torch.Tensor]:
        """The items of a loop over such a tensor.

        Args:
            hits: the numbers of the selected items, of shape (hits, 1).
            items: how many items there are.
        """


class _EveryItem(_Loops):
    """Runs such a loop for every item.

    Attributes:
        lines: of all loops that ran.
        item_size: the first size in the current iteration that depends on values: how many tokens
            an expert has. None outside of loops, and before there is one.
        in_iteration: whether an iteration is running.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: set[Line] = set()
        self.item_size: Any = None
        self.in_iteration = False

    def loop(self, hits: torch.Tensor, items: int) -> Iterator[torch.Tensor]:
        self.lines.add(_line_of_caller())
        outer = self.in_iteration, self.item_size
        try:
            for item in range(items):
                self.in_iteration, self.item_size = True, None
                yield torch.tensor([item], device=hits.device)
        finally:
            self.in_iteration, self.item_size = outer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__format__ and args[0].ndim == 0:
            # ``self[f"expert_{item}"]``: a trace knows the item, and would write "FakeTensor".
            known = getattr(args[0], "constant", None)
            if known is not None:
                return format(known.item(), *args[1:])
        return super().__torch_function__(func, types, args, kwargs)


class _Ordered(_Loops):
    """Runs such a loop for every item: the selected ones first, or last."""

    def __init__(self, *, hits_first: bool) -> None:
        super().__init__()
        self._hits_first = hits_first

    def loop(self, hits: torch.Tensor, items: int) -> Iterator[torch.Tensor]:
        selected = hits.flatten().tolist()
        others = [item for item in range(items) if item not in selected]
        for item in selected + others if self._hits_first else others + selected:
            yield torch.tensor([item], device=hits.device)


class _PartialLoops(_Loops):
    """Notes which loops run, and which of them do not run for every item.

    Attributes:
        lines: of all loops that ran.
        partial: of those where an item was not selected.
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
        harmless: loops that ran for all items in a call that did not select some of them, with the
            same results.
        harmful: loops of calls that had other results then, or that failed.
    """

    harmless: set[Line] = field(default_factory=set)
    harmful: set[Line] = field(default_factory=set)
    _lines: set[Line] = field(default_factory=set)

    @property
    def allowed(self) -> frozenset[Line]:
        """The loops that may run for every item: all that ran, or none."""
        found = self.harmless - self.harmful
        return frozenset(found) if self._lines <= found else frozenset()

    @property
    def is_open(self) -> bool:
        """Whether nothing is known of a loop, because each call selected all items."""
        return bool(self._lines - self.harmless - self.harmful)

    def add(self, other: LoopEvidence) -> None:
        """Adds what other calls show."""
        self.harmless |= other.harmless
        self.harmful |= other.harmful
        self._lines |= other._lines

    def look(self, run: Callable[[], Any], are_same: Callable[[Any, Any], bool]) -> None:
        """Runs the model as it is, and with its loops over every item in two orders.

        Args:
            run: the model with a recorded call. Returns its results, and its state after it.
            are_same: compares two of them.
        """
        with _PartialLoops() as loops:
            expected = run()
        self._lines |= loops.lines
        if not loops.partial:
            return
        is_harmless = all(self._is_same(run, expected, are_same, first) for first in (False, True))
        (self.harmless if is_harmless else self.harmful).update(loops.partial)

    def _is_same(
        self, run: Callable[[], Any], expected: Any, are_same: Callable[[Any, Any], bool],
        hits_first: bool,
    ) -> bool:  # fmt: skip
        try:
            with _Ordered(hits_first=hits_first):
                got = run()
        except Exception:  # models raise errors of any type
            return False
        return are_same(expected, got)


def _line_of_caller() -> Line:
    """The first line on the stack that is not here."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


@contextmanager
def every_item(allowed: Collection[Line]) -> Iterator[None]:
    """Makes a trace run such loops for every item. If the model asks in an iteration whether the
    item is empty (``if tokens.numel() == 0``), the answer is no: a selected item never is, and an
    empty one takes the same branch. Nothing is assumed about other sizes that depend on values.

    Args:
        allowed: the loops that may run for every item; does nothing if there are none.

    Raises:
        RuntimeError: another loop ran, or none.
    """
    if not allowed:
        yield
        return
    # Not imported above, because torch imports a computer algebra system for it.
    shapes = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    sympy = importlib.import_module("sympy")
    environment: Any = shapes.ShapeEnv
    evaluate: Callable[..., Any] = environment.evaluate_sym_node
    create: Callable[..., Any] = environment.create_unbacked_symint
    loops = _EveryItem()

    def creating(self: Any, *args: Any, **options: Any) -> Any:
        symbol = create(self, *args, **options)
        if loops.in_iteration and loops.item_size is None:
            loops.item_size = symbol.node.expr
        return symbol

    def assuming(self: Any, node: Any, *args: Any, **options: Any) -> Any:
        condition = node.expr
        asks = isinstance(condition, sympy.Eq | sympy.Ne) and condition.rhs == 0
        is_of_own = (
            asks and loops.item_size is not None and loops.item_size in condition.free_symbols
        )
        # Or a multiple, which is how many numbers the tokens have.
        if is_of_own and loops.item_size not in (condition.lhs / loops.item_size).free_symbols:
            return isinstance(condition, sympy.Ne)
        return evaluate(self, node, *args, **options)

    with contextlib.ExitStack() as stack:
        stack.enter_context(loops)
        environment.evaluate_sym_node = assuming
        stack.callback(setattr, environment, "evaluate_sym_node", evaluate)
        environment.create_unbacked_symint = creating
        stack.callback(setattr, environment, "create_unbacked_symint", create)
        yield
    if not loops.lines or not loops.lines <= set(allowed):
        raise RuntimeError("a loop over what is hit ran of which recorded calls show nothing")
