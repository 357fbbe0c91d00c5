"""From the calls of a tape to observations. Reads records, never tensor bytes."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, Protocol

from calltape_analyzer.observing.contexts import Context, Mode
from calltape_analyzer.observing.groups import (
    GroupKey,
    Observations,
    SortedCall,
    TensorFacts,
    typed_constant,
)
from calltape_analyzer.observing.layout import (
    ArgumentLayout,
    Renamed,
    layout_of_inputs,
    varying_ints,
)
from calltape_analyzer.observing.memory_layout import shared_memory
from calltape_analyzer.observing.signature import PassedArguments, Signature
from calltape_analyzer.observing.size_table import Seen, SizeRow, Span
from calltape_analyzer.observing.traffic_counters import TrafficCounters
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call_ref import CallRef, SeenInputs
from calltape_analyzer.reading.calls import Calls
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import TapeError
from calltape_schema.packing import pack
from calltape_schema.recent import Recent
from calltape_schema.records import Range, Target, Tree
from calltape_schema.tree import Leaf, Node, ScalarNode

__all__ = [
    "CallSorter",
    "CallSource",
]


class CallSource(Protocol):
    """Calls, and what their recorder says of them; each member is as in ``Tape``."""

    @property
    def calls(self) -> Calls: ...
    @property
    def segments(self) -> tuple[Segment, ...]: ...
    @property
    def paths(self) -> tuple[str, ...]: ...
    @property
    def target(self) -> Target | None: ...
    @property
    def signature(self) -> Signature: ...
    @property
    def removed(self) -> tuple[str, ...]: ...
    @property
    def classes(self) -> tuple[type, ...]: ...
    @property
    def class_index(self) -> ClassIndex: ...
    @property
    def counters(self) -> TrafficCounters: ...
    @property
    def damage(self) -> Sequence[TapeError]: ...


_MAX_UNITED = 4096
_MAX_UNITED_BYTES = 2 * 2**20  # less than stays decoded: each is decoded once, not twice


@dataclass(eq=False, repr=False)
class CallSorter:
    """Sorts calls into groups. Each combination of structure, leaves and scalars is sorted once.

    Attributes:
        signature: of the recorded method.
        renamed: from the name of a class on the tape to its name in this process.
        model: has the modules that may be keys of dicts among the arguments of live calls.
        modes: those that separate calls: grad and inference if the model asks for them,
            training if there are calls in training and in evaluation mode.
        layout_paths: the paths of the tensors whose layout in memory the model reads: calls with
            other layouts of them are of other groups.
        grad_paths: the paths of the tensors whose ``requires_grad`` the model reads: likewise.
        ordered: the paths of the plain dicts of which the model reads the order of the keys, and
            of the scalars of which it reads the class: likewise.
        ignored_sharing: the pairs of paths of tensors of which it does not matter to the model
            whether they are one object, or share memory.
        training_modes: the modes of the model (True for training) that calls so far were in.
    """

    signature: Signature
    renamed: Renamed = str
    model: Any = None
    modes: frozenset[Mode] = frozenset()
    layout_paths: frozenset[str] = frozenset()
    grad_paths: frozenset[str] = frozenset()
    ordered: frozenset[str] = frozenset()
    ignored_sharing: frozenset[tuple[str, str]] = frozenset()
    training_modes: set[bool] = field(default_factory=set, init=False)
    _layouts: Recent = field(default_factory=Recent, init=False)
    _switches: Recent = field(default_factory=Recent, init=False)

    def separate_by(
        self,
        modes: Collection[Mode] = (),
        layout_paths: Collection[str] = (),
        grad_paths: Collection[str] = (),
        ordered: Collection[str] = (),
    ) -> None:
        """From now on, calls in other modes, with other layouts in memory or another
        ``requires_grad`` of the tensors with these paths, and with another order of the keys of
        such dicts, or scalars of another class, are in other groups as well."""
        self.modes |= frozenset(modes)
        self.layout_paths |= frozenset(layout_paths)
        self.grad_paths |= frozenset(grad_paths)
        self.ordered |= frozenset(ordered)
        self._layouts = Recent()

    def ignore_sharing(self, pairs: Collection[tuple[str, str]]) -> None:
        """From now on, calls are of one group whether or not these tensors are one object, or share
        memory; samples have a tensor for each of them."""
        self.ignored_sharing |= frozenset(pairs)

    @cached_property
    def module_names(self) -> dict[int, str]:
        """The names of the model's modules by their identity."""
        named = getattr(self.model, "named_modules", None)
        return {id(part): name for name, part in named()} if named else {}

    @classmethod
    def of(cls, tape: CallSource, renamed: Renamed | None = None) -> CallSorter:
        """The sorter of a tape: it leaves out the arguments that :meth:`Tape.remove_inputs`
        removed.

        Args:
            tape: has the signature and, by default, the classes.
            renamed: as above.
        """
        return cls(tape.signature, renamed or tape.class_index.renamed)

    def agreeing(self, layouts: Iterable[ArgumentLayout]) -> CallSorter:
        """A sorter that lays out calls as those of these layouts: an int that some of them pass is
        an argument of each call, also where it equals its default."""
        return self.with_varying(varying_ints(layouts, self.signature))

    def with_model(self, model: Any) -> CallSorter:
        """A sorter for which modules of a model may be keys of dicts."""
        return replace(self, model=model)

    def with_varying(self, names: frozenset[str]) -> CallSorter:
        """A sorter that treats these ints as arguments of every call."""
        if names <= self.signature.varying:
            return self
        return replace(self, signature=self.signature.with_varying(names))

    def observations(self, calls: Calls) -> Observations:
        """What was seen in the calls.

        Args:
            calls: of one or more tapes.

        Raises:
            TapeError: a call's record breaks the format.
        """
        returned, raised = Observations(of_raised=False), Observations()
        for inputs in _united(calls.by_inputs()):
            into = raised if inputs.raised else returned
            placed = self.sorted(inputs.inputs)
            into.calls += inputs.calls
            group = into.group_of(placed.key, placed, inputs.first)
            group.add(placed.row, placed.leaves, Seen(inputs.calls, inputs.first))
            for i, place in enumerate(placed.layout.tensors):
                if place.number in inputs.spans:
                    group.ranges[i] = inputs.spans[place.number].merge(group.ranges.get(i))
        evidence = returned if returned.calls else raised
        evidence.raised = raised.calls
        return evidence

    def settled(self, calls: Calls) -> tuple[CallSorter, Observations]:
        """What was seen in the calls, and the sorter that laid them out: whether an int varies, and
        whether there are calls in training and in evaluation mode, is known when all calls are.

        Raises:
            TapeError: as :meth:`observations`.
        """
        observed = self.observations(calls)
        if len(self.training_modes) > 1 and "training" not in self.modes:
            self.separate_by({"training"})
            observed = self.observations(calls)
        layouts = [part.layout for part in observed.parts()]
        sorter = self.agreeing(layouts)
        names = sorter.signature.varying
        if all(names <= layout.nodes.keys() for layout in layouts):
            return sorter, observed
        return sorter, sorter.observations(calls)

    def sorted(self, tree: Tree) -> SortedCall:
        """Group and row of a call with these inputs."""
        return self.placed(self._layout(tree), tree.facts(), tree.scalars)

    def placed(
        self,
        layout: ArgumentLayout,
        leaves: Sequence[Leaf],
        scalars: Sequence[Any],
        objects: Sequence[Hashable] | None = None,
    ) -> SortedCall:
        """Group and row of a layout with these leaves and scalars.

        Args:
            layout, leaves, scalars: of a call.
            objects: per leaf what is equal for one tensor only; a leaf is a tensor by default.
        """
        placed_leaves = tuple(leaves[place.number] for place in layout.tensors)
        read = self.layout_paths, self.grad_paths
        names = list(map(str, layout.tensors)) if any(read) or self.ignored_sharing else []
        facts = tuple(
            TensorFacts.of(leaf, reads_memory=name in read[0], reads_grad=name in read[1])
            for leaf, name in zip_longest(placed_leaves, names)
        )
        known_by = [
            None
            if place.kind != "tensor"
            else place.number
            if objects is None
            else objects[place.number]
            for place in layout.tensors
        ]
        shared = shared_memory(placed_leaves, known_by)
        if self.ignored_sharing and shared:
            is_known = self.ignored_sharing.__contains__
            shared = tuple(p for p in shared if not is_known((names[p.one], names[p.other])))
        other_scalars = layout.others
        constants = tuple(scalars[place.number] for place in other_scalars)
        values = (*scalars, *layout.defaults)
        texts: dict[int, tuple[str, str]] = {}  # many paths may share one long text
        typed = tuple(
            texts.get(place.number) or texts.setdefault(place.number, typed_constant(value))
            for place, value in zip(other_scalars, constants, strict=True)
            if not place.private
        )
        ints = tuple(values[place.number] for place in layout.ints)
        row = SizeRow(tuple(leaf.shape for leaf in placed_leaves), ints)
        return SortedCall(
            GroupKey(layout.keys, facts, typed, shared),
            layout,
            constants,
            row,
            placed_leaves,
            self.signature,
        )

    def _layout(self, tree: Tree) -> ArgumentLayout:
        structure, spec = tree.structure, tree.spec()
        # A scalar decides the layout only by whether it equals its default.
        switches = self._switches.once(
            structure, lambda: _switches(spec.root, self.signature), len(structure)
        )
        on = tuple(_is_same(tree.scalars[index], default) for index, default in switches)
        devices: frozenset[str] = frozenset()
        if spec.context is not None and spec.context.autocast:  # where the arguments are matters
            devices = frozenset(leaf.device for leaf in tree.facts())

        def made() -> ArgumentLayout:
            context = Context.of(spec.context, devices, self.modes)
            self.training_modes.add(context.training)
            return layout_of_inputs(
                spec.root, tree.scalars, self.signature, self.renamed, context, self.ordered
            )

        return self._layouts.once((structure, on, devices), made, 4 * len(structure))


