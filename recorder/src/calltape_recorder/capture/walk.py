"""Turns arguments and results into tokens: a flat tuple that is equal for equal structures.

The walk appends one token per node, in the order of the document. Tensors, arrays and scalars
change from call to call, so they go into lists of their own. Equal tuples of tokens mean equal
structures, so the document of a structure is built and validated once
(:mod:`calltape_recorder.capture.structures`).

The token of a leaf, a scalar or a fixed value is a text. Every other token is ``(kind, ...)``, with
the number of children, keys or field names, and with the class if the format notes one. Tokens that
repeat many times in a row are noted once, followed by ``("again", how many tokens, how often)``.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import itertools
import types
from collections import OrderedDict, UserDict, UserList
from collections.abc import Callable, Container, Iterable
from itertools import chain, compress, cycle, repeat
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils._pytree import SUPPORTED_NODES

from calltape_recorder.bounds import MAX_CLASSES, MAX_TREE_DEPTH, MAX_TREE_NODES
from calltape_recorder.capture.contexts import Context, Traced, context_now, is_proxy
from calltape_recorder.capture.names import (
    ModuleNames,
    fields_of,
    is_named_tuple,
    is_record,
    key_token,
    names_fit,
    why_unfit,
)
from calltape_recorder.capture.scalars import (
    Visitor,
    Walk,
    always,
    beside,
    boolean,
    byte_string,
    class_itself,
    complex_number,
    constant,
    enum_member,
    floating,
    integer,
    jagged,
    numpy_visitor,
    opaque,
    opaque_because,
    stand_in,
    subclassed,
    tensor,
    text,
)
from calltape_recorder.threads import is_interrupt
from calltape_schema.bounds import MAX_KEY_CHARACTERS
from calltape_schema.cache_classes import is_cache
from calltape_schema.objects import (
    MAX_NESTED,
    MAX_VALUES,
    attributes_of,
    class_attribute,
    dict_getter,
    has_own_hash,
    is_jagged_class,
    is_wrapped,
    module_of,
    name_of,
    names_beside,
    slots_of,
    wrapped_in,
)

Walked = tuple[tuple[Any, ...], list[Any], list[Any]]
"""The tokens of one side of a call, its tensors and arrays in order, and its scalars."""


def capture_inputs(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    module_names: ModuleNames | None = None,
    *,
    is_training: bool = False,
) -> Walked:
    """Captures the inputs: a tuple of the positional arguments, and a dict of the named ones. The
    first token is the context of the call.

    Args:
        args, kwargs: of the call.
        module_names: the names of modules that are keys of dicts.
        is_training: whether the model is in training mode.

    Raises:
        Traced: one is a tracer of torch.fx.
        ValueError: there are more arguments than a tape can hold, or two have one name.
    """
    context, names = context_now(is_training), tuple(kwargs)
    leaves = [*args, *kwargs.values()]
    if len(leaves) > MAX_TREE_NODES:
        raise ValueError(f"{len(leaves)} arguments")
    for name in names:
        if type(name) is not str:
            # A text of the application's own class may have methods of its own.
            names = tuple([str.__getitem__(name, slice(None)) + "" for name in names])
            if len(set(names)) < len(names):
                raise ValueError("two keywords of one name")
            break
    for value in leaves:
        if type(value) is not _Tensor:
            break
    else:
        if len({id(value) for value in leaves}) == len(leaves):
            tokens = _flat_tokens(context, len(args), names)
            return tokens, leaves, _NO_SCALARS
    walk = Walk(MAX_TREE_NODES, module_names=module_names)
    tokens_so_far = walk.tokens
    # The visitors of containers are not needed for these two: no cycle leads to them, because they
    # exist only for this call.
    tokens_so_far += (context, ("tuple", len(args), None))
    for value in args:
        (_visitors.get(id(type(value))) or _visitor_of(value))(walk, value)
    tokens_so_far.append(("dict", names, None))
    for value in kwargs.values():
        (_visitors.get(id(type(value))) or _visitor_of(value))(walk, value)
    return tuple(tokens_so_far), walk.leaves, walk.scalars


def capture_output(value: Any) -> Walked:
    """Captures the outputs: what the model returned. Objects of any class are described by their
    attributes, so that their values can be compared (docs/decisions/guards-and-verdicts.md)."""
    if type(value) is _Tensor and not value.__dict__:
        return _ONE_TENSOR, [value], _NO_SCALARS
    walk = Walk(MAX_TREE_NODES, nested=0)
    walk.tokens.append("outputs")
    (_visitors.get(id(type(value))) or _visitor_of(value))(walk, value)
    return tuple(walk.tokens), walk.leaves, walk.scalars


_Tensor, _Device = torch.Tensor, torch.device
_attributes = attrgetter("__dict__")
_SINGLE = frozenset(map(id, (bool, type(None), type(Ellipsis), torch.dtype, torch.layout)))
"""Classes of constants of which there is one object per value."""
_NO_SCALARS: list[Any] = []
_ONE_TENSOR = ("outputs", "tensor")


@functools.lru_cache(maxsize=256)
def _flat_tokens(context: Context, count: int, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The tokens of a call whose arguments are distinct tensors and nothing else."""
    tensors = ("tensor",) * (count + len(names))
    return (
        context, ("tuple", count, None), *tensors[:count],
        ("dict", names, None), *tensors[count:],
    )  # fmt: skip


