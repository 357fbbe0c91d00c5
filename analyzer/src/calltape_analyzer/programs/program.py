"""One exported program: the variant that it serves, and the model that runs its calls.

In come values of a call. Out go the outputs, or the reason why the program refuses the call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from calltape_analyzer.arguments.forms import FormLeaf, PlainForm
from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.templates import Template
from calltape_analyzer.comparison.comparing import shown_path
from calltape_analyzer.model.contexts import with_default_dtype
from calltape_analyzer.observing.columns import SizeRow
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.memory_layout import layout_name
from calltape_analyzer.observing.sorting import difference_of
from calltape_analyzer.programs.conditions import Conditions, Sized
from calltape_analyzer.programs.constant_values import refuses_constants
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.memory_as_traced import (
    as_traced,
    kept_layouts,
    memory_of,
    write_back,
)
from calltape_analyzer.programs.unknown_classes import PLACEHOLDER, unknown_class_in
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.memory import contiguous_strides
from calltape_analyzer.pytree.placeholder import UNMADE, Placeholder
from calltape_analyzer.pytree.recorded_description import describe_result
from calltape_analyzer.pytree.result_values import ABSENT, values_in
from calltape_analyzer.pytree.tensors import dtype_of
from calltape_analyzer.text import counted, named, some_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_schema.tree import (
    DictNode,
    FieldsNode,
    Leaf,
    Node,
    ScalarNode,
    SequenceNode,
    children_of,
)

__all__ = [
    "BY_VALUES",
    "SHARES_WITH_MODEL",
    "Program",
    "because_of_state",
    "random_in_words",
    "shown_state",
    "unchanged_note",
]

FOR_ONE_SIZE = "for the sizes of one recorded call only: its dimensions are constants"
"""The note of a program that a trace made for one size, although several were recorded."""

BY_VALUES = "was traced with the values of one call: calls with others may be rejected"
"""The note of a program that may have conditions on values of tensors."""

SHARES_WITH_MODEL = "has memory of the model"
"""Of an argument, why a program refuses it."""

_ONLY = " only: "
_MAX_SHOWN = 4
"""Names of a state that a note has."""
_PLACEHOLDER_FIELDS = ("type_name", "reason")


def _text(node: Node, scalars: Sequence[Any]) -> str:
    return str(scalars[node.scalar]) if isinstance(node, ScalarNode) else ""


def _layout(value: Any) -> str | None:
    """The name of a tensor's layout in memory; None for anything else."""
    import torch

    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return None if value.device.type == "meta" else layout_name(value.shape, value.stride())


def shown_state(names: Sequence[str]) -> str:
    """The names of a state, or the first of them if there are many."""
    return some_of(names, _MAX_SHOWN)


def draws_in_words(generators: Sequence[str]) -> str:
    """That a model draws random numbers, and with which generators."""
    owners = named(["Python's random" if one == "random" else one for one in generators], 4)
    return f"the model draws random numbers with {owners}"


def random_in_words(error: str | None, generators: Sequence[str], advice: str) -> str:
    """What is wrong with a result that depends on random numbers."""
    return f"random: {error} ({draws_in_words(generators)}); {advice}"


