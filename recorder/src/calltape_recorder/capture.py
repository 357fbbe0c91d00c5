"""Arguments to tokens: what is in a call, as a flat tuple that is equal for equal structures.

The walk appends one token per node in document order and puts what changes from call to call
beside it: tensors (and arrays), and scalars. Equal token tuples mean equal structures, so that the
document of a structure is built and validated once (:mod:`calltape_recorder.structures`).

Tokens are: a text for leaves, scalars and fixed values; ``(kind, ...)`` for everything else, with
the number of children, keys or field names, and the class where the format notes one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import types
from collections import UserDict
from collections.abc import Container, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import SUPPORTED_NODES

from calltape_recorder.known_classes import is_cache, is_named_tuple, is_record
from calltape_recorder.scalars import (
    Visitor,
    Walk,
    beside,
    boolean,
    byte_string,
    class_itself,
    complex_number,
    constant,
    ellipsis,
    enum_member,
    floating,
    integer,
    none,
    numpy_visitor,
    opaque,
    opaque_because,
    subclassed,
    tensor,
    text,
)
from calltape_schema.attributes import (
    MAX_NESTED,
    MAX_VALUES,
    attributes_of,
    names_beside,
    slots_of,
)
from calltape_schema.interning import MAX_DEPTH, MAX_NODES
from calltape_schema.tree import (
    MAX_ALIKE,
    MAX_KEY_CHARACTERS,
    MAX_KEY_PARTS,
    are_distinct,
    fits_as_key,
)

__all__ = ["Capture", "capture_inputs", "capture_output"]

# Below the format's own limits, because the root and a custom node's context take levels as well.
_MAX_DEPTH = MAX_DEPTH - 8
_MAX_TOKENS = MAX_NODES - 1000
_MAX_NAME = 1000
_MAX_CLASSES = 10_000

_KEY_TYPES = frozenset({str, int, float, bool, bytes, type(None)})
_LONG_TYPES = frozenset({str, int, bytes})


class Capture(NamedTuple):
    """One side of a call: structure tokens, the tensors and arrays in order, the scalars."""

    tokens: tuple[Any, ...]
    leaves: list[Any]
    scalars: list[Any]


def capture_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Capture:
    """The root of inputs: the tuple of positional arguments and the dict of named ones."""
    leaves = [*args, *kwargs.values()]
    for value in leaves:
        if type(value) is not _Tensor:
            break
    else:
        if len({id(value) for value in leaves}) == len(leaves):
            return _new(Capture, (_flat_tokens(len(args), tuple(kwargs)), leaves, _NO_SCALARS))
    walk = Walk(_MAX_TOKENS)
    tokens = walk.tokens
    # Not through the visitors: these two exist for this call only, so no cycle leads here.
    tokens += ("inputs", ("tuple", len(args), None))
    if len(leaves) > _MAX_TOKENS:
        raise ValueError(f"{len(leaves)} arguments")
    for value in args:
        (_visitors.get(type(value)) or _visitor_of(value))(walk, value)
    tokens.append(("dict", tuple(kwargs), None))
    for value in kwargs.values():
        (_visitors.get(type(value)) or _visitor_of(value))(walk, value)
    return _new(Capture, (tuple(tokens), walk.leaves, walk.scalars))


def capture_output(value: Any) -> Capture:
    """The root of outputs: what the model returned. Objects of any class are described by their
    attributes, because results can only be compared where they are (docs/decisions/0028)."""
    if type(value) is _Tensor and not value.__dict__:
        return _new(Capture, (_ONE_TENSOR, [value], _NO_SCALARS))
    walk = Walk(_MAX_TOKENS, nested=0)
    walk.tokens.append("outputs")
    (_visitors.get(type(value)) or _visitor_of(value))(walk, value)
    return _new(Capture, (tuple(walk.tokens), walk.leaves, walk.scalars))


_Tensor = torch.Tensor
_new = tuple.__new__  # of a named tuple: cheaper than calling the class
_NO_SCALARS: list[Any] = []
_ONE_TENSOR = ("outputs", "tensor")


@functools.lru_cache(maxsize=256)
def _flat_tokens(count: int, names: tuple[str, ...]) -> tuple[Any, ...]:
    """Tokens of a call whose arguments are distinct tensors and nothing else."""
    tensors = ("tensor",) * (count + len(names))
    return (
        "inputs", ("tuple", count, None), *tensors[:count],
        ("dict", names, None), *tensors[count:],
    )  # fmt: skip


# --- containers --------------------------------------------------------------------------------


def _enter(walk: Walk, value: Any, count: int) -> bool:
    """Whether a container's children may be walked; if not, a placeholder stands for it."""
    if id(value) in walk.path:
        opaque(walk, value, "contains itself")
    elif walk.depth >= _MAX_DEPTH:
        opaque(walk, value, f"nested deeper than {_MAX_DEPTH} levels")
    elif len(walk.tokens) + len(walk.scalars) + count > walk.limit:
        most, where = (_MAX_TOKENS, "call") if not walk.nested else (MAX_VALUES, "object")
        opaque(walk, value, f"more than {most} values in one {where}")
    else:
        walk.path.add(id(value))
        walk.depth += 1
        return True
    return False


