"""How an argument flattens for export: which of its parts are leaves, in which nesting.

The nesting is the one that ``dynamic_shapes`` must have (torch.export's own rule, measured with
torch 2.6 to 2.15): lists, tuples, named tuples and dicts keep their form, in which dicts keep
insertion order; a class registered with ``torch.utils._pytree`` is the list of its children; None
and constants are leaves without a shape.

Classes that nobody registered follow the same rule here, so that the answer for a cache does not
depend on what the recorded process, or this one, had registered. Where a class *is* registered in
this process, its registration decides, because that is what ``torch.export`` will see.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from calltape_analyzer.classes import ClassIndex
from calltape_schema.leaves import Leaf
from calltape_schema.tree import (
    CustomNode,
    DictNode,
    FieldsNode,
    Node,
    NoneNode,
    SequenceNode,
    TensorNode,
)

__all__ = ["Flattener", "Form", "Slot", "flatten", "is_cache_name", "is_empty", "mapping_keys"]

FormKind = Literal["slot", "list", "tuple", "dict", "namedtuple"]

_MAPPINGS = {"collections:OrderedDict", "collections:defaultdict"}


@dataclass(frozen=True)
class Slot:
    """One leaf position of a flattened argument.

    ``leaf`` is the number of the tensor in its tree, None where there is no tensor; ``node`` is
    what is there then (None or a constant). ``path`` reads like the leaf keys on a tape: ``""``
    for an argument that is a tensor, ``".layers.0.keys"`` inside a cache.
    """

    path: str
    leaf: int | None
    node: Any

    @property
    def is_constant(self) -> bool:
        """Whether a value other than None stands here."""
        return self.leaf is None and not isinstance(self.node, NoneNode)


@dataclass(frozen=True)
class Form:
    """A flattened argument: a slot, or a container of forms. ``type`` names the class of a named
    tuple; ``keys`` are those of a dict, or the fields of a named tuple."""

    kind: FormKind
    slot: Slot | None = None
    children: tuple[Form, ...] = ()
    keys: tuple[Any, ...] = ()
    type: str | None = None

    def slots(self) -> Iterator[Slot]:
        """The slots in flattening order."""
        stack: list[Form] = [self]
        while stack:
            form = stack.pop()
            if form.slot is not None:
                yield form.slot
            stack.extend(reversed(form.children))


Registered = Callable[[FieldsNode, str], "Form | None"]
"""Gives the form of a class that is registered in this process, or None."""


def flatten(node: Node, registered: Registered | None = None, path: str = "") -> Form:
    """The form of a node.

    Args:
        node: an argument, or any part of one.
        registered: consulted for every node of a class before the rule for unregistered ones.
        path: of the node, below the argument.
    """
    if isinstance(node, SequenceNode) and node.kind in ("list", "tuple") and node.type is None:
        parts = _indexed(node.children, path, registered)
        return Form("list" if node.kind == "list" else "tuple", children=parts)
    if isinstance(node, DictNode) and (node.type is None or node.type in _MAPPINGS):
        parts = tuple(
            flatten(child, registered, f"{path}.{key!s}")
            for key, child in zip(node.keys, node.children, strict=True)
        )
        return Form("dict", children=parts, keys=node.keys)
    if isinstance(node, CustomNode):
        # Its registration was active when it was recorded and flattened it one level.
        return Form("list", children=_indexed(node.children, path, registered))
    if isinstance(node, FieldsNode):
        found = registered(node, path) if registered is not None else None
        return found if found is not None else _flatten_fields(node, registered, path)
    return Form("slot", slot=Slot(path, node.leaf if _is_tensor(node) else None, node))


def _is_tensor(node: Any) -> TypeGuard[TensorNode]:
    # A NumPy array is a constant to torch.export.
    return isinstance(node, TensorNode) and node.kind == "tensor"


def _indexed(nodes: Sequence[Node], path: str, registered: Registered | None) -> tuple[Form, ...]:
    return tuple(flatten(node, registered, f"{path}.{i}") for i, node in enumerate(nodes))


def _flatten_fields(node: FieldsNode, registered: Registered | None, path: str) -> Form:
    named = [
        (f"{path}.{name}", child) for name, child in zip(node.fields, node.children, strict=True)
    ]
    if node.kind == "namedtuple":
        parts = tuple(flatten(child, registered, below) for below, child in named)
        return Form("namedtuple", children=parts, keys=node.fields, type=node.type)
    if node.kind == "dataclass":
        # torch.export.register_dataclass leaves out the fields that are None.
        present = [(below, child) for below, child in named if not isinstance(child, NoneNode)]
        return Form("list", children=tuple(flatten(n, registered, below) for below, n in present))
    return Form("list", children=tuple(_attributes(node, registered, path)))


def _attributes(node: FieldsNode, registered: Registered | None, path: str) -> Iterator[Form]:
    """The tensors in the public attributes of an object, in attribute order and as one flat list
    (``k0, v0, k1, v1``), except that a cache inside keeps a list of its own."""
    for name, child in zip(node.fields, node.children, strict=True):
        if not name.startswith("_"):
            yield from _tensors(child, registered, f"{path}.{name}")


def _tensors(node: Node, registered: Registered | None, path: str) -> Iterator[Form]:
    if _is_tensor(node):
        yield flatten(node, None, path)
    elif isinstance(node, FieldsNode) and is_cache_name(node.type):
        yield flatten(node, registered, path)
    elif isinstance(node, FieldsNode):
        yield from _attributes(node, registered, path)
    elif isinstance(node, DictNode):
        for key, child in zip(node.keys, node.children, strict=True):
            yield from _tensors(child, registered, f"{path}.{key!s}")
    elif isinstance(node, SequenceNode | CustomNode):
        for i, child in enumerate(node.children):
            yield from _tensors(child, registered, f"{path}.{i}")


def is_cache_name(type_name: str) -> bool:
    """Whether a class name (``module:qualname``) is that of a cache."""
    return type_name.endswith("Cache")


def is_empty(node: Any) -> bool:
    """Whether the value is falsy without being a tensor: None, an empty container, a cache without
    layers. ``torch.onnx.InputObserver`` treats such an argument as one that was not passed."""
    if isinstance(node, NoneNode):
        return node.kind == "none"
    if isinstance(node, SequenceNode | DictNode):
        return not node.children
    if not isinstance(node, FieldsNode):
        return False
    if node.kind != "object":
        return not node.children
    parts = dict(zip(node.fields, node.children, strict=True))
    layers = parts.get("layers")
    if layers is not None:
        return is_empty(layers)
    # An encoder-decoder cache is as long as its first part.
    return "self_attention_cache" in parts and is_empty(parts["self_attention_cache"])


def mapping_keys(form: Form, path: str = "") -> frozenset[str]:
    """The paths of everything that stands under a dict key, so that two arguments can be told
    apart whose dicts have different keys."""
    found: set[str] = set()
    stack = [(form, path)]
    while stack:
        one, at = stack.pop()
        is_dict = one.kind == "dict"
        names: Sequence[Any] = one.keys if is_dict else range(len(one.children))
        below = [(child, f"{at}.{name}") for name, child in zip(names, one.children, strict=True)]
        found.update(place for _, place in below if is_dict)
        stack += below
    return frozenset(found)


class Flattener:
    """Flattens the nodes of one tree, asking torch's pytree where it is loaded.

    A registered class is asked by example: the object is rebuilt with stand-in tensors that have
    the recorded dtypes and shapes and next to no memory, its own flatten function is called, and
    the stand-ins say which leaf went where.
    """

    def __init__(self, facts: Sequence[Leaf], scalars: Sequence[Any], classes: ClassIndex) -> None:
        self._facts = facts
        self._scalars = scalars
        self._classes = classes
        self._stand_ins: dict[int, Any] = {}
        self._leaf_of: dict[int, int] = {}

    def flatten(self, node: Node) -> Form:
        """The form of an argument; see the module for the rule."""
        return flatten(node, self._registered_form if _supported_nodes() else None)

    def _registered_form(self, node: FieldsNode, path: str) -> Form | None:
        from calltape_analyzer.rebuild import rebuild

        if node.kind == "namedtuple":
            return None  # torch keeps their form, registered or not
        cls = self._classes.get(node.type)
        if cls is None or cls not in _supported_nodes():
            return None
        try:
            made = rebuild(node, self._stand_in, self._scalars, self._classes)
            if type(made) is not cls:
                return None
            children, _ = _supported_nodes()[cls].flatten_fn(made)
            parts = tuple(self._form_of(child, f"{path}.{i}") for i, child in enumerate(children))
        except Exception:  # a registration may refuse a layer type; ours takes everything
            return None
        return Form("list", children=parts)

    def _form_of(self, value: Any, path: str) -> Form:
        """Like :func:`flatten`, for what a flatten function returned."""
        if id(value) in self._leaf_of:
            leaf = self._leaf_of[id(value)]
            return Form("slot", slot=Slot(path, leaf, TensorNode(kind="tensor", leaf=leaf)))
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            parts = tuple(self._form_of(child, f"{path}.{i}") for i, child in enumerate(value))
            return Form("list" if isinstance(value, list) else "tuple", children=parts)
        if type(value) is dict:
            parts = tuple(self._form_of(child, f"{path}.{key!s}") for key, child in value.items())
            return Form("dict", children=parts, keys=tuple(value))
        if type(value) in _supported_nodes():
            children, _ = _supported_nodes()[type(value)].flatten_fn(value)
            parts = tuple(self._form_of(child, f"{path}.{i}") for i, child in enumerate(children))
            return Form("list", children=parts)
        if "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor):
            raise TypeError("a registration that computes new tensors")
        return Form("slot", slot=Slot(path, None, NoneNode(kind="none")))

    def _stand_in(self, leaf: int) -> Any:
        if leaf not in self._stand_ins:
            from calltape_analyzer.placeholder import Placeholder
            from calltape_analyzer.tensors import torch_constant

            torch = sys.modules["torch"]
            facts = self._facts[leaf]
            dtype = torch_constant("dtype", facts.dtype)
            made = (
                Placeholder("torch:Tensor", "a dtype that this torch does not have")
                if isinstance(dtype, Placeholder)
                # One element, whatever the shape; not meta, so that its value can be asked for.
                else torch.zeros((), dtype=dtype).expand(facts.shape)
            )
            self._stand_ins[leaf] = made
            self._leaf_of[id(made)] = leaf
        return self._stand_ins[leaf]


def _supported_nodes() -> Mapping[Any, Any]:
    pytree = sys.modules.get("torch.utils._pytree")
    nodes: Mapping[Any, Any] = getattr(pytree, "SUPPORTED_NODES", {})
    return nodes
