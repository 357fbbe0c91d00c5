"""From Python values to the nodes of a spec: what a caller passes to an inference (arguments,
``value_if_missing``), to a program, or gets from a model, is treated like what stands on a tape.

With ``as_recorded`` the nodes are those that the recorder writes for the same value, so that a live
call and a recorded one can be compared. Without, a class registered with torch's pytree is what its
registration makes of it, because that is what ``torch.export`` will see.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

from calltape_analyzer.classes import name_of
from calltape_analyzer.flattening import Form, flatten
from calltape_analyzer.results import ITSELF
from calltape_schema.attributes import (
    MAX_NESTED,
    MAX_VALUES,
    attributes_of,
    is_in_its_module,
    names_beside,
    names_on_tensor,
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
)

__all__ = ["Description", "describe", "describe_result"]

ScalarKind = Literal["int", "float", "complex", "str", "bytes"]

_NONE = NoneNode(kind="none")

FieldsKind = Literal["namedtuple", "dataclass", "object"]

_SCALARS: dict[type, ScalarKind] = {
    int: "int", float: "float", complex: "complex", str: "str", bytes: "bytes"
}  # fmt: skip
_SEQUENCES: dict[type, Literal["list", "tuple", "set", "frozenset"]] = {
    list: "list", tuple: "tuple", set: "set", frozenset: "frozenset"
}  # fmt: skip
_CONSTANTS: tuple[Literal["dtype", "device", "layout", "memory_format"], ...] = (
    "dtype", "device", "layout", "memory_format"
)  # fmt: skip

# How a subclass is read past anything that it overrides.
_PLAIN_VALUES: dict[type, tuple[ScalarKind, Callable[[Any], Any]]] = {
    int: ("int", lambda value: int.__add__(value, 0)),
    float: ("float", float.__float__),
    complex: ("complex", lambda value: complex.__add__(value, 0)),
    str: ("str", lambda value: str.__getitem__(value, slice(None)) + ""),
    bytes: ("bytes", lambda value: bytes.__getitem__(value, slice(None))),
    bytearray: ("bytes", bytes),
}
_CACHE_LAYERS = (
    "CacheLayerMixin", "LinearAttentionCacheLayerMixin", "LinearAttentionLayer", "DummyLayer"
)  # fmt: skip


@dataclass
class Description:
    """A Python value as a node, with the tensors and scalars that the node refers to, and the
    classes with fields or attributes that were met in it, by the names that tapes have for them."""

    value: Any
    node: Node = _NONE
    tensors: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)
    classes: dict[str, type] = field(default_factory=dict)

    def form(self) -> Form:
        """Its flattened form. Registered classes were flattened by :func:`describe` already."""
        return flatten(self.node)

    def shape(self, leaf: int) -> tuple[int, ...]:
        """The sizes of one of its tensors."""
        return tuple(int(size) for size in self.tensors[leaf].shape)


def describe(value: Any, *, as_recorded: bool = False) -> Description:
    """The node form of a value; see the module for ``as_recorded``.

    A tensor that occurs twice is two leaves. An int that is symbolic (during tracing) is an int.
    """
    description = Description(value)
    describing = _AsRecorded(description) if as_recorded else _Describing(description)
    description.node = describing.node(value)
    return description


def describe_result(value: Any) -> Description:
    """The node that the recorder writes for what a model returned: like ``as_recorded``, with
    objects of any class described by their attributes."""
    description = Description(value)
    description.node = _OfResult(description).node(value)
    return description


class _Describing:
    def __init__(self, to: Description) -> None:
        self.to = to

    def node(self, value: Any) -> Node:
        cls = type(value)
        if value is None:
            return _NONE
        if cls is bool:
            return BoolNode(kind="bool", value=value)
        if cls in _SCALARS:
            return self.scalar(_SCALARS[cls], value)
        if _is_tensor(value):
            self.to.tensors.append(value)
            return TensorNode(kind="tensor", leaf=len(self.to.tensors) - 1)
        return self.other(value, cls) or self.unknown(value, cls)

    def other(self, value: Any, cls: type) -> Node | None:
        return self.container(value, cls) or self.constant(value, cls)

    def unknown(self, value: Any, cls: type) -> Node:
        return self.opaque(cls)

    def opaque(self, cls: type, reason: str = "not described") -> Node:
        return OpaqueNode.model_construct(kind="opaque", type=name_of(cls), reason=reason)

    def scalar(self, kind: ScalarKind, value: Any, name: str | None = None) -> Node:
        self.to.scalars.append((value.real, value.imag) if kind == "complex" else value)
        return ScalarNode.model_construct(kind=kind, scalar=len(self.to.scalars) - 1, type=name)

    def constant(self, value: Any, cls: type) -> Node | None:
        if isinstance(value, enum.Enum):
            plain = _plain(value.value)
            # Combinations of flags have no name before Python 3.11, and an empty one never has.
            name = value.name if type(value.name) is str else str(plain)
            return EnumNode.model_construct(kind="enum", type=name_of(cls), name=name, value=plain)
        if isinstance(value, type):
            return ClassNode.model_construct(kind="class", type=name_of(value))
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.SymInt):
            return self.scalar("int", value)
        for kind in _CONSTANTS if torch is not None else ():
            if isinstance(value, getattr(torch, kind)):
                return ConstantNode(kind=kind, name=str(value).removeprefix("torch."))
        if isinstance(value, slice | range):
            parts = self.nodes((value.start, value.stop, value.step))
            return SequenceNode.model_construct(
                kind="slice" if isinstance(value, slice) else "range", children=parts, type=None
            )
        if value is ...:
            return NoneNode(kind="ellipsis")
        return self.subclassed(value, cls)

    def subclassed(self, value: Any, cls: type) -> Node | None:
        for plain, kind in _SCALARS.items():
            if isinstance(value, plain):
                return self.scalar(kind, plain(value), name_of(cls))
        if cls.__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
            item = value.item()
            if type(item) in _SCALARS:
                return self.scalar(_SCALARS[type(item)], item, name_of(cls))
        return None

    def container(self, value: Any, cls: type) -> Node | None:
        if cls in _SEQUENCES:
            return SequenceNode.model_construct(
                kind=_SEQUENCES[cls], children=self.nodes(value), type=None
            )
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return self.fields("namedtuple", cls, dict(zip(cls._fields, value, strict=True)))
        if isinstance(value, dict) and cls.__module__ in ("builtins", "collections"):
            children = self.nodes(value.values())
            name = None if cls is dict else name_of(cls)
            return DictNode.model_construct(
                kind="dict", keys=tuple(value), children=children, type=name
            )
        is_object = _is_cache(cls) and hasattr(value, "__dict__")
        registered = _registration(cls)
        if registered is not None:
            return self.custom(value, cls, registered)
        if dataclasses.is_dataclass(cls):
            return self.fields("dataclass", cls, _set_fields(value))
        if is_object and not isinstance(value, dict):
            return self.fields("object", cls, vars(value))
        return None

    def nodes(self, values: Iterable[Any]) -> tuple[Node, ...]:
        return tuple(self.node(value) for value in values)

    def fields(self, kind: FieldsKind, cls: type, state: Mapping[str, Any]) -> Node:
        self.to.classes[name_of(cls)] = cls
        return FieldsNode.model_construct(
            kind=kind,
            type=name_of(cls),
            fields=tuple(state),
            children=self.nodes(state.values()),
        )

    def custom(self, value: Any, cls: type, registered: Any) -> Node:
        children, context = registered.flatten_fn(value)
        return CustomNode.model_construct(
            kind="custom",
            type=name_of(cls),
            context=self.context(context),
            children=self.nodes(children),
        )

    def context(self, value: Any) -> Node:
        return _NONE


class _AsRecorded(_Describing):
    """Decides in the order of the recorder (``calltape_recorder.capture``)."""

    def __init__(self, to: Description) -> None:
        super().__init__(to)
        self.open: set[int] = set()
        self.in_context = False

    def node(self, value: Any) -> Node:
        if id(value) in self.open:
            return self.opaque(type(value), ITSELF)
        if self.in_context and _is_tensor(value):
            return self.opaque(type(value))
        return super().node(value)

    def other(self, value: Any, cls: type) -> Node | None:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.nn.Module):
            return None
        found = self.constant(value, cls)
        if found is not None or value is ...:
            return found
        self.open.add(id(value))
        try:
            return self.container(value, cls)
        finally:
            self.open.discard(id(value))

    def subclassed(self, value: Any, cls: type) -> Node | None:
        for base, (kind, plain) in _PLAIN_VALUES.items():
            if isinstance(value, base):
                return self.scalar(kind, plain(value), name_of(cls))
        return self.of_numpy(value, cls) if cls.__module__ == "numpy" else None

    def of_numpy(self, value: Any, cls: type) -> Node | None:
        if cls.__name__ == "ndarray":
            return self.array(value)
        names = {base.__name__ for base in cls.__mro__}
        if names & {"bool", "bool_"}:
            return BoolNode(kind="bool", value=bool(value.item()))
        is_number = names & {"integer", "floating", "complexfloating"}
        if not is_number or "timedelta64" in names:
            return None
        kind = _SCALARS.get(type(item := value.item()))
        return None if kind is None else self.scalar(kind, item, name_of(cls))

    def array(self, value: Any) -> Node | None:
        """An array as the tensor that a program is given for it."""
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
        registered = _registration(cls)
        torch = sys.modules.get("torch")
        is_size = torch is not None and cls is torch.Size
        if cls in _SEQUENCES or is_size:
            return SequenceNode.model_construct(
                kind="size" if is_size else _SEQUENCES[cls],
                children=self.nodes(tuple(value)),
                type=None,
            )
        if cls is SimpleNamespace or (_is_cache(cls) and not isinstance(value, dict)):
            return self.fields("object", cls, vars(value)) if hasattr(value, "__dict__") else None
        if dataclasses.is_dataclass(cls):
            return self.fields("dataclass", cls, _set_fields(value))
        if isinstance(value, tuple):
            return self.a_tuple(value, cls)
        if registered is not None and cls.__module__ not in ("builtins", "collections"):
            return self.custom(value, cls, registered)
        if isinstance(value, dict):
            return self.mapping(value, cls)
        if isinstance(value, UserDict):
            return self.mapping(vars(value)["data"], cls)
        for base, kind in _SEQUENCES.items():
            if isinstance(value, base):
                plain: Any = base  # past what the subclass overrides
                children = self.nodes(plain.__iter__(value))
                self.to.classes[name_of(cls)] = cls
                return SequenceNode.model_construct(kind=kind, children=children, type=name_of(cls))
        return None if registered is None else self.custom(value, cls, registered)

    def a_tuple(self, value: Any, cls: type) -> Node:
        names: Any = getattr(cls, "_fields", None)
        children = tuple(tuple.__iter__(value))
        if isinstance(names, tuple):
            return self.fields("namedtuple", cls, dict(zip(names, children, strict=True)))
        self.to.classes[name_of(cls)] = cls
        return SequenceNode.model_construct(
            kind="tuple", children=self.nodes(children), type=name_of(cls)
        )

    def mapping(self, value: dict[Any, Any], cls: type) -> Node | None:
        items = dict(dict.items(value))
        if not all(map(_is_key, items)):
            return None
        if cls is not dict:
            self.to.classes[name_of(cls)] = cls
        return DictNode.model_construct(
            kind="dict",
            keys=tuple(items),
            children=self.nodes(items.values()),
            type=None if cls is dict else name_of(cls),
        )

    def context(self, value: Any) -> Node:
        before, self.in_context = self.in_context, True
        try:
            return self.node(value)
        finally:
            self.in_context = before


class _OfResult(_AsRecorded):
    """Looks into objects of any class, as the recorder does among outputs, within its bounds."""

    def __init__(self, to: Description) -> None:
        super().__init__(to)
        self.nested = 0
        self.left = MAX_VALUES

    def node(self, value: Any) -> Node:
        if self.nested:
            self.left -= 1
            if self.left < 0:
                return self.opaque(type(value), f"more than {MAX_VALUES} values in one object")
        made = super().node(value)
        names = () if self.in_context else _beside(value, made)
        return made.model_copy(update={"beside": names}) if names else made

    def constant(self, value: Any, cls: type) -> Node | None:
        if isinstance(value, type) and not is_in_its_module(value):
            return self.opaque(cls, "a class that its module does not have")
        return super().constant(value, cls)

    def unknown(self, value: Any, cls: type) -> Node:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.nn.Module):
            return self.opaque(cls, "a module")
        if torch is not None and isinstance(value, torch.SymFloat | torch.SymBool):
            return self.opaque(cls, "what it is depends on the values of a call")
        if self.in_context or _registration(cls) is not None or not _is_bare(cls):
            return self.opaque(cls)
        if self.nested >= MAX_NESTED:
            return self.opaque(cls, f"within {MAX_NESTED} objects")
        attributes, reason = attributes_of(value)
        if reason is not None:
            return self.opaque(cls, reason)
        return self.attributes(value, cls, attributes)

    def attributes(self, value: Any, cls: type, state: Mapping[str, Any]) -> Node:
        if not self.nested:
            self.left = MAX_VALUES
        self.nested += 1
        self.open.add(id(value))
        try:
            return self.fields("object", cls, state)
        finally:
            self.open.discard(id(value))
            self.nested -= 1


def _beside(value: Any, node: Node) -> tuple[str, ...]:
    """What a value has in attributes beside what its node describes, as the recorder notes it."""
    cls = type(value)
    if isinstance(node, TensorNode):
        return names_on_tensor(value) if node.kind == "tensor" else ()
    if isinstance(node, FieldsNode):
        known = () if node.kind == "namedtuple" else frozenset(node.fields)
        return names_beside(value, known, none_is_absent=issubclass(cls, dict))
    is_subclass = isinstance(node, ScalarNode | SequenceNode | DictNode) and node.type is not None
    if not is_subclass or cls.__module__ == "numpy":
        return ()
    return names_beside(value, ("data",) if issubclass(cls, UserDict) else ())


def _is_bare(cls: type) -> bool:
    """Whether a class is none of those that were looked at already, and were not described because
    of what they hold (a dict with keys that no tape can hold)."""
    return not issubclass(cls, dict | list | tuple | set | frozenset | UserDict)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_cache(cls: type) -> bool:
    """A cache or a layer of one, by the names of its classes, as the recorder has it."""
    return any(
        base.__name__.endswith("Cache")
        or (base.__name__ in _CACHE_LAYERS and base.__module__.startswith("transformers."))
        for base in cls.__mro__
    )


def _is_key(key: Any) -> bool:
    """Whether a tape can hold a dict's key."""
    parts = key if type(key) is tuple else (key,)
    return all(type(part) in (str, int, float, bool, bytes, type(None)) for part in parts)


def _plain(value: Any) -> Any:
    return value if type(value) in (str, bytes, int, float, bool) else None


def _set_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass; of transformers' model outputs those that are present."""
    if isinstance(value, dict):
        return dict(dict.items(value))
    return {
        declared.name: getattr(value, declared.name)
        for declared in dataclasses.fields(value)
        if hasattr(value, declared.name)
    }


def _registration(cls: type) -> Any | None:
    pytree = sys.modules.get("torch.utils._pytree")
    return getattr(pytree, "SUPPORTED_NODES", {}).get(cls)
