"""Arguments that a model changes and returns: a cache that it fills, and hands back.

A model that gets a cache updates that very object; whoever called it goes on with the one that they
hold. A program has no objects, only tensors. So it is noted while tracing which arguments were
returned, and a call through :class:`~calltape_analyzer.Programs` puts the new state into the
caller's object and returns that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from calltape_analyzer.describing import describe

__all__ = ["changed_arguments", "handed_back", "returned_arguments", "tensor_ids"]


def returned_arguments(returned: Any, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Which items of a result are arguments: item (a key, field or position) to argument."""
    return {
        str(key): name
        for key, value in _items(returned)
        for name, argument in arguments.items()
        if value is argument and _is_mutable(argument)
    }


def tensor_ids(arguments: Mapping[str, Any]) -> dict[str, list[int]]:
    """The identities of the tensors in each argument that can change."""
    return {
        name: [id(tensor) for tensor in describe(value, as_recorded=True).tensors]
        for name, value in arguments.items()
        if _is_mutable(value)
    }


def changed_arguments(
    before: Mapping[str, list[int]], arguments: Mapping[str, Any], returned: Mapping[str, str]
) -> list[str]:
    """The arguments that hold other tensors than before, and are not handed back."""
    after = tensor_ids(arguments)
    known = set(returned.values())
    return [name for name, ids in before.items() if ids != after[name] and name not in known]


def handed_back(value: Any, returned: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
    """A result in which what a program made of an argument is that argument, with its new state.

    Args:
        value: what the program returned.
        returned: as :func:`returned_arguments` gives it.
        arguments: those of the caller, by name.
    """
    for key, made in list(_items(value)):
        own = arguments.get(returned.get(str(key), ""))
        if own is not None and type(own) is type(made) and _is_mutable(own):
            _take_over(own, made)
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
    return type(value).__name__.endswith("Cache") and hasattr(value, "__dict__")


def _take_over(own: Any, made: Any) -> None:
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
