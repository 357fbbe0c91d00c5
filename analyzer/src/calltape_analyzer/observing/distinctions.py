"""What among the arguments selects a program: bools, texts, floats, dtypes, ...; and in what a call
differs from the calls of a group: ``n is 2.5, not an int``.

Unlike sizes and ints, these values never vary within a variant (rules 2 and 8 of
docs/decisions/export-strategies.md). Only texts and floats that are no switches do
(docs/decisions/variants-and-shapes.md). They are shown as all constants are: of a text that may be
private only the length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from calltape_analyzer.observing.groups import Group, SortedCall, shown_constant, typed_constant
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.pytree.nodes import named_children
from calltape_analyzer.pytree.placeholder import withheld_words
from calltape_analyzer.text import counted, joined
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
    walk,
)

__all__ = [
    "FixedValue",
    "difference_of",
    "fixed_values",
    "structure_values",
]


_WILDCARDS = frozenset("*?[")


class FixedValue(NamedTuple):
    """A value that selects a program.

    Attributes:
        place: argument and path.
        kind: of the node.
        text: the value for people.
        varies: whether it is that of one call, and selects no program.
    """

    place: str
    kind: str
    text: str
    varies: bool = False


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
        yield FixedValue(str(place), place.kind, "varies from call to call", varies=True)
    yield from structure_values(group.layout, within)


_MAX_LISTED = 5
_PLAIN = (bool, int, float, str)


def difference_of(group: Group, placed: SortedCall) -> str:
    """In what a call differs from the calls of a group, in words."""
    recorded, live = group.layout.context, placed.layout.context
    if recorded.key != live.key:
        given, wanted = live.separating(recorded), recorded.separating(live)
        return f"it is called with {given}; the program is for {wanted}"
    if other_arguments := _other_arguments(group, placed):
        return other_arguments
    ours, theirs = dict(group.layout.keys), dict(placed.layout.keys)
    for name, key in ours.items():
        if theirs[name] != key:
            nodes = group.layout.nodes[name], placed.layout.nodes[name]
            difference = _unlike(name, *nodes, _value_in(placed)) or _other_class(
                group, placed, name
            )
            return difference or f"{name} has another structure"
    places = group.layout.tensors
    for place, recorded_facts, facts in zip(
        places, group.key.facts, placed.key.facts, strict=False
    ):
        if recorded_facts != facts:
            return f"{place} is {facts.unlike(recorded_facts)}"
    if group.key.shared != placed.key.shared:
        return _other_memory(group, placed)
    values = dict(zip(group.layout.others, placed.constants, strict=False))
    for place, constant in group.fixed():
        if typed_constant(constant) != typed_constant(values.get(place)):
            shown, usual = shown_constant(values.get(place)), shown_constant(constant)
            return f"{place} is {shown}, not {usual if usual != shown else 'the recorded one'}"
    if list(ours) != list(theirs):
        return "the keyword arguments come in another order than in the recorded calls"
    return "another structure"


def _other_arguments(group: Group, placed: SortedCall) -> str | None:
    """The arguments that a call has and a group lacks, or vice versa; None if both have the same.
    An argument that is left out has its default, if that is a value to compare with."""
    ours, theirs, signature = group.layout.nodes, placed.layout.nodes, placed.signature
    if signature.variadic_positional is not None:
        recorded_members, given_members = (
            sum(map(signature.is_of_variadic, names)) for names in (ours, theirs)
        )
        if recorded_members != given_members:
            name = signature.variadic_positional[0]
            return f"*{name} has {counted(given_members, 'argument')}, not {recorded_members}"

    def default_of(name: str) -> str | None:
        default = getattr(signature.by_name.get(name), "default", None)
        return shown_constant(default) if isinstance(default, _PLAIN) else None

    if missing := [name for name in ours if name not in theirs]:
        name, node = missing[0], ours[missing[0]]
        passed, usual = default_of(name), _kind_of(node)
        if isinstance(node, ScalarNode):
            fixed = {str(place): shown_constant(value) for place, value in group.fixed()}
            usual = fixed.get(name, "a recorded one")
        if len(missing) == 1 and passed is not None:
            return f"{name} is {passed}, not {usual}"
        return f"{_are(missing)} missing"
    more = [name for name in theirs if name not in ours]
    constants = zip(placed.layout.others, placed.constants, strict=True)
    shown = {str(place): shown_constant(value) for place, value in constants}
    shown |= {name: _kind_of(theirs[name]) for name in more if isinstance(theirs[name], BoolNode)}
    for name in more:
        if name in shown and (usual_one := default_of(name)) is not None:
            return f"{name} is {shown[name]}, not {usual_one}"
    return f"{_are(more)} not expected" if more else None


def _are(names: Sequence[str]) -> str:
    return f"{joined(names, _MAX_LISTED)} {'is' if len(names) == 1 else 'are'}"


def _other_memory(group: Group, placed: SortedCall) -> str:
    """Which arguments are one object, or share memory, in the call but not in the group, or vice
    versa."""
    places, ours, theirs = group.layout.tensors, group.key.shared, placed.key.shared
    pair = next((pair for pair in theirs if pair not in ours), None)
    if pair is not None:
        return f"{pair.text(places)}, unlike in the recorded calls"
    pair = next(pair for pair in ours if pair not in theirs)
    return f"{pair.text(places, negated=True)}, unlike in the recorded calls"


def _value_in(placed: SortedCall) -> Value:
    layout = placed.layout
    ints = iter(placed.row.ints)
    constants = iter(placed.constants)
    values = [next(ints if place.is_int else constants, None) for place in layout.scalars]
    return values.__getitem__


_SCALARS = {"int": "an int", "float": "a float", "complex": "a complex number", "str": "a text"}
_MAX_NAMES = 40

Value = Callable[[int], Any]
"""Gives the value of a scalar by its number."""


def _unlike(path: str, recorded: Node, given: Node, value: Value) -> str | None:
    """What is not alike about an argument; None if everything that has words is.

    Args:
        path: where it is.
        recorded: of the recorded calls.
        given: of a call.
        value: of its scalars.
    """
    ours, theirs = _kind_of(recorded), _value_text(given, value)
    if type(recorded) is not type(given) or ours != _kind_of(given):
        return f"{path} is {theirs}, not {ours}"
    if isinstance(recorded, DictNode) and isinstance(given, DictNode):
        before, now = set(map(_typed, recorded.keys)), set(map(_typed, given.keys))
        if before != now:
            lacking, more = sorted(before - now), sorted(now - before)
            verb, keys = ("has no key", lacking) if lacking else ("has the key", more)
            return f"{path} {verb} {keys[0][1]:.{_MAX_NAMES}}, unlike in the recorded calls"
        by_key = dict(zip(map(_typed, given.keys), given.children, strict=True))
        pairs = [
            (k, a, by_key[_typed(k)]) for k, a in zip(recorded.keys, recorded.children, strict=True)
        ]
        difference = _first(path, pairs, value)
        if difference is None and list(map(_typed, recorded.keys)) != list(map(_typed, given.keys)):
            return f"{path} has its keys in another order than in the recorded calls"
        return difference
    ours_by, theirs_by = dict(named_children(recorded)), dict(named_children(given))
    if len(ours_by) != len(theirs_by):
        return f"{path} has {counted(len(theirs_by), 'item')}, not {len(ours_by)}"
    if ours_by.keys() != theirs_by.keys():
        return None
    return _first(path, [(label, node, theirs_by[label]) for label, node in ours_by.items()], value)


def _other_class(group: Group, placed: SortedCall, name: str) -> str | None:
    """The first scalar of an argument that is of another class."""
    ours, theirs = (
        {
            node.scalar: _short(node.type or node.kind)
            for node in walk(layout.nodes[name])
            if isinstance(node, ScalarNode)
        }
        for layout in (group.layout, placed.layout)
    )
    for number, leaf in ours.items():
        if number in theirs and theirs[number] != leaf:
            return f"{group.layout.scalars[number]} is of class {theirs[number]}, not {leaf}"
    return None


def _first(path: str, pairs: Sequence[tuple[Any, Node, Node]], value: Value) -> str | None:
    differences = (_unlike(f"{path}.{label!s:.{_MAX_NAMES}}", a, b, value) for label, a, b in pairs)
    return next(filter(None, differences), None)


def _typed(key: Any) -> tuple[str, str]:
    return type(key).__name__, repr(key)


def _kind_of(node: Node) -> str:
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


def _value_text(node: Node, value: Value) -> str:
    return shown_constant(value(node.scalar)) if isinstance(node, ScalarNode) else _kind_of(node)


def _short(name: Any) -> str:
    return str(name).rpartition(":")[2][:_MAX_NAMES]
