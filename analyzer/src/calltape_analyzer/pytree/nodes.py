"""The nodes of a tree: their paths, what their place says of them, and what they refer to.

Takes the root of the inputs or outputs of a call; returns its nodes in document order, each with
its path as FORMAT.md defines it: ``args.0``, ``kwargs.cache.layers.0.keys``.

A node refers to tensors and scalars by position. The recorder writes no others, but a tape may come
from somebody else: a scalar that no node uses is shown nowhere, and may be anything.

Two results are compared by their values, by path. The class of a container is no value, and neither
is None: a dict may stand for a dataclass, and a field that is None for a missing one. Every other
part of a result is a value, or an :class:`Unknown` that says why it cannot be described.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeGuard

from calltape_analyzer.pytree.caches import is_cache_part
from calltape_schema.bounds import MAX_NODES
from calltape_schema.errors import TapeError
from calltape_schema.inputs_table import Kind
from calltape_schema.objects import JAGGED_DIM, NESTED_TENSOR
from calltape_schema.privacy import FEW_NUMBERS, is_name, is_position
from calltape_schema.recent import Recent
from calltape_schema.records import Tree
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
    Structure,
    TensorNode,
    children_of,
    decode_structure,
    document_like,
    encode_leaves,
    encode_structure,
    walk,
)

__all__ = [
    "ABSENT",
    "ITSELF",
    "Constant",
    "PlacedNode",
    "ReferencedOnly",
    "Returned",
    "Unknown",
    "is_nested_node",
    "named_children",
    "names_of_children",
    "nested_places",
    "nodes_with_paths",
    "placed_nodes",
    "unreferenced",
    "values_in",
    "with_children",
]


def nodes_with_paths(root: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """All nodes, with their paths. It does not recurse, because a tree may be deep.

    Args:
        root: of a side of a call, or any node.
        path: of the root. If it is empty and the root has two children, these are ``args`` and
            ``kwargs``.
    """
    stack: list[tuple[str, Node]] = [(path, root)]
    while stack:
        path_here, node = stack.pop()
        yield path_here, node
        below = [(path, child) for _, path, child in _children_at(path_here, node)]
        if isinstance(node, CustomNode):
            below.insert(0, (f"{path_here}.context", node.context))
        stack.extend(reversed(below))


def _children_at(path: str, node: Node) -> Iterator[tuple[Any, str, Node]]:
    """The children of a node at a path, each with its name there and its path."""
    names: Sequence[Any] = names_of_children(node)
    if not path and len(names) == 2:
        names = ("args", "kwargs")
    for name, child in zip(names, children_of(node), strict=True):
        yield name, f"{path}.{name}" if path else str(name), child


def named_children(node: Node) -> Iterator[tuple[Any, Node]]:
    """The children of a node, each with its key, field or position."""
    return zip(names_of_children(node), children_of(node), strict=True)


def with_children(node: Node, transform: Callable[[Node], Node]) -> Node:
    """A node with others in the place of its children, and of the context of a custom node; the
    node itself, if each is what it was.

    Args:
        node: any.
        transform: gives what stands in the place of one.
    """
    children = children_of(node)
    changed: dict[str, Any] = {"children": tuple(map(transform, children))} if children else {}
    is_same = all(map(operator.is_, children, changed.get("children", ())))
    if isinstance(node, CustomNode):
        changed["context"] = transform(node.context)
        is_same = is_same and changed["context"] is node.context
    return node if is_same else node.model_copy(update=changed)


def names_of_children(node: Node) -> Sequence[Any]:
    """The key, field or position of each child."""
    if isinstance(node, DictNode):
        return node.keys
    if isinstance(node, FieldsNode):
        return node.fields
    return range(len(children_of(node)))


_LISTS = frozenset({"list", "tuple", "set", "frozenset"})


def is_nested_node(node: Any) -> TypeGuard[FieldsNode]:
    """Whether a node of a spec stands for a nested tensor."""
    return isinstance(node, FieldsNode) and node.type == NESTED_TENSOR and node.kind == "object"


def is_ragged_dimension(node: Node, name: Any) -> bool:
    """Whether the child of this name is the int that says which dimension of a nested tensor is
    ragged."""
    if name != JAGGED_DIM or not is_nested_node(node):
        return False
    child = node.children[node.fields.index(name)]
    return isinstance(child, ScalarNode) and child.kind == "int"


def nested_places(root: Node, path: str = "") -> Iterator[tuple[FieldsNode, str]]:
    """The nested tensors in a tree, each with its path.

    Args:
        root: of a side of a call, or any node.
        path: of the root.
    """
    for node_path, node in nodes_with_paths(root, path):
        if is_nested_node(node):
            yield node, node_path


class PlacedNode(NamedTuple):
    """A node at its place.

    Attributes:
        path: from the root on (``args.0.layers``).
        node: of a spec.
        in_list: whether it is below a list whose numbers are data.
        in_cache: whether it is below a cache, whose numbers are sizes and settings.
        is_setting: whether it says which dimension of a nested tensor is ragged. Without that,
            nothing could be rebuilt.
        pattern: the path with a star for each key that looks like data.
        is_data: whether it is such a list itself.
    """

    path: str
    node: Node
    in_list: bool = False
    in_cache: bool = False
    is_setting: bool = False
    pattern: str = ""
    is_data: bool = False


def placed_nodes(root: Node, path: str = "", named: int = MAX_NODES) -> Iterator[PlacedNode]:
    """All nodes of a tree.

    Args:
        root: of a side of a call.
        path: of the root: ``""`` for inputs, ``outputs`` for outputs.
        named: how many positional arguments have names; the others are a list.
    """
    stack = [PlacedNode(path, root, pattern=path)]
    lists = _data_lists(root, named if not path else 0)
    while stack:
        placed = stack.pop()
        even_in_cache = lists.get(id(placed.node))
        if even_in_cache is not None:
            placed = placed._replace(is_data=True, in_cache=placed.in_cache and not even_in_cache)
        yield placed
        stack.extend(reversed(list(_keyed_children(placed, named))))


def _data_lists(root: Node, named: int) -> dict[int, bool]:
    """The lists whose numbers are data, by the recorder's rule (``capture/data_lists.py``), and
    whether they are data within a cache too."""
    lists: dict[int, bool] = {}
    sides = children_of(root)
    if named and len(sides) == 2:
        arguments = children_of(sides[0])
        for node in (*arguments[:named], sides[1]):
            _count(node, lists)
        _count_list(sides[0], arguments[named:], lists)
    else:
        _count(root, lists)
    return lists


def _count(node: Node, lists: dict[int, bool]) -> tuple[int, int]:
    """How many numbers without names a node has, and how many elements with names that have
    numbers."""
    if isinstance(node, ScalarNode):
        return int(node.kind not in ("str", "bytes")), 0
    if isinstance(node, OpaqueNode):
        return int(node.of in ("int", "float", "complex")), 0
    if isinstance(node, CustomNode):
        _count(node.context, lists)
        return _count_list(node, node.children, lists)
    if isinstance(node, SequenceNode) and node.kind in _LISTS:
        return _count_list(node, node.children, lists)
    if isinstance(node, DictNode) and node.keys and all(map(is_position, node.keys)):
        return _count_list(node, node.children, lists)
    has_number = [any(_count(child, lists)) for child in children_of(node)]
    is_size = isinstance(node, SequenceNode) and node.kind == "size"
    return 0, int(any(has_number) and not is_size)


def _count_list(node: Node, children: Sequence[Node], lists: dict[int, bool]) -> tuple[int, int]:
    counts = [_count(child, lists) for child in children]
    plain, named = sum(count for count, _ in counts), sum(count for _, count in counts)
    if plain + named > FEW_NUMBERS:
        lists[id(node)] = plain > FEW_NUMBERS
    return plain, named


def _keyed_children(placed: PlacedNode, named: int) -> Iterator[PlacedNode]:
    parent_path, node = placed.path, placed.node
    in_list = placed.in_list or placed.is_data
    in_cache = placed.in_cache or (isinstance(node, FieldsNode) and is_cache_part(node))
    for index, (name, path, child) in enumerate(_children_at(parent_path, node)):
        is_named = parent_path == "args" and index < named
        shown = str(name) if is_name(name) else "*"
        yield PlacedNode(
            path, child, in_list and not is_named, in_cache,
            is_setting=is_ragged_dimension(node, name),
            pattern=f"{placed.pattern}.{shown}" if parent_path else shown,
        )  # fmt: skip
    if isinstance(node, CustomNode):
        pattern = f"{placed.pattern}.context"
        yield PlacedNode(f"{parent_path}.context", node.context, in_list, in_cache, pattern=pattern)


class _Referenced(NamedTuple):
    """What the nodes of a structure refer to.

    Attributes:
        leaves, scalars: the positions of tensors and scalars, ascending, each with the position
            that it has without the others.
        structure: that has no others; None if there are none.
    """

    leaves: Mapping[int, int]
    scalars: Mapping[int, int]
    structure: bytes | None


def unreferenced(tree: Tree) -> tuple[int, int]:
    """How many tensors and how many scalars of a tree no node refers to.

    Raises:
        TapeError: the tree is damaged.
    """
    spec = tree.spec()
    leaves, scalars = _positions(spec)
    return spec.leaves - len(leaves), spec.scalars - len(scalars)


class ReferencedOnly:
    """Takes out of trees what their nodes do not refer to."""

    def __init__(self) -> None:
        self._known = Recent()

    def tree(self, tree: Tree) -> Tree:
        """A tree without it. The remaining tensors and scalars stay in their order.

        Raises:
            TapeError: the tree is damaged.
        """
        positions = self._of(tree.structure, tree.spec)
        if positions.structure is None:
            return tree
        leaves, facts = positions.leaves, tree.facts()
        leaf_documents = [
            facts[i].model_dump(exclude_none=True, exclude_defaults=True) for i in leaves
        ]
        spans = [range_ for range_ in tree.ranges if range_.leaf in leaves]
        return tree.model_copy(
            update={
                "structure": positions.structure,
                "leaves": encode_leaves(leaf_documents),
                "scalars": tuple(tree.scalars[i] for i in positions.scalars),
                "ranges": tuple(o.model_copy(update={"leaf": leaves[o.leaf]}) for o in spans),
            }
        )

    def kind(self, kind: Kind) -> Kind:
        """Counted inputs without it.

        Raises:
            TapeError: ``invalid`` if they do not have the tensors and scalars that their structure
                says; ``damaged``, ``limit``.
        """
        spec = decode_structure(kind.structure)
        sizes = sum(kind.ranks)
        if (len(kind.dtypes), len(kind.axes) - sizes) != (spec.leaves, spec.scalars):
            raise TapeError(
                "invalid", "a kind does not have the leaves and scalars of its structure"
            )
        positions = self._of(kind.structure, lambda: spec)
        if positions.structure is None:
            return kind
        begins = list(accumulate(kind.ranks, initial=0))
        axes = [axis for i in positions.leaves for axis in kind.axes[begins[i] : begins[i + 1]]]
        axes += [kind.axes[sizes + i] for i in positions.scalars]
        dtypes = [kind.dtypes[i] for i in positions.leaves]
        ranks = [kind.ranks[i] for i in positions.leaves]
        return Kind(positions.structure, dtypes, ranks, axes, kind)

    def _of(self, structure: bytes, spec_of: Callable[[], Structure]) -> _Referenced:
        def made() -> _Referenced:
            spec = spec_of()
            leaves, scalars = ({i: n for n, i in enumerate(f)} for f in _positions(spec))
            less: bytes | None = None
            if (len(leaves), len(scalars)) != (spec.leaves, spec.scalars):
                root = _renumbered(spec.root, leaves, scalars).model_dump(exclude_none=True)
                less = encode_structure(document_like(spec, root, len(leaves), len(scalars)))
            return _Referenced(leaves, scalars, less)

        return self._known.once(structure, made, 2 * len(structure))


def _positions(spec: Structure) -> tuple[list[int], list[int]]:
    leaves, scalars = set[int](), set[int]()
    for node in walk(spec.root):
        if isinstance(node, TensorNode):
            leaves.add(node.leaf)
        elif isinstance(node, ScalarNode):
            scalars.add(node.scalar)
        elif isinstance(node, OpaqueNode) and node.length is not None:
            scalars.add(node.length)
    return sorted(leaves), sorted(scalars)


def _renumbered(node: Node, leaves: Mapping[int, int], scalars: Mapping[int, int]) -> Node:
    if isinstance(node, TensorNode):
        return node.model_copy(update={"leaf": leaves[node.leaf]})
    if isinstance(node, ScalarNode):
        return node.model_copy(update={"scalar": scalars[node.scalar]})
    if isinstance(node, OpaqueNode) and node.length is not None:
        return node.model_copy(update={"length": scalars[node.length]})
    return with_children(node, lambda child: _renumbered(child, leaves, scalars))


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
    values = _Values(tensor, scalar)
    values.visit(node, "")
    return values.found


@dataclass
class _Values:
    tensor: Callable[[int], Any]
    scalar: Callable[[int], Any]
    found: dict[str, Any] = field(default_factory=dict)
    again: dict[str, int] = field(default_factory=dict)

    def visit(self, node: Node, path: str) -> None:
        if isinstance(node, SequenceNode) and node.kind in ("set", "frozenset"):
            # A set has no order. If it holds several tensors, nobody knows which is which.
            if all(isinstance(child, _PLAIN) for child in node.children):
                self._put_value(path, frozenset(map(self._value, node.children)))
            elif len(node.children) == 1:
                self.visit(node.children[0], f"{path}.0")
            else:
                reason = "a set of tensors, without an order"
                self._put_value(path, Unknown(f"builtins:{node.kind}", reason))
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
            self._put_value(path, self._value(node))
        if attributes := getattr(node, "beside", None):
            kind = "tensor" if isinstance(node, TensorNode) else getattr(node, "type", None)
            module, _, qualname = (kind or node.kind).partition(":")
            # The state of some models of transformers has their configuration.
            is_config = module.startswith("transformers.models.") and qualname.endswith("Config")
            for name in attributes:
                if not (name.startswith("_") and is_config):
                    self._put_value(f"{path}.{name}", Unknown(kind or node.kind, BESIDE))

    def _put_value(self, path: str, value: Any) -> None:
        """Notes a value by its path, or by one like it if the path is taken: the keys 1 and "1"
        have one path, and so have the key "a.b" and the key "b" below "a"."""
        if value is ABSENT:
            return
        unique_path, count = path, self.again.get(path, 0)
        while unique_path in self.found:
            count += 1
            # A hostile tape may have thousands of equal paths. Their names must stay short.
            unique_path = path + "~" * count if count <= _MAX_MARKS else f"{path}~{count}"
        if unique_path != path:
            self.again[path] = count
        self.found[unique_path] = value

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
