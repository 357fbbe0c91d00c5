"""Arguments that are placeholders, because their class was not given to ``load_programs``.

A program that was loaded without a class returns placeholders for its objects. The next call may
pass one on, and no program takes it. In comes such a call, out goes what to do about it.
"""

from __future__ import annotations

from calltape_analyzer.observing.groups import Group, SortedCall
from calltape_analyzer.programs.rejections import UnknownClass
from calltape_analyzer.pytree.classes import ClassIndex, name_of
from calltape_analyzer.pytree.placeholder import Placeholder
from calltape_schema.tree import FieldsNode, Node, ScalarNode, children_of

__all__ = ["PLACEHOLDER", "unknown_class_in"]

PLACEHOLDER = name_of(Placeholder)


def unknown_class_in(group: Group, placed: SortedCall, classes: ClassIndex) -> UnknownClass | None:
    """The first argument that differs from a group's for this reason; None if none does.

    Args:
        group: of the program.
        placed: the call.
        classes: the classes that the program was loaded with.
    """
    theirs = dict(placed.layout.keys)
    for name, key in group.layout.keys:
        if name in placed.layout.nodes and theirs[name] != key:
            node = placed.layout.nodes[name]
            found = _type_name(node, placed)
            if found is not None and classes.get(found) is None:
                return UnknownClass(name, found, _is_placeholder(node))
    return None


def _type_name(root: Node, placed: SortedCall) -> str | None:
    """The class that a placeholder in a tree stands for."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FieldsNode) and _is_placeholder(node):
            named = dict(zip(node.fields, node.children, strict=True)).get("type_name")
            if isinstance(named, ScalarNode):
                constants = zip(placed.layout.others, placed.constants, strict=True)
                path = placed.layout.scalars[named.scalar]
                return next((str(value) for place, value in constants if place == path), None)
        waiting += children_of(node)
    return None


def _is_placeholder(node: Node) -> bool:
    return isinstance(node, FieldsNode) and node.type == PLACEHOLDER
