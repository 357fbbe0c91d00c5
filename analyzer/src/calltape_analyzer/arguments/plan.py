"""How a variant is exported: its inputs, in which form, and how they become the model's call.

A program takes and returns built-in containers around tensors and numbers: an argument of tensors,
lists, tuples and dicts keeps its form, and an object of any other class (a cache, a dataclass)
becomes the flat list of its leaves. Constants are left out. So a program needs no registered class
to be called, saved or loaded, on any machine. A :class:`Template` makes the arguments of the model
of a program's flat inputs, and the result of the model of a program's flat outputs.
"""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.value_rules import share_offsets
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.layout import ArgumentLayout, layout_of_nodes
from calltape_analyzer.observing.signature import PassedArguments, Signature, nested
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.pytree.caches import counted_size, is_same_size, source_of_derived
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.description import describe_result
from calltape_analyzer.pytree.flattening import Flattener, FlatTree
from calltape_analyzer.pytree.nodes import with_children
from calltape_analyzer.pytree.placeholder import check_rebuilt, has_data_keys
from calltape_analyzer.pytree.rebuilding import rebuild
from calltape_analyzer.text import UniqueNames, unique
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.records import Tree
from calltape_schema.tree import (
    ConstantNode,
    DictNode,
    FieldsNode,
    Node,
    NoneNode,
    ScalarNode,
    SequenceNode,
    TensorNode,
    children_of,
)

__all__ = [
    "ArgumentPlan",
    "FormLeaf",
    "PlainForm",
    "Template",
    "as_call",
    "as_passed",
    "derived_tensors",
    "float_input",
    "form_of_result",
    "identifier",
    "nested_shapes",
    "template_of_result",
]

_NOT_IN_IDENTIFIERS = re.compile("[^0-9A-Za-z]")