def _enter(walk: Walk, value: Any, count: int) -> bool:
    """Whether the children of a container may be walked. If not, a placeholder is noted for it."""
    if id(value) in walk.path:
        opaque(walk, value, "contains itself")
    elif len(walk.path) >= MAX_TREE_DEPTH:
        opaque(walk, value, f"nested deeper than {MAX_TREE_DEPTH} levels")
    elif count > walk.room():
        _note_too_long(walk, value)
    else:
        walk.path.add(id(value))
        return True
    return False


def _note_too_long(walk: Walk, value: Any) -> None:
    most, where = (MAX_TREE_NODES, "call") if not walk.nested else (MAX_VALUES, "object")
    opaque(walk, value, f"more than {most} values in one {where}")


def _children(walk: Walk, value: Any, children: Iterable[Any]) -> None:
    for child in children:
        (_visitors.get(id(type(child))) or _visitor_of(child))(walk, child)
    walk.path.discard(id(value))


def _beside(
    walk: Walk, value: Any, described: Container[str] = (), *, none_is_absent: bool = False
) -> None:
    """Notes the names of attributes that an output has and the tape does not describe."""
    if walk.nested is not None and not walk.context:
        beside(walk, names_beside(value, described, none_is_absent=none_is_absent))


def _sequence(kind: str, typed: bool = False) -> Visitor:
    def visitor(walk: Walk, value: Any) -> None:
        if _enter(walk, value, base.__len__(value) if typed else len(value)):
            # The walk goes over a copy: another thread may append meanwhile.
            children = tuple(base.__iter__(value) if typed else value)
            if typed:
                _beside(walk, value)
            walk.tokens.append((kind, len(children), type(value) if typed else None))
            if len(children) >= FEWEST_SIMILAR and not walk.context:
                children = children[_similar(walk, children) :]
            _children(walk, value, children)

    base: Any = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}.get(kind)
    return visitor


# Many similar children: tensors, pairs of them, or objects with the same attributes, such as the
# layers of a cache. The first one is walked, and the others are compared with it, column by column,
# because one step of the interpreter compares a whole column. Measured within `generate`, where the
# caches of the processor are cold, this takes two thirds of the time for a cache of 64 layers, as
# much for one of 32, and longer for fewer.

FEWEST_SIMILAR = 32


