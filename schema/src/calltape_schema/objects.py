"""Reads live objects and their classes without running their code.

``cls.__name__``, ``hash(cls)``, ``isinstance(value, cls)`` and ``value.name`` may run code of the
application. This module reads the facts that Python itself keeps of a class, and the state of an
object: its attributes, what a container written in Python wraps, the parts of a nested tensor.

The recorder describes arguments and outputs with it, and the analyzer the live values that it
compares with them, so both describe equal objects alike. torch is not imported.
"""

from __future__ import annotations

import collections.abc
import functools
import gc
import sys
import types
from abc import ABCMeta
from collections import UserDict, UserList
from collections.abc import Callable, Container, Mapping
from typing import Any, Final, NamedTuple

_facts = type.__dict__
mro_of: Callable[[type], tuple[type, ...]] = _facts["__mro__"].__get__
namespace_of: Callable[[type], Mapping[str, Any]] = _facts["__dict__"].__get__
name_of: Callable[[type], str] = _facts["__name__"].__get__
qualname_of: Callable[[type], str] = _facts["__qualname__"].__get__
dict_offset: Callable[[type], int] = _facts["__dictoffset__"].__get__
"""0 if instances have no ``__dict__``."""

_module: Callable[[type], Any] = _facts["__module__"].__get__
_MISSING = object()
_C_CODE = (types.WrapperDescriptorType, types.MethodDescriptorType)


def module_of(cls: type) -> str:
    """The name of the module; empty if the class has none, or something else in its place."""
    try:
        name = _module(cls)
    except AttributeError:
        return ""
    return name if type(name) is str else ""


def class_attribute(cls: type, name: str, default: Any = None) -> Any:
    """The attribute of this name of the class or of a base class, as it is in the namespace: a
    property is not evaluated."""
    for base in mro_of(cls):
        attribute = namespace_of(base).get(name, _MISSING)
        if attribute is not _MISSING:
            return attribute
    return default


def has_own_hash(cls: type) -> bool:
    """Whether Python code computes the hash of this class, or compares it. Such code would run
    whenever the class is a key of a dict."""
    metaclass = type(cls)
    if metaclass is type or metaclass is ABCMeta:  # of nearly all classes
        return False
    return any(
        type(class_attribute(metaclass, name)) not in _C_CODE for name in ("__hash__", "__eq__")
    )


MAX_NESTED = 8
"""How many objects may be nested. An object deeper than this is not described."""

MAX_VALUES = 2_000
"""How many values one object of an output may hold, at all depths together. To read them takes time
in the call that is recorded."""

_MAX_BESIDE = 16
_MAX_NAME = 1000
_PLAIN_TENSORS = frozenset({"Tensor", "Parameter"})
_NOTED = frozenset({"_is_buffer", "_is_hf_initialized", "_is_param", "persistent"})
_WORD = 8
_BARE = object.__basicsize__
_MADE_BY_C = (types.GetSetDescriptorType, types.MemberDescriptorType)
_HEAP_TYPE = 1 << 9  # of a class that a class statement made, and of a few others
_flags, _item_size, _basic_size, _weakref_offset = (
    type.__dict__[name].__get__
    for name in ("__flags__", "__itemsize__", "__basicsize__", "__weakrefoffset__")
)
_STATELESS = "its state is not in Python attributes"


class Attributes(NamedTuple):
    """The attributes of an object in the order in which they were set, slots last. If the object
    cannot be described, no attributes and the reason."""

    attributes: dict[str, Any]
    reason: str | None = None


def attributes_of(value: object) -> Attributes:
    """The state of an object: its ``__dict__``, and the values of its ``__slots__``.

    No property, ``__getattr__`` or other code of the class runs. Names with two underscores on both
    sides are left out: libraries use them for their own purposes.
    """
    cls: Any = type(value)
    reason, slots = _slots_or_reason(cls)
    if reason is not None:
        return Attributes({}, reason)
    state = dict_of(value) or {}
    if len(state) > MAX_VALUES:
        return Attributes({}, f"more than {MAX_VALUES} values in one object")
    attributes: dict[str, Any] = dict.copy(state)  # in one step: another thread may set attributes
    if any(type(name) is not str for name in attributes):
        return Attributes({}, "attributes whose names are not texts")
    for name, slot in slots.items():
        try:
            attributes.setdefault(name, slot.__get__(value))
        except AttributeError:  # declared, but not set
            continue
    return Attributes(
        {name: value_there for name, value_there in attributes.items() if not _is_machinery(name)}
    )


