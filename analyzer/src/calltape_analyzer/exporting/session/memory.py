"""How many bytes the tensors of a run take."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Measured", "measured"]

_ATTENTION = "aten::_scaled_dot_product"
_AT_ONCE = 2
"""The scores and their softmax."""


class Measured(NamedTuple):
    """What a function returned, and the most bytes that its tensors took at any moment. Memory that
    a kernel allocates internally is not counted."""

    value: Any
    peak: int


def measured(function: Callable[[], Any], *, fused: bool = True) -> Measured:
    """Runs a function and counts the memory of the tensors that it makes, on any device.

    Args:
        function: is run.
        fused: whether attention takes the memory that torch's kernels take. Otherwise it counts
            with its scores and their softmax, which torch's kernels never have in memory as a
            whole, and ONNX Runtime does.
    """
    with _Counting(fused) as counting:
        value = function()
    return Measured(value, counting.peak)


class _Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self, fused: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._fused = fused
        self._live = 0
        self._known: dict[int, Any] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """That it sees no operators within what ``torch.compile`` makes. Otherwise nothing could be
        compiled, and ``flex_attention`` raises an error then."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = {key for key, _ in _storages((args, kwargs))}
        returned = func(*args, **(kwargs or {}))
        if not self._fused and func.name().startswith(_ATTENTION):
            query, keys = args[:2]
            scores = query.shape[:-1].numel() * keys.shape[-2] * query.element_size()
            self.peak = max(self.peak, self._live + _AT_ONCE * scores)
        for key, storage in _storages(returned):
            if key not in given and key not in self._known:
                self._add(key, storage)
        return returned

    def _add(self, key: int, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()

        def freed(_: Any) -> None:
            if self._known.pop(key, None) is not None:
                self._live -= size

        self._known[key] = weakref.ref(storage, freed)
        self._live += size
        self.peak = max(self.peak, self._live)


def _storages(tree: Any) -> list[tuple[int, torch.UntypedStorage]]:
    found = []
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided:
            storage = leaf.untyped_storage()
            found.append((storage._cdata, storage))
    return found
