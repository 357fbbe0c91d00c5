"""One exported program: a variant, and what runs its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.classes import ClassIndex, name_of
from calltape_analyzer.describing import describe_result
from calltape_analyzer.exporting.conditions import Conditions, Sized
from calltape_analyzer.exporting.engines import Engine, OnnxEngine
from calltape_analyzer.exporting.forms import Form
from calltape_analyzer.exporting.held import refused_value
from calltape_analyzer.exporting.plan import Plan
from calltape_analyzer.exporting.templates import Template
from calltape_analyzer.gathering import Sorted, difference_of
from calltape_analyzer.observations import Row
from calltape_analyzer.placeholder import Placeholder
from calltape_analyzer.printable import some_of
from calltape_analyzer.rebuild import UNMADE
from calltape_analyzer.results import ABSENT, values_in
from calltape_analyzer.samples import Sample
from calltape_analyzer.variants import VariantFacts
from calltape_schema.tree import DictNode, FieldsNode, Node, ScalarNode, SequenceNode, children_of

__all__ = ["Program", "told_state", "told_unchanged"]

_MAX_TOLD = 4  # names of state
_TOLD = ("type_name", "reason")
PLACEHOLDER = name_of(Placeholder)


def _text(node: Node, scalars: Sequence[Any]) -> str:
    return str(scalars[node.scalar]) if isinstance(node, ScalarNode) else ""


def told_state(names: Sequence[str]) -> str:
    """The names of a state, the first of them where there are many."""
    return some_of(names, _MAX_TOLD)


def told_unchanged(name: str) -> str:
    """A note that a program does not change an argument that the model changes."""
    return f"leaves {name} as it was, which the model changes in place"


@dataclass
class Program:
    """A program that serves one variant.

    Attributes:
        variant: the calls that it is for.
        plan: its inputs.
        result: template and form of its outputs.
        engine: runs it; ``engine.program`` is the exporter's own object.
        conditions: what the trace took for granted.
        only: the sizes that it is trusted with, where it gave wrong values at others; None for
            all that it does not refuse itself.
        returned: the items of the result that are arguments, which the model changes.
        notes: what a person should know about it.
        state: the parameters, buffers and attributes of the model that a call changes.
        kept: those of them that a run of the program was seen to change as well.
        unwritten: the tensors among the arguments that the model writes to and does not return, and
            that the program does not write to. No call of it does what the model does.
    """

    variant: VariantFacts
    plan: Plan
    result: tuple[Template, Form]
    engine: Engine
    conditions: Conditions
    classes: ClassIndex
    device: str = "cpu"
    only: frozenset[Row] | None = None
    returned: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    state: tuple[str, ...] = ()
    kept: set[str] = field(default_factory=set)
    unwritten: tuple[str, ...] = ()
    _state_notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.variant.name

    @property
    def exported(self) -> Any:
        """The ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``."""
        return self.engine.program

    def has_state(self, values: Mapping[str, str]) -> None:
        """Notes parameters, buffers and attributes of the model that a call was seen to change.

        Args:
            values: by name what each was at the export, in words; empty where that is long.
        """
        known = tuple(sorted({*self.state, *values}))
        notes = self._notes_of_state(known, values) if known else []
        if (known == self.state and not values) or notes == self._state_notes:
            return
        self.notes = [note for note in self.notes if note not in self._state_notes]
        self.state, self._state_notes = known, notes
        self.notes += [note for note in notes if note not in self.notes]

    def does_not_write(self, name: str, *, is_returned: bool) -> None:
        """Notes a tensor among the arguments that the model writes to, and the program does not.
        One that the model returns as well has its new values in the result."""
        told = told_unchanged(name)
        if is_returned:
            self.notes.append(f"{told} and returns: its new values are in the result only")
        elif name not in self.unwritten:
            self.unwritten += (name,)
            self.notes.append(told)

    def unknown_classes(self) -> list[str]:
        """The classes of objects in its results that are not known here."""
        found: dict[str, None] = {}
        waiting = list(self.result[0].layout.nodes.values())
        while waiting:
            node = waiting.pop()
            waiting += children_of(node)
            name = node.type if isinstance(node, FieldsNode | SequenceNode | DictNode) else None
            if name is not None and self.classes.get(name) is None:
                found[name] = None
        return sorted(found)

    def unmade(self, outputs: Sequence[Any]) -> list[str]:
        """The objects of a result whose classes are known here and that cannot be made all the
        same, each with the reason: whoever calls the program gets placeholders for them."""
        described = describe_result(self.value(outputs))
        if PLACEHOLDER not in described.classes:
            return []
        found: list[str] = []
        waiting: list[Node] = [described.node]
        while waiting:
            node = waiting.pop()
            waiting += children_of(node)
            if isinstance(node, FieldsNode) and node.type == PLACEHOLDER:
                held = dict(zip(node.fields, node.children, strict=True))
                name, reason = (_text(held[of], described.scalars) for of in _TOLD)
                if reason.startswith(UNMADE):
                    found.append(f"a {name} comes as a placeholder: {reason}")
        return found

    def _notes_of_state(self, names: Sequence[str], values: Mapping[str, str]) -> list[str]:
        has = "the model has state that its calls change"
        named = [f"{name}={values[name]}" if values.get(name) else name for name in names]
        if isinstance(self.engine, OnnxEngine):
            return [
                f"{has} ({told_state(named)}); the program has none: each call begins with the "
                "state at the export"
            ]
        kept = [name for name in names if name in self.kept]
        frozen = [shown for name, shown in zip(names, named, strict=True) if name not in self.kept]
        notes = []
        if kept:
            notes.append(
                f"{has} ({told_state(kept)}); the program changes it as well, so that each call "
                "begins where the one before ended; recorded calls were judged one by one, from "
                "the state at the export"
            )
        if frozen:
            notes.append(
                f"{has} ({told_state(frozen)}) and the program does not: it is a constant of the "
                "program, as it was at the export"
            )
        return notes

    def outputs(self, sample: Sample) -> list[Any]:
        """The flat outputs for a sample, in the order of the result's leaves. The sample's tensors
        may be written to, where the model does."""
        return self.engine.run(self.plan, self.plan.values(sample), self.result[1])

    def value(self, outputs: Sequence[Any]) -> Any:
        """What the model would return, around flat outputs. An object of a class that is not known
        here is a :class:`~calltape_analyzer.Placeholder`."""
        tensors, ints = self._placed(outputs)
        return self.result[0].build(tensors, ints, self.classes, self.device)["output"]

    def leaves(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """The outputs by path, as :func:`calltape_analyzer.comparing.leaves_of` gives them."""
        tensors, ints = self._placed(outputs)
        template = self.result[0]

        def scalar(place: int) -> Any:
            if place in template.counters:
                tensor, axis = template.counters[place]
                return tensors[tensor].shape[axis]
            return ints.get(place, template.scalars[place])

        node = template.layout.nodes["output"]
        return values_in(node, lambda place: tensors.get(place, ABSENT), scalar)

    def _placed(self, outputs: Sequence[Any]) -> tuple[dict[int, Any], dict[int, Any]]:
        tensors: dict[int, Any] = {}
        ints: dict[int, Any] = {}
        for leaf, value in zip(self.result[1].leaves(), outputs, strict=True):
            (tensors if leaf.kind == "tensor" else ints)[leaf.place] = value
        return tensors, ints

    def refuses_values(self, sample: Sample) -> str | None:
        """Why the program is not for a sample whose sizes it takes: what is a constant of it must
        have the value that it was exported with."""
        import torch

        for place, value in self.plan.frozen.items():
            given = sample.tensors[place]
            if given.device.type == "meta":
                continue
            if not torch.equal(given.cpu(), value.cpu()):
                name = self.variant.group.layout.tensors[place]
                return f"{name} is {given.tolist()}; this program has {value.tolist()}"
        return None

    def refuses_call(self, placed: Sorted) -> str | None:
        """Why the program is not for a call; None where it is, as far as is known without a look at
        values."""
        row = self.variant.row_in(placed.key, placed.row)
        if row is None:
            return difference_of(self.variant.group, placed)
        return refused_value(self.variant, placed) or self.refuses(row)

    def refuses(self, row: Row) -> str | None:
        """Why the program is not for a row; None where it is, as far as the sizes tell."""
        reason = self.variant.refuses(row) or self._conditions_refuse(row)
        if reason is None and self.only is not None and row not in self.only:
            return "the program gives wrong values at sizes other than those that were verified"
        return reason

    def _conditions_refuse(self, row: Row) -> str | None:
        values, named = self._sized(row)
        return self.conditions.refuse(values, named)

    def is_understood(self) -> bool:
        """Whether all conditions of the program can be checked here."""
        return self.conditions.understood(self._sized(self.variant.rows[0][0])[1])

    def _sized(self, row: Row) -> tuple[list[Any], dict[str, Any]]:
        """The inputs that a row has, without data: in order, and nested by argument."""
        facts = self.variant.group.facts
        tensors = [Sized(fact.dtype, shape) for shape, fact in zip(row.shapes, facts, strict=True)]
        scalars = self.variant.with_ints(self.plan.template.scalars, row.ints)
        values = self.plan.values(Sample(tensors, scalars))
        args, kwargs = self.plan.arguments(values)
        return values, dict(zip(self.plan.forms, args, strict=False)) | kwargs
