"""Finds out whether a program agrees with the model if nothing is found.

A trace that assumes that a result is not empty leaves an assertion in its program
(``empty_results``). Most models skip an empty result only to save time, and the program would
return the same without the assertion. So the model and the program run with the sample of the
trace, and selections by values (``boxes[scores > 0.05]``, ``nonzero``) are made empty in both: all
from the first on, all from the second on, and so on. If all runs agree, and each assertion failed
in one of them, the assertions are removed. Otherwise they stay, and name the line of the model.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from calltape_analyzer.exporting.torch_fixes.empty_results import NotEmpty
from calltape_analyzer.foreign_errors import NOTHING_FOUND, asserted_size, failed_text

__all__ = ["settle_assertions"]

_MAX_SELECTIONS = 32
_aten = torch.ops.aten
_ASSERT = _aten._assert_scalar.default


def settle_assertions(
    exported: Any,
    assumed: NotEmpty,
    tried: Callable[[Callable[[], bool]], bool] | None,
    model: Callable[[], Any],
    program: Callable[[], Any],
    agree: Callable[[Any, Any], bool],
) -> bool:
    """Takes the assertions out of a program that results are not empty, or lets them say where.

    Args:
        exported: a ``torch.export.ExportedProgram``.
        assumed: what its trace took not to be empty.
        tried: runs what tries it without assertions; None if that is not tried.
        model: runs the model with the sample of the trace.
        program: runs the program with it.
        agree: compares what they return.

    Returns:
        Whether they are gone; False also if there are none.
    """
    nodes = {node.args[1]: node for node in exported.graph.nodes if _size_in(node) is not None}
    if not nodes:
        return False
    if tried and tried(lambda: _need_none(set(nodes), model, program, agree)):
        for node in nodes.values():
            exported.graph.erase_node(node)
        exported.graph.eliminate_dead_code()
        exported.graph_module.recompile()
        return True
    for node in nodes.values():
        place = assumed.places.get(_size_in(node) or "")
        if place is not None:
            said = failed_text(f"{NOTHING_FOUND}{place}{_FOR_SOMETHING}")
            node.args = (node.args[0], said)
    exported.graph_module.recompile()
    return False


_FOR_SOMETHING = (
    "; the program was traced for something that is found (run the model itself for such inputs)"
)


def _size_in(node: Any) -> str | None:
    """The size that an assertion wants to be more than 0; None for other nodes."""
    if node.op != "call_function" or node.target is not _ASSERT or len(node.args) != 2:
        return None
    return asserted_size(str(node.args[1]))


def _need_none(
    texts: set[str],
    model: Callable[[], Any],
    program: Callable[[], Any],
    agree: Callable[[Any, Any], bool],
) -> bool:
    """Whether the program does what the model does in each run with empty selections, and each
    assertion failed in one of them."""
    failed: set[str] = set()
    # Models raise errors of any type, which is no evidence; torch prints the line of the program.
    with suppress(Exception), redirect_stderr(io.StringIO()):
        count = _Emptied.count(model)
        if count != _Emptied.count(program) or not 0 < count <= _MAX_SELECTIONS:
            return False
        for first in range(count):
            failed_now = _compared(first, model, program, agree)
            if failed_now is None:
                return False
            failed |= failed_now
        return texts <= failed
    return False


def _compared(
    first: int,
    model: Callable[[], Any],
    program: Callable[[], Any],
    agree: Callable[[Any, Any], bool],
) -> set[str] | None:
    """The assertions that failed in a run with the selections from one on empty; None if the
    program did something else than the model."""
    try:
        with _Emptied(first):
            expected = model()
    except Exception:  # a selection is empty and another of the same things is not
        return set()
    with _Emptied(first) as emptied:
        got = program()
    return emptied.failed if agree(expected, got) else None


class _Emptied(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes what values select empty, from one selection on. Selections by the same mask are one.

    Attributes:
        failed: the texts of the assertions about results that failed.
    """

    def __init__(self, first: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.failed: set[str] = set()
        self._first = first
        # Holds them, so that no other one gets the same memory meanwhile.
        self._masks: list[torch.Tensor] = []

    @classmethod
    def count(cls, run: Callable[[], Any]) -> int:
        """How many selections a run has, with nothing made empty."""
        with cls(_MAX_SELECTIONS + 1) as found:
            run()
        return len(found._masks)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if func is _ASSERT and not args[0] and asserted_size(str(args[1])) is not None:
            self.failed.add(args[1])
            return None
        if func in _BY_MASK:
            place = _BY_MASK[func]
            args = (*args[:place], self._mask(args[place]), *args[place + 1 :])
        elif func is _aten.index.Tensor:
            masks = torch.bool, torch.uint8
            indices = [
                self._mask(index)
                if isinstance(index, torch.Tensor) and index.dtype in masks
                else index
                for index in args[1]
            ]
            args = (args[0], indices)
        return func(*args, **keywords)

    def _mask(self, mask: torch.Tensor) -> torch.Tensor:
        memory = mask.data_ptr(), mask.shape
        known = enumerate(self._masks)
        places = [i for i, one in known if (one.data_ptr(), one.shape) == memory]
        place = places[0] if places else len(self._masks)
        if not places:
            self._masks.append(mask)
        return torch.zeros_like(mask) if place >= self._first else mask


_BY_MASK = {
    _aten.nonzero.default: 0, _aten.nonzero_numpy.default: 0, _aten.masked_select.default: 1,
}  # fmt: skip
