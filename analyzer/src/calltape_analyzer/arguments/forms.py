"""Arguments and results as an exporter takes them: built-in containers around tensors and ints.

An argument of tensors, lists, tuples and dicts keeps its form. An object of any other class (a
cache, a dataclass) becomes the flat list of its leaves. Constants are left out. So a program needs
no registered class to be called, saved or loaded, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from calltape_schema.tree import (
    DictNode,
    FieldsNode,
    Node,
    ScalarNode,
    SequenceNode,
    TensorNode,
    children_of,
)

__all__ = ["FormLeaf", "PlainForm", "form_of_argument", "form_of_result"]


@dataclass(frozen=True)
class FormLeaf:
    """A tensor or a number of a layout. ``index`` is its number among the layout's tensors, or
    among its scalars. Only results have floats."""

    kind: Literal["tensor", "int", "float"]
    index: int

    def read(self, value: Any) -> Any:
        """What a runtime returned for it: a number may come as a tensor of one element."""
        if self.kind == "tensor":
            return value
        return int(value) if self.kind == "int" else float(value)


@dataclass(frozen=True)
class PlainForm:
    """A leaf, or a container of forms; ``keys`` are the keys of a dict."""

    kind: Literal["leaf", "list", "tuple", "dict"]
    leaf: FormLeaf | None = None
    children: tuple[PlainForm, ...] = ()
    keys: tuple[Any, ...] = ()

    def leaves(self) -> Iterator[FormLeaf]:
        """The leaves in flattening order."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    def fill(self, value: Callable[[FormLeaf], Any]) -> Any:
        """The form with a value for each leaf."""
        if self.leaf is not None:
            return value(self.leaf)
        parts = [child.fill(value) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, parts, strict=True))
        return tuple(parts) if self.kind == "tuple" else parts

    def read(self, value: Any) -> Iterator[tuple[FormLeaf, Any]]:
        """The leaves of a value of this form, each with its part of the value."""
        if self.leaf is not None:
            yield self.leaf, value
            return
        items = [value[key] for key in self.keys] if self.kind == "dict" else value
        for child, item in zip(self.children, items, strict=True):
            yield from child.read(item)


LeafOf = Callable[[Node], "FormLeaf | None"]


def form_of_argument(node: Node, leaf_of: LeafOf) -> PlainForm | None:
    """The form of an argument; None if it has no leaf, and so is a constant.

    Args:
        node: of a layout.
        leaf_of: gives the leaf that a node is: a tensor, or an int that is an input.
    """
    found = _plain(node, leaf_of)
    if found is not None:
        return found
    return _flat(node, leaf_of)


def form_of_result(node: Node, leaf_of: LeafOf) -> PlainForm:
    """The form of a result: a dataclass or named tuple is a dict of its fields, a cache the flat
    list of its leaves."""
    leaf = leaf_of(node)
    if leaf is not None:
        return PlainForm("leaf", leaf)
    if isinstance(node, FieldsNode) and node.kind != "object":
        return _dict(node.fields, node.children, leaf_of)
    if isinstance(node, DictNode) and all(type(key) is str for key in node.keys):
        return _dict(node.keys, node.children, leaf_of)
    if isinstance(node, SequenceNode) and node.kind in ("list", "tuple"):
        parts = [form_of_result(child, leaf_of) for child in node.children]
        kept = tuple(part for part in parts if part.leaf or part.children)
        return PlainForm("list" if node.kind == "list" else "tuple", children=kept)
    return _flat(node, leaf_of) or PlainForm("tuple")


def _dict(keys: Sequence[Any], children: Sequence[Node], leaf_of: LeafOf) -> PlainForm:
    parts = [
        (key, form_of_result(child, leaf_of)) for key, child in zip(keys, children, strict=True)
    ]
    kept = [(key, part) for key, part in parts if part.leaf or part.children]
    return PlainForm("dict", children=tuple(p for _, p in kept), keys=tuple(k for k, _ in kept))


def _plain(node: Node, leaf_of: LeafOf) -> PlainForm | None:
    """The form of nested built-in containers that hold only leaves; None for anything else."""
    leaf = leaf_of(node)
    if leaf is not None:
        return PlainForm("leaf", leaf)
    is_list = isinstance(node, SequenceNode) and node.kind in ("list", "tuple")
    is_dict = isinstance(node, DictNode) and all(type(key) is str for key in node.keys)
    if not (is_list or is_dict) or getattr(node, "type", None) is not None:
        return None
    parts = [_plain(child, leaf_of) for child in children_of(node)]
    children = tuple(part for part in parts if part is not None)
    if len(children) != len(parts) or not children:
        return None
    if isinstance(node, DictNode):
        return PlainForm("dict", children=children, keys=node.keys)
    return PlainForm("list" if node.kind == "list" else "tuple", children=children)


def _flat(node: Node, leaf_of: LeafOf) -> PlainForm | None:
    leaves = tuple(PlainForm("leaf", leaf) for leaf in _leaves(node, leaf_of))
    return PlainForm("list", children=leaves) if leaves else None


def _leaves(node: Node, leaf_of: LeafOf) -> Iterator[FormLeaf]:
    if isinstance(node, TensorNode | ScalarNode):
        leaf = leaf_of(node)
        if leaf is not None:
            yield leaf
    for child in children_of(node):
        yield from _leaves(child, leaf_of)
