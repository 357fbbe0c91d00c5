"""How a variant is exported: what goes in, in which form, and how it becomes the model's call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from calltape_analyzer.binding import Signature
from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.exporting.forms import Form, Leaf, form_of_argument
from calltape_analyzer.exporting.templates import Template, derived_tensors
from calltape_analyzer.layout import Layout
from calltape_analyzer.samples import Sample
from calltape_analyzer.symbols import Column
from calltape_analyzer.unique_names import UniqueNames
from calltape_analyzer.variants import VariantFacts
from calltape_schema.tree import ScalarNode, TensorNode

__all__ = ["Plan", "identifier", "input_names"]

_OTHER = re.compile("[^0-9A-Za-z]")


@dataclass(frozen=True)
class Plan:
    """One variant as an exporter is asked for it.

    Attributes:
        template: the arguments, with their constants.
        forms: per argument that is an input its form, in the order of the signature.
        positional: how many of these go by position.
        signature: of the model's method.
        frozen: the tensors, by place, that are constants of the program.
        varying: the texts and floats, by place, that vary from call to call: constants of the
            program, and not of the model's calls.
    """

    template: Template
    forms: Mapping[str, Form]
    positional: int
    signature: Signature
    frozen: Mapping[int, Any]
    varying: frozenset[int] = frozenset()

    @classmethod
    def of(cls, variant: VariantFacts, sample: Sample, signature: Signature) -> Plan:
        """The plan of a variant; its constants are those of ``sample``."""
        layout = variant.group.layout
        ints = [i for i, place in enumerate(layout.scalars) if place.kind == "int"]
        given = {ints[c.place] for c in variant.dynamic() if c.axis is None}
        counters = {
            ints[counter]: (keys.place, keys.axis or 0)
            for counter, keys in variant.counters.items()
        }
        derived = derived_tensors(layout)
        constant = derived.keys() | variant.frozen.keys()

        def leaf_of(node: Any) -> Leaf | None:
            if isinstance(node, TensorNode) and node.leaf not in constant:
                return Leaf("tensor", node.leaf)
            if isinstance(node, ScalarNode) and node.scalar in given:
                return Leaf("int", node.scalar)
            return None

        found = {name: form_of_argument(node, leaf_of) for name, node in layout.nodes.items()}
        forms = {name: form for name, form in found.items() if form is not None}
        leading = sum(name in forms for name in layout.arguments[: layout.positional])
        template = Template(layout, tuple(sample.scalars), counters, derived)
        open_places = set(variant.group.varying)
        varying = frozenset(i for i, place in enumerate(layout.scalars) if place in open_places)
        return cls(template, forms, leading, signature, variant.frozen, varying)

    @cached_property
    def leaves(self) -> tuple[Leaf, ...]:
        """The inputs of the program, in order."""
        return tuple(leaf for form in self.forms.values() for leaf in form.leaves())

    @cached_property
    def names(self) -> tuple[str, ...]:
        """A readable name for each input, unique: ``past_key_values_layers_0_keys``."""
        return tuple(_names(self.template.layout, self.leaves))

    def build(self, sample: Sample, classes: ClassIndex, device: str | None) -> dict[str, Any]:
        """The model's arguments by name for a sample."""
        layout = self.template.layout
        given = {
            i: sample.scalars[i]
            for i, place in enumerate(layout.scalars)
            if (place.kind == "int" and i not in self.template.counters) or i in self.varying
        }
        tensors = {i: t for i, t in enumerate(sample.tensors) if i not in self.template.derived}
        return self.template.build(tensors, given, classes, device)

    def values(self, sample: Sample) -> list[Any]:
        """The inputs of the program for a sample, in order."""
        return [
            (sample.tensors if leaf.kind == "tensor" else sample.scalars)[leaf.place]
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

    def read(self, arguments: Mapping[str, Any]) -> Iterator[tuple[Leaf, Any]]:
        """The leaves of the program's arguments, by name."""
        for name, form in self.forms.items():
            yield from form.read(arguments[name])

    def shapes(self, dynamic: Callable[[Column], Any], variant: VariantFacts) -> dict[str, Any]:
        """What ``dynamic_shapes`` is for the program: ``dynamic`` tells for each dynamic column."""
        axes: dict[int, list[Column]] = defaultdict(list)
        for column in variant.dynamic():
            if column.axis is not None:
                axes[column.place].append(column)
        scalars = self.template.layout.scalars
        ints = {i: at for at, i in enumerate(i for i, p in enumerate(scalars) if p.kind == "int")}

        def shape(leaf: Leaf) -> Any:
            if leaf.kind == "int":
                return dynamic(Column(ints[leaf.place], None))
            return {c.axis: dynamic(c) for c in axes[leaf.place]} or None

        return {name: form.fill(shape) for name, form in self.forms.items()}


def input_names(variant: VariantFacts) -> dict[int, str]:
    """The name of each tensor of a variant as an input of a program."""
    layout = variant.group.layout
    leaves = [Leaf("tensor", i) for i in range(len(layout.tensors))]
    return dict(enumerate(_names(layout, leaves)))


def _names(layout: Layout, leaves: Sequence[Leaf]) -> Iterator[str]:
    taken = UniqueNames()
    for leaf in leaves:
        places = layout.tensors if leaf.kind == "tensor" else layout.scalars
        yield taken.add(identifier(str(places[leaf.place])))


def identifier(text: str) -> str:
    """A Python identifier that reads like the text."""
    name = _OTHER.sub("_", text)
    return name if name and not name[0].isdigit() else f"_{name}"
