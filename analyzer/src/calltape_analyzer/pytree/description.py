"""From Python values to the nodes of a spec, as the recorder writes them.

Takes what a caller passes to an inference (arguments, ``value_if_missing``), or an argument or
result of a live call; returns the node that describes it, with its tensors and scalars, so that it
is treated like what stands on a tape, and can be compared with it. The recorder decides in
``calltape_recorder.capture.walk``; what is decided here must agree with it, and tests compare both.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from calltape_analyzer.pytree.classes import ModuleKey, class_name, registration_of
from calltape_analyzer.pytree.nodes import ITSELF, is_nested_node
from calltape_analyzer.pytree.tensors import is_shapeless, is_tensor, nested_parts
from calltape_schema.cache_classes import is_cache
from calltape_schema.objects import (
    MAX_NESTED,
    MAX_VALUES,
    NESTED_TENSOR,
    WRAPPERS,
    attributes_of,
    is_in_its_module,
    is_wrapped,
    names_beside,
    names_on_tensor,
    wrapped_in,
)
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
    walk,
)

__all__ = [
    "Description",
    "describe_as_recorded",
    "describe_result",
    "has_module_keys",
    "present_fields",
]

ScalarKind = Literal["int", "float", "complex", "str", "bytes"]
FieldsKind = Literal["namedtuple", "dataclass", "object"]
SequenceKind = Literal["list", "tuple", "size", "slice", "range", "set", "frozenset"]

_NONE = NoneNode(kind="none")

SCALARS: dict[type, ScalarKind] = {
    int: "int", float: "float", complex: "complex", str: "str", bytes: "bytes"
}  # fmt: skip
SEQUENCES: dict[type, Literal["list", "tuple", "set", "frozenset"]] = {
    list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"
}  # fmt: skip
_CONSTANTS: tuple[Literal["dtype", "device", "layout", "memory_format"], ...] = (
    "dtype", "device", "layout", "memory_format"
)  # fmt: skip


@dataclass
class Description:
    """A Python value as a node.

    Attributes:
        value: the value.
        node: describes it.
        tensors, scalars: what the node refers to by number.
        classes: the classes of objects in the value, by the names that tapes have for them.
        module_names: gives the names of modules that may be keys of dicts, by their identity.
    """

    value: Any
    node: Node = _NONE
    tensors: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    classes: dict[str, type] = field(default_factory=dict)
    module_names: Callable[[], Mapping[int, str]] | None = None


def describe_as_recorded(
    value: Any, module_names: Callable[[], Mapping[int, str]] | None = None
) -> Description:
    """Describes an argument as the recorder does. A tensor that occurs twice is two leaves. While
    tracing, a symbol is the number that it stands for; which of its two values a bool has is a
    condition of the trace.

    Args:
        value: the argument.
        module_names: gives the names of modules that are keys of dicts, by their identity.
    """
    description = Description(value, module_names=module_names)
    description.node = _OfArgument(description).node(value)
    return description


def describe_result(value: Any) -> Description:
    """Describes what a model returned as the recorder does: like an argument, and objects of any
    class by their attributes."""
    description = Description(value)
    description.node = _OfResult(description).node(value)
    return description


class _OfArgument:
    """Makes the nodes of one value, in the order in which the recorder decides.

    Attributes:
        of_inputs: whether the value is an argument, or a part of one.
    """

    of_inputs = True

    def __init__(self, to: Description) -> None:
        self.to = to
        self.open: set[int] = set()
        self.in_context = False

    def node(self, value: Any) -> Node:
        cls = type(value)
        if id(value) in self.open:
            return self.opaque(cls, ITSELF)
        if value is None:
            return _NONE
        if cls is bool:
            return BoolNode(kind="bool", value=value)
        if cls in SCALARS:
            return self.scalar(SCALARS[cls], value)
        if is_tensor(value):
            return self.opaque(cls) if self.in_context else self.tensor(value, cls)
        if not _is_module(value):
            if (constant := self.constant(value, cls)) is not None:
                return constant
            with self.within(value):
                if (container := self.container(value, cls)) is not None:
                    return container
        return self.unknown(value, cls)

    @contextmanager
    def within(self, value: Any) -> Iterator[None]:
        """Within the block, a part of the value that is the value itself is not described again."""
        self.open.add(id(value))
        try:
            yield
        finally:
            self.open.discard(id(value))

    def tensor(self, value: Any, cls: type) -> Node:
        parts = nested_parts(value, of_input=self.of_inputs)
        if parts is not None:
            return FieldsNode.model_construct(
                kind="object",
                type=NESTED_TENSOR,
                fields=tuple(parts),
                children=self.nodes(parts.values()),
            )
        if is_shapeless(value):
            return self.opaque(cls, "a nested tensor in the strided layout")
        self.to.tensors.append(value)
        return TensorNode(kind="tensor", leaf=len(self.to.tensors) - 1)

    def opaque(self, cls: type, reason: str = "not described") -> Node:
        return OpaqueNode.model_construct(kind="opaque", type=class_name(cls), reason=reason)

    def scalar(self, kind: ScalarKind, value: Any, name: str | None = None) -> Node:
        self.to.scalars.append((value.real, value.imag) if kind == "complex" else value)
        return ScalarNode.model_construct(kind=kind, scalar=len(self.to.scalars) - 1, type=name)

    def constant(self, value: Any, cls: type) -> Node | None:
        if isinstance(value, enum.Enum):
            plain = value.value if type(value.value) in (str, bytes, int, float, bool) else None
            # Combinations of flags have no name before Python 3.11, and an empty one never has.
            name = value.name if type(value.name) is str else str(plain)
            return EnumNode.model_construct(
                kind="enum", type=class_name(cls), name=name, value=plain
            )
        if isinstance(value, type):
            return ClassNode.model_construct(kind="class", type=class_name(value))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.SymInt | torch.SymFloat):
            return self.scalar("int" if isinstance(value, torch.SymInt) else "float", value)
        if torch is not None and isinstance(value, torch.SymBool):
            return BoolNode(kind="bool", value=bool(value))
        for kind in _CONSTANTS if torch is not None else ():
            if isinstance(value, getattr(torch, kind)):
                return ConstantNode(kind=kind, name=str(value).removeprefix("torch."))
        if isinstance(value, slice | range):
            parts = value.start, value.stop, value.step
            return self.sequence("slice" if isinstance(value, slice) else "range", parts)
        if value is ...:
            return NoneNode(kind="ellipsis")
        return self.subclassed(value, cls)

    def subclassed(self, value: Any, cls: type) -> Node | None:
        for base, (kind, plain) in _PLAIN_VALUES.items():
            if isinstance(value, base):
                return self.scalar(kind, plain(value), class_name(cls))
        if cls.__module__ != "numpy":
            return None
        if cls.__name__ == "ndarray":
            return self.array(value)
        names = {base.__name__ for base in cls.__mro__}
        if names & {"bool", "bool_"}:
            return BoolNode(kind="bool", value=bool(value.item()))
        is_number = names & {"integer", "floating", "complexfloating"}
        if not is_number or "timedelta64" in names:
            return None
        item = value.item()
        return (
            self.scalar(SCALARS[type(item)], item, class_name(cls))
            if type(item) in SCALARS
            else None
        )

    def array(self, value: Any) -> Node | None:
        """An array, as the tensor that a program gets for it."""
        import torch

        if self.in_context:
            return None
        try:
            native = value.astype(value.dtype.newbyteorder("="), order="C")
            self.to.tensors.append(torch.from_numpy(native))
        except TypeError:  # text, objects
            return None
        return TensorNode(kind="ndarray", leaf=len(self.to.tensors) - 1)

    def container(self, value: Any, cls: type) -> Node | None:
        registered = registration_of(cls)
        torch = sys.modules.get("torch")
        is_size = torch is not None and cls is torch.Size
        if cls in SEQUENCES or is_size:
            return self.sequence("size" if is_size else SEQUENCES[cls], tuple(value))
        if cls is SimpleNamespace or (is_cache(cls) and not isinstance(value, dict)):
            return self.fields("object", cls, vars(value)) if hasattr(value, "__dict__") else None
        if dataclasses.is_dataclass(cls):
            return self.fields("dataclass", cls, present_fields(value))
        if isinstance(value, tuple):
            names: Any = getattr(cls, "_fields", None)
            children = tuple(tuple.__iter__(value))
            if isinstance(names, tuple):
                return self.fields("namedtuple", cls, dict(zip(names, children, strict=True)))
            return self.sequence("tuple", children, cls)
        if registered is not None and cls.__module__ not in ("builtins", "collections"):
            return self.custom(value, cls, registered)
        if isinstance(value, dict):
            return self.mapping(value, cls)
        if isinstance(value, WRAPPERS):
            content: Any = wrapped_in(value)
            if isinstance(content, dict):
                return self.mapping(content, cls)
            if content is None:
                return self.opaque(cls)
            return self.sequence("list", list.__iter__(content), cls)
        for base, kind in SEQUENCES.items():
            if isinstance(value, base):
                plain: Any = base  # its method, not that of the subclass
                return self.sequence(kind, plain.__iter__(value), cls)
        return None if registered is None else self.custom(value, cls, registered)

    def unknown(self, value: Any, cls: type) -> Node:
        registered = registration_of(cls)
        if self.in_context or registered is not None or not is_wrapped(cls):
            return self.opaque(cls)
        attributes, reason = attributes_of(value)
        if reason is not None:
            return self.opaque(cls)
        with self.within(value):
            return self.fields("object", cls, attributes)

    def mapping(self, value: dict[Any, Any], cls: type) -> Node | None:
        items = dict(dict.items(value))
        modules: list[int] = []
        if not all(map(_is_key, items)):
            module_names = self.to.module_names
            items, modules = _by_name(items, {} if module_names is None else module_names())
        if not all(map(_is_key, items)):
            return self.opaque(cls, _MODULE_KEYS) if any(map(_is_module, items)) else None
        if cls is not dict:
            self.to.classes[class_name(cls)] = cls
        return DictNode.model_construct(
            kind="dict",
            keys=tuple(items),
            children=self.nodes(items.values()),
            type=None if cls is dict else class_name(cls),
            modules=tuple(modules) or None,
        )

    def context(self, value: Any) -> Node:
        before, self.in_context = self.in_context, True
        try:
            return self.node(value)
        finally:
            self.in_context = before

    def nodes(self, values: Iterable[Any]) -> tuple[Node, ...]:
        return tuple(self.node(value) for value in values)

    def sequence(self, kind: SequenceKind, values: Iterable[Any], cls: type | None = None) -> Node:
        """The node of a sequence; ``cls`` is its class, unless that is a plain one."""
        if cls is not None:
            self.to.classes[class_name(cls)] = cls
        name = None if cls is None else class_name(cls)
        return SequenceNode.model_construct(kind=kind, children=self.nodes(values), type=name)

    def fields(self, kind: FieldsKind, cls: type, state: Mapping[str, Any]) -> Node:
        self.to.classes[class_name(cls)] = cls
        return FieldsNode.model_construct(
            kind=kind,
            type=class_name(cls),
            fields=tuple(state),
            children=self.nodes(state.values()),
        )

    def custom(self, value: Any, cls: type, registered: Any) -> Node:
        children, context = registered.flatten_fn(value)
        return CustomNode.model_construct(
            kind="custom",
            type=class_name(cls),
            context=self.context(context),
            children=self.nodes(children),
        )


def present_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass. Of a model output of transformers only those that are present."""
    if isinstance(value, dict):
        return dict(dict.items(value))
    return {
        declared.name: getattr(value, declared.name)
        for declared in dataclasses.fields(value)
        if hasattr(value, declared.name)
    }


