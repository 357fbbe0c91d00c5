"""The nodes of a tree with what their place says of them.

In comes the root of one side of a call. Out go its nodes in document order, each with its path, and
with what the recorder's rules ask of a place: is it in a list of data, or in a cache?
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from calltape_analyzer.pytree.caches import is_cache_part
from calltape_analyzer.pytree.nested_tensors import is_ragged_dimension
from calltape_analyzer.pytree.node_paths import names_of_children
from calltape_schema.privacy import MANY, is_name
from calltape_schema.tree import CustomNode, FieldsNode, Node, SequenceNode, children_of

__all__ = ["PlacedNode", "is_long_list", "is_private_key", "placed_nodes"]

_LISTS = frozenset({"list", "tuple", "set", "frozenset"})


class PlacedNode(NamedTuple):
    """A node at its place.

    Attributes:
        path: from the root on (``args.0.layers``).
        node: of a spec.
        in_list: whether it is below a list of more than 8 elements, whose numbers are data.
        in_cache: whether it is below a cache, whose numbers are sizes and settings.
        is_setting: whether it says which dimension of a nested tensor is ragged. Without that,
            nothing could be rebuilt.
        pattern: the path with a star for each key that looks like data.
    """

    path: str
    node: Node
    in_list: bool = False
    in_cache: bool = False
    is_setting: bool = False
    pattern: str = ""


def placed_nodes(root: Node, path: str = "") -> Iterator[PlacedNode]:
    """All nodes of a tree.

    Args:
        root: of a side of a call.
        path: of the root: ``""`` for inputs, ``outputs`` for outputs.
    """
    stack = [PlacedNode(path, root, pattern=path)]
    while stack:
        placed = stack.pop()
        yield placed
        stack.extend(reversed(list(_below(placed))))


def is_long_list(placed: PlacedNode) -> bool:
    """Whether the numbers below a node are data because they are many. Arguments are not."""
    node = placed.node
    return (
        isinstance(node, SequenceNode)
        and node.kind in _LISTS
        and len(node.children) > MANY
        and placed.path != "args"
    )


def is_private_key(name: Any) -> bool:
    """Whether a key of a dict, or the name of a field, looks like data."""
    return not is_name(name) and not str(name).isidentifier()


def _below(placed: PlacedNode) -> Iterator[PlacedNode]:
    at, node = placed.path, placed.node
    in_list = placed.in_list or is_long_list(placed)
    in_cache = placed.in_cache or (isinstance(node, FieldsNode) and is_cache_part(node))
    names: Any = names_of_children(node)
    if not at and len(names) == 2:
        names = ("args", "kwargs")
    for name, child in zip(names, children_of(node), strict=True):
        shown = "*" if is_private_key(name) else str(name)
        yield PlacedNode(
            f"{at}.{name}" if at else str(name), child, in_list, in_cache,
            is_setting=is_ragged_dimension(node, name),
            pattern=f"{placed.pattern}.{shown}" if at else shown,
        )  # fmt: skip
    if isinstance(node, CustomNode):
        pattern = f"{placed.pattern}.context"
        yield PlacedNode(f"{at}.context", node.context, in_list, in_cache, pattern=pattern)
