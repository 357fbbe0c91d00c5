"""The values among the arguments that select a program: bools, texts, floats, dtypes, ...

Unlike sizes and ints, they never vary within a variant (rules 2 and 8 of
docs/decisions/export-strategies.md). Only texts and floats that are no switches do
(docs/decisions/variants-and-shapes.md). A path may be told in public without what may have been
passed: keys of dicts that do not look like names, such as the number of a customer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from calltape_analyzer.observing.groups import Group
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.observations import shown_constant
from calltape_analyzer.pytree.nodes import named_children
from calltape_analyzer.pytree.placeholder import withheld_words
from calltape_schema.privacy import is_name, is_position
from calltape_schema.tree import (
    BoolNode,
    ClassNode,
    ConstantNode,
    EnumNode,
    FieldsNode,
    Node,
    NoneNode,
    OpaqueNode,
)

__all__ = [
    "LEFT_OUT",
    "FixedValue",
    "fixed_values",
    "is_public",
    "public_path",
    "structure_values",
]


LEFT_OUT = "?"
"""Stands for what is not told."""


def public_path(path: str) -> str:
    """A path such as ``x.layers.*.keys``. If a key in it does not look like a name, it ends at its
    argument. A number may be a position in a list, or the key of a dict: it is told if it is as
    small as the recorder's rule wants it for a key."""
    first, *rest = path.split(".")
    if not _is_step(first):
        return LEFT_OUT
    return path if all(map(_is_step, rest)) else f"{first}.{LEFT_OUT}"


def is_public(path: str) -> bool:
    """Whether all of a path may be told."""
    return public_path(path) == path


def _is_step(step: str) -> bool:
    if is_name(step) and is_position(step):
        return str(int(step)) == step and is_name(int(step))
    return step == "*" or is_name(step)


_WILDCARDS = frozenset("*?[")


class FixedValue(NamedTuple):
    """A value that selects a program.

    Attributes:
        place: argument and path.
        kind: of the node.
        text: the value for people.
    """

    place: str
    kind: str
    text: str


def structure_values(layout: ArgumentLayout, within: str = "") -> Iterator[FixedValue]:
    """The bools, Nones, dtypes and the like, enum members, classes and unknown objects among the
    arguments. Private attributes of objects are left out, because no variants differ by them.

    Args:
        layout: of the arguments.
        within: the path of what is wanted. Arguments that it cannot name are left out.
    """
    names_many = not _WILDCARDS.isdisjoint(within)
    for argument, root in layout.nodes.items():
        if not (names_many or within.startswith(argument) or argument.startswith(within)):
            continue
        stack: list[tuple[str, Node]] = [(argument, root)]
        while stack:
            place, node = stack.pop()
            text = _structure_text(node)
            if text is not None:
                yield FixedValue(place, node.kind, text)
            has_private = isinstance(node, FieldsNode) and node.kind == "object"
            below = [
                (f"{place}.{label!s}", child)
                for label, child in named_children(node)
                if not (has_private and label.startswith("_"))
            ]
            stack.extend(reversed(below))


def _structure_text(node: Node) -> str | None:
    if isinstance(node, BoolNode):
        return str(node.value)
    if isinstance(node, NoneNode):
        return "None" if node.kind == "none" else "..."
    if isinstance(node, ConstantNode):
        # A device depends on the machine, and selects no program.
        return node.name if node.kind != "device" else None
    if isinstance(node, EnumNode):
        return f"{node.type}.{node.name}"
    if isinstance(node, OpaqueNode):
        return withheld_words(node) or node.type
    if isinstance(node, ClassNode):
        return node.type
    return None


def fixed_values(group: Group, within: str = "") -> Iterator[FixedValue]:
    """The texts, floats, ... of a group's calls, and the constants in their structure; of these, if
    a path is given, those that may be below it."""
    for place, value in group.fixed():
        yield FixedValue(str(place), place.kind, shown_constant(value))
    for place in group.varying:
        yield FixedValue(str(place), place.kind, "varies from call to call")
    yield from structure_values(group.layout, within)
