"""The arguments of a call in one canonical form, in which a recorded call and a live one compare.

The rules are those that made exports succeed when they were measured (docs/decisions/0012):
arguments are bound to the names of the signature; what equals its default is left out, and so is
the order of a plain dict's keys. What is left is a *layout*: a tree of containers and constants,
with numbered places for tensors, ints and the scalars that select a program (text, floats).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

from calltape_analyzer.binding import Signature
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
    children_of,
)

__all__ = [
    "Layout",
    "Place",
    "Renamed",
    "layout_of_arguments",
    "layout_of_inputs",
    "layout_of_value",
    "likeness_of",
]

Renamed = Callable[[str], str]
"""From the name that a tape has for a class to the one that it has in this process."""


class Place(NamedTuple):
    """Where a tensor or scalar is: an argument, the path below it (``""`` for the argument itself,
    ``".layers.0.keys"`` inside a cache), and its number in the call that was laid out.

    ``private`` is an attribute of an object whose name starts with an underscore; ``owner`` is the
    class of the object that holds it.
    """

    argument: str
    path: str
    kind: Literal["tensor", "array", "int", "float", "complex", "str", "bytes"]
    number: int
    private: bool = False
    owner: str | None = None

    def __str__(self) -> str:
        return f"{self.argument}{self.path}"

    @property
    def attribute(self) -> str:
        """The last part of the path, or the argument's name."""
        return self.path.rpartition(".")[2] if self.path else self.argument


