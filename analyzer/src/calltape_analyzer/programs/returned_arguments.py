"""Arguments that a model changes and returns: a cache that it fills.

A model that gets a cache updates that object, and its caller goes on with the same object. A
program has no objects, only tensors. So a trace notes which arguments were returned, and a call
through :class:`~calltape_analyzer.Programs` puts the new state into the caller's object and returns
it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from calltape_analyzer.pytree.caches import is_cache_value
from calltape_analyzer.pytree.description import describe_as_recorded

__all__ = ["changed_arguments", "in_own_objects", "returned_arguments", "tensor_ids"]


def returned_arguments(returned: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Which items of a result are arguments: the name of the argument by key, field or position of
    the item."""
    return {
        str(key): name
        for key, value in _items(returned)
        for name, argument in arguments.items()
        if value is argument and _is_mutable(argument)
    }


def tensor_ids(arguments: Mapping[str, Any]) -> dict[str, list[int]]:
    """The identities of the tensors in each argument that a model can change."""
    return {
        name: [id(tensor) for tensor in describe_as_recorded(value).tensors]
        for name, value in arguments.items()
        if _is_mutable(value)
    }


def changed_arguments(
    before: Mapping[str, list[int]], arguments: Mapping[str, Any], returned: Mapping[str, str]
) -> list[str]:
    """The arguments that hold other tensors than before, and are not returned."""
    after = tensor_ids(arguments)
    known = set(returned.values())
    return [name for name, ids in before.items() if ids != after[name] and name not in known]


def in_own_objects(value: Any, returned: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
    """A result in which each returned argument is the caller's own object, with its new state.

    Args:
        value: what the program returned.
        returned: as :func:`returned_arguments` gives it.
        arguments: the caller's arguments, by name.
    """
    for key, made in list(_items(value)):
        own = arguments.get(returned.get(str(key), ""))
        if own is not None and type(own) is type(made) and _is_mutable(own):
            _replace_state(own, made)
            value = _with_item(value, key, own)
    return value


def _items(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, list | tuple):
        yield from enumerate(value)


def _is_mutable(value: Any) -> bool:
    if isinstance(value, list | MutableMapping):
        return True
    return is_cache_value(value)


def _replace_state(own: Any, made: Any) -> None:
    if isinstance(own, list):
        own[:] = made
    elif isinstance(own, MutableMapping):
        own.clear()
        own.update(made)
    else:
        vars(own).clear()
        vars(own).update(vars(made))


def _with_item(value: Any, key: Any, item: Any) -> Any:
    if isinstance(value, MutableMapping | list):
        value[key] = item
        return value
    if isinstance(value, tuple):
        items = [*value[:key], item, *value[key + 1 :]]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    object.__setattr__(value, key, item)
    return value
