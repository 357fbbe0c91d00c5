"""From Python values to the nodes of a spec, as ``torch.export`` sees them.

In comes what a caller passes to an inference (arguments, ``value_if_missing``). Out goes the node
that describes it, with its tensors and scalars, so that it is treated like what stands on a tape. A
class that is registered with torch's pytree is described as its registration flattens it.
:mod:`calltape_analyzer.pytree.recorded_description` describes values as the recorder does.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.pytree.flattening import FlatTree, flatten
from calltape_analyzer.pytree.nested_tensors import is_shapeless, nested_parts
from calltape_schema.cache_classes import is_cache
from calltape_schema.objects import NESTED_TENSOR
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

__all__ = [
    "SCALARS", "SEQUENCES", "Describer", "Description", "ScalarKind", "describe", "is_tensor",
    "present_fields", "registration_of",
]  # fmt: skip

ScalarKind = Literal["int", "float", "complex", "str", "bytes"]
FieldsKind = Literal["namedtuple", "dataclass", "object"]

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

    def form(self) -> FlatTree:
        """Its flattened form. :func:`describe` has flattened registered classes already."""
        return flatten(self.node)

    def shape(self, leaf: int) -> tuple[int, ...]:
        """The sizes of one of its tensors."""
        return tuple(int(size) for size in self.tensors[leaf].shape)


def describe(value: Any) -> Description:
    """Describes a value as ``torch.export`` sees it.

    A tensor that occurs twice is two leaves. While tracing, a symbol is the number that it stands
    for; which of its two values a bool has is a condition of the trace.
    """
    description = Description(value)
    description.node = Describer(description).node(value)
    return description


class Describer:
    """Makes the nodes of one value. Subclasses decide differently about some types.

    Attributes:
        of_inputs: whether the value is an argument, or a part of one.
    """

    of_inputs = True

    def __init__(self, to: Description) -> None:
        self.to = to

    def node(self, value: Any) -> Node:
        cls = type(value)
        if value is None:
            return _NONE
        if cls is bool:
            return BoolNode(kind="bool", value=value)
        if cls in SCALARS:
            return self.scalar(SCALARS[cls], value)
        if is_tensor(value):
            parts = nested_parts(value, of_input=self.of_inputs)
            if parts is not None:
                return self.nested_tensor(parts)
            if is_shapeless(value):
                return self.opaque(cls, "a nested tensor in the strided layout")
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
        if torch is not None and isinstance(value, torch.SymInt | torch.SymFloat):
            return self.scalar("int" if isinstance(value, torch.SymInt) else "float", value)
        if torch is not None and isinstance(value, torch.SymBool):
            return BoolNode(kind="bool", value=bool(value))
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
        for plain, kind in SCALARS.items():
            if isinstance(value, plain):
                return self.scalar(kind, plain(value), name_of(cls))
        if cls.__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
            item = value.item()
            if type(item) in SCALARS:
                return self.scalar(SCALARS[type(item)], item, name_of(cls))
        return None

    def container(self, value: Any, cls: type) -> Node | None:
        if cls in SEQUENCES:
            return SequenceNode.model_construct(
                kind=SEQUENCES[cls], children=self.nodes(value), type=None
            )
        if isinstance(value, tuple) and hasattr(cls, "_fields"):
            return self.fields("namedtuple", cls, dict(zip(cls._fields, value, strict=True)))
        if isinstance(value, dict) and cls.__module__ in ("builtins", "collections"):
            children = self.nodes(value.values())
            name = None if cls is dict else name_of(cls)
            return DictNode.model_construct(
                kind="dict", keys=tuple(value), children=children, type=name
            )
        is_object = is_cache(cls) and hasattr(value, "__dict__")
        registered = registration_of(cls)
        if registered is not None:
            return self.custom(value, cls, registered)
        if dataclasses.is_dataclass(cls):
            return self.fields("dataclass", cls, present_fields(value))
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

    def nested_tensor(self, parts: Mapping[str, Any]) -> Node:
        """The node of a nested tensor with these parts."""
        return FieldsNode.model_construct(
            kind="object",
            type=NESTED_TENSOR,
            fields=tuple(parts),
            children=self.nodes(parts.values()),
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


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor. torch is not imported for this."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _plain(value: Any) -> Any:
    return value if type(value) in (str, bytes, int, float, bool) else None


def present_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass. Of a model output of transformers only those that are present."""
    if isinstance(value, dict):
        return dict(dict.items(value))
    return {
        declared.name: getattr(value, declared.name)
        for declared in dataclasses.fields(value)
        if hasattr(value, declared.name)
    }


def registration_of(cls: type) -> Any | None:
    """The registration of a class with torch's pytree, if torch is loaded."""
    pytree = sys.modules.get("torch.utils._pytree")
    return getattr(pytree, "SUPPORTED_NODES", {}).get(cls)