@dataclass(frozen=True, eq=False)
class Layout:
    """The canonical form of one structure.

    Attributes:
        keys: per argument a key that is equal for equal structures; constants of the tree are part
            of it, numbers and text of scalars are not.
        nodes: per argument its node, in which leaf and scalar numbers are places of this layout.
        tensors: the tensors, in order; ``nodes`` refer to them by position.
        scalars: the ints, floats, texts, in order; likewise.
        positional: how many of the leading arguments were passed by position.
        left_out: the arguments that the call passes, with a value that is not their default, and
            that :meth:`Tape.remove_inputs` took out.
    """

    keys: tuple[tuple[str, Hashable], ...]
    nodes: Mapping[str, Node]
    tensors: tuple[Place, ...]
    scalars: tuple[Place, ...]
    positional: int
    left_out: tuple[str, ...] = ()

    @cached_property
    def ints(self) -> tuple[Place, ...]:
        """The scalars that are ints."""
        return tuple(place for place in self.scalars if place.kind == "int")

    @cached_property
    def others(self) -> tuple[Place, ...]:
        """The scalars that are none."""
        return tuple(place for place in self.scalars if place.kind != "int")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments, in the order of the signature."""
        return tuple(self.nodes)


def layout_of_inputs(
    root: Node,
    scalars: Sequence[Any],
    signature: Signature,
    renamed: Renamed = str,
) -> Layout:
    """The layout of a call.

    Args:
        root: a node of inputs: the tuple of args and kwargs.
        scalars: the call's scalars; only to leave out arguments that equal their default. What
            they say decides the layout only through that.
        signature: of the method that was called.
        renamed: tells the names of classes here.
    """
    args, kwargs = children_of(root)
    passed = {signature.complete.name_at(i): node for i, node in enumerate(args.children)}
    positional = list(passed)
    passed |= dict(zip(kwargs.keys, kwargs.children, strict=True))

    def unpassed(name: str, node: Node) -> bool:
        return _is_default(name, node, scalars, signature)

    kept = {
        name: node
        for name, node in passed.items()
        if name not in signature.removed and not unpassed(name, node)
    }
    order = {name: i for i, name in enumerate(positional)}
    known = signature.places
    beyond = len(order) + len(known)
    names = sorted(
        kept, key=lambda name: (order.get(name, len(order) + known.get(name, beyond)), name)
    )
    leading = 0
    while leading < len(names) and leading < len(positional):
        if names[leading] != positional[leading]:
            break
        leading += 1
    made = _laid_out({name: kept[name] for name in names}, leading, renamed)
    left_out = (n for n in passed if n in signature.removed and not unpassed(n, passed[n]))
    return replace(made, left_out=tuple(left_out))


def likeness_of(layout: Layout, facts: Sequence[tuple[str, int]], signature: Signature) -> Hashable:
    """Equal for calls that counters of the whole traffic cannot tell apart. A scalar that may have
    been left out as its default is no difference to them.

    Args:
        layout: of the call.
        facts: dtype and rank of each tensor.
        signature: of the method that was called.
    """

    def may_be_default(name: str) -> bool:
        known = signature.by_name.get(name)
        return known is not None and known.has_default and known.default is not None

    return tuple(facts), tuple(
        (name, key)
        for name, key in layout.keys
        if not (isinstance(layout.nodes[name], ScalarNode) and may_be_default(name))
    )


def layout_of_arguments(
    nodes: Mapping[str, Node], positional: int, renamed: Renamed = str
) -> Layout:
    """The layout of arguments that were laid out before, and are all kept."""
    return _laid_out(nodes, positional, renamed)


def layout_of_value(node: Node, renamed: Renamed = str) -> Layout:
    """The layout of a single value, such as what a model returned, as one argument ``output``."""
    return _laid_out({"output": node}, 1, renamed)


def _laid_out(kept: Mapping[str, Node], leading: int, renamed: Renamed) -> Layout:
    walk = _Walk(renamed)
    keys: list[tuple[str, Hashable]] = []
    nodes: dict[str, Node] = {}
    for name, node in kept.items():
        walk.argument = name
        nodes[name], key = walk.visit(node, "")
        keys.append((name, key))
    return Layout(tuple(keys), nodes, tuple(walk.tensors), tuple(walk.scalars), leading)


def _is_default(name: str, node: Node, scalars: Sequence[Any], signature: Signature) -> bool:
    parameter = signature.by_name.get(name)
    if parameter is None or not parameter.has_default or parameter.default_missing:
        return False
    default = parameter.default
    if isinstance(node, NoneNode):
        return node.kind == "none" and default is None
    if isinstance(node, BoolNode):
        return default is node.value
    if isinstance(node, ScalarNode) and node.kind != "complex":
        value = scalars[node.scalar]
        return type(value) is type(default) and bool(value == default)
    return False


@dataclass
class _Walk:
    """One pass over the arguments: renumbered nodes, and the key of what was seen."""

    renamed: Renamed
    argument: str = ""
    tensors: list[Place] = field(default_factory=list)
    scalars: list[Place] = field(default_factory=list)

    def visit(
        self, node: Node, path: str, *, private: bool = False, owner: str | None = None
    ) -> tuple[Node, Hashable]:
        if isinstance(node, TensorNode):
            kind: Any = "tensor" if node.kind == "tensor" else "array"
            self.tensors.append(Place(self.argument, path, kind, node.leaf, private, owner))
            return node.model_copy(update={"leaf": len(self.tensors) - 1}), kind
        if isinstance(node, ScalarNode):
            place = Place(self.argument, path, node.kind, node.scalar, private, owner)
            self.scalars.append(place)
            name = self.renamed(node.type) if node.type else None
            made = node.model_copy(update={"scalar": len(self.scalars) - 1, "type": name})
            return made, node.kind
        if isinstance(node, SequenceNode | DictNode | FieldsNode | CustomNode):
            return self._container(node, path)
        if isinstance(node, OpaqueNode):
            # How long a text was that is not on the tape is no constant, and no place.
            return node.model_copy(update={"length": None}), _constant_key(node, self.renamed)
        return node, _constant_key(node, self.renamed)

    def _container(self, node: Any, path: str) -> tuple[Node, Hashable]:
        name = self.renamed(node.type) if node.type else None
        update: dict[str, Any] = {"type": name}
        if isinstance(node, FieldsNode):
            made, keys = self._fields(node, path, name)
            update["children"] = made
            return node.model_copy(update=update), (node.kind, name, keys)
        if isinstance(node, DictNode):
            labels, children = _in_order(node)
            made, parts = self._children(children, path, labels)
            # Places are numbered in the sorted order; the dict itself keeps its own, which
            # torch.export holds a call to.
            by_label = dict(zip(_typed(labels), made, strict=True))
            update["children"] = tuple(by_label[label] for label in _typed(node.keys))
            return node.model_copy(update=update), ("dict", name, _typed(labels), parts)
        made, parts = self._children(node.children, path, range(len(node.children)))
        update["children"] = made
        if isinstance(node, CustomNode):
            update["context"], context = self.visit(node.context, f"{path}.context")
            return node.model_copy(update=update), ("custom", name, context, parts)
        return node.model_copy(update=update), (node.kind, name, parts)

    def _children(
        self, children: Sequence[Node], path: str, labels: Iterable[Any]
    ) -> tuple[tuple[Node, ...], Hashable]:
        found = [
            self.visit(child, f"{path}.{label!s}")
            for label, child in zip(labels, children, strict=True)
        ]
        return tuple(node for node, _ in found), tuple(key for _, key in found)

    def _fields(
        self, node: FieldsNode, path: str, name: str | None
    ) -> tuple[tuple[Node, ...], Hashable]:
        nodes: dict[str, Node] = {}
        keys: list[Hashable] = []
        pairs = list(zip(node.fields, node.children, strict=True))
        if node.kind != "namedtuple":
            # Attributes are told apart by name; in which order they were set means nothing.
            pairs.sort(key=lambda pair: pair[0])
        for label, child in pairs:
            private = node.kind == "object" and label.startswith("_")
            nodes[label], key = self.visit(child, f"{path}.{label}", private=private, owner=name)
            # Libraries mark objects in private flags (transformers' _is_user_defined) in ways that
            # mean nothing to a program.
            if not (private and not children_of(child) and not isinstance(child, TensorNode)):
                keys.append((label, key))
        return tuple(nodes[label] for label in node.fields), tuple(keys)


def _in_order(node: DictNode) -> tuple[tuple[Any, ...], tuple[Node, ...]]:
    """Keys and children of a dict, sorted where it is a plain one: two calls that insert keys in
    different order are the same structure."""
    pairs = list(zip(node.keys, node.children, strict=True))
    if node.type is None:
        pairs.sort(key=lambda pair: (type(pair[0]).__name__, repr(pair[0])))
    return tuple(key for key, _ in pairs), tuple(child for _, child in pairs)


def _typed(labels: Iterable[Any]) -> tuple[Hashable, ...]:
    # 1, 1.0 and True are one key to Python.
    return tuple((type(label).__name__, label) for label in labels)


def _constant_key(node: Node, renamed: Renamed) -> Hashable:
    if isinstance(node, NoneNode):
        return node.kind
    if isinstance(node, BoolNode):
        return "true" if node.value else "false"
    if isinstance(node, ConstantNode):
        # Devices are those of the machine; a program may run on another one.
        return ("device",) if node.kind == "device" else (node.kind, node.name)
    if isinstance(node, EnumNode):
        return ("enum", renamed(node.type), node.name)
    if isinstance(node, ClassNode):
        return ("class", renamed(node.type))
    assert isinstance(node, OpaqueNode)
    return ("opaque", renamed(node.type))