def names_beside(
    value: object, described: Container[str] = (), *, none_is_absent: bool = False
) -> tuple[str, ...]:
    """The names of the attributes (in ``__dict__`` and slots) that an object has beside what is
    described of it: the elements of a list, the fields of a dataclass. At most the first 16.

    Args:
        value: an instance of any class. No code of the class runs.
        described: the names that are described.
        none_is_absent: whether an attribute that is None is left out.
    """
    cls: Any = type(value)
    state = dict_of(value)
    slots = slots_of(cls)
    if not state and not slots:
        return ()
    names: list[str] = []
    for name, attribute in dict.copy(state or {}).items():
        if len(names) >= _MAX_BESIDE:
            break
        if attribute is None and none_is_absent:
            continue
        if type(name) is not str or len(name) > _MAX_NAME:
            names.append("?")
        elif name not in described and not _is_machinery(name):
            names.append(name)
    for name, slot in slots.items():
        if name in described or _is_machinery(name):
            continue
        try:
            slot.__get__(value)
        except AttributeError:  # declared, but not set
            continue
        names.append(name)
    return tuple(dict.fromkeys(names))[:_MAX_BESIDE]


def names_on_tensor(value: Any) -> tuple[str, ...]:
    """The names of the attributes that were set on a tensor, without the notes of torch and
    transformers, which say nothing about the value, and the state of torch's own subclasses."""
    cls = type(value)
    if module_of(cls).partition(".")[0] == "torch" and name_of(cls) not in _PLAIN_TENSORS:
        return ()
    names = names_beside(value)
    return tuple(n for n in names if n not in _NOTED and not n.startswith("_dynamo"))


def is_in_its_module(cls: type) -> bool:
    """Whether a class is in its module under its name. A class that a call creates is not, and may
    contain values of the call."""
    current: Any = sys.modules.get(module_of(cls))
    for part in qualname_of(cls).split("."):
        if issubclass(type(current), type):
            current = namespace_of(current).get(part)
        elif issubclass(type(current), types.ModuleType):
            current = types.ModuleType.__getattribute__(current, "__dict__").get(part)
        else:
            return False
    return current is cls


@functools.lru_cache(maxsize=1024)
def _slots_or_reason(cls: type[Any]) -> tuple[str | None, dict[str, Any]]:
    """Why objects of a class cannot be described (None if they can), and the slots of the class."""
    module = module_of(cls).partition(".")[0]
    if module in sys.stdlib_module_names and module != "argparse":
        return "of a class of Python's own library", {}
    slots = slots_of(cls)
    is_readable = dict_getter(cls) is not None or not dict_offset(cls)
    return (None if is_readable and not _has_hidden_state(cls, len(slots)) else _STATELESS), slots


