"""Arguments and results as an exporter takes them: built-in containers around tensors and ints.

An argument of tensors, lists, tuples and dicts keeps its form. Anything with a class of its own (a
cache, a dataclass) becomes the flat list of its leaves, and constants are left out: then a program
needs no registered class to be called, saved or loaded, on any machine.
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

__all__ = ["Form", "Leaf", "form_of_argument", "form_of_result"]


@dataclass(frozen=True)
class Leaf:
    """A tensor or an int, by its place in a layout."""

    kind: Literal["tensor", "int"]
    place: int


@dataclass(frozen=True)
class Form:
    """A leaf, or a container of forms; ``keys`` are those of a dict."""

    kind: Literal["leaf", "list", "tuple", "dict"]
    leaf: Leaf | None = None
    children: tuple[Form, ...] = ()
    keys: tuple[Any, ...] = ()

    def leaves(self) -> Iterator[Leaf]:
        """The leaves in flattening order."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    def fill(self, value: Callable[[Leaf], Any]) -> Any:
        """The form with a value for each leaf."""
        if self.leaf is not None:
            return value(self.leaf)
        parts = [child.fill(value) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, parts, strict=True))
        return tuple(parts) if self.kind == "tuple" else parts

    def read(self, value: Any) -> Iterator[tuple[Leaf, Any]]:
        """The leaves of a value of this form, each with what stands there."""
        if self.leaf is not None:
            yield self.leaf, value
            return
        items = [value[key] for key in self.keys] if self.kind == "dict" else value
        for child, item in zip(self.children, items, strict=True):
            yield from child.read(item)


LeafOf = Callable[[Node], "Leaf | None"]


def form_of_argument(node: Node, leaf_of: LeafOf) -> Form | None:
    """The form of an argument; None where it has no leaf and is a constant.

    Args:
        node: of a layout.
        leaf_of: which nodes are leaves: tensors, and the ints that are inputs.
    """
    found = _plain(node, leaf_of)
    if found is not None:
        return found
    return _flat(node, leaf_of)


def form_of_result(node: Node, leaf_of: LeafOf) -> Form:
    """The form of a result: dataclasses and named tuples are dicts of their fields, caches the flat
    list of their leaves."""
    leaf = leaf_of(node)
    if leaf is not None:
        return Form("leaf", leaf)
    if isinstance(node, FieldsNode) and node.kind != "object":
        return _dict(node.fields, node.children, leaf_of)
    if isinstance(node, DictNode) and all(type(key) is str for key in node.keys):
        return _dict(node.keys, node.children, leaf_of)
    if isinstance(node, SequenceNode) and node.kind in ("list", "tuple"):
        parts = [form_of_result(child, leaf_of) for child in node.children]
        kept = tuple(part for part in parts if part.leaf or part.children)
        return Form("list" if node.kind == "list" else "tuple", children=kept)
    return _flat(node, leaf_of) or Form("tuple")


def _dict(keys: Sequence[Any], children: Sequence[Node], leaf_of: LeafOf) -> Form:
    parts = [
        (key, form_of_result(child, leaf_of)) for key, child in zip(keys, children, strict=True)
    ]
    kept = [(key, part) for key, part in parts if part.leaf or part.children]
    return Form("dict", children=tuple(p for _, p in kept), keys=tuple(k for k, _ in kept))


def _plain(node: Node, leaf_of: LeafOf) -> Form | None:
    """The form of nested built-in containers that hold leaves and nothing else."""
    leaf = leaf_of(node)
    if leaf is not None:
        return Form("leaf", leaf)
    is_list = isinstance(node, SequenceNode) and node.kind in ("list", "tuple")
    is_dict = isinstance(node, DictNode) and all(type(key) is str for key in node.keys)
    if not (is_list or is_dict) or getattr(node, "type", None) is not None:
        return None
    parts = [_plain(child, leaf_of) for child in children_of(node)]
    children = tuple(part for part in parts if part is not None)
    if len(children) != len(parts) or not children:
        return None
    if isinstance(node, DictNode):
        return Form("dict", children=children, keys=node.keys)
    return Form("list" if node.kind == "list" else "tuple", children=children)


def _flat(node: Node, leaf_of: LeafOf) -> Form | None:
    leaves = tuple(Form("leaf", leaf) for leaf in _leaves(node, leaf_of))
    return Form("list", children=leaves) if leaves else None


def _leaves(node: Node, leaf_of: LeafOf) -> Iterator[Leaf]:
    if isinstance(node, TensorNode | ScalarNode):
        leaf = leaf_of(node)
        if leaf is not None:
            yield leaf
    for child in children_of(node):
        yield from _leaves(child, leaf_of)
