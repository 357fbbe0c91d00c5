"""The nodes of a spec with their paths.

In comes the root of the inputs or outputs of a call. Out go its nodes in document order, each with
its path as FORMAT.md defines it: ``args.0``, ``kwargs.cache.layers.0.keys``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from calltape_schema.tree import CustomNode, DictNode, FieldsNode, Node, children_of

__all__ = ["names_of_children", "nodes_with_paths"]


def nodes_with_paths(root: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """All nodes, with their paths. It does not recurse, because a tree may be deep.

    Args:
        root: of a side of a call, or any node.
        path: of the root. If it is empty and the root has two children, these are ``args`` and
            ``kwargs``.
    """
    stack: list[tuple[str, Node]] = [(path, root)]
    while stack:
        at, node = stack.pop()
        yield at, node
        names: Sequence[Any] = names_of_children(node)
        if not at and len(names) == 2:
            names = ("args", "kwargs")
        below = [
            (f"{at}.{name}" if at else str(name), child)
            for name, child in zip(names, children_of(node), strict=True)
        ]
        if isinstance(node, CustomNode):
            below.insert(0, (f"{at}.context", node.context))
        stack.extend(reversed(below))


def names_of_children(node: Node) -> Sequence[Any]:
    """The key, field or position of each child."""
    if isinstance(node, DictNode):
        return node.keys
    if isinstance(node, FieldsNode):
        return node.fields
    return range(len(children_of(node)))
