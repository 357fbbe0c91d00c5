"""Which classes the recorder looks into, decided by name and shape, never by importing them."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

__all__ = ["is_cache", "is_named_tuple", "is_record", "type_name"]

_MAX_TYPE_NAME = 512
_UNFIT = re.compile(r"[:\s]")

# Layers of transformers' caches whose names do not end in "Cache" (transformers.cache_utils).
_CACHE_LAYERS = frozenset(
    {"CacheLayerMixin", "LinearAttentionCacheLayerMixin", "LinearAttentionLayer", "DummyLayer"}
)


def type_name(cls: type) -> str:
    """``module:qualified.name``; a class without a fitting name gets one that fits."""
    module = _UNFIT.sub("_", str(getattr(cls, "__module__", "") or "unknown"))
    name = _UNFIT.sub("_", str(getattr(cls, "__qualname__", "") or "unknown"))
    joined = f"{module}:{name}"
    if len(joined) > _MAX_TYPE_NAME:
        return f"{module[:200]}:{name[-200:]}"
    return joined.encode("utf-8", "backslashreplace").decode()


def is_cache(cls: type) -> bool:
    """A key/value or state cache, or one of its layers: its attributes are its state.

    Whether it is registered with torch's pytree makes no difference, so that a tape does not
    depend on the registration that was active in the server.
    """
    for base in cls.__mro__:
        name = base.__name__
        if name.endswith("Cache"):
            return True
        if name in _CACHE_LAYERS and str(base.__module__).startswith("transformers."):
            return True
    return False


def is_named_tuple(cls: type) -> bool:
    """Made by collections.namedtuple or typing.NamedTuple."""
    fields: Any = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(type(name) is str for name in fields)
    )


def is_record(cls: type) -> bool:
    """A dataclass; transformers' and diffusers' model outputs are dataclasses as well."""
    return dataclasses.is_dataclass(cls)
