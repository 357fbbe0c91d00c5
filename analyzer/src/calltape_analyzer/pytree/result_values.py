"""The values of a result by path, so that two results can be compared.

In comes the node of a result. Out go its values by path. The class of a container is no value, and
neither is None: a dict may stand for a dataclass, and a field that is None for a missing one. Every
other part of a result is a value, or an :class:`Unknown` that says why it cannot be described.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calltape_analyzer.pytree.caches import is_cache_part
from calltape_analyzer.pytree.nodes import named_children
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

__all__ = ["ABSENT", "ITSELF", "Constant", "Returned", "Unknown", "values_in"]

ABSENT = object()
"""Stands for a value that a result does not have."""

ITSELF = "contains itself"
"""The reason of an opaque node that stands for a container which holds itself."""

BESIDE, POLICY = "beside", "policy"
"""The reasons of a value that is unknown because it is an attribute on a value of another kind, or
because the policy kept it off the tape."""

_MAX_MARKS = 16

_PLAIN = (ScalarNode, BoolNode, ConstantNode, EnumNode, ClassNode, NoneNode)


class Constant(NamedTuple):
    """A value that is compared by its name: a dtype, a member of an enum, a class."""

    kind: str
    name: str


class Unknown(NamedTuple):
    """A value that could not be described, or that the policy kept off the tape: its class, and the
    reason."""

    type_name: str
    reason: str

    @property
    def is_withheld(self) -> bool:
        """Whether the policy kept the value off the tape."""
        return self.reason == POLICY


class Returned(NamedTuple):
    """What a program returned for a call: its values by path, and the paths of recorded values that
    it cannot return (an ONNX model returns tensors only)."""

    leaves: dict[str, Any]
    omitted: frozenset[str] = frozenset()


def values_in(
    node: Node, tensor: Callable[[int], Any], scalar: Callable[[int], Any]
) -> dict[str, Any]:
    """The values below a node by path, in the order in which they stand in the value.

    Left out are devices, the flags and private attributes of caches, and the private attributes of
    configurations of transformers, which note where they came from: only their library uses them.

    Args:
        node: a result, or any part of one.
        tensor: returns the value of a leaf by its number.
        scalar: returns the value of a scalar by its number.
    """
    walk = _Walk(tensor, scalar)
    walk.visit(node, "")
    return walk.found


@dataclass
class _Walk:
    tensor: Callable[[int], Any]
    scalar: Callable[[int], Any]
    found: dict[str, Any] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)

    def visit(self, node: Node, path: str) -> None:
        if isinstance(node, SequenceNode) and node.kind in ("set", "frozenset"):
            # A set has no order. If it holds several tensors, nobody knows which is which.
            if all(isinstance(child, _PLAIN) for child in node.children):
                self._put(path, frozenset(map(self._value, node.children)))
            elif len(node.children) == 1:
                self.visit(node.children[0], f"{path}.0")
            else:
                reason = "a set of tensors, without an order"
                self._put(path, Unknown(f"builtins:{node.kind}", reason))
        elif isinstance(node, FieldsNode) and is_cache_part(node):
            for name, child in named_children(node):
                # Flags and private attributes of a cache are no values.
                is_value = not name.startswith("_") and isinstance(child, TensorNode | ScalarNode)
                if is_value or not isinstance(child, (TensorNode, *_PLAIN)):
                    self.visit(child, f"{path}.{name}")
        elif isinstance(node, CustomNode):
            self.visit(node.context, f"{path}.context")
            for i, child in enumerate(node.children):
                self.visit(child, f"{path}.{i}")
        elif isinstance(node, SequenceNode | DictNode | FieldsNode):
            for name, child in named_children(node):
                self.visit(child, f"{path}.{name!s}")
        else:
            self._put(path, self._value(node))
        if beside := getattr(node, "beside", None):
            kind = "tensor" if isinstance(node, TensorNode) else getattr(node, "type", None)
            module, _, qualname = (kind or node.kind).partition(":")
            # The state of some models of transformers has their configuration.
            is_config = module.startswith("transformers.models.") and qualname.endswith("Config")
            for name in beside:
                if not (name.startswith("_") and is_config):
                    self._put(f"{path}.{name}", Unknown(kind or node.kind, BESIDE))

    def _put(self, path: str, value: Any) -> None:
        """Notes a value by its path, or by one like it if the path is taken: the keys 1 and "1"
        have one path, and so have the key "a.b" and the key "b" below "a"."""
        if value is ABSENT:
            return
        made, count = path, self.again.get(path, 0)
        while made in self.found:
            count += 1
            # A hostile tape may have thousands of equal paths. Their names must stay short.
            made = path + "~" * count if count <= _MAX_MARKS else f"{path}~{count}"
        if made != path:
            self.again[path] = count
        self.found[made] = value

    def _value(self, node: Node) -> Any:
        if isinstance(node, TensorNode):
            return self.tensor(node.leaf)
        if isinstance(node, ScalarNode):
            value = self.scalar(node.scalar)
            return complex(*value) if type(value) is tuple else value
        if isinstance(node, BoolNode):
            return node.value
        if isinstance(node, EnumNode):
            return Constant("enum", node.name)
        if isinstance(node, ClassNode):
            return Constant("class", node.type.rpartition(":")[2])
        if isinstance(node, ConstantNode):
            return ABSENT if node.kind == "device" else Constant(node.kind, node.name)
        if isinstance(node, OpaqueNode) and node.reason != ITSELF:
            return Unknown(node.type, node.reason)
        return ABSENT
