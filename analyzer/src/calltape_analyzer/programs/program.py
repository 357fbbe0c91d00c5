"""One exported program: the variant that it serves, and the model that runs its calls.

Takes values of a call; returns the outputs, or the reason why the program rejects the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from calltape_analyzer.arguments.plan import ArgumentPlan, FormLeaf, PlainForm, Template
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.comparison.reports import output_path
from calltape_analyzer.facts import Fact, Note, Rejection
from calltape_analyzer.model.calls import with_default_dtype
from calltape_analyzer.observing.distinctions import difference_of
from calltape_analyzer.observing.groups import Group, SortedCall, shown_constant
from calltape_analyzer.observing.memory_layout import layout_name
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs import notes as note_types
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.caller_objects import as_traced, kept_layouts, memory_of, write_back
from calltape_analyzer.programs.conditions import Conditions, Sized
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.pytree.classes import ClassIndex, class_name
from calltape_analyzer.pytree.memory import contiguous_strides
from calltape_analyzer.pytree.nodes import ABSENT, values_in
from calltape_analyzer.pytree.placeholder import Placeholder, Unmade, placeholders_in
from calltape_analyzer.pytree.tensors import dtype_of
from calltape_analyzer.text import counted
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import (
    DictNode,
    FieldsNode,
    Leaf,
    Node,
    ScalarNode,
    SequenceNode,
    children_of,
    walk,
)

__all__ = ["Program", "constants_of", "unknown_class_in"]

_MAX_SHOWN = 4
"""How many names of lost state have their values in a note."""


def _layout(value: Any) -> str | None:
    """The name of a tensor's layout in memory; None for anything else."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return None if value.device.type == "meta" else layout_name(value.shape, value.stride())