def _children(walk: Walk, value: Any, children: Iterable[Any]) -> None:
    for child in children:
        (_visitors.get(type(child)) or _visitor_of(child))(walk, child)
    walk.depth -= 1
    walk.path.discard(id(value))


def _beside(
    walk: Walk, value: Any, known: Container[str] = (), *, none_is_absent: bool = False
) -> None:
    """Notes what an output has in attributes beside what is described of it."""
    if walk.nested is not None and not walk.context:
        beside(walk, names_beside(value, known, none_is_absent=none_is_absent))


def _sequence(kind: str, typed: bool = False) -> Visitor:
    def visitor(walk: Walk, value: Any) -> None:
        # A copy first: another thread may append while its children are walked.
        children = tuple(base.__iter__(value) if typed else value)
        if _enter(walk, value, len(children)):
            if typed:
                _beside(walk, value)
            walk.tokens.append((kind, len(children), type(value) if typed else None))
            _children(walk, value, children)

    base: Any = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}.get(kind)
    return visitor


def _parts(kind: str) -> Visitor:
    def visitor(walk: Walk, value: Any) -> None:
        if _enter(walk, value, 3):
            walk.tokens.append((kind, 3, None))
            _children(walk, value, (value.start, value.stop, value.step))

    return visitor


def _key_fits(key: Any) -> bool:
    if type(key) is tuple:
        return len(key) <= MAX_KEY_PARTS and all(map(_part_fits, key))
    return _part_fits(key)


def _part_fits(part: Any) -> bool:
    return type(part) in _KEY_TYPES and fits_as_key(part)


def _key_token(key: Any) -> Any:
    """Tells apart keys that are equal in Python but not on a tape: 1, 1.0 and True."""
    if type(key) is tuple:
        return ("tuple", *(_key_token(part) for part in key))
    return key if type(key) is str else (type(key).__name__, repr(key), key)


def _mapping(walk: Walk, value: Any, items: list[tuple[Any, Any]], cls: type | None) -> None:
    are_text = True
    for key, _ in items:
        if type(key) is not str or len(key) > MAX_KEY_CHARACTERS:
            are_text = False
            if not _key_fits(key):
                what = "a long key" if type(key) in _LONG_TYPES else "a key"
                opaque(walk, value, f"{what} of type {type(key).__name__}"[:_MAX_NAME])
                return
    if not are_text and not are_distinct([key for key, _ in items]):
        opaque(walk, value, f"more than {MAX_ALIKE} keys of one hash")
        return
    if _enter(walk, value, len(items)):
        if cls is not None:
            _beside(walk, value, ("data",) if issubclass(cls, UserDict) else ())
        walk.tokens.append(("dict", tuple(_key_token(key) for key, _ in items), cls))
        _children(walk, value, [child for _, child in items])


def _dict(walk: Walk, value: dict[Any, Any]) -> None:
    _mapping(walk, value, list(value.items()), None)


def _dict_subclass(walk: Walk, value: Any) -> None:
    _mapping(walk, value, list(dict.items(value)), type(value))


def _user_dict(walk: Walk, value: Any) -> None:
    _mapping(walk, value, list(dict.items(vars(value)["data"])), type(value))


def _fields(
    walk: Walk, value: Any, kind: str, names: tuple[Any, ...], children: tuple[Any, ...],
    known: Container[str] | None = None,
) -> None:  # fmt: skip
    """Describes an object by some of its attributes, or by all where ``known`` is None."""
    if not _names_fit(names):
        opaque(walk, value, "attributes whose names are not short texts")
    elif _enter(walk, value, len(names)):
        if known is not None:
            # Of a model output of transformers a field is not there, or None.
            _beside(walk, value, known, none_is_absent=isinstance(value, dict))
        walk.tokens.append((kind, names, type(value)))
        _children(walk, value, children)


@functools.lru_cache(maxsize=1024)
def _names_fit(names: tuple[Any, ...]) -> bool:
    return all(type(name) is str and len(name) <= _MAX_NAME for name in names)


def _named_tuple(walk: Walk, value: Any) -> None:
    names = type(value)._fields
    children = tuple(tuple.__iter__(value))
    if len(names) == len(children):
        _fields(walk, value, "namedtuple", names, children, ())
    else:
        opaque(walk, value, "a named tuple whose fields do not fit")


def _dataclass(walk: Walk, value: Any) -> None:
    if isinstance(value, dict):  # transformers' ModelOutput: the fields that are present
        present = dict(dict.items(value))
    else:
        present = {}
        for declared in dataclasses.fields(value):
            with contextlib.suppress(AttributeError):  # declared, but not set
                present[declared.name] = object.__getattribute__(value, declared.name)
    _fields(walk, value, "dataclass", tuple(present), tuple(present.values()), present)


def _object(walk: Walk, value: Any) -> None:
    attributes = dict(vars(value))  # at one moment: another thread may set some
    known = attributes if slots_of(type(value)) else None
    _fields(walk, value, "object", tuple(attributes), tuple(attributes.values()), known)