_MODULE_KEYS = "keys that are modules"
"""Why a dict was not described: nobody knows which model they are parts of."""


def has_module_keys(root: Node) -> bool:
    """Whether a dict below a node was not described for that."""
    return any(isinstance(n, OpaqueNode) and n.reason == _MODULE_KEYS for n in walk(root))


# How the plain value of a subclass is read without calling what the subclass overrides.
_PLAIN_VALUES: dict[type, tuple[ScalarKind, Callable[[Any], Any]]] = {
    int: ("int", lambda value: int.__add__(value, 0)),
    float: ("float", float.__float__),
    complex: ("complex", lambda value: complex.__add__(value, 0)),
    str: ("str", lambda value: str.__getitem__(value, slice(None)) + ""),
    bytes: ("bytes", lambda value: bytes.__getitem__(value, slice(None))),
    bytearray: ("bytes", bytes),
}


class _OfResult(_OfArgument):
    """Describes objects of any class too, as the recorder does with outputs, within its bounds."""

    of_inputs = False

    def __init__(self, to: Description) -> None:
        super().__init__(to)
        self.nested = 0
        self.left = MAX_VALUES

    def node(self, value: Any) -> Node:
        if self.nested:
            self.left -= 1
            if self.left < 0:
                return self.opaque(type(value), f"more than {MAX_VALUES} values in one object")
        described = super().node(value)
        names = () if self.in_context else _beside(value, described)
        return described.model_copy(update={"beside": names}) if names else described

    def constant(self, value: Any, cls: type) -> Node | None:
        if isinstance(value, type) and not is_in_its_module(value):
            return self.opaque(cls, "a class that its module does not have")
        return super().constant(value, cls)

    def unknown(self, value: Any, cls: type) -> Node:
        if _is_module(value):
            return self.opaque(cls, "a module")
        # A container that comes here could not be described because of what it holds, such as a
        # dict with keys that no tape can hold.
        is_container = issubclass(cls, (dict, list, tuple, set, frozenset, *WRAPPERS))
        if self.in_context or registration_of(cls) is not None or is_container:
            return self.opaque(cls)
        if self.nested >= MAX_NESTED:
            return self.opaque(cls, f"within {MAX_NESTED} objects")
        attributes, reason = attributes_of(value)
        if reason is not None:
            return self.opaque(cls, reason)
        if not self.nested:
            self.left = MAX_VALUES
        self.nested += 1
        try:
            with self.within(value):
                return self.fields("object", cls, attributes)
        finally:
            self.nested -= 1