@dataclass
class Program:
    """A program that serves one variant.

    Attributes:
        variant: the calls that it serves.
        plan: its inputs.
        result: template and form of its outputs.
        model: runs it; ``model.exported`` is the exporter's own object.
        conditions: what the trace assumed about sizes.
        classes: the classes that results may be made of.
        device: where its tensors are.
        only_rows: the sizes that it may serve, if it returned wrong values at others; None for all
            sizes that it does not reject itself.
        returned: the items of the result that are arguments, which the model changes.
        all_notes: its notes and remarks.
        state: the parameters, buffers and attributes of the model that a call changes.
        changed_state: the names in ``state`` that a run of the program changes as well.
        depends: whether later calls of the model depend on state that the program does not change;
            None if that was not tried.
        unwritten: the arguments, and tensors among them, that the model changes but does not
            return, and that the program does not change.
        result_arguments: which tensors of the result are arguments: by the number of the tensor,
            that of the argument. If the runtime cannot write to the argument, a call writes the
            values that the program returns to it.
        no_aliases: the numbers of the tensors among the arguments that must not be the model's own,
            because the model returns something else then.
        owner: the model, if it is in this process.
        made_by: the strategy that made it; None for a program that calltape did not make.
        traced: the torch program that :attr:`model` was converted from, during an export.
        random_generators: those that the model draws from; empty if nothing that was compared
            depends on random numbers.
    """

    variant: VariantFacts
    plan: ArgumentPlan
    result: tuple[Template, PlainForm]
    model: ExportedModel
    conditions: Conditions
    classes: ClassIndex
    device: str = "cpu"
    only_rows: frozenset[SizeRow] | None = None
    returned: dict[str, str] = field(default_factory=dict)
    all_notes: list[Note] = field(default_factory=list)
    state: tuple[str, ...] = ()
    changed_state: set[str] = field(default_factory=set)
    depends: bool | None = None
    unwritten: tuple[str, ...] = ()
    result_arguments: dict[int, int] = field(default_factory=dict)
    random_generators: tuple[str, ...] = ()
    no_aliases: frozenset[int] = frozenset()
    owner: Any = None
    traced: Any = None
    made_by: Strategy | None = None

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.variant.name

    @property
    def exported(self) -> Any:
        """The ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``."""
        return self.model.exported

    @property
    def notes(self) -> list[Note]:
        """What a user should know about it."""
        return [note for note in self.all_notes if not note.is_remark]

    @property
    def remarks(self) -> list[Note]:
        """What was tried with success."""
        return [note for note in self.all_notes if note.is_remark]

    def note(self, note: Note) -> None:
        """Adds a note, unless it is there already."""
        if note not in self.all_notes:
            self.all_notes.append(note)

    def has(self, kind: type[Note]) -> bool:
        """Whether it has a note of a kind."""
        return any(isinstance(note, kind) for note in self.all_notes)

    @property
    def is_constant(self) -> bool:
        """Whether it serves the sizes of one recorded call, or one value of a tensor, because no
        more general program could be made."""
        return self.has(note_types.OneSize) or bool(self.plan.frozen)

    @property
    def depends_on_values(self) -> bool:
        """Whether it may have conditions on values of tensors, which only a run checks."""
        return self.has(note_types.ByValues)

    def note_state(self, values: Mapping[str, str]) -> None:
        """Adds parameters, buffers and attributes of the model that a call changed.

        Args:
            values: by name, the values at the export, in words; empty for long values.
        """
        names = tuple(sorted({*self.state, *values}))
        if names == self.state and not values:
            return
        self.state = names
        lost = self.lost
        kept_names = tuple(name for name in self.state if name not in lost)
        notes: list[Note] = [note_types.StateKept(kept_names)] if kept_names else []
        if lost:
            shown = tuple(values.get(name, "") for name in lost[:_MAX_SHOWN])
            notes.append(
                note_types.StateLost(tuple(lost), shown, self.model.has_state, self.depends)
            )
        before = [
            note
            for note in self.all_notes
            if isinstance(note, note_types.StateKept | note_types.StateLost)
        ]
        if notes != before:
            self.all_notes = [note for note in self.all_notes if note not in before] + notes

    def note_written(self, tensors: Mapping[int, bool], changed: Sequence[str]) -> None:
        """Notes what the model changes in place, and the program does not.

        Args:
            tensors: the numbers of those that the model writes to, and whether it returns them, so
                that a result has the new values.
            changed: the names of arguments that hold something else afterwards.
        """
        places, returned = self.variant.group.layout.tensors, set(self.returned.values())
        lost = dict.fromkeys(changed, False)
        for number, is_returned in ({} if self.model.has_state else tensors).items():
            # The caller's own object gets the tensors that the program returns.
            if places[number].argument not in returned:
                lost[str(places[number])] = is_returned and number in self.result_arguments.values()
        for name, is_written_back in lost.items():
            self.note(note_types.Unwritten(name, is_written_back))
        unwritten = [name for name, is_written_back in lost.items() if not is_written_back]
        self.unwritten = tuple(dict.fromkeys([*self.unwritten, *unwritten]))

    def note_layouts(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        """Notes outputs whose strides differ from the recorded ones, since strides are not
        compared. Other runtimes than torch choose their own.

        Args:
            expected, got: by path.
        """
        for path in expected if self.model.has_state else ():
            if path in got and (was := _layout(expected[path])) != (now := _layout(got[path])):
                self.note(note_types.OtherStrides(output_path(path), now, was))

    def note_views(self, views: Mapping[str, frozenset[int]]) -> None:
        """Notes outputs of the model that share memory with an argument. Whether those of the
        program do depends on the strides of the caller's arguments.

        Args:
            views: the numbers of the arguments, by the path of an output.
        """
        places = self.variant.group.layout.tensors
        paths: dict[str, list[str]] = {}
        for path, numbers in sorted(views.items()):
            paths.setdefault(str(places[min(numbers)]), []).append(output_path(path))
        for name, outputs in paths.items():
            self.note(note_types.SharedMemory(name, tuple(outputs)))

    def note_draws(self, generators: Sequence[str]) -> None:
        """Notes that results depend on random numbers, and their generators."""
        if not self.random_generators:
            self.random_generators = tuple(generators)
            self.all_notes.append(note_types.Draws(self.random_generators))

    def unknown_classes(self) -> list[str]:
        """The classes of objects in its results that are unknown in this process."""
        nodes = (node for root in self.result[0].layout.nodes.values() for node in walk(root))
        typed = (node for node in nodes if isinstance(node, FieldsNode | SequenceNode | DictNode))
        names = {node.type for node in typed if node.type is not None}
        return sorted(name for name in names if self.classes.get(name) is None)

    def unmade(self, outputs: Sequence[Any]) -> list[Fact]:
        """The objects of a result that cannot be made although their classes are known, each with
        the reason. The caller gets placeholders for them."""
        return [
            note_types.ComesAsPlaceholder(placeholder.type_name, placeholder.reason)
            for placeholder in placeholders_in(self.value(outputs))
            if isinstance(placeholder, Unmade)
        ]

    @property
    def lost(self) -> list[str]:
        """The names in ``state`` that a run of the program does not change."""
        keeps = self.changed_state if self.model.has_state else ()
        return [name for name in self.state if name not in keeps]

    @cached_property
    def _result_leaves(self) -> tuple[FormLeaf, ...]:
        return tuple(self.result[1].leaves())

    def inputs(self, sample: Sample) -> dict[str, Any]:
        """The inputs of :attr:`model` for a sample, by name."""
        return dict(zip(self.plan.names, self.plan.values(sample), strict=True))

    def outputs(self, sample: Sample) -> list[Any]:
        """The flat outputs for a sample, in the order of the result's leaves. The program writes to
        the sample's tensors if the model does. It gets copies of tensors with other strides than it
        was traced with.

        Raises:
            Exception: what the runtime raises.
        """
        traced_sample = as_traced(self.variant, sample)
        with with_default_dtype(self.plan.context):
            returned = self.model.run(self.inputs(traced_sample))
        if self.model.has_state:
            write_back(sample, traced_sample)
        leaves = self._result_leaves
        if len(returned) != len(leaves):
            raise RuntimeError(
                f"the model has {counted(len(returned), 'output')} instead of {len(leaves)}"
            )
        # A cache that the program fills and returns is the caller's own.
        callers = {
            id(copy): one for one, copy in zip(sample.tensors, traced_sample.tensors, strict=True)
        }
        return [
            callers[id(value)]
            if id(value) in callers
            else self._written_back(leaf, leaf.read(value), sample)
            for leaf, value in zip(leaves, returned, strict=True)
        ]

    def _written_back(self, leaf: FormLeaf, value: Any, sample: Sample) -> Any:
        """An output, or the caller's own tensor with its values, if the model returns that."""
        if self.model.has_state or leaf.kind != "tensor" or leaf.index not in self.result_arguments:
            return value
        import torch

        from calltape_analyzer.model.state import same

        argument = sample.tensors[self.result_arguments[leaf.index]]
        if not same(value, argument):
            with torch.no_grad():
                argument.copy_(value)
        return argument

    def value(self, outputs: Sequence[Any]) -> Any:
        """Rebuilds what the model would return from flat outputs. An object of an unknown class
        becomes a :class:`~calltape_analyzer.Placeholder`."""
        tensors, ints = self._placed(outputs)
        return self.result[0].build(tensors, ints, self.classes, self.device)["output"]

    def leaves(self, outputs: Sequence[Any]) -> dict[str, Any]:
        """The outputs by path, as :func:`calltape_analyzer.comparison.comparing.leaves_of` gives
        them."""
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
        for leaf, value in zip(self._result_leaves, outputs, strict=True):
            (tensors if leaf.kind == "tensor" else ints)[leaf.index] = value
        return tensors, ints

    def rejects_values(self, sample: Sample) -> Rejection | None:
        """Why the program rejects a sample whose sizes it takes; None if it does not. A tensor that
        is a constant of the program must have the value that it was exported with."""
        return self._rejects_aliases(sample) or self.rejects_constants(sample.tensors.__getitem__)

    def reject_aliases(self, paths: Collection[str]) -> None:
        """Sets :attr:`no_aliases` by the paths of tensors."""
        places = self.variant.group.layout.tensors
        self.no_aliases = frozenset(i for i, place in enumerate(places) if str(place) in paths)

    def _rejects_aliases(self, sample: Sample) -> reasons.SharesMemory | None:
        if not self.no_aliases or self.owner is None:
            return None
        named = (*self.owner.named_parameters(), *self.owner.named_buffers())
        names = {memory_of(tensor): name for name, tensor in named if tensor.numel()}
        for number in sorted(self.no_aliases):
            memory = memory_of(sample.tensors[number])
            if memory is not None and memory in names:
                path = self.variant.group.layout.tensors[number]
                return reasons.SharesMemory(str(path), names[memory])
        return None

    def rejects_constants(self, tensor_at: Callable[[int], Any]) -> reasons.OtherValue | None:
        """Why the program rejects a call because of tensors that are constants of it; None if it
        does not.

        Args:
            tensor_at: returns a tensor of the layout by its number. One whose value is not known is
                not compared.
        """
        if not self.plan.frozen:
            return None
        import torch

        for place, value in self.plan.frozen.items():
            tensor = tensor_at(place)
            if isinstance(tensor, Placeholder) or tensor.device.type == "meta":
                continue
            if not torch.equal(tensor.cpu(), value.cpu()):
                name = self.variant.group.layout.tensors[place]
                return reasons.OtherValue(str(name), str(tensor.tolist()), str(value.tolist()))
        return None

    def rejects_call(self, placed: SortedCall) -> Rejection | None:
        """Why the program rejects a call; None if it accepts it, as far as that is known without
        the values of tensors."""
        row = self.variant.row_in(placed.key, placed.row)
        if row is None:
            unknown = unknown_class_in(self.variant.group, placed, self.classes)
            return unknown or reasons.OtherCall(difference_of(self.variant.group, placed))
        leaves = placed.leaves if placed.key.covers(self.variant.group.key) else None
        return rejects_constants(self.variant, placed) or self.rejects(row, leaves)

    def rejects(self, row: SizeRow, leaves: Sequence[Leaf] | None = None) -> Rejection | None:
        """Why the program rejects the sizes of a row; None if it accepts them.

        Args:
            row: the sizes.
            leaves: of a call of the program's own group, for conditions on strides.
        """
        rejection = self.variant.rejects(row)
        if rejection is None and (traced := self.conditions_reject(row, leaves)) is not None:
            rejection = reasons.ByTrace(traced)
        if rejection is None and self.only_rows is not None and row not in self.only_rows:
            # It is unknown whether it would be right at a size that was not recorded.
            return reasons.Unverified(row in self._rows, self._serves_only)
        return rejection

    def serve_only(self, rows: Collection[SizeRow], why: Fact) -> None:
        """Restricts it to the recorded sizes at which it was right.

        Args:
            rows: these sizes.
            why: the reason to reject all others.
        """
        self.only_rows = frozenset(rows)
        self.all_notes.append(note_types.ServesOnly(len(self.only_rows), why))

    @property
    def why_only(self) -> Fact | None:
        """Why it has :attr:`only_rows`."""
        only = self._serves_only
        return None if only is None else only.why

    @property
    def _serves_only(self) -> note_types.ServesOnly | None:
        return next(
            (note for note in self.all_notes if isinstance(note, note_types.ServesOnly)), None
        )

    def knows_and_rejects(self, call: SortedCall) -> bool:
        """Whether it was exported from calls of these sizes, among others, but rejects them."""
        row = self.variant.row_in(call.key, call.row)
        return row is not None and row in self._rows and self.rejects(row) is not None

    @cached_property
    def _rows(self) -> frozenset[SizeRow]:
        return frozenset(self.variant.rows)

    def conditions_reject(
        self, row: SizeRow, leaves: Sequence[Leaf] | None = None
    ) -> Rejection | None:
        """Why the conditions of the trace reject the sizes of a row; None if they hold."""
        values, named = self._sized(row, leaves)
        return self.conditions.reject(values, named)

    def has_known_conditions(self) -> bool:
        """Whether all conditions of the program can be evaluated."""
        row = self.variant.rows.row(0)
        pairs = zip(self.variant.group.facts, row.shapes, strict=True)
        leaves = [Leaf.model_construct(dtype=facts.dtype, shape=shape) for facts, shape in pairs]
        return self.conditions.can_be_evaluated(self._sized(row, leaves)[1])

    def _sized(
        self, row: SizeRow, leaves: Sequence[Leaf] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The inputs of a row, without data: in order, and nested by argument."""
        facts, kept = self.variant.group.facts, kept_layouts(self.variant)
        tensors = []
        for i, (shape, fact) in enumerate(zip(row.shapes, facts, strict=True)):
            strides: tuple[int, ...] | None = contiguous_strides(shape)
            offset: int | None = 0
            if i in kept:
                leaf = None if leaves is None else leaves[i]
                strides = None if leaf is None else leaf.strides or strides
                offset = None if leaf is None else leaf.offset // dtype_of(fact.dtype).itemsize
            tensors.append(Sized(fact.dtype, shape, strides, offset))
        scalars = self.variant.with_ints(self.plan.template.scalars, row.ints)
        values = self.plan.values(Sample(tensors, scalars))
        args, kwargs = self.plan.arguments(values)
        return values, dict(zip(self.plan.forms, args, strict=False)) | kwargs


_PLACEHOLDER = class_name(Placeholder)


def constants_of(call: SortedCall) -> dict[tuple[str, str], Any]:
    """The texts and floats of a call, by argument and path."""
    pairs = zip(call.layout.others, call.constants, strict=True)
    return {(path.argument, path.path): value for path, value in pairs}


def rejects_constants(variant: VariantFacts, call: SortedCall) -> reasons.OtherValue | None:
    """Why a program for certain values rejects a call; None if it accepts it."""
    constants = constants_of(call) if variant.constant_scalars else {}
    for i, values in variant.constant_scalars.items():
        path = variant.group.layout.scalars[i]
        got = constants.get((path.argument, path.path))
        if repr(got) not in map(repr, values):
            shown, accepted = shown_constant(got), ", ".join(map(shown_constant, values))
            return reasons.OtherValue(str(path), shown, accepted if accepted != shown else None)
    return None


def unknown_class_in(
    group: Group, placed: SortedCall, classes: ClassIndex
) -> reasons.UnknownClass | None:
    """The first argument that differs from a group's because its class is unknown; None if there is
    none.

    Args:
        group: of the program.
        placed: the call.
        classes: the classes that the program was loaded with.
    """
    keys_of_call = dict(placed.layout.keys)
    for name, key in group.layout.keys:
        if name in placed.layout.nodes and keys_of_call[name] != key:
            node = placed.layout.nodes[name]
            type_name = _type_name(node, placed)
            if type_name is not None and classes.get(type_name) is None:
                return reasons.UnknownClass(name, type_name, _is_placeholder(node))
    return None


def _type_name(root: Node, placed: SortedCall) -> str | None:
    """The class that a placeholder in a tree stands for."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FieldsNode) and _is_placeholder(node):
            named = dict(zip(node.fields, node.children, strict=True)).get("type_name")
            if isinstance(named, ScalarNode):
                constants = zip(placed.layout.others, placed.constants, strict=True)
                path = placed.layout.scalars[named.scalar]
                return next((str(value) for place, value in constants if place == path), None)
        waiting += children_of(node)
    return None


def _is_placeholder(node: Node) -> bool:
    return isinstance(node, FieldsNode) and node.type == _PLACEHOLDER
