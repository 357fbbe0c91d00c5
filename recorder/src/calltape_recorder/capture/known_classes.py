"""Decides which classes the recorder looks into, by their names and fields. It never imports
them."""

from __future__ import annotations

import dataclasses
import functools
import re
from types import MemberDescriptorType
from typing import Any

from calltape_recorder.bounds import MAX_TYPE_NAME_CHARACTERS
from calltape_schema.objects import class_attribute, dict_of, module_of, qualname_of

__all__ = ["fields_of", "is_named_tuple", "is_record", "type_name"]

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
    """The fields of a dataclass that are set, read without running its code. For a field that is a
    property, the property stands."""
    state = dict_of(value) or {}
    found: dict[str, Any] = {}
    cls: Any = type(value)
    for name, own in _fields(cls):
        if type(own) is MemberDescriptorType:  # of __slots__
            try:
                found[name] = own.__get__(value)
            except AttributeError:  # declared, but not set
                continue
        elif name in state:
            found[name] = state[name]
        elif own is not _MISSING:
            found[name] = own
    return found


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
