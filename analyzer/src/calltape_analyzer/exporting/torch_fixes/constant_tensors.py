"""Small constant tensors whose values a trace knows.

A model that reads a tensor with Python (``for h, w in grid.tolist()``) can be traced if that tensor
is a constant. But torch keeps the values of constants with one element only (torch 2.15:
``CONSTANT_NUMEL_LIMIT``), so that it would not know a row of a constant grid. Here the limit is
larger during such a trace.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

__all__ = ["known_constants"]

_LIMIT = "CONSTANT_NUMEL_LIMIT"
_MODULES = ("torch._subclasses.fake_tensor", "torch.fx.experimental.proxy_tensor")
_ELEMENTS = 1024


@contextlib.contextmanager
def known_constants(enabled: bool) -> Iterator[None]:
    """Makes a trace keep the values of small constant tensors.

    Args:
        enabled: does nothing if it is False, or if this torch has no such limit.
    """
    modules = [importlib.import_module(name) for name in _MODULES] if enabled else []
    before = [(module, getattr(module, _LIMIT)) for module in modules if hasattr(module, _LIMIT)]
    try:
        for module, _ in before:
            setattr(module, _LIMIT, _ELEMENTS)
        yield
    finally:
        for module, limit in before:
            setattr(module, _LIMIT, limit)
