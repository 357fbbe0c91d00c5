"""Reads what a class is without running any code of it or of its metaclass.

``cls.__name__``, ``hash(cls)`` and ``isinstance(value, cls)`` may run the host's code. What is read
here are the facts that Python itself keeps of a class.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "class_attribute", "dict_offset", "has_own_hash", "module_of", "mro_of", "name_of",
    "namespace_of", "qualname_of",
]  # fmt: skip

_known = type.__dict__
mro_of: Callable[[type], tuple[type, ...]] = _known["__mro__"].__get__
namespace_of: Callable[[type], Mapping[str, Any]] = _known["__dict__"].__get__
name_of: Callable[[type], str] = _known["__name__"].__get__
qualname_of: Callable[[type], str] = _known["__qualname__"].__get__
dict_offset: Callable[[type], int] = _known["__dictoffset__"].__get__
"""0 if instances have no ``__dict__``."""

_module: Callable[[type], Any] = _known["__module__"].__get__
_MISSING = object()
_C_CODE = (types.WrapperDescriptorType, types.MethodDescriptorType)


def module_of(cls: type) -> str:
    """The name of the module; empty if the class has none, or something else in its place."""
    try:
        found = _module(cls)
    except AttributeError:
        return ""
    return found if type(found) is str else ""


def class_attribute(cls: type, name: str, default: Any = None) -> Any:
    """What stands under this name in the class or in a class above it, as it stands there: a
    property is not asked."""
    for base in mro_of(cls):
        found = namespace_of(base).get(name, _MISSING)
        if found is not _MISSING:
            return found
    return default


def has_own_hash(cls: type) -> bool:
    """Whether Python code decides which hash this class has, or what it equals. It would run
    whenever the class is a key of a dict."""
    metaclass = type(cls)
    return metaclass is not type and any(
        type(class_attribute(metaclass, name)) not in _C_CODE for name in ("__hash__", "__eq__")
    )