def _beside(value: Any, node: Node) -> tuple[str, ...]:
    """The names of the attributes that a value has and its node does not describe, as the recorder
    notes them."""
    cls = type(value)
    if isinstance(node, TensorNode) or is_nested_node(node):
        return names_on_tensor(value) if is_tensor(value) else ()
    if isinstance(node, FieldsNode):
        fields = () if node.kind == "namedtuple" else frozenset(node.fields)
        return names_beside(value, fields, none_is_absent=issubclass(cls, dict))
    is_subclass = isinstance(node, ScalarNode | SequenceNode | DictNode) and node.type is not None
    if not is_subclass or cls.__module__ == "numpy":
        return ()
    return names_beside(value, ("data",) if issubclass(cls, WRAPPERS) else ())


def _by_name(items: dict[Any, Any], names: Mapping[int, str]) -> tuple[dict[Any, Any], list[int]]:
    """The items of a dict, with the name of each module that is a key, and the positions of these
    keys."""
    named_items = [
        (key.name if type(key) is ModuleKey else names.get(id(key)), key) for key in items
    ]
    are_plain = {name is None or name not in items for name, _ in named_items}
    if not all(are_plain):
        return items, []
    keys = [key if name is None else name for name, key in named_items]
    places = [i for i, (name, _) in enumerate(named_items) if name is not None]
    return dict(zip(keys, items.values(), strict=True)), places


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and issubclass(type(value), torch.nn.Module)


def _is_key(key: Any) -> bool:
    """Whether a tape can hold this key of a dict."""
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in (str, int, float, bool, bytes, type(None)) for part in parts)
