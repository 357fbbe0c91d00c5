"""Dynamic columns of a variant in the nesting of ``torch.export.export(dynamic_shapes=...)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.signature import PassedArguments, Signature, nested
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import (
    Flattener,
    FlatTree,
    Slot,
)
from calltape_analyzer.pytree.placeholder import has_data_keys
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.records import Tree
from calltape_schema.tree import Node, NoneNode, ScalarNode

__all__ = ["nested_shapes"]


def nested_shapes(
    tree: Tree,
    variant: VariantFacts,
    sorter: CallSorter,
    classes: ClassIndex,
    shown: Callable[[Column], Any],
) -> tuple[Any, ...] | dict[str, Any]:
    """The shapes in the form of a call's arguments.

    Args:
        tree: the inputs of any call of the variant. Its arguments are positional or by keyword as
            in this call.
        variant: says which columns are dynamic.
        sorter: lays them out.
        classes: the classes that this process knows. How they are registered with torch's pytree
            decides how they nest.
        shown: gives what stands for a dynamic column.
    """
    layout = sorter.sorted(tree).layout
    flattener = Flattener(tree.facts(), tree.scalars, classes)
    shape = _shape_of(variant, layout, shown)

    def leaf(form: FlatTree) -> Any:
        return None if form.slot is None else shape(form.slot)

    passed = PassedArguments.of(tree.spec().root, sorter.signature)
    passed = passed.with_defaults(sorter.signature, len(tree.scalars))
    positional, named = _counted(passed, layout, sorter.signature)
    # torch takes keys for structure, so that nothing fits all calls if they are data.
    told = {name for name, node in layout.nodes.items() if not has_data_keys(node)}
    shapes = {
        name: flattener.flatten(node).filled(leaf, classes) if name in told else None
        # If a name was passed twice, which raised, the layout has the second.
        for name, node in dict((*positional, *named)).items()
    }
    return nested(sorter.signature, len(positional), shapes)


def _shape_of(
    variant: VariantFacts, layout: ArgumentLayout, shown: Callable[[Column], Any]
) -> Callable[[Slot], Any]:
    """Gives the shape of a tensor or an int: ``shown`` of each dynamic column."""
    tensors = {path.number: i for i, path in enumerate(layout.tensors)}
    ints = {
        path.number: column for path, column in zip(layout.ints, layout.int_columns, strict=True)
    }
    dynamic = set(variant.dynamic())

    def shape(slot: Slot) -> Any:
        if slot.leaf is not None:
            own = variant.group.dimensions(tensors[slot.leaf])
            return {column.axis: shown(column) for column in own if column in dynamic}
        if isinstance(slot.node, ScalarNode) and slot.node.scalar in ints:
            column = ints[slot.node.scalar]
            return shown(column) if column in dynamic else None
        return None

    return shape


def _counted(
    passed: PassedArguments, layout: ArgumentLayout, signature: Signature
) -> tuple[list[tuple[str, Node]], list[tuple[str, Node]]]:
    """The positional and the named arguments of a call that are in its layout.

    Arguments before members of ``*args`` are always among them, because they are passed whatever
    they are.
    """
    variadic = signature.variadic_positional
    members = passed.positional[variadic[1] :] if variadic is not None else ()
    leading = len(passed.positional) - len(members) if members else 0
    positional = [
        pair for i, pair in enumerate(passed.positional) if pair[0] in layout.nodes or i < leading
    ]
    named: list[tuple[str, Node]] = [
        (name, node)
        for name, node in passed.named
        if name in layout.nodes and not isinstance(node, NoneNode)
    ]
    return positional, named