@dataclass(frozen=True)
class ArgumentPlan:
    """How one variant is exported.

    Attributes:
        template: the arguments, with their constants.
        forms: the form of each argument that is an input, in the order of the signature, by its
            parameter of the program: the name of the argument, or one that Python takes.
        positional: how many of these inputs are passed by position.
        signature: of the model's method.
        frozen: the tensors, by number in the layout, that are constants of the program.
        varying: the texts and floats, by number among the scalars, that vary from call to call.
            Those that are no inputs are constants of the program, and not of the model's calls.
    """

    template: Template
    forms: Mapping[str, PlainForm]
    positional: int
    signature: Signature
    frozen: Mapping[int, Any]
    varying: frozenset[int] = frozenset()

    @classmethod
    def of(cls, variant: VariantFacts, sample: Sample, signature: Signature) -> ArgumentPlan:
        """The plan of a variant, with the constants of a sample."""
        layout = variant.group.layout
        dynamic_ints = {layout.int_scalars[c.index] for c in variant.dynamic() if c.is_int}
        counters = {
            layout.int_scalars[counter.index]: (dimension.index, dimension.axis or 0)
            for counter, dimension in variant.counting_ints.items()
        }
        derived = derived_tensors(layout)
        constant = derived.keys() | variant.frozen.keys()

        def leaf_of(node: Any) -> FormLeaf | None:
            if isinstance(node, TensorNode) and node.leaf not in constant:
                return FormLeaf("tensor", node.leaf)
            if isinstance(node, ScalarNode) and node.scalar in dynamic_ints:
                return FormLeaf("int", node.scalar)
            if isinstance(node, ScalarNode) and node.scalar in variant.open_floats:
                return FormLeaf("float", node.scalar)
            return None

        found = {
            n: _plain(node, leaf_of) or _flat(node, leaf_of) for n, node in layout.nodes.items()
        }
        # An argument without a leaf is a constant.
        inputs = {name: form for name, form in found.items() if form is not None}
        leading = sum(name in inputs for name in layout.arguments[: layout.positional])
        forms = dict(zip(_parameters(inputs), inputs.values(), strict=True))
        template = Template(layout, tuple(sample.scalars), counters, derived)
        open_places = set(variant.group.varying)
        varying = frozenset(i for i, place in enumerate(layout.scalars) if place in open_places)
        return cls(template, forms, leading, signature, variant.frozen, varying)

    @property
    def context(self) -> Context:
        """What the calls of the variant run in."""
        return self.template.layout.context

    @cached_property
    def leaves(self) -> tuple[FormLeaf, ...]:
        """The inputs of the program, in order."""
        return tuple(leaf for form in self.forms.values() for leaf in form.leaves())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each input, unique: the place of its value, ``cache.layers.0.keys``."""
        layout = self.template.layout
        places = (
            (layout.tensors if leaf.kind == "tensor" else layout.scalars)[leaf.index]
            for leaf in self.leaves
        )
        return tuple(unique(place.input_name for place in places))

    def build(self, sample: Sample, classes: ClassIndex, device: str | None) -> dict[str, Any]:
        """The model's arguments by name for a sample.

        Raises:
            InferenceError: one holds an object that was not rebuilt.
        """
        layout = self.template.layout
        tensors_by_number = {
            i: sample.scalars[i]
            for i, place in enumerate(layout.scalars)
            if (place.is_int and i not in self.template.counters) or i in self.varying
        }
        tensors = {i: t for i, t in enumerate(sample.tensors) if i not in self.template.derived}
        arguments = self.template.build(tensors, tensors_by_number, classes, device)
        check_rebuilt(arguments.items(), self.signature.may_lack)
        return arguments

    def values(self, sample: Sample) -> list[Any]:
        """The inputs of the program for a sample, in order. A float goes in as a float64 tensor
        without dimensions, because ``torch.export`` makes a constant of every float."""
        return [
            sample.tensors[leaf.index]
            if leaf.kind == "tensor"
            else sample.scalars[leaf.index]
            if leaf.kind == "int"
            else float_input(sample.scalars[leaf.index])
            for leaf in self.leaves
        ]

    def arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Values of the inputs as the ``(args, kwargs)`` that the program takes."""
        remaining = iter(values)
        filled = {name: form.fill(lambda _: next(remaining)) for name, form in self.forms.items()}
        names = list(filled)
        return (
            tuple(filled[name] for name in names[: self.positional]),
            {name: filled[name] for name in names[self.positional :]},
        )

    def read(self, arguments: Mapping[str, Any]) -> Iterator[tuple[FormLeaf, Any]]:
        """The leaves of the program's arguments, by name."""
        for name, form in self.forms.items():
            yield from form.read(arguments[name])

    def shapes(self, dynamic: Callable[[Column], Any], variant: VariantFacts) -> dict[str, Any]:
        """What the exporter takes as ``dynamic_shapes``.

        Args:
            dynamic: gives what stands for a dynamic column.
            variant: says which columns are dynamic.
        """
        axes: dict[int, list[Column]] = defaultdict(list)
        for column in variant.dynamic():
            if column.axis is not None:
                axes[column.index].append(column)
        columns = self.template.layout.column_of_scalar

        def shape(leaf: FormLeaf) -> Any:
            if leaf.kind == "int":
                return dynamic(columns[leaf.index])
            if leaf.kind == "float":
                return None
            return {c.axis: dynamic(c) for c in axes[leaf.index]} or None

        return {name: form.fill(shape) for name, form in self.forms.items()}


def float_input(value: float) -> Any:
    """A float as a program takes it: a float64 tensor without dimensions."""
    import torch

    return torch.tensor(value, dtype=torch.float64)


def _parameters(arguments: Collection[str]) -> Iterator[str]:
    """A name for each argument that a parameter can have: ``args_0`` for ``args.0``."""
    names = UniqueNames(filter(_is_parameter, arguments))
    for name in arguments:
        yield name if _is_parameter(name) else names.add(identifier(name))


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def identifier(text: str) -> str:
    """A Python identifier that reads like the text."""
    name = _NOT_IN_IDENTIFIERS.sub("_", text)
    return name if _is_parameter(name) else f"_{name}"


@dataclass(frozen=True)
class FormLeaf:
    """A tensor or a number of a layout. ``index`` is its number among the layout's tensors, or
    among its scalars."""

    kind: Literal["tensor", "int", "float"]
    index: int

    def read(self, value: Any) -> Any:
        """What a runtime returned for it: a number may come as a tensor of one element."""
        if self.kind == "tensor":
            return value
        return int(value) if self.kind == "int" else float(value)