def unchanged_note(name: str) -> str:
    """A note that a program does not change an argument that the model changes."""
    return f"leaves {name} as it was, which the model changes in place"


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
        only: the sizes that it may serve, if it gave wrong values at others; None for all sizes
            that it does not refuse itself.
        returned: the items of the result that are arguments, which the model changes.
        notes: what a person should know about it.
        state: the parameters, buffers and attributes of the model that a call changes.
        changed_state: the names in ``state`` that a run of the program changed as well.
        depends: whether the model returns something else in calls in a row because of state that
            the program does not change; None if that was not tried.
        unwritten: the tensors among the arguments that the model writes to and does not return, and
            that the program does not write to. No call of it does what the model does.
        never_own: the tensors among the arguments, by number, for which the model returns something
            else if they are its own, so that such calls are refused.
        owner: the model, if it is here.
        why_only: why it has :attr:`only`; a program that was loaded does not know.
        traced: the program of torch that :attr:`model` was converted from, while it is exported.
        remarks: what was tried and came out well.
        draws: the generators that the model draws random numbers from; empty if it does not, or if
            nothing that was compared depends on them.
    """

    variant: VariantFacts
    plan: Plan
    result: tuple[Template, PlainForm]
    model: ExportedModel
    conditions: Conditions
    classes: ClassIndex
    device: str = "cpu"
    only: frozenset[SizeRow] | None = None
    returned: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    state: tuple[str, ...] = ()
    changed_state: set[str] = field(default_factory=set)
    depends: bool | None = None
    unwritten: tuple[str, ...] = ()
    draws: tuple[str, ...] = ()
    never_own: frozenset[int] = frozenset()
    owner: Any = None
    why_only: str = ""
    traced: Any = None
    remarks: list[str] = field(default_factory=list)
    _state_notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The variant's name."""
        return self.variant.name

    @property
    def exported(self) -> Any:
        """The ``torch.export.ExportedProgram`` or ``torch.onnx.ONNXProgram``."""
        return self.model.exported

    def note_one_size(self) -> None:
        """Notes that it is for the sizes of one recorded call."""
        if FOR_ONE_SIZE not in self.notes:
            self.notes.append(FOR_ONE_SIZE)

    @property
    def is_constant(self) -> bool:
        """Whether it is for the sizes of one recorded call, or for one value of a tensor, because
        no program for more could be made."""
        return FOR_ONE_SIZE in self.notes or bool(self.plan.frozen)

    @property
    def depends_on_values(self) -> bool:
        """Whether it may have conditions on values of tensors, which only a run of it checks."""
        return BY_VALUES in self.notes

    def note_state(self, values: Mapping[str, str]) -> None:
        """Adds parameters, buffers and attributes of the model that a call changed.

        Args:
            values: by name what each was at the export, in words; empty if that is long.
        """
        known = tuple(sorted({*self.state, *values}))
        if known == self.state and not values:
            return
        self.state = known
        notes = self._notes_of_state(values)
        if notes == self._state_notes:
            return
        self.notes = [note for note in self.notes if note not in self._state_notes]
        self._state_notes = notes
        self.notes += [note for note in notes if note not in self.notes]

    def note_unwritten(self, name: str, *, is_returned: bool) -> None:
        """Adds a tensor among the arguments that the model writes to, and the program does not. If
        the model returns it as well, its new values are in the result."""
        note = unchanged_note(name)
        if is_returned:
            self.notes.append(f"{note} and returns: its new values are in the result only")
        elif name not in self.unwritten:
            self.unwritten += (name,)
            self.notes.append(note)

    def note_layouts(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
        """Notes outputs that lie in memory in another way than recorded ones: strides are not
        compared. Another runtime than torch has a layout of its own.

        Args:
            expected, got: by path.
        """
        for path in expected if self.model.has_state else ():
            if path in got and (was := _layout(expected[path])) != (now := _layout(got[path])):
                self._note(
                    f"returns {shown_path(path)} {now} in memory where it was recorded {was}: its "
                    "values are compared, its strides are not"
                )

    def note_views(self, views: Mapping[str, frozenset[int]]) -> None:
        """Notes outputs that share memory with an argument when the model returns them. Whether the
        program's do depends on how the caller's arguments lie in memory.

        Args:
            views: the numbers of the arguments, by the path of an output.
        """
        places = self.variant.group.layout.tensors
        paths: dict[str, list[str]] = {}
        for path, numbers in sorted(views.items()):
            paths.setdefault(str(places[min(numbers)]), []).append(shown_path(path))
        for name, outputs in paths.items():
            share, copies = ("shares", "a copy") if len(outputs) == 1 else ("share", "copies")
            self._note(
                f"the model's {named(outputs, _MAX_SHOWN)} {share} memory with {name}; the program "
                f"may return {copies}, so that later writes to {name} do not show there"
            )

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def note_draws(self, generators: Sequence[str]) -> None:
        """Notes that results depend on random numbers, and the generators that these are from."""
        if not self.draws:
            self.draws = tuple(generators)
            self.notes.append(
                f"random: {draws_in_words(generators)}, so no tape has what a later call returns; "
                "its calls were compared with the model, both from one state of the generators"
            )

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
        """The objects of a result that cannot be made although their classes are known here, each
        with the reason. Whoever calls the program gets placeholders for them."""
        described = describe_result(self.value(outputs))
        if PLACEHOLDER not in described.classes:
            return []
        found: list[str] = []
        waiting: list[Node] = [described.node]
        while waiting:
            node = waiting.pop()
            waiting += children_of(node)
            if isinstance(node, FieldsNode) and node.type == PLACEHOLDER:
                by_field = dict(zip(node.fields, node.children, strict=True))
                name, reason = (
                    _text(by_field[of], described.scalars) for of in _PLACEHOLDER_FIELDS
                )
                if reason.startswith(UNMADE):
                    found.append(f"a {name} comes as a placeholder: {reason}")
        return found

    @property
    def lost(self) -> list[str]:
        """The names in ``state`` that a run of the program does not change."""
        keeps = self.changed_state if self.model.has_state else ()
        return [name for name in self.state if name not in keeps]

    @property
    def keeping(self) -> str:
        """What to do so that a program keeps what it loses."""
        passed = "let the model take it as an argument and return it"
        return f"keep it in a registered buffer, or {passed}" if self.model.has_state else passed

    def _notes_of_state(self, values: Mapping[str, str]) -> list[str]:
        def shown(names: Sequence[str]) -> str:
            return shown_state([f"{n}={values[n]}" if values.get(n) else n for n in names])

        has, lost = "the model has state that its calls change", self.lost
        changed = [name for name in self.state if name not in lost]
        notes = []
        if changed:
            notes.append(
                f"{has} ({shown_state(changed)}); the program changes it as well, so that each "
                "call begins where the one before ended; recorded calls were compared from the "
                "state at the export, one by one and in order (export the model in the state in "
                "which the recording began)"
            )
        if lost:
            is_constant = (
                "and the program does not: it is a constant of the program, as it was at the export"
                if self.model.has_state
                else "and the program has none: each call begins with the state at the export"
            )
            notes.append(f"{has} ({shown(lost)}) {is_constant}{self._consequence}")
        return notes

    @property
    def _consequence(self) -> str:
        """What follows from state that the program does not keep."""
        if self.depends is None:
            return f" ({self.keeping})"
        if not self.depends:
            return "; what the model returned in calls in a row did not depend on it"
        return (
            ", although what the model returns in the next calls depends on it: only calls that "
            f"begin in that state are right ({self.keeping})"
        )

    @cached_property
    def _result_leaves(self) -> tuple[FormLeaf, ...]:
        return tuple(self.result[1].leaves())

    def inputs(self, sample: Sample) -> dict[str, Any]:
        """What :attr:`model` takes for a sample, by name."""
        return dict(zip(self.plan.names, self.plan.values(sample), strict=True))

    def outputs(self, sample: Sample) -> list[Any]:
        """The flat outputs for a sample, in the order of the result's leaves. The program writes to
        the sample's tensors if the model does. It gets copies of those that lie in memory in
        another way than it was traced with.

        Raises:
            Exception: what the runtime raises.
        """
        given = as_traced(self.variant, sample)
        with with_default_dtype(self.plan.context):
            returned = self.model.run(self.inputs(given))
        if self.model.has_state:
            write_back(sample, given)
        leaves = self._result_leaves
        if len(returned) != len(leaves):
            raise RuntimeError(
                f"the model has {counted(len(returned), 'output')} instead of {len(leaves)}"
            )
        # A cache that the program fills and returns is the caller's own.
        own = {id(copy): one for one, copy in zip(sample.tensors, given.tensors, strict=True)}
        return [
            own[id(value)] if id(value) in own else leaf.read(value)
            for leaf, value in zip(leaves, returned, strict=True)
        ]

    def value(self, outputs: Sequence[Any]) -> Any:
        """What the model would return, made of flat outputs. An object of a class that is not known
        here is a :class:`~calltape_analyzer.Placeholder`."""
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

    def refuses_values(self, sample: Sample) -> str | None:
        """Why the program refuses a sample whose sizes it takes; None if it does not. A tensor that
        is a constant of the program must have the value that it was exported with."""
        return self._refuses_own(sample) or self.refuses_constants(sample.tensors.__getitem__)

    def refuse_own(self, paths: Collection[str]) -> None:
        """Sets :attr:`never_own` by the paths of tensors."""
        places = self.variant.group.layout.tensors
        self.never_own = frozenset(i for i, place in enumerate(places) if str(place) in paths)

    def _refuses_own(self, sample: Sample) -> str | None:
        if not self.never_own or self.owner is None:
            return None
        named = (*self.owner.named_parameters(), *self.owner.named_buffers())
        own = {memory_of(tensor): name for name, tensor in named if tensor.numel()}
        for number in sorted(self.never_own):
            memory = memory_of(sample.tensors[number])
            if memory is not None and memory in own:
                place = self.variant.group.layout.tensors[number]
                return (
                    f"{place} {SHARES_WITH_MODEL}, by its {own[memory]}, and the model returns "
                    "something else than for a copy"
                )
        return None

    def refuses_constants(self, tensor_at: Callable[[int], Any]) -> str | None:
        """The same, of a call whose tensors are read one by one.

        Args:
            tensor_at: gives a tensor of the layout by its number. One whose value is not known is
                not compared.
        """
        if not self.plan.frozen:
            return None
        import torch

        for place, value in self.plan.frozen.items():
            given = tensor_at(place)
            if isinstance(given, Placeholder) or given.device.type == "meta":
                continue
            if not torch.equal(given.cpu(), value.cpu()):
                name = self.variant.group.layout.tensors[place]
                return f"{name} is {given.tolist()}; this program has {value.tolist()}"
        return None

    def refuses_call(self, placed: SortedCall) -> str | None:
        """Why the program refuses a call; None if it takes it, as far as is known without the
        values of tensors."""
        row = self.variant.row_in(placed.key, placed.row)
        if row is None:
            unknown = unknown_class_in(self.variant.group, placed, self.classes)
            return str(unknown) if unknown else difference_of(self.variant.group, placed)
        leaves = placed.leaves if placed.key.takes(self.variant.group.key) else None
        return refuses_constants(self.variant, placed) or self.refuses(row, leaves)

    def refuses(self, row: SizeRow, leaves: Sequence[Leaf] | None = None) -> str | None:
        """Why the program refuses the sizes of a row; None if it takes them.

        Args:
            row: the sizes.
            leaves: of a call of the program's own group, for conditions on strides.
        """
        reason = self.variant.refuses(row)
        if reason is None and (traced := self.conditions_refuse(row, leaves)) is not None:
            reason = f"{traced} (a condition of its trace)"
        if reason is None and self.only is not None and row not in self.only:
            return self._unproven(row)
        return reason

    def serve_only(self, rows: Collection[SizeRow], why: str) -> None:
        """Lets it serve recorded sizes at which it was right, and no others.

        Args:
            rows: these sizes.
            why: what makes others doubtful.
        """
        self.only = frozenset(rows)
        self.why_only = why
        self.notes.append(f"serves {counted(len(self.only), 'recorded size')}{_ONLY}{why}")

    def _unproven(self, row: SizeRow) -> str:
        """Why it does not serve sizes that are not among :attr:`only`. Nobody knows whether it
        would be right at one that was not recorded."""
        only = next((f"; it {note}" for note in self.notes if _ONLY in note), "")
        if row in self._rows:
            return f"calls of these sizes were recorded, and it was not verified with them{only}"
        return f"it was not verified at these sizes{only}"

    def knows_and_refuses(self, call: SortedCall) -> bool:
        """Whether it was exported from calls of these sizes, among others, and refuses them."""
        row = self.variant.row_in(call.key, call.row)
        return row is not None and row in self._rows and self.refuses(row) is not None

    @cached_property
    def _rows(self) -> frozenset[SizeRow]:
        return frozenset(self.variant.rows)

    def conditions_refuse(self, row: SizeRow, leaves: Sequence[Leaf] | None = None) -> str | None:
        """Why the conditions of the trace refuse the sizes of a row; None if they hold."""
        values, named = self._sized(row, leaves)
        return self.conditions.refuse(values, named)

    def is_understood(self) -> bool:
        """Whether all conditions of the program can be checked here."""
        row = self.variant.rows.row(0)
        pairs = zip(self.variant.group.facts, row.shapes, strict=True)
        leaves = [Leaf.model_construct(dtype=facts.dtype, shape=shape) for facts, shape in pairs]
        return self.conditions.understood(self._sized(row, leaves)[1])

    def _sized(
        self, row: SizeRow, leaves: Sequence[Leaf] | None = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """The inputs that a row has, without data: in order, and nested by argument."""
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


def because_of_state(program: Program) -> str:
    """Why a call is not reproduced by a program that does what the model does."""
    return (
        f"the model itself returns something else now, because its calls change its state "
        f"({shown_state(program.state)}); from the state that it has now the program does the same"
    )
