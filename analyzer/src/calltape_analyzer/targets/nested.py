"""Dynamic columns of a variant in the nesting of ``torch.export.export(dynamic_shapes=...)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calltape_analyzer.call import Call
from calltape_analyzer.classes import ClassIndex, is_namedtuple
from calltape_analyzer.flattening import Flattener, Form, Slot
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.symbols import Column
from calltape_analyzer.variants import VariantFacts
from calltape_schema.tree import NoneNode, ScalarNode, children_of

__all__ = ["nested_shapes"]


def nested_shapes(
    call: Call,
    variant: VariantFacts,
    gatherer: Gatherer,
    classes: ClassIndex,
    shown: Callable[[Column], Any],
) -> tuple[Any, ...] | dict[str, Any]:
    """The shapes in the form of a call's arguments.

    Args:
        call: any call of the variant; its calling convention is followed.
        variant: says which columns are dynamic.
        gatherer: lays the call out.
        classes: those that this process knows, whose registrations with torch's pytree decide.
        shown: what stands for a dynamic column.
    """
    tree = call.record.inputs
    layout = gatherer.sorted(tree).layout
    flattener = Flattener(tree.facts(), tree.scalars, classes)
    tensors = {place.number: i for i, place in enumerate(layout.tensors)}
    ints = {place.number: i for i, place in enumerate(layout.ints)}
    dynamic = set(variant.dynamic())

    def shape(slot: Slot) -> Any:
        if slot.leaf is not None:
            axes = range(variant.group.facts[tensors[slot.leaf]].rank)
            own = [Column(tensors[slot.leaf], axis) for axis in axes]
            return {c.axis: shown(c) for c in own if c in dynamic}
        if isinstance(slot.node, ScalarNode) and slot.node.scalar in ints:
            column = Column(ints[slot.node.scalar], None)
            return shown(column) if column in dynamic else None
        return None

    signature = gatherer.signature
    args, kwargs = children_of(tree.spec().root)
    passed = [(signature.complete.name_at(i), node) for i, node in enumerate(args.children)]
    variadic = signature.variadic_positional
    # What stands before members of *args is passed, whatever it is.
    members = passed[variadic[1] :] if variadic is not None else []
    leading = len(passed) - len(members) if members else 0
    positional = [pair for i, pair in enumerate(passed) if pair[0] in layout.nodes or i < leading]
    named = [
        (name, node)
        for name, node in zip(kwargs.keys, kwargs.children, strict=True)
        if name in layout.nodes and not isinstance(node, NoneNode)
    ]
    shapes = {
        name: _nested(flattener.flatten(node), shape, classes) if name in layout.nodes else None
        # Of a name that was passed twice, which raised, the layout has the second.
        for name, node in dict(positional + named).items()
    }
    return _by_parameter(shapes, len(positional), signature)


def _nested(form: Form, shape: Callable[[Slot], Any], classes: ClassIndex) -> Any:
    if form.slot is not None:
        return shape(form.slot)
    parts = [_nested(child, shape, classes) for child in form.children]
    if form.kind == "dict":
        return dict(zip(form.keys, parts, strict=True))
    if form.kind == "namedtuple":
        cls: Any = classes.get(form.type or "")
        return tuple.__new__(cls, parts) if is_namedtuple(cls, form.keys) else tuple(parts)
    return tuple(parts) if form.kind == "tuple" else parts


def _by_parameter(
    shapes: dict[str, Any], positional: int, signature: Any
) -> tuple[Any, ...] | dict[str, Any]:
    """A tuple where all are positional; else by name, with what ``*args`` and ``**kwargs`` took
    under their names."""
    variadic = signature.variadic_positional
    names = list(shapes)
    members = names[variadic[1] : positional] if variadic is not None else []
    if len(names) == positional and not members:
        return tuple(shapes.values())
    known = frozenset(signature.names)
    extra = dict.fromkeys(n for n in names[positional:] if n not in known)
    left_out = {*members, *(extra if signature.variadic_keyword is not None else ())}
    made: dict[str, Any] = {}
    for name in names:
        if members and variadic is not None and name == members[0]:
            made[variadic[0]] = tuple(shapes[member] for member in members)
        elif name not in left_out:
            made[name] = shapes[name]
    if extra and signature.variadic_keyword is not None:
        made[signature.variadic_keyword] = {name: shapes[name] for name in extra}
    return made
