"""How an argument flattens for export: which of its parts are leaves, and how they nest.

Takes a node of a spec; returns its flat tree, in the nesting that ``dynamic_shapes`` must have (the
rule of torch.export, measured with torch 2.6 to 2.15): lists, tuples, named tuples and dicts keep
their form, and dicts their insertion order; a class registered with ``torch.utils._pytree`` is the
list of its children; None and constants are leaves without a shape.

A class that nobody registered follows the same rule here. So the answer for a cache does not depend
on what was registered in the recorded process, or is in this one. If a class is registered in this
process, its registration decides, because ``torch.export`` will use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from calltape_analyzer.pytree.caches import is_cache_name, length_part
from calltape_analyzer.pytree.classes import ClassIndex, is_named_tuple_of, registration_of
from calltape_analyzer.pytree.nodes import named_children
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_analyzer.pytree.tensors import is_tensor, torch_constant
from calltape_schema.tree import (
    CustomNode,
    DictNode,
    FieldsNode,
    Leaf,
    Node,
    NoneNode,
    SequenceNode,
    TensorNode,
)

__all__ = [
    "FlatTree",
    "Flattener",
    "Slot",
    "is_empty",
    "mapping_keys",
]


FormKind = Literal["slot", "list", "tuple", "dict", "namedtuple"]

_MAPPINGS = {"collections:OrderedDict", "collections:defaultdict"}


@dataclass(frozen=True)
class Slot:
    """One leaf position of a flattened argument.

    Attributes:
        path: as in the leaf keys of a tape: ``""`` for an argument that is a tensor,
            ``".layers.0.keys"`` inside a cache.
        leaf: the number of the tensor in its tree; None if there is no tensor here.
        node: what is here: a tensor, a constant or None.
    """

    path: str
    leaf: int | None
    node: Any

    @property
    def is_constant(self) -> bool:
        """Whether a value other than None stands here."""
        return self.leaf is None and not isinstance(self.node, NoneNode)


@dataclass(frozen=True)
class FlatTree:
    """A flattened argument: a slot, or a container of flat trees. ``type`` is the class name of a
    named tuple; ``keys`` are the keys of a dict, or the fields of a named tuple."""

    kind: FormKind
    slot: Slot | None = None
    children: tuple[FlatTree, ...] = ()
    keys: tuple[Any, ...] = ()
    type: str | None = None

    def slots(self) -> Iterator[Slot]:
        """The slots in flattening order."""
        stack: list[FlatTree] = [self]
        while stack:
            form = stack.pop()
            if form.slot is not None:
                yield form.slot
            stack.extend(reversed(form.children))

    def filled(self, leaf: Callable[[FlatTree], Any], classes: ClassIndex) -> Any:
        """Values in the lists, tuples, dicts and named tuples of the argument, such as its dynamic
        shapes.

        Args:
            leaf: gives the value of a slot.
            classes: of named tuples. One that is not known here, or that has other fields, is a
                plain tuple.
        """
        if self.kind == "slot":
            return leaf(self)
        parts = [child.filled(leaf, classes) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, parts, strict=True))
        if self.kind == "namedtuple":
            cls: Any = classes.get(self.type or "")
            return tuple.__new__(cls, parts) if is_named_tuple_of(cls, self.keys) else tuple(parts)
        return tuple(parts) if self.kind == "tuple" else parts


def _is_tensor(node: Any) -> TypeGuard[TensorNode]:
    # A NumPy array is a constant to torch.export.
    return isinstance(node, TensorNode) and node.kind == "tensor"


def is_empty(node: Any) -> bool:
    """Whether a value is None, an empty container or a cache without layers.
    ``torch.onnx.InputObserver`` treats such an argument as one that was not passed."""
    if isinstance(node, NoneNode):
        return node.kind == "none"
    if isinstance(node, SequenceNode | DictNode):
        return not node.children
    if not isinstance(node, FieldsNode):
        return False
    if node.kind != "object":
        return not node.children
    part = length_part(node)
    return part is not None and is_empty(part)


def mapping_keys(form: FlatTree) -> frozenset[str]:
    """The paths of all values of dicts, so that arguments whose dicts have different keys can be
    told apart."""
    keys: set[str] = set()
    stack = [(form, "")]
    while stack:
        node, depth = stack.pop()
        is_dict = node.kind == "dict"
        names: Sequence[Any] = node.keys if is_dict else range(len(node.children))
        below = [(c, f"{depth}.{name}") for name, c in zip(names, node.children, strict=True)]
        keys.update(place for _, place in below if is_dict)
        stack += below
    return frozenset(keys)


class Flattener:
    """Flattens the nodes of one tree, with the registrations of torch's pytree if it is loaded.

    What a registration does is found by an example: the object is rebuilt with stand-in tensors,
    which have the recorded dtypes and shapes and need almost no memory; then its flatten function
    is called, and the stand-ins show where each leaf went.
    """

    def __init__(self, facts: Sequence[Leaf], scalars: Sequence[Any], classes: ClassIndex) -> None:
        self._facts = facts
        self._scalars = scalars
        self._classes = classes
        self._stand_ins: dict[int, Any] = {}
        self._leaf_of: dict[int, int] = {}

    def flatten(self, node: Node, path: str = "") -> FlatTree:
        """The flat tree of an argument, or of the part of one at a path, by the rule of the
        module."""

        def flat(nodes: Iterable[tuple[Any, Node]]) -> tuple[FlatTree, ...]:
            return tuple(self.flatten(child, f"{path}.{name!s}") for name, child in nodes)

        if isinstance(node, DictNode) and (node.type is None or node.type in _MAPPINGS):
            return FlatTree("dict", children=flat(named_children(node)), keys=node.keys)
        if isinstance(node, SequenceNode) and node.kind in ("list", "tuple") and node.type is None:
            kind: FormKind = "list" if node.kind == "list" else "tuple"
            return FlatTree(kind, children=flat(named_children(node)))
        if isinstance(node, CustomNode):
            # Its registration was active in the recorder, and has flattened it by one level.
            return FlatTree("list", children=flat(named_children(node)))
        # A dict or a list of a class that torch does not take apart by itself flattens to the
        # tensors in it, as an object does.
        is_other_sequence = isinstance(node, SequenceNode) and node.kind != "list"
        if isinstance(node, FieldsNode | DictNode | SequenceNode) and not is_other_sequence:
            if (registered := self._registered_form(node, path)) is not None:
                return registered
            if isinstance(node, FieldsNode) and node.kind == "namedtuple":
                parts = flat(named_children(node))
                return FlatTree("namedtuple", children=parts, keys=node.fields, type=node.type)
            if node.kind == "dataclass":
                # torch.export.register_dataclass leaves out the fields that are None.
                present = (c for c in named_children(node) if not isinstance(c[1], NoneNode))
                return FlatTree("list", children=flat(present))
            return FlatTree("list", children=tuple(self._tensors_below(node, path)))
        return FlatTree("slot", slot=Slot(path, node.leaf if _is_tensor(node) else None, node))

    def _tensors_below(self, node: Node, path: str) -> Iterator[FlatTree]:
        """The tensors in an object, in the order of its attributes and as one flat list (``k0, v0,
        k1, v1``). A cache inside the object stays a list by itself."""
        for name, child in named_children(node):
            below = f"{path}.{name!s}"
            if isinstance(child, FieldsNode) and is_cache_name(child.type):
                yield self.flatten(child, below)
            elif not _is_tensor(child):
                yield from self._tensors_below(child, below)
            # A private tensor is context. A private container is where a mapping keeps its items.
            elif not (isinstance(node, FieldsNode) and name.startswith("_")):
                yield self.flatten(child, below)

    def _registered_form(
        self, node: FieldsNode | DictNode | SequenceNode, path: str
    ) -> FlatTree | None:
        if node.kind == "namedtuple" or "torch" not in sys.modules:
            return None  # torch keeps named tuples as they are, registered or not
        cls = self._classes.get(node.type or "")
        registered = None if cls is None else registration_of(cls)
        if registered is None:
            return None
        try:
            rebuilt = rebuild(node, self._stand_in, self._scalars, self._classes)
            if type(rebuilt) is not cls:
                return None
            children, _ = registered.flatten_fn(rebuilt)
            parts = tuple(self._form_of(child, f"{path}.{i}") for i, child in enumerate(children))
        except Exception:  # a registration may refuse some layers; the rule here takes all
            return None
        return FlatTree("list", children=parts)

    def _form_of(self, value: Any, path: str) -> FlatTree:
        """The flat tree of what a flatten function returned."""
        if id(value) in self._leaf_of:
            leaf = self._leaf_of[id(value)]
            return FlatTree("slot", slot=Slot(path, leaf, TensorNode(kind="tensor", leaf=leaf)))
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            parts = tuple(self._form_of(child, f"{path}.{i}") for i, child in enumerate(value))
            return FlatTree("list" if isinstance(value, list) else "tuple", children=parts)
        if type(value) is dict:
            parts = tuple(self._form_of(child, f"{path}.{key!s}") for key, child in value.items())
            return FlatTree("dict", children=parts, keys=tuple(value))
        if (registered := registration_of(type(value))) is not None:
            children, _ = registered.flatten_fn(value)
            parts = tuple(self._form_of(child, f"{path}.{i}") for i, child in enumerate(children))
            return FlatTree("list", children=parts)
        if is_tensor(value):
            raise TypeError("a registration that computes new tensors")
        return FlatTree("slot", slot=Slot(path, None, NoneNode(kind="none")))

    def _stand_in(self, leaf: int) -> Any:
        if leaf not in self._stand_ins:
            torch = sys.modules["torch"]
            facts = self._facts[leaf]
            dtype = torch_constant("dtype", facts.dtype)
            stand_in = (
                Placeholder("torch:Tensor", "a dtype that this torch does not have")
                if isinstance(dtype, Placeholder)
                # One element in memory, whatever the shape. A meta tensor would not do: a flatten
                # function may ask for a value.
                else torch.zeros((), dtype=dtype).expand(facts.shape)
            )
            self._stand_ins[leaf] = stand_in
            self._leaf_of[id(stand_in)] = leaf
        return self._stand_ins[leaf]
