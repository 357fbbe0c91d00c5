"""Containers of classes of their own: what they hold, and instances made to hold something.

No constructor is called: an instance is made by ``__new__``, and filled by methods of the built-in.
"""

from __future__ import annotations

import collections
import types
from collections import UserDict, UserList
from collections.abc import Iterable, Mapping
from typing import Any

from calltape_schema.objects import WRAPPERS, held_by

__all__ = ["content_of", "filled_list", "filled_mapping"]

_UNSET: dict[str, dict[str, Any]] = {
    "BatchEncoding": {"_encodings": None, "_n_sequences": None},
    "BatchFeature": {"skip_tensor_conversion": None},
}
"""The other attributes of transformers' mappings, as those have them whose data did not come from a
tokenizer: they say how the data came about. By the name of the class that sets them."""


def content_of(value: Any) -> dict[Any, Any] | list[Any] | None:
    """What a container of a class of its own holds, as a built-in one; None for any other value."""
    if isinstance(value, WRAPPERS):
        held = held_by(value)
        return dict(dict.items(held)) if isinstance(held, dict) else held and list(held)
    if isinstance(value, dict):
        return dict(dict.items(value))
    return list(list.__iter__(value)) if isinstance(value, list) else None


def filled_mapping(cls: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """An instance of a class of mappings that holds these pairs.

    Raises:
        TypeError: the class is none of these.
    """
    if cls is types.MappingProxyType:
        return cls(dict(pairs))
    if issubclass(cls, UserDict):
        made = cls.__new__(cls)
        vars(made).update(_unset_in(cls), data=dict(pairs))
        return made
    if not issubclass(cls, dict):
        raise TypeError(f"{cls.__name__} is not a dict")
    base: Any = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    made = cls.__new__(cls)
    for key, value in pairs:
        base.__setitem__(made, key, value)
    return made


def filled_list(cls: Any, items: Iterable[Any]) -> Any:
    """An instance of a subclass of list, or of ``UserList``, with these elements."""
    made = cls.__new__(cls)
    if issubclass(cls, UserList):
        vars(made)["data"] = list(items)
    else:
        list.extend(made, items)
    return made


def _unset_in(cls: type) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "transformers":
            found |= _UNSET.get(base.__name__, {})
    return found
