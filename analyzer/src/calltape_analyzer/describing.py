"""From Python values to the nodes of a spec: what a caller passes to an inference (arguments,
``value_if_missing``) is treated like what stands on a tape."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from calltape_analyzer.classes import name_of
from calltape_analyzer.flattening import Form, flatten
from calltape_schema.tree import (
    BoolNode,
    CustomNode,
    DictNode,
    FieldsNode,
    Node,
    NoneNode,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    TensorNode,
)

__all__ = ["Description", "describe"]

ScalarKind = Literal["int", "float", "complex", "str", "bytes"]

_NONE = NoneNode(kind="none")

FieldsKind = Literal["namedtuple", "dataclass", "object"]

_SCALARS: dict[type, ScalarKind] = {
    int: "int", float: "float", complex: "complex", str: "str", bytes: "bytes"
}  # fmt: skip


@dataclass
class Description:
    """A Python value as a node, with the tensors and scalars that the node refers to."""

    value: Any
    node: Node = _NONE
    tensors: list[Any] = field(default_factory=list)
    scalars: list[Any] = field(default_factory=list)

    def form(self) -> Form:
        """Its flattened form. Registered classes were flattened by :func:`describe` already."""
        return flatten(self.node)

    def shape(self, leaf: int) -> tuple[int, ...]:
        """The sizes of one of its tensors."""
        return tuple(int(size) for size in self.tensors[leaf].shape)


def describe(value: Any) -> Description:
    """The node form of a value. A class that is registered with torch's pytree becomes a custom
    node, whose children are those of its registration."""
    description = Description(value)
    description.node = _node(value, description)
    return description


def _node(value: Any, to: Description) -> Node:
    cls = type(value)
    if value is None:
        return _NONE
    if cls is bool:
        return BoolNode(kind="bool", value=value)
    if cls in _SCALARS:
        to.scalars.append(value)
        return ScalarNode.model_construct(kind=_SCALARS[cls], scalar=len(to.scalars) - 1, type=None)
    if _is_tensor(value):
        to.tensors.append(value)
        return TensorNode(kind="tensor", leaf=len(to.tensors) - 1)
    return _container(value, cls, to)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _container(value: Any, cls: type, to: Description) -> Node:
    if cls in (list, tuple):
        children = _nodes(value, to)
        if cls is list:
            return SequenceNode.model_construct(kind="list", children=children, type=None)
        return SequenceNode.model_construct(kind="tuple", children=children, type=None)
    if isinstance(value, tuple) and hasattr(cls, "_fields"):
        return _fields("namedtuple", cls, dict(zip(cls._fields, value, strict=True)), to)
    if isinstance(value, dict) and cls.__module__ in ("builtins", "collections"):
        children = _nodes(value.values(), to)
        name = None if cls is dict else name_of(cls)
        return DictNode.model_construct(
            kind="dict", keys=tuple(value), children=children, type=name
        )
    registered = _registration(cls)
    if registered is not None:
        children = _nodes(registered.flatten_fn(value)[0], to)
        return CustomNode.model_construct(
            kind="custom", type=name_of(cls), context=NoneNode(kind="none"), children=children
        )
    if dataclasses.is_dataclass(cls):
        own = {f.name: getattr(value, f.name) for f in dataclasses.fields(cls)}
        return _fields("dataclass", cls, own, to)
    if cls.__name__.endswith(("Cache", "Layer")) and hasattr(value, "__dict__"):
        return _fields("object", cls, vars(value), to)
    return OpaqueNode(kind="opaque", type=name_of(cls), reason="not described")


def _nodes(values: Iterable[Any], to: Description) -> tuple[Node, ...]:
    return tuple(_node(value, to) for value in values)


def _fields(kind: FieldsKind, cls: type, state: Mapping[str, Any], to: Description) -> Node:
    return FieldsNode.model_construct(
        kind=kind,
        type=name_of(cls),
        fields=tuple(state),
        children=_nodes(state.values(), to),
    )


def _registration(cls: type) -> Any | None:
    pytree = sys.modules.get("torch.utils._pytree")
    return getattr(pytree, "SUPPORTED_NODES", {}).get(cls)
