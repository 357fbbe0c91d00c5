"""The names on a tape: of classes, fields of objects, keys of dicts, and modules.

Classes are known by their names and fields. They are never imported.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import weakref
from collections.abc import Callable, Sequence
from types import MemberDescriptorType
from typing import Any, NamedTuple

import torch

from calltape_recorder.bounds import (
    MAX_MODULE_SEARCHES,
    MAX_NAME_CHARACTERS,
    MAX_TYPE_NAME_CHARACTERS,
)
from calltape_recorder.capture.contexts import training_mode_of
from calltape_schema.bounds import MAX_ALIKE, MAX_KEY_CHARACTERS, MAX_KEY_PARTS
from calltape_schema.objects import class_attribute, dict_of, module_of, name_of, qualname_of
from calltape_schema.tree import are_distinct, fits_as_key

_UNFIT = re.compile(r"[:\s]")


def type_name(cls: type) -> str:
    """``module:qualified.name``. A name that the format does not allow is changed until it fits."""
    module = _UNFIT.sub("_", module_of(cls) or "unknown")
    name = _UNFIT.sub("_", qualname_of(cls) or "unknown")
    joined = f"{module}:{name}"
    if len(joined) > MAX_TYPE_NAME_CHARACTERS:
        return f"{module[:200]}:{name[-200:]}"
    return joined.encode("utf-8", "backslashreplace").decode()


def is_named_tuple(cls: type) -> bool:
    """Whether collections.namedtuple or typing.NamedTuple made this class."""
    fields: Any = class_attribute(cls, "_fields")
    return (
        issubclass(cls, tuple)
        and type(fields) is tuple
        and all(type(name) is str for name in fields)
    )


def is_record(cls: type) -> bool:
    """Whether this is a dataclass. Model outputs of transformers and diffusers are, too."""
    return type(class_attribute(cls, _DECLARED)) is dict


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are set, read without running its code. The value of a field
    that is a property is the property itself."""
    state = dict_of(value) or {}
    fields: dict[str, Any] = {}
    cls: Any = type(value)
    for name, default in _fields(cls):
        if type(default) is MemberDescriptorType:  # of __slots__
            try:
                fields[name] = default.__get__(value)
            except AttributeError:  # declared, but not set
                continue
        elif name in state:
            fields[name] = state[name]
        elif default is not _MISSING:
            fields[name] = default
    return fields


@functools.lru_cache(maxsize=1024)
def _fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    """The names of the fields, and what the class itself has under each."""
    declared: dict[Any, Any] = class_attribute(cls, _DECLARED)
    return tuple(
        (name, class_attribute(cls, name, _MISSING))
        for name, field in declared.items()
        if type(name) is str and type(field) is _Field and field._field_type is _FIELD
    )


_DECLARED = "__dataclass_fields__"
_Field: Any = dataclasses.Field
_FIELD: Any = dataclasses._FIELD  # type: ignore[attr-defined]  # pyright: ignore
_MISSING = object()


# Keys of dicts.

MODULE = "module"
"""The kind of the token of a key that is a module."""


class ModuleKey(NamedTuple):
    """The name of a module that is a key of a dict."""

    name: str


# By id: the hash of a class may run code.
_KEY_TYPES = frozenset(map(id, (str, int, float, bool, bytes, type(None))))


def why_unfit(keys: Sequence[Any]) -> str | None:
    """Why a tape cannot hold a dict with these keys, for its placeholder; None if it can."""
    for key in keys:
        kind = type(key)
        if kind is str and len(key) <= MAX_KEY_CHARACTERS:
            continue
        parts = key if kind is tuple else (key.name if kind is ModuleKey else key,)
        if len(parts) > MAX_KEY_PARTS or not all(
            id(type(part)) in _KEY_TYPES and fits_as_key(part) for part in parts
        ):
            if kind is str or kind is bytes:
                what = "characters" if kind is str else "bytes"
                return f"a key of {len(key)} {what} (at most {MAX_KEY_CHARACTERS})"
            if kind is int:
                return f"a key of {key.bit_length()} bits (at most 64)"
            return f"a key of type {name_of(kind)}"[:MAX_NAME_CHARACTERS]
    return None if are_distinct(keys) else f"more than {MAX_ALIKE} keys of one hash"


def names_fit(names: tuple[Any, ...]) -> bool:
    """Whether all names of the fields of an object are short texts."""
    for name in names:  # noqa: SIM110 - a generator takes longer
        if type(name) is not str or len(name) > MAX_NAME_CHARACTERS:
            return False
    return True


def key_token(key: Any) -> Any:
    """The token of a key. It differs for 1, 1.0 and True, which are equal in Python, but not on a
    tape."""
    if type(key) is tuple:
        return ("tuple", *(key_token(part) for part in key))
    if type(key) is ModuleKey:
        return (MODULE, None, key.name)
    return key if type(key) is str else (type(key).__name__, repr(key), key)


# The names of modules within the recorded model. A dict may have modules as keys (Whisper's cache
# of keys and values), and a tape has the name of the module instead.


class ModuleNames:
    """Names of the parts of one model, and its mode. It does not keep the model alive.

    Attributes:
        is_training: whether the model is in training mode; False if it is no module, or is gone.
    """

    is_training: Callable[[], bool]

    def __init__(self) -> None:
        self._root: Any = None
        self.is_training = lambda: False
        self._names: dict[int, tuple[Any, str]] = {}
        self._searches = 0

    def set_root(self, model: Any) -> None:
        """Makes this the recorded model. Nothing has a name in an object that is no module."""
        self._names, self._searches = {}, 0
        self._root, self.is_training = None, lambda: False
        if isinstance(model, torch.nn.Module):
            self._root = weakref.ref(model)
            self.is_training = training_mode_of(self._root)

    def of(self, module: torch.nn.Module) -> str | None:
        """The name of a part; None if the recorded model does not have it."""
        reference, name = self._names.get(id(module), (None, None))
        if reference is not None and reference() is module:
            return name
        if self._searches >= MAX_MODULE_SEARCHES:
            return None
        self._searches += 1
        root = None if self._root is None else self._root()
        if root is None:
            return None
        try:
            # The method of torch's own class, because one of the application could do anything.
            modules = list(torch.nn.Module.named_modules(root))
        except RuntimeError:  # another thread adds a part meanwhile
            return None
        self._names = {id(part): (weakref.ref(part), name) for name, part in modules}
        _, name = self._names.get(id(module), (None, None))
        return name

    def in_place_of_modules(self, items: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """The items of a dict, with a :class:`ModuleKey` for each key that is a part of the
        model."""
        named = [
            (self.of(key) if issubclass(type(key), torch.nn.Module) else None, key, value)
            for key, value in items
        ]
        taken = {key for name, key, _ in named if name is None and type(key) is str}
        return [
            (key if name is None or name in taken else ModuleKey(name), value)
            for name, key, value in named
        ]