def _registered(walk: Walk, value: Any) -> None:
    """A class that the host registered with torch's pytree, flattened as it was registered."""
    definition = SUPPORTED_NODES.get(type(value))
    if definition is None:
        _unknown(walk, value)
        return
    try:
        flattened, context = definition.flatten_fn(value)
        children = tuple(flattened)
    except Exception as error:
        opaque(walk, value, f"its registered flatten function raised {type(error).__name__}")
        return
    if not _enter(walk, value, len(children) + 1):
        return
    walk.tokens.append(("custom", len(children), type(value)))
    walk.context += 1
    (_visitors.get(type(context)) or _visitor_of(context))(walk, context)
    walk.context -= 1
    _children(walk, value, children)


def _unknown(walk: Walk, value: Any) -> None:
    """An object of any other class: among outputs what it holds, without running its code."""
    if walk.nested is None or walk.context:
        opaque(walk, value, "a class that calltape does not know")
        return
    if walk.nested >= MAX_NESTED:
        opaque(walk, value, f"within {MAX_NESTED} objects")
        return
    attributes, reason = attributes_of(value)
    if reason is not None:
        opaque(walk, value, reason)
        return
    outside = walk.limit
    if not walk.nested:
        walk.limit = min(outside, len(walk.tokens) + len(walk.scalars) + MAX_VALUES)
    walk.nested += 1
    _fields(walk, value, "object", tuple(attributes), tuple(attributes.values()))
    walk.nested -= 1
    walk.limit = outside


# --- which visitor for which class -------------------------------------------------------------

_tuple_subclass = _sequence("tuple", typed=True)

_visitors: dict[type, Visitor] = {
    torch.Tensor: tensor,
    torch.nn.Parameter: tensor,
    type(None): none,
    type(Ellipsis): ellipsis,
    bool: boolean,
    int: integer,
    float: floating,
    complex: complex_number,
    str: text,
    bytes: byte_string,
    bytearray: subclassed(bytes, byte_string),
    list: _sequence("list"),
    tuple: _sequence("tuple"),
    set: _sequence("set"),
    frozenset: _sequence("frozenset"),
    dict: _dict,
    torch.Size: _sequence("size"),
    slice: _parts("slice"),
    range: _parts("range"),
    torch.dtype: constant("dtype"),
    torch.device: constant("device"),
    torch.layout: constant("layout"),
    torch.memory_format: constant("memory_format"),
    types.SimpleNamespace: _object,
}

# First match wins. int.__add__ and the like give the plain value whatever a subclass overrides.
_by_base: tuple[tuple[type, Visitor], ...] = (
    (torch.Tensor, tensor),
    (torch.nn.Module, opaque_because("a module")),
    (enum.Enum, enum_member),
    (int, subclassed(lambda value: int.__add__(value, 0), integer)),
    (float, subclassed(float.__float__, floating)),
    (complex, subclassed(lambda value: complex.__add__(value, 0), complex_number)),
    (str, subclassed(lambda value: str.__getitem__(value, slice(None)) + "", text)),
    (bytes, subclassed(lambda value: bytes.__getitem__(value, slice(None)), byte_string)),
    (type, class_itself),
)
_by_container: tuple[tuple[type, Visitor], ...] = (
    (dict, _dict_subclass),
    (UserDict, _user_dict),
    (list, _sequence("list", typed=True)),
    (set, _sequence("set", typed=True)),
    (frozenset, _sequence("frozenset", typed=True)),
)


def _visitor_of(value: Any) -> Visitor:
    """Decides once per class, by the class alone: ``isinstance`` would run the host's code."""
    cls = type(value)
    if cls in SUPPORTED_NODES and not is_cache(cls) and not is_record(cls):
        # Not remembered: a registration can be taken back.
        known = _known_container(cls)
        plain = known in (_named_tuple, _tuple_subclass, _dict_subclass)
        return known if known is not None and plain else _registered
    visitor = _classify(cls)
    if visitor is not _registered and len(_visitors) < _MAX_CLASSES:
        _visitors[cls] = visitor
    return visitor


def _classify(cls: type) -> Visitor:
    for base, visitor in _by_base:
        if issubclass(cls, base):
            return visitor
    if cls.__module__ == "numpy":
        scalar = numpy_visitor(cls)
        if scalar is not None:
            return scalar
    # Only instances with a __dict__: one with __slots__ has no attributes to list.
    if is_cache(cls) and cls.__dictoffset__ and not issubclass(cls, dict):
        return _object
    if is_record(cls):
        return _dataclass
    return _known_container(cls) or _registered


def _known_container(cls: type) -> Visitor | None:
    if is_named_tuple(cls):
        return _named_tuple
    if issubclass(cls, tuple):
        return _tuple_subclass
    for base, visitor in _by_container:
        if issubclass(cls, base):
            # Of the registered ones only the standard library's two are plain dicts.
            registered = cls in SUPPORTED_NODES and cls.__module__ != "collections"
            return None if registered else visitor
    return None
