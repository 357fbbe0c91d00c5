"""The Python attributes of a module: what a call changes in them, and how it is put back.

Attributes are numbers, tensors, text, and containers and objects of these. Of transformers' classes
only plain values are put back. If a call installed code (hooks) or changed an object, marks beside
it may note that, and one without the other breaks the model: then a module is left alone if
anything but tensors and numbers changed.
"""

from __future__ import annotations

import operator
import sys
from collections import OrderedDict, deque
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from calltape_analyzer.pytree.caches import has_known_state

__all__ = ["Attributes", "has_state", "same"]

_CONTAINERS = (OrderedDict, dict, list, set, deque)
_CODE = (
    type, FunctionType, MethodType, BuiltinFunctionType, ModuleType, partial, torch.nn.Module
)  # fmt: skip
_SIMPLE = (bool, int, float, complex, str, bytes, type(None))
_IS_SIMPLE = frozenset(_SIMPLE)
"""Asked first: nearly all attributes are of these very types, and each run looks at all of them."""
_PLAIN = (*_SIMPLE, torch.Tensor)
_LIBRARIES = frozenset({"torch", "transformers", *sys.stdlib_module_names})
_MAX_DEPTH = 4
_MAX_ELEMENTS = 100_000
"""In all containers of a module. More are not put back: each call would copy them."""
_OF_EVERY_MODULE = frozenset(vars(torch.nn.Module())) - {"training"}


class Attributes:
    """The attributes of one module as they are now.

    Args:
        prefix: the name of the module in the model.
        part: the module.

    Attributes:
        tensors: in attributes and their containers, each with the name of the attribute.
    """

    def __init__(self, prefix: str, part: torch.nn.Module) -> None:
        self._prefix = prefix
        self._part = part
        self._hooks = _hooks(part)
        self._is_own = _is_own(type(part))
        self._is_of_transformers = type(part).__module__.startswith("transformers.")
        self._before = self._now()
        self._restored = {n: value for n, value in self._before.items() if self._is_kept(value)}
        others = [(n, v) for n, v in self._before.items() if type(v) not in _IS_SIMPLE]
        self._inside = {
            name: _inside(value)
            for name, value in others
            if self._is_of_transformers and not _is_plain_value(value)
        }
        self._containers: dict[int, tuple[str, Any, list[Any]]] = {}
        self._elements = 0
        self.tensors: list[tuple[str, torch.Tensor]] = []
        for name, value in others:
            if name in self._restored:
                self._remember(self._named(name), value, 0)

    @property
    def has_other_objects(self) -> bool:
        """Whether anything but plain values changed since: hooks, functions, objects, and, of
        transformers' classes, what is in their containers and objects."""
        if _hooks(self._part) != self._hooks:
            return True
        now = self._now()
        changed = [name for name in {*now, *self._before} if self._differs(name, now)]
        if any(not _is_plain_value(d.get(n)) for n in changed for d in (self._before, now)):
            return True
        return any(
            len(elements) != len(found := _inside(self._before[name]))
            or not all(map(operator.is_, elements, found))
            for name, elements in self._inside.items()
        )

    def put_back(self, *, has_other_objects: bool = False) -> dict[str, Any]:
        """Puts back attributes, and the elements of containers. Values of tensors stay as they are.

        Args:
            has_other_objects: whether that is so of any module of the model.

        Returns:
            What the attributes were that were changed, by name.
        """
        if _hooks(self._part) != self._hooks:
            return {}
        changed: dict[str, Any] = {}
        for name, container, before in self._containers.values():
            now = _elements(container)
            if len(now) == len(before) and all(map(operator.is_, now, before)):
                continue
            if len(now) != len(before) or not all(map(same, before, now)):
                changed[name] = container
            _fill(container, before)
        return changed | self._names_put_back(has_other_objects)

    def _names_put_back(self, has_other_objects: bool) -> dict[str, Any]:
        changed: dict[str, Any] = {}
        now = self._now()
        if self._is_of_transformers and not self._keeps_values_only(now, has_other_objects):
            return changed
        for name, value in self._restored.items():
            if name in now and now[name] is value:
                continue
            if name not in now or not same(value, now[name]):
                changed[self._named(name)] = value
            vars(self._part)[name] = value
        removes = self._is_own or self._is_of_transformers
        for name in now.keys() - self._before.keys() if removes else ():
            if self._is_kept(now[name]):
                changed[self._named(name)] = None
                del vars(self._part)[name]
        return changed

    def _keeps_values_only(self, now: dict[str, Any], has_other_objects: bool) -> bool:
        """Whether nothing but tensors and numbers changed; also marks and texts, if nothing else
        changed that they may be about. Swin keeps the size of its windows, which gets smaller
        with a small picture."""
        is_value = _is_value if has_other_objects else _is_plain_value
        changed = [name for name in {*now, *self._before} if self._differs(name, now)]
        return all(is_value(d.get(n)) for n in changed for d in (self._before, now))

    def _differs(self, name: str, now: dict[str, Any]) -> bool:
        return name not in now or name not in self._before or now[name] is not self._before[name]

    def _now(self) -> dict[str, Any]:
        every = vars(self._part)
        return {name: value for name, value in every.items() if name not in _OF_EVERY_MODULE}

    def _named(self, name: str) -> str:
        return f"{self._prefix}.{name}".lstrip(".")

    def _is_kept(self, value: Any) -> bool:
        if type(value) in _IS_SIMPLE:
            return True
        if self._is_of_transformers:
            return _is_plain_value(value)
        if isinstance(value, _PLAIN):
            return True
        return self._is_own and (isinstance(value, (*_CONTAINERS, tuple)) or _is_object(value))

    def _remember(self, name: str, value: Any, depth: int) -> None:
        """Remembers the elements of a value, and the tensors in it."""
        if isinstance(value, torch.Tensor):
            self.tensors.append((name, value))
            return
        is_container = isinstance(value, (*_CONTAINERS, tuple))
        if not is_container and _is_object(value):
            value = vars(value)
            is_container = True
        if not is_container or depth > _MAX_DEPTH or id(value) in self._containers:
            return
        self._elements += len(value)
        if self._elements > _MAX_ELEMENTS:
            return
        elements = _elements(value)
        self._containers[id(value)] = (name, value, elements)
        for child in elements:
            if type(child) not in _IS_SIMPLE:
                self._remember(name, child, depth + 1)
        if not isinstance(value, tuple) and hasattr(value, "__dict__"):  # a class of the user's own
            self._remember(name, vars(value), depth + 1)