@dataclass(frozen=True)
class PlainForm:
    """A leaf, or a container of forms; ``keys`` are the keys of a dict."""

    kind: Literal["leaf", "list", "tuple", "dict"]
    leaf: FormLeaf | None = None
    children: tuple[PlainForm, ...] = ()
    keys: tuple[Any, ...] = ()

    def leaves(self) -> Iterator[FormLeaf]:
        """The leaves in flattening order."""
        if self.leaf is not None:
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    def fill(self, value: Callable[[FormLeaf], Any]) -> Any:
        """The form with a value for each leaf."""
        if self.leaf is not None:
            return value(self.leaf)
        parts = [child.fill(value) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, parts, strict=True))
        return tuple(parts) if self.kind == "tuple" else parts

    def read(self, value: Any) -> Iterator[tuple[FormLeaf, Any]]:
        """The leaves of a value of this form, each with its part of the value."""
        if self.leaf is not None:
            yield self.leaf, value
            return
        items = [value[key] for key in self.keys] if self.kind == "dict" else value
        for child, item in zip(self.children, items, strict=True):
            yield from child.read(item)


LeafOf = Callable[[Node], "FormLeaf | None"]
"""Gives the leaf that a node is: a tensor, or a number that is an input."""


def form_of_result(node: Node, leaf_of: LeafOf) -> PlainForm:
    """The form of a result: a dataclass or named tuple is a dict of its fields, a cache the flat
    list of its leaves."""
    leaf = leaf_of(node)
    if leaf is not None:
        return PlainForm("leaf", leaf)
    if isinstance(node, FieldsNode) and node.kind != "object":
        return _dict(node.fields, node.children, leaf_of)
    if isinstance(node, DictNode) and all(type(key) is str for key in node.keys):
        return _dict(node.keys, node.children, leaf_of)
    if isinstance(node, SequenceNode) and node.kind in ("list", "tuple"):
        parts = [form_of_result(child, leaf_of) for child in node.children]
        kept_parts = tuple(part for part in parts if part.leaf or part.children)
        return PlainForm("list" if node.kind == "list" else "tuple", children=kept_parts)
    return _flat(node, leaf_of) or PlainForm("tuple")


def _dict(keys: Sequence[Any], children: Sequence[Node], leaf_of: LeafOf) -> PlainForm:
    parts = [
        (key, form_of_result(child, leaf_of)) for key, child in zip(keys, children, strict=True)
    ]
    kept_parts = [(key, part) for key, part in parts if part.leaf or part.children]
    return PlainForm(
        "dict", children=tuple(p for _, p in kept_parts), keys=tuple(k for k, _ in kept_parts)
    )


def _plain(node: Node, leaf_of: LeafOf) -> PlainForm | None:
    """The form of nested built-in containers that hold only leaves; None for anything else."""
    leaf = leaf_of(node)
    if leaf is not None:
        return PlainForm("leaf", leaf)
    is_list = isinstance(node, SequenceNode) and node.kind in ("list", "tuple")
    is_dict = isinstance(node, DictNode) and all(type(key) is str for key in node.keys)
    if not (is_list or is_dict) or getattr(node, "type", None) is not None:
        return None
    parts = [_plain(child, leaf_of) for child in children_of(node)]
    children = tuple(part for part in parts if part is not None)
    if len(children) != len(parts) or not children:
        return None
    if isinstance(node, DictNode):
        return PlainForm("dict", children=children, keys=node.keys)
    return PlainForm("list" if node.kind == "list" else "tuple", children=children)


def _flat(node: Node, leaf_of: LeafOf) -> PlainForm | None:
    leaves = tuple(PlainForm("leaf", leaf) for leaf in _leaves_of(node, leaf_of))
    return PlainForm("list", children=leaves) if leaves else None


def _leaves_of(node: Node, leaf_of: LeafOf) -> Iterator[FormLeaf]:
    if isinstance(node, TensorNode | ScalarNode):
        leaf = leaf_of(node)
        if leaf is not None:
            yield leaf
    for child in children_of(node):
        yield from _leaves_of(child, leaf_of)


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
        all_tensors = dict(tensors)
        for place, scalar in self.derived.items():
            all_tensors[place] = torch.tensor(scalars[scalar], dtype=torch.long, device=device)
        share_offsets(self.layout, all_tensors)
        return {
            name: rebuild(
                node if device is None else _on_device(node, device),
                all_tensors.__getitem__,
                scalars,
                classes,
            )
            for name, node in self.layout.nodes.items()
        }


def _on_device(node: Node, device: str) -> Node:
    if isinstance(node, ConstantNode):
        return node.model_copy(update={"name": device}) if node.kind == "device" else node
    return with_children(node, lambda child: _on_device(child, device))


