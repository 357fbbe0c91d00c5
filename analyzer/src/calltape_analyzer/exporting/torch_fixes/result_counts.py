"""The smallest number of results of an operator whose number depends on values, such as ``nms``.

The operators of torchvision ask torch for such a number with a deprecated function, for which the
smallest number is 2 (torch 2.15: ``create_unbacked_symint``). torch asserts it, and a program would
raise an error for a picture with one box. Here the smallest number is 0, as with the function that
torch recommends.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

__all__ = ["result_counts_from_zero"]

_NAME = "create_unbacked_symint"


@contextlib.contextmanager
def result_counts_from_zero() -> Iterator[None]:
    """Makes a trace allow operators that return no result, or one. Does nothing if this torch has
    no such function."""
    context: Any = getattr(importlib.import_module("torch._library.fake_impl"), "FakeImplCtx", None)
    create = getattr(context, _NAME, None)
    if create is None or not hasattr(context, "new_dynamic_size"):
        yield
        return

    def created(self: Any, *, min: int = 0, max: int | None = None) -> Any:
        return self.new_dynamic_size(min=min, max=max)

    try:
        setattr(context, _NAME, created)
        yield
    finally:
        setattr(context, _NAME, create)