def _is_value(value: Any) -> bool:
    """Whether it is a tensor, a number (a bool is a mark), the symbol of one, or None."""
    kinds = torch.Tensor, torch.SymInt, torch.SymFloat, type(None)
    # Not isinstance, which asks objects for their class: configs of transformers are slow to tell.
    return issubclass(type(value), kinds) or type(value) in (int, float)


def _is_plain_value(value: Any) -> bool:
    kind = type(value)
    return kind in _IS_SIMPLE or issubclass(kind, _PLAIN) or _is_value(value)


def _inside(value: Any) -> list[Any]:
    """The elements of a container, and the attributes of an object; none of other values."""
    if isinstance(value, (*_CONTAINERS, tuple)):
        return _elements(value) if len(value) <= _MAX_ELEMENTS else []
    return _elements(vars(value)) if _is_object(value) else []


def _elements(container: Any) -> list[Any]:
    """The elements of a container; of a dict the keys, and then the values."""
    if isinstance(container, dict):
        return [*dict.keys(container), *dict.values(container)]
    return list(container)


def _fill(container: Any, elements: list[Any]) -> None:
    """Puts elements back with the methods of the plain class. A subclass may do more in its own."""
    if isinstance(container, tuple):
        return
    kind: Any = next(kind for kind in _CONTAINERS if isinstance(container, kind))
    kind.clear(container)
    if isinstance(container, dict):
        half = len(elements) // 2
        for key, value in zip(elements[:half], elements[half:], strict=True):
            kind.__setitem__(container, key, value)
    elif isinstance(container, set):
        set.update(container, elements)
    else:
        kind.extend(container, elements)


def has_state(value: Any) -> bool:
    """Whether a value has attributes of its own. A class, a function and a module have, and they
    are what code is made of; an object that can be called (an embedder) is an object."""
    return hasattr(value, "__dict__") and not isinstance(value, _CODE)


def _is_object(value: Any) -> bool:
    """Whether a value is a plain object with attributes, as far as its class tells."""
    if not has_state(value):
        return False
    cls = type(value)
    return cls.__module__ == "types" or not _is_of_library(cls) or has_known_state(cls)


def _is_of_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _LIBRARIES - {"__main__"}


def _is_own(cls: type) -> bool:
    if _is_of_library(cls):
        return False
    return not any(base.__module__.startswith("transformers.") for base in cls.__mro__)


def _hooks(part: torch.nn.Module) -> tuple[int, int]:
    return len(part._forward_hooks), len(part._forward_pre_hooks)


def same(before: Any, now: Any) -> bool:
    """Whether two values are the same. An element that is NaN in both is the same."""
    if before is now and not isinstance(before, torch.Tensor):
        return True
    if not isinstance(before, torch.Tensor) or not isinstance(now, torch.Tensor):
        try:
            return type(before) is type(now) and bool(before == now)
        except Exception:  # it cannot be compared, or there is a tensor in a container
            return False
    if before.shape != now.shape or before.dtype != now.dtype or before.device != now.device:
        return False
    try:
        return bool(((before == now) | ((before != before) & (now != now))).all())
    except Exception:  # a layout or dtype without comparison, or a tensor of a trace
        return False
