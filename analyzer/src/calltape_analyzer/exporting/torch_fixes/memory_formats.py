"""The memory format that a trace notes of its results, and that nobody needs.

torch (2.15) notes the memory format of each result in its node, which depends on the strides. If
these depend on sizes, each note adds a guard to the program: a padded picture that is cut to its
size again is contiguous only if there was nothing to pad, so that the program takes no other
picture. Here the note is left out while a trace runs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from functools import partial

__all__ = ["no_memory_formats"]

_MODULE, _NOTES, _OPTION = (
    "torch.fx.experimental.proxy_tensor", "_extract_tensor_metadata", "include_contiguity",
)  # fmt: skip


@contextlib.contextmanager
def no_memory_formats() -> Iterator[None]:
    """Keeps a trace from asking for the memory format of its results. Does nothing if this torch
    has no such option."""
    module = importlib.import_module(_MODULE)
    own = getattr(module, _NOTES, None)
    if own is None or _OPTION not in inspect.signature(own).parameters:
        yield
        return
    setattr(module, _NOTES, partial(own, **{_OPTION: False}))
    try:
        yield
    finally:
        setattr(module, _NOTES, own)
