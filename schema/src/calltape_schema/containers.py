"""Containers that Python code wraps around built-in ones, read without running code of theirs.

The recorder describes arguments with this, and the analyzer the live arguments that it compares
with them.
"""

from __future__ import annotations

import collections.abc
import functools
import gc
import types
from collections import UserDict, UserList
from collections.abc import Callable
from typing import Any

from calltape_schema.attributes import dict_of
from calltape_schema.plain_classes import mro_of

__all__ = ["WRAPPERS", "held_by", "is_wrapped"]

WRAPPERS: tuple[type, ...] = (UserDict, UserList, types.MappingProxyType)
"""Classes that keep one dict or list, which is all of their state to a program."""

_ABSTRACT = (collections.abc.Mapping, collections.abc.Sequence)
_BUILT_IN = (dict, list, tuple, str, bytes, range, memoryview, *WRAPPERS)


def held_by(value: Any) -> Any:
    """The dict or list in an instance of one of :data:`WRAPPERS`; None if it has another
    container."""
    cls = type(value)
    if cls is types.MappingProxyType:
        found = next(iter(gc.get_referents(value)), None)  # a view shows it in no other way
        return found if issubclass(type(found), dict) else None
    kind = dict if issubclass(cls, UserDict) else list
    found = (dict_of(value) or {}).get("data")
    return found if issubclass(type(found), kind) else None


def _is_wrapped(cls: type) -> bool:
    bases = mro_of(cls)
    return any(base in bases for base in _ABSTRACT) and not any(one in bases for one in _BUILT_IN)


is_wrapped: Callable[[type], bool] = functools.lru_cache(maxsize=1024)(_is_wrapped)
"""Whether a class is a mapping or a sequence that is written in Python around containers in its
attributes. Only the bases are looked at: a class may decide itself what is registered."""
