"""Python objects around numbered tensors and scalars.

A :class:`Template` makes the arguments of a model of a program's flat inputs, and the result of the
model of a program's flat outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.arguments.nested_offsets import share_offsets
from calltape_analyzer.observing.layout import ArgumentLayout, layout_of_value
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.pytree.caches import counted_size, is_same_size, source_of_derived
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.description import describe_result
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_schema.tree import ConstantNode, Node, children_of

__all__ = [
    "Template",
    "as_call",
    "as_passed",
    "checked",
    "derived_tensors",
    "template_of_result",
]


@dataclass(frozen=True)
class Template:
    """A layout, with its constants.

    Attributes:
        layout: the tree.
        scalars: the value of each scalar of the layout. The value of an int that is given to
            :meth:`build` has no meaning.
        counters: by number, the scalars that are the size of a tensor: (tensor, axis).
        derived: by number, the tensors that follow from a scalar, with that scalar.
    """

    layout: ArgumentLayout
    scalars: tuple[Any, ...]
    counters: Mapping[int, tuple[int, int]]
    derived: Mapping[int, int]

    def build(
        self,
        tensors: Mapping[int, Any],
        ints: Mapping[int, Any],
        classes: ClassIndex,
        device: str | None = None,
    ) -> dict[str, Any]:
        """The arguments by name.

        Args:
            tensors: by number, all tensors that are not derived.
            ints: by number among the scalars, the ints that are given from outside (for the model's
                own calls also texts and floats).
            classes: the classes of objects.
            device: replaces the devices among the arguments.
        """
        import torch

        scalars = list(self.scalars)
        for place, value in ints.items():
            scalars[place] = value
        for place, (tensor, axis) in self.counters.items():
            scalars[place] = tensors[tensor].shape[axis]
        made = dict(tensors)
        for place, scalar in self.derived.items():
            made[place] = torch.tensor(scalars[scalar], dtype=torch.long, device=device)
        share_offsets(self.layout, made)
        return {
            name: rebuild(
                node if device is None else _on_device(node, device),
                made.__getitem__,
                scalars,
                classes,
            )
            for name, node in self.layout.nodes.items()
        }


def _on_device(node: Node, device: str) -> Node:
    if isinstance(node, ConstantNode):
        return node.model_copy(update={"name": device}) if node.kind == "device" else node
    children = children_of(node)
    if not children:
        return node
    made = tuple(_on_device(child, device) for child in children)
    changed = any(a is not b for a, b in zip(made, children, strict=True))
    return node.model_copy(update={"children": made}) if changed else node


def derived_tensors(layout: ArgumentLayout) -> dict[int, int]:
    """The tensors of a layout that follow from a scalar beside them, with that scalar."""
    scalars = {(p.argument, p.path): i for i, p in enumerate(layout.scalars)}
    found: dict[int, int] = {}
    for i, place in enumerate(layout.tensors):
        source = source_of_derived(place.path) if place.private else None
        if source is not None and (place.argument, source) in scalars:
            found[i] = scalars[place.argument, source]
    return found


def as_call(
    arguments: Mapping[str, Any], signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by name as ``(args, kwargs)``: by keyword wherever the signature allows it.

    Positional-only parameters, and parameters before members of ``*args``, go by position. There,
    defaults are put back that the layout leaves out.
    """
    rest = dict(arguments)
    known = frozenset(signature.names)
    members = [name for name in rest if signature.is_of_variadic(name)]
    leading = [p for p in signature.parameters if p.kind.startswith("POSITIONAL")]
    needed = 0
    for position, parameter in enumerate(leading):
        is_only = parameter.kind == "POSITIONAL_ONLY" and parameter.name in rest
        if is_only or members:
            needed = position + 1
    args = [rest.pop(parameter.name, parameter.default) for parameter in leading[:needed]]
    # Beyond what the signature knows, names are positions. Of a forward(self, *arg), some are both.
    positions = [name for name in rest if name.startswith("arg_") and name not in known]
    args += [rest.pop(name) for name in dict.fromkeys((*members, *positions))]
    return tuple(args), rest


def as_passed(
    arguments: Mapping[str, Any], positional: int, signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by name as ``(args, kwargs)``, the leading ones by position as recorded."""
    args, kwargs = as_call(arguments, signature)
    names = list(arguments)[len(args) : positional]
    if list(kwargs)[: len(names)] != names:
        return args, kwargs
    return (*args, *(kwargs.pop(name) for name in names)), kwargs


def template_of_result(value: Any) -> tuple[Template, list[Any], dict[str, type]]:
    """The result of a model as a template and its tensors.

    Returns:
        The template, the tensors by number, and the classes of its objects. An int that is symbolic
        while tracing is an output of the program, unless it is the size of a tensor beside it.
    """
    described = describe_result(value)
    layout = layout_of_value(described.node)
    tensors = [described.tensors[place.number] for place in layout.tensors]
    scalars = tuple(described.scalars[place.number] for place in layout.scalars)
    counters = _counters(layout, tensors, scalars)
    template = Template(layout, scalars, counters, derived_tensors(layout))
    return template, tensors, described.classes


def _counters(
    layout: ArgumentLayout, tensors: Sequence[Any], scalars: Sequence[Any]
) -> dict[int, tuple[int, int]]:
    paths = {place.path: i for i, place in enumerate(layout.tensors)}
    found: dict[int, tuple[int, int]] = {}
    for i, place in enumerate(layout.scalars):
        counted = counted_size(place.path)
        if not place.is_int or place.owner is None or counted is None:
            continue
        beside, axis = counted
        tensor = paths.get(beside)
        if tensor is not None and tensors[tensor].dim() >= 2:
            axis %= tensors[tensor].dim()
            if is_same_size(scalars[i], tensors[tensor].shape[axis]):
                found[i] = (tensor, axis)
    return found


def checked(arguments: Mapping[str, Any], signature: Signature) -> None:
    """Raises InferenceError if an argument of a method contains a Placeholder."""
    from calltape_analyzer.pytree.placeholder import check_rebuilt

    check_rebuilt(arguments.items(), signature.may_lack)