def derived_tensors(layout: ArgumentLayout) -> dict[int, int]:
    """The tensors of a layout that follow from a scalar beside them, with that scalar."""
    scalars = {(p.argument, p.path): i for i, p in enumerate(layout.scalars)}
    sources: dict[int, int] = {}
    for i, place in enumerate(layout.tensors):
        source = source_of_derived(place.path) if place.private else None
        if source is not None and (place.argument, source) in scalars:
            sources[i] = scalars[place.argument, source]
    return sources


def as_call(
    arguments: Mapping[str, Any], signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by name as ``(args, kwargs)``: by keyword wherever the signature allows it.

    Positional-only parameters, and parameters before members of ``*args``, go by position. There,
    defaults are put back that the layout leaves out.
    """
    by_name = dict(arguments)
    members = [
        name for name in by_name if signature.is_of_variadic(name) or signature.is_beyond(name)
    ]
    leading = [p for p in signature.parameters if p.kind.startswith("POSITIONAL")]
    needed = 0
    for position, parameter in enumerate(leading):
        is_only = parameter.kind == "POSITIONAL_ONLY" and parameter.name in by_name
        if is_only or members:
            needed = position + 1
    args = [by_name.pop(parameter.name, parameter.default) for parameter in leading[:needed]]
    args += [by_name.pop(name) for name in members]
    return tuple(args), by_name


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
    layout = layout_of_nodes({"output": described.node}, 1)
    tensors = [described.tensors[place.number] for place in layout.tensors]
    scalars = tuple(described.scalars[place.number] for place in layout.scalars)
    counters = _counters(layout, tensors, scalars)
    template = Template(layout, scalars, counters, derived_tensors(layout))
    return template, tensors, described.classes


def _counters(
    layout: ArgumentLayout, tensors: Sequence[Any], scalars: Sequence[Any]
) -> dict[int, tuple[int, int]]:
    paths = {place.path: i for i, place in enumerate(layout.tensors)}
    counters: dict[int, tuple[int, int]] = {}
    for i, place in enumerate(layout.scalars):
        counted = counted_size(place.path)
        if not place.is_int or place.owner is None or counted is None:
            continue
        tensor_path, axis = counted
        tensor = paths.get(tensor_path)
        if tensor is not None and tensors[tensor].dim() >= 2:
            axis %= tensors[tensor].dim()
            if is_same_size(scalars[i], tensors[tensor].shape[axis]):
                counters[i] = (tensor, axis)
    return counters


def nested_shapes(
    tree: Tree,
    variant: VariantFacts,
    sorter: CallSorter,
    classes: ClassIndex,
    shown: Callable[[Column], Any],
) -> tuple[Any, ...] | dict[str, Any]:
    """The shapes in the form of a call's arguments, as
    ``torch.export.export(dynamic_shapes=...)`` takes them for the model itself.

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
    tensors = {path.number: i for i, path in enumerate(layout.tensors)}
    ints = {
        path.number: column for path, column in zip(layout.ints, layout.int_columns, strict=True)
    }
    dynamic = set(variant.dynamic())

    def shape(form: FlatTree) -> Any:
        leaf, node = (None, None) if form.slot is None else (form.slot.leaf, form.slot.node)
        if leaf is not None:
            columns = variant.group.dimensions(tensors[leaf])
            return {column.axis: shown(column) for column in columns if column in dynamic}
        column = ints.get(node.scalar) if isinstance(node, ScalarNode) else None
        return shown(column) if column is not None and column in dynamic else None

    passed = PassedArguments.of(tree.spec().root, sorter.signature)
    passed = passed.with_defaults(sorter.signature, len(tree.scalars))
    # Arguments before members of *args are passed whatever they are.
    variadic = sorter.signature.variadic_positional
    has_members = variadic is not None and len(passed.positional) > variadic[1]
    leading = variadic[1] if variadic is not None and has_members else 0
    positional = [
        pair for i, pair in enumerate(passed.positional) if pair[0] in layout.nodes or i < leading
    ]
    named = [
        (name, node)
        for name, node in passed.named
        if name in layout.nodes and not isinstance(node, NoneNode)
    ]
    # torch takes keys for structure, so that nothing fits all calls if they are data.
    told = {name for name, node in layout.nodes.items() if not has_data_keys(node)}
    shapes = {
        name: flattener.flatten(node).filled(shape, classes) if name in told else None
        # If a name was passed twice, which raised, the layout has the second.
        for name, node in dict((*positional, *named)).items()
    }
    return nested(sorter.signature, len(positional), shapes)