def _is_machinery(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _slots_of(cls: Any) -> dict[str, Any]:
    return {
        name: descriptor
        for base in mro_of(cls)
        if _flags(base) & _HEAP_TYPE and "__slots__" in namespace_of(base)
        for name, descriptor in namespace_of(base).items()
        if type(descriptor) is types.MemberDescriptorType
    }


slots_of: Callable[[type], dict[str, Any]] = functools.lru_cache(maxsize=1024)(_slots_of)
"""The descriptors that ``__slots__`` of a class and its bases made. Classes of C code have members
that look the same, and are left out. The dict is remembered: do not change it."""


def _has_hidden_state(cls: type, slots: int) -> bool:
    """Whether an instance has memory for more than a ``__dict__``, weak references and slots. In
    this way :mod:`copyreg` finds the classes that cannot be copied by their attributes."""
    known = _BARE + _WORD * slots
    has_dict = dict_offset(cls) != 0
    known += _WORD * (dict_offset(cls) > 0) + _WORD * (_weakref_offset(cls) > 0)
    is_plain = has_dict or slots > 0
    return not is_plain or _item_size(cls) != 0 or _basic_size(cls) > known


def dict_of(value: object) -> dict[str, Any] | None:
    """The instance's dict, also if its class has a property with the name ``__dict__``; None if it
    has none."""
    getter = dict_getter(type(value))
    attributes = None if getter is None else getter.__get__(value)
    return attributes if issubclass(type(attributes), dict) else None


def _dict_getter(cls: Any) -> Any:
    for base in mro_of(cls):
        descriptor = namespace_of(base).get("__dict__")
        if type(descriptor) in _MADE_BY_C:
            return descriptor
    return None


dict_getter: Callable[[type], Any] = functools.lru_cache(maxsize=1024)(_dict_getter)
"""The descriptor that gives the dict of an instance, made by C code; None if there is none."""


WRAPPERS: tuple[type, ...] = (UserDict, UserList, types.MappingProxyType)
"""Classes that keep one dict or list, which is all of their state to a program."""

_ABSTRACT = (collections.abc.Mapping, collections.abc.Sequence)
_BUILT_IN = (dict, list, tuple, str, bytes, range, memoryview, *WRAPPERS)


def wrapped_in(value: Any) -> Any:
    """The dict or list in an instance of one of :data:`WRAPPERS`; None if it has another
    container."""
    cls = type(value)
    if cls is types.MappingProxyType:
        container = next(iter(gc.get_referents(value)), None)  # a view shows it in no other way
        return container if issubclass(type(container), dict) else None
    kind = dict if issubclass(cls, UserDict) else list
    container = (dict_of(value) or {}).get("data")
    return container if issubclass(type(container), kind) else None


def _is_wrapped(cls: type) -> bool:
    bases = mro_of(cls)
    return any(base in bases for base in _ABSTRACT) and not any(base in bases for base in _BUILT_IN)


is_wrapped: Callable[[type], bool] = functools.lru_cache(maxsize=1024)(_is_wrapped)
"""Whether a class is a mapping or a sequence that is written in Python around containers in its
attributes. Only the bases are looked at: a class may decide itself what is registered."""


NESTED_TENSOR: Final = "torch.nested:NestedTensor"
"""The type name that nested tensors of the jagged layout have on a tape."""

JAGGED_DIM: Final = "jagged_dim"

JAGGED_FIELDS: Final = ("values", "offsets", "lengths", JAGGED_DIM, "requires_grad")
"""Its parts; ``lengths`` and ``requires_grad`` may be absent."""


def is_jagged_class(cls: type) -> bool:
    """Whether this is torch's class of nested tensors in the jagged layout, and no subclass."""
    is_named_so = name_of(cls) == "NestedTensor" and module_of(cls).startswith("torch.nested.")
    return is_named_so and is_in_its_module(cls)


def jagged_parts(value: Any, *, of_input: bool) -> dict[str, Any] | None:
    """The parts of a nested tensor in the jagged layout, read without an operator of torch; None
    if it has other attributes than those of the torch that we know.

    Args:
        value: an instance of a class that :func:`is_jagged_class` knows.
        of_input: whether it is an argument. It is irrelevant whether a result requires a gradient.
    """
    state = dict_of(value) or {}
    values: Any = state.get("_values")
    offsets: Any = state.get("_offsets")
    lengths, dim = state.get("_lengths"), state.get("_ragged_idx")
    if type(dim) is not int or not all(map(_is_whole, (values, offsets))):
        return None
    parts = {"values": values, "offsets": offsets}
    if lengths is not None:
        if not _is_whole(lengths):
            return None
        parts["lengths"] = lengths
    parts[JAGGED_DIM] = dim
    # The values of a nested tensor that is a leaf of autograd do not require a gradient themselves.
    if of_input and value.requires_grad and not values.requires_grad:
        parts["requires_grad"] = True
    return parts


def _is_whole(part: Any) -> bool:
    """Whether a part is a tensor, and not a nested one."""
    return hasattr(part, "untyped_storage") and not part.is_nested