def _similar(walk: Walk, children: tuple[Any, ...]) -> int:
    """Notes children that are all similar to the first one.

    Returns:
        How many children are noted: all; one; or none, if they are not of one class that can be
        read in this way.
    """
    count = len(children)
    cls = type(children[0])
    room = walk.room()
    values_of_all = _values_of_all(cls, children, room)
    if values_of_all is None:
        return 0
    names, width, values = values_of_all
    tokens, leaves = walk.tokens, walk.leaves
    first_token, first_leaf, scalars = len(tokens), len(leaves), len(walk.scalars)
    _visitors[id(cls)](walk, children[0])
    noted = tokens[first_token:]
    are_tensors = [type(value) is _Tensor for value in values[:width]]
    new_leaves = sum(are_tensors)
    # One token for each value, and one for what holds them: so no tensor has attributes of its own.
    if (
        len(noted) != width + (cls is not _Tensor)
        or (noted.count("tensor"), len(leaves) - first_leaf) != (new_leaves, new_leaves)
        or len(walk.scalars) > scalars
        or len(noted) * count > room
        # Another thread may have changed it since its values were taken.
        or not all(map(is_, leaves[first_leaf:], compress(values[:width], are_tensors)))
        or (names is not None and noted[0] != ("object", names, cls))
    ):
        return 1
    for number, is_tensor in enumerate(are_tensors):
        column = values[number::width]
        first = column[0]
        if is_tensor or type(first) is _Device:
            if not all(map(is_, map(type, column), repeat(type(first)))):
                return 1
            if not is_tensor and column.count(first) < count:
                return 1
        # The same object has the same token everywhere.
        elif id(type(first)) not in _SINGLE or not all(map(is_, column, repeat(first))):
            return 1
    others = [*compress(values[width:], are_tensors * (count - 1))]
    if walk.nested is not None and any(map(_attributes, others)):
        return 1
    new = dict(zip(map(id, others), itertools.count(len(leaves)), strict=False))
    if len(new) < len(others) or not walk.leaf_numbers.keys().isdisjoint(new):
        return 1  # one of them came before
    walk.leaf_numbers.update(new)
    leaves += others
    tokens.append(("again", len(noted), count - 1))
    walk.repeated += len(noted) * (count - 1) - 1
    return count


def _values_of_all(
    cls: type, children: tuple[Any, ...], room: int
) -> tuple[tuple[str, ...] | None, int, list[Any]] | None:
    """The names of the attributes of each child, the number of values per child, and the values of
    all. None if their attributes or classes differ, if the class is of another kind, or if there
    are more values than there is room for."""
    visitor: Any = _visitors.get(id(cls))
    is_object = type(visitor) is _Object and not visitor.has_slots
    if not (cls is _Tensor or cls is tuple or is_object):
        return None
    if not all(map(is_, map(type, children), repeat(cls))):
        return None
    if cls is _Tensor:
        return None, 1, list(children)
    if cls is tuple:
        width = len(children[0])
        if width * len(children) > room or set(map(len, children)) != {width}:
            return None
        return None, width, [*chain.from_iterable(children)]
    states = [*map(visitor.state_of, children)]
    width = len(states[0])
    if width * len(children) > room or set(map(len, states)) != {width}:
        return None
    states = [*map(dict.copy, states)]  # another thread may set some
    names = (*states[0],)
    # The names are the same objects, because they come from code. No method of a name runs.
    are_same = all(map(is_, chain.from_iterable(states), cycle(names)))
    if not are_same or set(map(len, states)) != {width}:
        return None
    return names, width, [*chain.from_iterable(map(dict.values, states))]


def _parts(kind: str) -> Visitor:
    def visitor(walk: Walk, value: Any) -> None:
        if _enter(walk, value, 3):
            walk.tokens.append((kind, 3, None))
            _children(walk, value, (value.start, value.stop, value.step))

    return visitor


def _items(mapping: Any) -> list[tuple[Any, Any]]:
    """What a dict has, in its order."""
    items = list(dict.items(mapping))
    # The order of an OrderedDict is not that of the dict that it is. To ask for it takes the hashes
    # of keys, which are no code of the application where all are texts or ints.
    if issubclass(type(mapping), OrderedDict) and all(
        type(key) is str or type(key) is int for key, _ in items
    ):
        with contextlib.suppress(RuntimeError, KeyError):  # another thread changes it
            places = {id(key): place for place, key in enumerate(OrderedDict.__iter__(mapping))}
            items.sort(key=lambda item: places.get(id(item[0]), len(places)))
    return items


