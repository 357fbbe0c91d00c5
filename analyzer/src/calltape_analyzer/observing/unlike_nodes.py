"""In what an argument differs from one of another structure, in words: ``n is 2.5, not an int``.

In come two nodes of layouts. Values are shown as all constants are: of a text that may be private
only the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calltape_analyzer.observing.observations import shown_constant
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
    ScalarNode,
    SequenceNode,
    TensorNode,
    children_of,
)

__all__ = ["kind_of", "unlike"]

_SCALARS = {"int": "an int", "float": "a float", "complex": "a complex number", "str": "a text"}
_MAX_NAMES = 40

Value = Callable[[int], Any]
"""Gives the value of a scalar by its number."""


def unlike(path: str, known: Node, given: Node, value: Value) -> str | None:
    """What is not alike about an argument; None if everything that has words is.

    Args:
        path: where it is.
        known: of the recorded calls.
        given: of a call.
        value: of its scalars.
    """
    ours, theirs = kind_of(known), _shown(given, value)
    if type(known) is not type(given) or ours != kind_of(given):
        return f"{path} is {theirs}, not {ours}"
    if isinstance(known, DictNode) and isinstance(given, DictNode):
        before, now = set(map(_typed, known.keys)), set(map(_typed, given.keys))
        if before != now:
            lacking, more = sorted(before - now), sorted(now - before)
            verb, keys = ("has no key", lacking) if lacking else ("has the key", more)
            return f"{path} {verb} {keys[0][1]:.{_MAX_NAMES}}, unlike in the recorded calls"
        by_key = dict(zip(map(_typed, given.keys), given.children, strict=True))
        pairs = [(k, a, by_key[_typed(k)]) for k, a in zip(known.keys, known.children, strict=True)]
        found = _first(path, pairs, value)
        if found is None and list(map(_typed, known.keys)) != list(map(_typed, given.keys)):
            return f"{path} has its keys in another order than in the recorded calls"
        return found
    before_them, now_them = children_of(known), children_of(given)
    if len(before_them) != len(now_them):
        return f"{path} has {_items(len(now_them))}, not {len(before_them)}"
    labels = known.fields if isinstance(known, FieldsNode) else range(len(before_them))
    if isinstance(known, FieldsNode) and isinstance(given, FieldsNode):
        if set(known.fields) != set(given.fields):
            return None
        by_name = dict(zip(given.fields, given.children, strict=True))
        now_them = tuple(by_name[name] for name in known.fields)
    return _first(path, list(zip(labels, before_them, now_them, strict=True)), value)


def _first(path: str, pairs: Sequence[tuple[Any, Node, Node]], value: Value) -> str | None:
    found = (unlike(f"{path}.{label!s:.{_MAX_NAMES}}", a, b, value) for label, a, b in pairs)
    return next(filter(None, found), None)


def _typed(key: Any) -> tuple[str, str]:
    return type(key).__name__, repr(key)


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count} items"


def kind_of(node: Node) -> str:
    """What a node is: of a constant its name, else its type."""
    if isinstance(node, TensorNode):
        return "a tensor" if node.kind == "tensor" else "an array"
    if isinstance(node, ScalarNode):
        return _SCALARS.get(node.kind, node.kind)
    if isinstance(node, NoneNode):
        return "None" if node.kind == "none" else "..."
    if isinstance(node, BoolNode):
        return str(node.value)
    if isinstance(node, ConstantNode):
        return "a device" if node.kind == "device" else node.name
    if isinstance(node, EnumNode):
        return f"{_short(node.type)}.{node.name}"
    if isinstance(node, ClassNode):
        return f"the class {_short(node.type)}"
    name = getattr(node, "type", None)
    if name is None and isinstance(node, SequenceNode | DictNode):
        return f"a {node.kind}"
    is_container = isinstance(node, SequenceNode | DictNode | FieldsNode | CustomNode)
    return f"a {_short(name)}" if is_container else f"an object of {_short(name)}"


def _shown(node: Node, value: Value) -> str:
    return shown_constant(value(node.scalar)) if isinstance(node, ScalarNode) else kind_of(node)


def _short(name: Any) -> str:
    return str(name).rpartition(":")[2][:_MAX_NAMES]
