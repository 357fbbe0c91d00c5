"""Finds out whether a callable may call another one, from what it holds.

In come two callables. Out goes an answer that errs on the side of yes. Nothing is called.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from typing import Any

from calltape_schema.attributes import dict_of

__all__ = ["leads_to"]

_MOST = 1000


def leads_to(found: Any, sought: Any, state: Mapping[str, Any]) -> bool:
    """Whether ``found`` holds ``sought``: in what it wraps or binds, or in a closure.

    Args:
        found: a callable.
        sought: the one that it may call.
        state: the attributes of an object, of which the code of ``found`` may use some by name.
    """
    waiting, seen = [found], set[int]()
    while waiting:
        one = waiting.pop()
        if one is sought or len(seen) > _MOST:
            return True
        if id(one) in seen:
            continue
        held = _held_by(one, state)
        if held is None:
            if one is found:
                return True  # it is of C code, for example
            continue
        seen.add(id(one))
        waiting += held
    return False


def _held_by(one: Any, state: Mapping[str, Any]) -> list[Any] | None:
    """What an object holds; None if nobody knows."""
    kind = type(one)
    if kind is types.MethodType:
        return [one.__func__]
    if issubclass(kind, functools.partial):
        return [one.func, *one.args, *one.keywords.values()]
    if kind is types.FunctionType:
        return list(_held_by_function(one, state))
    if kind is list or kind is tuple:
        return list(one)
    attributes = dict_of(one)
    return None if attributes is None else list(dict.copy(attributes).values())


def _held_by_function(one: types.FunctionType, state: Mapping[str, Any]) -> Iterator[Any]:
    for cell in one.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is empty
            continue
    yield from one.__defaults__ or ()
    yield from (one.__kwdefaults__ or {}).values()
    yield from (state[name] for name in one.__code__.co_names if name in state)
    yield from vars(one).values()