@dataclass(slots=True)
class _Inputs:
    """Inputs, with the calls of all files that have them."""

    inputs: Tree
    raised: bool
    calls: int
    first: CallRef
    spans: dict[int, Span] = field(default_factory=dict)

    def widen(self, ranges: Iterable[Range]) -> None:
        for range_ in ranges:
            self.spans[range_.leaf] = Span(range_.min, range_.max).merge(
                self.spans.get(range_.leaf)
            )


def _united(all_inputs: Iterable[SeenInputs]) -> Iterator[_Inputs]:
    """Many files of one model have equal inputs: those come once, as far as few are remembered."""
    united: dict[Hashable, _Inputs] = {}
    encoded: set[bytes] = set()
    room = _MAX_UNITED_BYTES
    for inputs, raised, calls, first, _ in all_inputs:
        # As bytes, because 1 and 1.0 are equal.
        key = inputs.structure, inputs.leaves, pack(inputs.scalars), raised
        same_inputs = united.get(key)
        if same_inputs is not None:
            same_inputs.calls += calls
            same_inputs.first = min(same_inputs.first, first)
        else:
            if len(united) >= _MAX_UNITED or room < 0:
                yield from united.values()
                united.clear()
                encoded.clear()
                room = _MAX_UNITED_BYTES
            for document in (inputs.structure, inputs.leaves):
                if document not in encoded:
                    encoded.add(document)
                    room -= len(document)
            same_inputs = united[key] = _Inputs(inputs, raised, calls, first)
        same_inputs.widen(inputs.ranges)
    yield from united.values()


def _switches(root: Node, signature: Signature) -> tuple[tuple[int, Any], ...]:
    """The scalars among the arguments whose parameter has a scalar default, with that default."""
    passed = PassedArguments.of(root, signature)
    return tuple(
        (node.scalar, parameter.default)
        for name, node in (*passed.positional, *passed.named)
        if isinstance(node, ScalarNode)
        and (parameter := signature.by_name.get(name)) is not None
        and parameter.has_default
    )


def _is_same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
