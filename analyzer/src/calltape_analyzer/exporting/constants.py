"""Small tensors whose values a trace knows.

A model that reads a tensor with Python (``for h, w in grid.tolist()``) can be traced where that
tensor is a constant; but torch follows the values of constants of one element only (torch 2.15:
``CONSTANT_NUMEL_LIMIT``), so that a row of a constant grid is unknown again. Here the limit is a
larger one, while a trace with such constants runs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

__all__ = ["known_constants"]

_LIMIT = "CONSTANT_NUMEL_LIMIT"
_HOMES = ("torch._subclasses.fake_tensor", "torch.fx.experimental.proxy_tensor")
_ELEMENTS = 1024


@contextlib.contextmanager
def known_constants(wanted: bool) -> Iterator[None]:
    """Lets a trace know the values of small constant tensors, where ``wanted``, and where this
    torch has such a limit."""
    homes = [importlib.import_module(name) for name in _HOMES] if wanted else []
    before = [(home, getattr(home, _LIMIT)) for home in homes if hasattr(home, _LIMIT)]
    try:
        for home, _ in before:
            setattr(home, _LIMIT, _ELEMENTS)
        yield
    finally:
        for home, limit in before:
            setattr(home, _LIMIT, limit)
