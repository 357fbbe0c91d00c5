"""The least number of results of an operator that values tell, such as what ``nms`` keeps.

The operators of torchvision ask torch for such a number in a way that is deprecated, and whose
least number is 2 (torch 2.15: ``create_unbacked_symint``). torch asserts it, and a program would
raise an error for a picture with one box. Here the least number is 0, as in the way that torch
recommends.
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
    """Lets a trace take results of operators that are none, or one. Does nothing if this torch has
    no such way."""
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
