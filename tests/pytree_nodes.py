"""Nodes of torch's pytrees that a test registers, taken out again."""

from __future__ import annotations

from typing import Any

from torch.utils import _pytree

__all__ = ["deregister"]


def deregister(cls: type) -> None:
    """Takes a class out of torch's table, also where torch (2.6) has no function for it."""
    own: Any = getattr(_pytree, "_deregister_pytree_node", None)
    if own is not None:
        own(cls)
        return
    _pytree.SUPPORTED_NODES.pop(cls, None)
    _pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
