"""From the nodes of a spec to Python objects, without running what a tape says.

Takes a node, its tensors and scalars, and the allowed classes; returns the object. No constructor
is called with values of a tape: an instance is made by ``__new__``, and its attributes are set, as
:mod:`copy` does. If something goes wrong with one object, it becomes a
:class:`~calltape_analyzer.pytree.placeholder.Placeholder`, and the rest of the call is rebuilt.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import importlib
import types
from collections import UserDict, UserList
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from calltape_analyzer.pytree.classes import (
    ClassIndex,
    is_named_tuple_of,
    is_never_made,
    known_class,
    registration_of,
)
from calltape_analyzer.pytree.nodes import is_nested_node
from calltape_analyzer.pytree.placeholder import (
    NEVER_MADE,
    NOT_KNOWN,
    NOT_PASSED,
    NOT_REGISTERED,
    Placeholder,
    Unmade,
    withheld_words,
)
from calltape_analyzer.pytree.tensors import nested_tensor, torch_constant
from calltape_schema.bounds import MAX_ALIKE
from calltape_schema.errors import TapeError
from calltape_schema.objects import WRAPPERS, class_attribute, slots_of, wrapped_in
from calltape_schema.tree import (
    BoolNode,
    ClassNode,
    ConstantNode,
    CustomNode,
    DictNode,
    EnumNode,
    FieldsNode,
    Node,
    NoneNode,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    TensorNode,
    are_distinct,
)

__all__ = ["content_of", "filled_list", "filled_mapping", "rebuild"]

_UNSET: dict[str, dict[str, Any]] = {
    "BatchEncoding": {"_encodings": None, "_n_sequences": None},
    "BatchFeature": {"skip_tensor_conversion": None},
}
"""The other attributes of transformers' mappings, as those have them whose data did not come from a
tokenizer: they say how the data came about. By the name of the class that sets them."""


def content_of(value: Any) -> dict[Any, Any] | list[Any] | None:
    """The content of a container of a user's class, as a built-in container; None for any other
    value."""
    if isinstance(value, WRAPPERS):
        wrapped = wrapped_in(value)
        return dict(dict.items(wrapped)) if isinstance(wrapped, dict) else wrapped and list(wrapped)
    if isinstance(value, dict):
        return dict(dict.items(value))
    return list(list.__iter__(value)) if isinstance(value, list) else None


def filled_mapping(cls: Any, pairs: Iterable[tuple[Any, Any]]) -> Any:
    """An instance of a class of mappings that holds these pairs.

    Raises:
        TypeError: the class is none of these.
    """
    if cls is types.MappingProxyType:
        return cls(dict(pairs))
    if issubclass(cls, UserDict):
        mapping = cls.__new__(cls)
        for kind in cls.__mro__:
            if kind.__module__.partition(".")[0] == "transformers":
                vars(mapping).update(_UNSET.get(kind.__name__, {}))
        vars(mapping)["data"] = dict(pairs)
        return mapping
    if not issubclass(cls, dict):
        raise TypeError(f"{cls.__name__} is not a dict")
    base: Any = collections.OrderedDict if issubclass(cls, collections.OrderedDict) else dict
    mapping = cls.__new__(cls)
    for key, value in pairs:
        base.__setitem__(mapping, key, value)
    return mapping


def filled_list(cls: Any, items: Iterable[Any]) -> Any:
    """An instance of a subclass of list, or of ``UserList``, with these elements."""
    new_list = cls.__new__(cls)
    if issubclass(cls, UserList):
        vars(new_list)["data"] = list(items)
    else:
        list.extend(new_list, items)
    return new_list


def rebuild(
    node: Node, tensor: Callable[[int], Any], scalars: Sequence[Any], classes: ClassIndex
) -> Any:
    """The Python object that a node describes.

    Args:
        node: any node of a structure.
        tensor: returns the value of a leaf by its number.
        scalars: of the same tree as the node.
        classes: no other classes are used.

    Raises:
        TapeError: ``invalid`` if the scalars do not fit the structure, and whatever ``tensor``
            raises.
    """
    return _Rebuilding(tensor, scalars, classes).value(node)


class _Rebuilding:
    def __init__(
        self, tensor: Callable[[int], Any], scalars: Sequence[Any], classes: ClassIndex
    ) -> None:
        self.tensor = tensor
        self.scalars = scalars
        self.classes = classes

    def value(self, node: Node) -> Any:
        build = _BUILDERS[type(node)]
        return build(self, node)

    def values(self, nodes: Sequence[Node]) -> tuple[Any, ...]:
        return tuple(self.value(node) for node in nodes)

    def tensor_node(self, node: TensorNode) -> Any:
        value = self.tensor(node.leaf)
        if node.kind == "ndarray":
            # NumPy is missing, or has no such dtype or no array of this size; or it was not kept.
            with suppress(AttributeError, RuntimeError, TypeError, ValueError):
                return value.numpy()
        return value

    def scalar_node(self, node: ScalarNode) -> Any:
        value = self.scalars[node.scalar]
        if node.kind == "complex" and type(value) is tuple:
            value = complex(*value)
        base: Any = _SCALAR_TYPES[node.kind]
        # While tracing, a symbol stands for a number.
        if type(value) is not base and type(value).__name__ not in ("SymInt", "SymFloat"):
            raise TapeError(
                "invalid", f"a {type(value).__name__} where the structure says {base.__name__}"
            )
        cls = self.class_of(node.type) if node.type and type(value) is base else None
        try:
            if cls is not None and cls.__module__ == "numpy":
                return cls(value)  # not each is a subclass, and none can be made by its base
            if cls is not None and issubclass(cls, base):
                return base.__new__(cls, value)
        except Exception:  # the class refuses
            pass
        return value  # a scalar is its value: it can be given without the subclass

    def enum_node(self, node: EnumNode) -> Any:
        cls = self.classes.get(node.type)
        if cls is None or not issubclass(cls, enum.Enum):
            return Placeholder(node.type, self.why_not(node.type), ("value",), (node.value,))
        member = cls.__members__.get(node.name)
        if member is not None:
            return member

        def combined() -> Any:
            # Such as flags that no member has together. Code of the class decides what it is.
            if not self.classes.is_named(node.type):
                raise TypeError(f"{cls.__name__} has no member {node.name!r}; name the class")
            return cls(node.value)

        return self._guarded(node.type, ("value",), (node.value,), combined)

    def class_node(self, node: ClassNode) -> Any:
        cls = self.classes.get(node.type)
        return cls if cls is not None else Placeholder(node.type, self.why_not(node.type))

    def opaque_node(self, node: OpaqueNode) -> Placeholder:
        words = withheld_words(node, self.scalars)
        return Placeholder(node.type, words or node.reason, withheld=words is not None)

    def sequence_node(self, node: SequenceNode) -> Any:
        items = self.values(node.children)
        names = tuple(range(len(items)))
        make = _SEQUENCES[node.kind]
        if node.type is None:
            return self._guarded(f"builtins:{node.kind}", names, items, lambda: make(items))
        cls = self.class_of(node.type)
        if cls is None:
            return Placeholder(node.type, self.why_not(node.type), names, items)
        return self._guarded(node.type, names, items, lambda: _sequence_of(cls, items))

    def dict_node(self, node: DictNode) -> Any:
        items = self.values(node.children)
        keys: list[Any] = list(node.keys)
        for i in node.modules or ():
            keys[i] = self.classes.key(keys[i])
        pairs = list(zip(keys, items, strict=True))
        if node.type is None:
            return dict(pairs)
        cls = self.class_of(node.type)
        if cls is None:
            return Placeholder(node.type, self.why_not(node.type), node.keys, items)
        return self._guarded(node.type, node.keys, items, lambda: filled_mapping(cls, pairs))

    def fields_node(self, node: FieldsNode) -> Any:
        items = self.values(node.children)
        if is_nested_node(node):
            parts = dict(zip(node.fields, items, strict=True))
            return self._guarded(node.type, node.fields, items, lambda: nested_tensor(parts))
        cls = self.class_of(node.type)
        if cls is None:
            cls = self.classes.stand_in(node.type, node.kind, node.fields)
        if cls is None:
            return Placeholder(node.type, self.why_not(node.type), node.fields, items)
        state = dict(zip(node.fields, items, strict=True))
        make = _FIELDS[node.kind]
        may_call = self.classes.is_named(node.type) or known_class(node.type) is cls
        return self._guarded(node.type, node.fields, items, lambda: make(cls, state, may_call))

    def custom_node(self, node: CustomNode) -> Any:
        items = self.values(node.children)
        names = tuple(range(len(items)))
        # A registration with torch is not enough: an unflatten function may do anything, so the
        # caller must have passed the class.
        cls = self.classes.opted_in(node.type)
        if cls is None:
            is_never = is_never_made(node.type)
            return Placeholder(node.type, NEVER_MADE if is_never else NOT_PASSED, names, items)
        registered = registration_of(cls)
        if registered is None:
            return Placeholder(node.type, NOT_REGISTERED, names, items)
        context = self.value(node.context)
        return self._guarded(
            node.type, names, items, lambda: registered.unflatten_fn(list(items), context)
        )

    def class_of(self, name: str) -> type | None:
        """The class that objects of a name are made of. An enum has its members, and no others."""
        cls = self.classes.get(name)
        return None if cls is None or issubclass(cls, enum.Enum) else cls

    def why_not(self, name: str) -> str:
        """Why there is a placeholder for an object of a class."""
        return NEVER_MADE if is_never_made(name) else NOT_KNOWN

    def _guarded(
        self, name: str, names: Sequence[Any], items: tuple[Any, ...], make: Callable[[], Any]
    ) -> Any:
        try:
            return make()
        except Exception as error:  # code of the class may raise anything
            reason = f"cannot be rebuilt: {type(error).__name__}: {error}"
            return Unmade(name, reason[:200], tuple(names), items)


_BUILDERS: dict[type, Callable[[_Rebuilding, Any], Any]] = {
    TensorNode: _Rebuilding.tensor_node,
    ScalarNode: _Rebuilding.scalar_node,
    NoneNode: lambda _, node: None if node.kind == "none" else ...,
    BoolNode: lambda _, node: node.value,
    ConstantNode: lambda _, node: torch_constant(node.kind, node.name),
    EnumNode: _Rebuilding.enum_node,
    ClassNode: _Rebuilding.class_node,
    OpaqueNode: _Rebuilding.opaque_node,
    SequenceNode: _Rebuilding.sequence_node,
    DictNode: _Rebuilding.dict_node,
    FieldsNode: _Rebuilding.fields_node,
    CustomNode: _Rebuilding.custom_node,
}

_SCALAR_TYPES: dict[str, type] = {
    "int": int, "float": float, "complex": complex, "str": str, "bytes": bytes
}  # fmt: skip


_SEQUENCES: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "list": list,
    "tuple": tuple,
    "size": lambda items: importlib.import_module("torch").Size(items),
    "slice": lambda items: slice(*items),
    "range": lambda items: range(*items),
    "set": lambda items: set(_distinct(items)),
    "frozenset": lambda items: frozenset(_distinct(items)),
}


def _distinct(items: tuple[Any, ...]) -> tuple[Any, ...]:
    """The items of a set. Raises if too many have one hash: a tape may choose ints so that making
    the set would take quadratic time."""
    if not are_distinct(items):
        raise ValueError(f"more than {MAX_ALIKE} elements of one hash")
    return items


def _sequence_of(cls: Any, items: tuple[Any, ...]) -> Any:
    """An instance of a subclass of a built-in sequence. It is filled by methods of the built-in, so
    that no method of the subclass runs."""
    if issubclass(cls, (list, collections.UserList)):
        return filled_list(cls, items)
    if issubclass(cls, collections.deque):
        sequence = cls.__new__(cls)
        collections.deque.extend(sequence, items)
        return sequence
    if issubclass(cls, set):
        sequence = cls.__new__(cls)
        set.update(sequence, _distinct(items))
        return sequence
    if issubclass(cls, tuple):
        return _tuple_of(cls, items)
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, _distinct(items))
    raise TypeError(f"{cls.__name__} is not a sequence")


def _tuple_of(cls: Any, items: tuple[Any, ...]) -> Any:
    if hasattr(cls, "n_sequence_fields"):  # torch.return_types; tuple.__new__ refuses these
        return cls(items)
    fields = getattr(cls, "_fields", None)
    if fields is not None and len(fields) != len(items):
        raise TypeError(f"{cls.__name__} has {len(fields)} fields here")
    return tuple.__new__(cls, items)


def _namedtuple_of(cls: type, state: dict[str, Any], may_call: bool) -> Any:
    if not is_named_tuple_of(cls, tuple(state)):
        raise TypeError(f"{cls.__name__} is not a named tuple with these fields here")
    return _tuple_of(cls, tuple(state.values()))


def _dataclass_of(cls: type, state: dict[str, Any], may_call: bool) -> Any:
    if not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass here")
    declared = {field.name: field for field in dataclasses.fields(cls)}
    if unknown := state.keys() - declared.keys():
        raise TypeError(f"{cls.__name__} has no field {sorted(unknown)[0]!r} here")
    instance: Any = cls.__new__(cls)
    for name, field in declared.items():
        if name in state:
            value = state[name]
        elif field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING and may_call:
            value = field.default_factory()
        else:
            reason = f"{cls.__name__} needs the field {name!r}, which the tape does not have"
            raise TypeError(reason)
        # object.__setattr__ also fills frozen classes and those with slots.
        object.__setattr__(instance, name, value)
    if isinstance(instance, collections.OrderedDict):  # transformers' ModelOutput is both
        for name, value in state.items():
            collections.OrderedDict.__setitem__(instance, name, value)
    return instance


def _object_of(cls: type, state: dict[str, Any], may_call: bool) -> Any:
    """An object with these attributes. Raises if one of them has the name of something that the
    class defines: an attribute in place of a method would be called."""
    if dataclasses.is_dataclass(cls):
        return _dataclass_of(cls, state, may_call)
    if issubclass(cls, _NOT_PLAIN):
        raise TypeError(f"{cls.__name__} has a state of its own")
    # Those that the class really has under their names, and no subclass replaced.
    slots = {n: d for n, d in slots_of(cls).items() if class_attribute(cls, n) is d}
    for name in state:
        is_word = name.isidentifier() and not (name.startswith("__") and name.endswith("__"))
        defined = class_attribute(cls, name)
        kind = type(defined)
        is_code = callable(defined) or hasattr(kind, "__get__") or hasattr(kind, "__set__")
        if not is_word or (name not in slots and is_code):
            raise TypeError(f"{cls.__name__} has no attribute {name!r} to be set")
    plain: Any = cls
    instance = plain.__new__(cls)
    for name, value in state.items():
        if name in slots:
            slots[name].__set__(instance, value)
        else:
            vars(instance)[name] = value
    return instance


_NOT_PLAIN = (
    dict, list, tuple, set, frozenset, collections.deque, str, bytes, bytearray, int, float,
    complex, type, BaseException, enum.Enum,
)  # fmt: skip


_FIELDS: dict[str, Callable[[type, dict[str, Any], bool], Any]] = {
    "namedtuple": _namedtuple_of,
    "dataclass": _dataclass_of,
    "object": _object_of,
}
