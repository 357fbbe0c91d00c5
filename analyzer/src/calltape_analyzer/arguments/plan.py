"""How a variant is exported: its inputs, in which form, and how they become the model's call."""

from __future__ import annotations

import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calltape_analyzer.arguments.forms import FormLeaf, PlainForm, form_of_argument
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.templates import Template, derived_tensors
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.text import UniqueNames, unique
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import ScalarNode, TensorNode

__all__ = ["Plan", "identifier"]

_OTHER = re.compile("[^0-9A-Za-z]")


@dataclass(frozen=True)
class Plan:
    """How one variant is exported.

    Attributes:
        template: the arguments, with their constants.
        forms: the form of each argument that is an input, in the order of the signature, by its
            parameter of the program: the name of the argument, or one that Python takes.
        positional: how many of these inputs are passed by position.
        signature: of the model's method.
        frozen: the tensors, by number in the layout, that are constants of the program.
        varying: the texts and floats, by number among the scalars, that vary from call to call.
            They are constants of the program, and not of the model's calls.
    """

    template: Template
    forms: Mapping[str, PlainForm]
    positional: int
    signature: Signature
    frozen: Mapping[int, Any]
    varying: frozenset[int] = frozenset()

    @classmethod
    def of(cls, variant: VariantFacts, sample: Sample, signature: Signature) -> Plan:
        """The plan of a variant, with the constants of a sample."""
        layout = variant.group.layout
        given = {layout.int_scalars[c.index] for c in variant.dynamic() if c.is_int}
        counters = {
            layout.int_scalars[counter.index]: (dimension.index, dimension.axis or 0)
            for counter, dimension in variant.counting_ints.items()
        }
        derived = derived_tensors(layout)
        constant = derived.keys() | variant.frozen.keys()

        def leaf_of(node: Any) -> FormLeaf | None:
            if isinstance(node, TensorNode) and node.leaf not in constant:
                return FormLeaf("tensor", node.leaf)
            if isinstance(node, ScalarNode) and node.scalar in given:
                return FormLeaf("int", node.scalar)
            return None

        found = {name: form_of_argument(node, leaf_of) for name, node in layout.nodes.items()}
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
        """The model's arguments by name for a sample."""
        layout = self.template.layout
        given = {
            i: sample.scalars[i]
            for i, place in enumerate(layout.scalars)
            if (place.is_int and i not in self.template.counters) or i in self.varying
        }
        tensors = {i: t for i, t in enumerate(sample.tensors) if i not in self.template.derived}
        return self.template.build(tensors, given, classes, device)

    def values(self, sample: Sample) -> list[Any]:
        """The inputs of the program for a sample, in order."""
        return [
            (sample.tensors if leaf.kind == "tensor" else sample.scalars)[leaf.index]
            for leaf in self.leaves
        ]

    def arguments(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Values of the inputs as the ``(args, kwargs)`` that the program takes."""
        given = iter(values)
        filled = {name: form.fill(lambda _: next(given)) for name, form in self.forms.items()}
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
            return {c.axis: dynamic(c) for c in axes[leaf.index]} or None

        return {name: form.fill(shape) for name, form in self.forms.items()}


def _parameters(arguments: Collection[str]) -> Iterator[str]:
    """A name for each argument that a parameter can have: ``args_0`` for ``args.0``."""
    taken = UniqueNames(filter(_is_parameter, arguments))
    for name in arguments:
        yield name if _is_parameter(name) else taken.add(identifier(name))


def _is_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name)


def identifier(text: str) -> str:
    """A Python identifier that reads like the text."""
    name = _OTHER.sub("_", text)
    return name if _is_parameter(name) else f"_{name}"
