"""The nodes of a tree with what their place says of them.

In comes the root of one side of a call. Out go its nodes in document order, each with its path, and
with what the recorder's rules ask of a place: is it in a list of data, or in a cache?
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from calltape_analyzer.pytree.caches import is_cache_part
from calltape_analyzer.pytree.nested_tensors import is_ragged_dimension
from calltape_analyzer.pytree.node_paths import names_of_children
from calltape_schema.bounds import MAX_NODES
from calltape_schema.privacy import FEW_NUMBERS, is_name, is_position
from calltape_schema.tree import (
    CustomNode,
    DictNode,
    FieldsNode,
    Node,
    OpaqueNode,
    ScalarNode,
    SequenceNode,
    children_of,
)

__all__ = ["PlacedNode", "placed_nodes"]

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})


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
        told = lists.get(id(placed.node))
        if told is not None:
            placed = placed._replace(is_data=True, in_cache=placed.in_cache and not told)
        yield placed
        stack.extend(reversed(list(_below(placed, named))))


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
    found = [_count(child, lists) for child in children]
    plain, named = sum(one for one, _ in found), sum(one for _, one in found)
    if plain + named > FEW_NUMBERS:
        lists[id(node)] = plain > FEW_NUMBERS
    return plain, named


def _below(placed: PlacedNode, named: int) -> Iterator[PlacedNode]:
    at, node = placed.path, placed.node
    in_list = placed.in_list or placed.is_data
    in_cache = placed.in_cache or (isinstance(node, FieldsNode) and is_cache_part(node))
    names: Any = names_of_children(node)
    if not at and len(names) == 2:
        names = ("args", "kwargs")
    for index, (name, child) in enumerate(zip(names, children_of(node), strict=True)):
        is_named = at == "args" and index < named
        shown = str(name) if is_name(name) else "*"
        yield PlacedNode(
            f"{at}.{name}" if at else str(name), child, in_list and not is_named, in_cache,
            is_setting=is_ragged_dimension(node, name),
            pattern=f"{placed.pattern}.{shown}" if at else shown,
        )  # fmt: skip
    if isinstance(node, CustomNode):
        pattern = f"{placed.pattern}.context"
        yield PlacedNode(f"{at}.context", node.context, in_list, in_cache, pattern=pattern)