def _mapping(walk: Walk, value: Any, inner: dict[Any, Any] | None = None) -> None:
    """Notes a dict, or an object whose dict is ``inner``."""
    mapping: dict[Any, Any] = value if inner is None else inner
    # To look at a million keys would take half a second.
    if dict.__len__(mapping) > walk.room():
        _note_too_long(walk, value)
        return
    items = _items(mapping)
    for key, _ in items:
        if type(key) is not str or len(key) > MAX_KEY_CHARACTERS:
            if walk.module_names is not None:
                items = walk.module_names.in_place_of_modules(items)
            reason = why_unfit([key for key, _ in items])
            if reason is not None:
                opaque(walk, value, reason)
                return
            break
    if _enter(walk, value, len(items)):
        cls = None if type(value) is dict else type(value)
        if cls is not None:
            _beside(walk, value, ("data",) if issubclass(cls, UserDict) else ())
        keys = tuple([key if type(key) is str else key_token(key) for key, _ in items])
        walk.tokens.append(("dict", keys, cls))
        _children(walk, value, [child for _, child in items])


def _wrapper(walk: Walk, value: Any) -> None:
    """Describes a ``UserDict``, a ``UserList`` or a view of a dict by what it holds."""
    content = wrapped_in(value)
    if content is None:
        opaque(walk, value, "it holds no plain dict or list")
    elif issubclass(type(content), dict):
        _mapping(walk, value, content)
    else:
        children = tuple(list.__iter__(content))
        if _enter(walk, value, len(children)):
            _beside(walk, value, ("data",))
            walk.tokens.append(("list", len(children), type(value)))
            _children(walk, value, children)


def _fields(
    walk: Walk, value: Any, kind: str, names: tuple[Any, ...], children: tuple[Any, ...],
    described: Container[str] | None = None,
) -> None:  # fmt: skip
    """Describes an object by these attributes. ``described`` is None if it has no others."""
    if not names_fit(names):
        opaque(walk, value, "attributes whose names are not short texts")
    elif _enter(walk, value, len(names)):
        if described is not None:
            # In a model output of transformers, a field that is not set is an attribute with None.
            _beside(walk, value, described, none_is_absent=issubclass(type(value), dict))
        walk.tokens.append((kind, names, type(value)))
        _children(walk, value, children)


def _named_tuple(walk: Walk, value: Any) -> None:
    names: tuple[str, ...] = class_attribute(type(value), "_fields")
    children = tuple(tuple.__iter__(value))
    if len(names) == len(children):
        _fields(walk, value, "namedtuple", names, children, ())
    else:
        opaque(walk, value, "a named tuple whose fields do not fit")


def _dataclass(walk: Walk, value: Any) -> None:
    if issubclass(type(value), dict):  # ModelOutput of transformers has only fields that are set
        present = dict(_items(value))
    else:
        present = fields_of(value)
    _fields(walk, value, "dataclass", tuple(present), tuple(present.values()), present)


class _Object:
    """The visitor for objects of a class whose attributes are all of their state.

    Attributes:
        state_of: reads the attributes of one.
        has_slots: whether some of them are slots.
    """

    __slots__ = ("has_slots", "state_of")

    def __init__(self, cls: type) -> None:
        self.state_of: Callable[[Any], dict[str, Any]] = dict_getter(cls).__get__
        self.has_slots = bool(slots_of(cls))

    def __call__(self, walk: Walk, value: Any) -> None:
        state = self.state_of(value)
        if len(state) > walk.room():
            _note_too_long(walk, value)
            return
        attributes = dict.copy(state)  # because another thread may set some meanwhile
        known = attributes if self.has_slots else None
        _fields(walk, value, "object", tuple(attributes), tuple(attributes.values()), known)


def _registered(walk: Walk, value: Any) -> None:
    """Describes an object whose class the application registered with torch's pytree, by the
    registered function."""
    definition = SUPPORTED_NODES.get(type(value))
    if definition is None:
        _unknown(walk, value)
        return
    try:
        flattened, context = definition.flatten_fn(value)
        children = tuple(flattened)
    except BaseException as error:
        if is_interrupt(error):
            raise
        opaque(walk, value, f"its registered flatten function raised {name_of(type(error))}")
        return
    if not _enter(walk, value, len(children) + 1):
        return
    walk.tokens.append(("custom", len(children), type(value)))
    walk.context += 1
    (_visitors.get(id(type(context))) or _visitor_of(context))(walk, context)
    walk.context -= 1
    _children(walk, value, children)


