"""Names what a model reads that is no argument: engines keep the state of a step beside the call.

A tape has arguments. vLLM's layers find the attention metadata and the cache in a global variable
that is set around each call; others use a context variable or a variable of the thread. This looks
at the code of the layers' forward methods and of the functions that these name, runs none of it,
and finds what is read there and set elsewhere. It is done once, when recording begins.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from threading import local
from types import CodeType, FunctionType
from typing import Any

import torch

from calltape_schema.plain_classes import namespace_of

__all__ = ["outside_state"]

_MAX_NAMES = 8
_MAX_FUNCTIONS = 2000
_MAX_CLASSES = 500
_MAX_NAME = 200
_NOT_OF_MODELS = frozenset(
    ("torch", "transformers", "numpy", "calltape_recorder", "logging", "warnings", "typing", "os")
)
"""Packages whose own global state is that of a process, not of a call."""
_SETS = frozenset(("STORE_GLOBAL", "DELETE_GLOBAL"))
_CHANGES = frozenset(("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_ATTR", "DELETE_ATTR"))
_CHANGING = frozenset(("append", "clear", "extend", "pop", "popitem", "setdefault", "update"))


def outside_state(target: Any, method: str) -> tuple[str, ...]:
    """The variables of modules (``engine.context._current``) that the code of a target reads, and
    that functions of these modules set or change; at most eight.

    Args:
        target: what is recorded.
        method: of it.
    """
    try:
        return tuple(dict.fromkeys(_found(target, method)))[:_MAX_NAMES]
    except Exception:  # objects of the host may be anything
        return ()


def _found(target: Any, method: str) -> Iterator[str]:
    waiting: deque[FunctionType] = deque(_methods(target, method))
    known = set(map(id, waiting))
    changed: dict[int, frozenset[str]] = {}
    while waiting and len(known) < _MAX_FUNCTIONS:
        function = waiting.popleft()
        names = function.__globals__
        home = str(names.get("__name__", ""))
        for name in _names_in(function.__code__):
            value = names.get(name)
            if type(value) is FunctionType:
                if id(value) not in known and not _is_of_library(value.__module__):
                    known.add(id(value))
                    waiting.append(value)
            elif name in names and not _is_of_library(home):
                if id(names) not in changed:
                    changed[id(names)] = _changed_in(names)
                if type(value) in (ContextVar, local) or name in changed[id(names)]:
                    yield f"{home}.{name}"[:_MAX_NAME]


def _methods(target: Any, method: str) -> Iterator[FunctionType]:
    """The recorded method, and the forward methods of all layers."""
    classes = {id(type(target)): type(target)}
    if issubclass(type(target), torch.nn.Module):
        for layer in torch.nn.Module.modules(target):
            if len(classes) < _MAX_CLASSES:
                classes.setdefault(id(type(layer)), type(layer))
    for cls in classes.values():
        for base in type.mro(cls):
            found = namespace_of(base).get(method if cls is type(target) else "forward")
            found = getattr(found, "__wrapped__", found) if type(found) is FunctionType else found
            if type(found) is FunctionType and not _is_of_library(found.__module__):
                yield found
                break


def _is_of_library(module: Any) -> bool:
    return str(module).partition(".")[0] in _NOT_OF_MODELS


def _names_in(code: CodeType) -> Iterator[str]:
    """The names that a function reads, those of functions within it as well."""
    yield from code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _names_in(inner)


def _changed_in(names: Mapping[str, Any]) -> frozenset[str]:
    """The variables of a module that its functions set, or whose content they change."""
    found: set[str] = set()
    for value in list(names.values()):
        function = getattr(value, "__wrapped__", value) if type(value) is FunctionType else None
        if type(function) is FunctionType and function.__globals__ is names:
            found.update(_changed_by(function.__code__))
    return frozenset(found)


def _changed_by(code: CodeType) -> Iterator[str]:
    before: list[tuple[str, Any]] = []
    for step in dis.get_instructions(code):
        if step.opname in _SETS:
            yield str(step.argval)
        elif step.opname in _CHANGES or step.argval in _CHANGING:
            # The container is loaded right before, or before the key.
            yield from (str(name) for kind, name in before[-2:] if kind == "LOAD_GLOBAL")
        before.append((step.opname, step.argval))
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _changed_by(inner)