def _proxy(walk: Walk, value: Any) -> None:
    if walk.nested is None:
        raise Traced
    opaque(walk, value, "a tracer")


def _unknown(walk: Walk, value: Any) -> None:
    """Describes an object of any other class by its attributes, without running its code. Among
    inputs this is done with mappings and sequences only: a program cannot be made of any object."""
    of_input = walk.nested is None
    if walk.context or (of_input and not is_wrapped(type(value))):
        opaque(walk, value, "a class that calltape does not know")
        return
    if walk.nested is not None and walk.nested >= MAX_NESTED:
        opaque(walk, value, f"within {MAX_NESTED} objects")
        return
    attributes, reason = attributes_of(value)
    if reason is not None:
        opaque(walk, value, "a class that calltape does not know" if of_input else reason)
        return
    names, values = tuple(attributes), tuple(attributes.values())
    if walk.nested is None:
        _fields(walk, value, "object", names, values)
        return
    outside = walk.limit
    if not walk.nested:
        walk.limit = min(outside, outside - walk.room() + MAX_VALUES)
    walk.nested += 1
    _fields(walk, value, "object", names, values)
    walk.nested -= 1
    walk.limit = outside


_tuple_subclass = _sequence("tuple", typed=True)

_plain_visitors: dict[type, Visitor] = {
    torch.Tensor: tensor,
    torch.nn.Parameter: tensor,
    type(None): always("none"),
    type(Ellipsis): always("ellipsis"),
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
    dict: _mapping,
    torch.Size: _sequence("size"),
    slice: _parts("slice"),
    range: _parts("range"),
    torch.dtype: constant("dtype"),
    torch.device: constant("device"),
    torch.layout: constant("layout"),
    torch.memory_format: constant("memory_format"),
    types.SimpleNamespace: _Object(types.SimpleNamespace),
    types.MappingProxyType: _wrapper,
}
# By the id of the class, because the hash of a class may run code. The classes are held, so that
# no other one gets the id.
_visitors: dict[int, Visitor] = {id(cls): visitor for cls, visitor in _plain_visitors.items()}
_classes: list[type] = list(_plain_visitors)

# The first match decides. int.__add__ and similar methods give the plain value, even if a subclass
# overrides them.
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
    (dict, _mapping),
    (UserDict, _wrapper),
    (UserList, _wrapper),
    (list, _sequence("list", typed=True)),
    (set, _sequence("set", typed=True)),
    (frozenset, _sequence("frozenset", typed=True)),
)


def _visitor_of(value: Any) -> Visitor:
    """The visitor of a value. It is decided once per class, and by the class alone: ``isinstance``
    could run the application's code."""
    cls = type(value)
    if has_own_hash(cls):
        return always(("opaque", stand_in(cls), "a class whose hash is code"))
    if cls in SUPPORTED_NODES and not is_cache(cls) and not is_record(cls):
        # This is not remembered, because the application can undo a registration.
        known = _known_container(cls)
        plain = known in (_named_tuple, _tuple_subclass, _mapping)
        return known if known is not None and plain else _registered
    visitor = _classify(cls)
    if visitor is not _registered and len(_visitors) < MAX_CLASSES:
        _classes.append(cls)
        _visitors[id(cls)] = visitor
    return visitor


def _classify(cls: type) -> Visitor:
    if is_jagged_class(cls):
        return jagged
    for base, visitor in _by_base:
        if issubclass(cls, base):
            return visitor
    scalar = numpy_visitor(cls)
    if scalar is not None:
        return scalar
    if is_proxy(cls):
        return _proxy
    # An instance without a __dict__ (its class has __slots__) has no attributes to list.
    if is_cache(cls) and dict_getter(cls) is not None and not issubclass(cls, dict):
        return _Object(cls)
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
            # Torch registers two classes of the standard library, and they are plain dicts. Any
            # other registered class is flattened by its own function.
            registered = cls in SUPPORTED_NODES and module_of(cls) != "collections"
            return None if registered else visitor
    return None
