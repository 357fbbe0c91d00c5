"""The calls of a tape that one exported program can serve, and what to export it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from calltape_analyzer.call import Call
from calltape_analyzer.dims import BatchFor, check_declared, is_batch
from calltape_analyzer.gathering import Gatherer, difference_of
from calltape_analyzer.names import name_symbols, name_variants
from calltape_analyzer.observations import Observations
from calltape_analyzer.pools import Pools
from calltape_analyzer.symbols import Column
from calltape_analyzer.traffic_counters import Counters
from calltape_analyzer.variant_findings import VariantFindings, findings_of
from calltape_analyzer.variants import Dimension, VariantFacts, give_symbols, variants_of
from calltape_analyzer.whole_traffic import attribute, calls_by_likeness, settled

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Acceptance", "Variant", "counters_for", "named_facts", "variants_in"]


class Acceptance(NamedTuple):
    """Whether a variant takes a call; ``reason`` says why not. True in a condition if it does."""

    accepted: bool
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.accepted


class Variant:
    """Calls that one program can serve (rules 2, 7, 8 and 9 of docs/decisions/0012).

    Attributes:
        facts: the evidence.
    """

    def __init__(self, tape: Tape, facts: VariantFacts, gatherer: Gatherer) -> None:
        self._tape = tape
        self._gatherer = gatherer
        self.facts = facts

    def __repr__(self) -> str:
        return f"<Variant {self.name}: {len(self)} calls>"

    def __len__(self) -> int:
        return self.facts.calls

    @property
    def name(self) -> str:
        """What tells it apart from the others, for people: ``prefill``, ``mask present``."""
        return self.facts.name

    @cached_property
    def calls(self) -> list[Call]:
        """Its calls, in the order of the tape. Calls that raised are not among them, unless all
        did."""
        found: dict[bool, list[Call]] = {False: [], True: []}
        for call in self._tape.calls:
            placed = self._gatherer.sorted(call.record.inputs)
            if self.facts.group.key.takes(placed.key) and all(
                condition.holds(placed.row) for condition in self.facts.conditions
            ):
                found[call.record.error is not None].append(call)
        return found[False] or found[True]

    def accepts(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Acceptance:
        """Whether a program for this variant is meant for a call with these arguments.

        What decides is the structure, dtypes, ranks and constants, and the sizes of the dimensions
        that never varied; not texts and floats that vary from call to call. The program itself may
        still refuse sizes, when it is run.
        """
        from calltape_analyzer.live_calls import LiveCall

        placed = LiveCall(tuple(args), dict(kwargs or {}), self._gatherer).placed
        if not self.facts.group.key.takes(placed.key):
            return Acceptance(False, difference_of(self.facts.group, placed))
        reason = self.facts.refuses(placed.row)
        return Acceptance(reason is None, reason)

    @cached_property
    def findings(self) -> VariantFindings:
        """Everything that is known of it, as plain data and without torch."""
        return self._findings(self.facts)

    def _findings(self, facts: VariantFacts) -> VariantFindings:
        from calltape_analyzer.exporting.plan import input_names

        return findings_of(facts, input_names(facts))

    def infer_dynamic_shapes(
        self,
        set_batch_dimension_for: BatchFor = None,
        *,
        dim: Literal["auto", "dynamic", "names"] = "auto",
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes for this variant.

        Args:
            set_batch_dimension_for: names or positions of arguments whose dimension 0 is declared
                dynamic although it never varied; True for all.
            dim: ``"auto"`` for ``torch.export.Dim.AUTO``, with which most exports succeed (rule 3
                of docs/decisions/0012), ``"dynamic"`` for ``Dim.DYNAMIC``, ``"names"`` for the
                names of the symbols, as ``torch.onnx.export`` takes them.

        Returns:
            A tuple where all arguments are positional, else a dict by parameter, in the nesting of
            the arguments as this process flattens them (see
            :func:`~calltape_analyzer.register_flattening_functions`).
        """
        import torch

        from calltape_analyzer.targets.nested import nested_shapes

        facts = self._declared(set_batch_dimension_for)
        name_symbols(facts)
        named = {c: symbol.name for symbol in facts.symbols for c in symbol.columns}

        def shown(column: Column) -> Any:
            if dim == "names":
                return named[column] if column.axis is not None else torch.export.Dim.DYNAMIC
            return torch.export.Dim.AUTO if dim == "auto" else torch.export.Dim.DYNAMIC

        call = self._tape.calls.at(facts.rows[0][1].first)
        return nested_shapes(call, facts, self._gatherer, self._tape.class_index, shown)

    def _declared(self, declared: BatchFor) -> VariantFacts:
        check_declared(declared)
        if not declared:
            return self.facts
        made = replace(self.facts, dimensions=dict(self.facts.dimensions))
        signature = self._gatherer.signature
        layout = made.group.layout
        position = {name: i for i, name in enumerate(layout.arguments[: layout.positional])}
        for column, found in made.dimensions.items():
            if column.axis != 0 or found.dynamic:
                continue
            name = layout.tensors[column.place].argument
            if is_batch(position.get(name, name), declared, signature):
                made.dimensions[column] = Dimension(True, "declared")
        give_symbols(made, Pools([]))
        return made

    def infer_arguments(self, *, device: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Representative arguments, as ``(args, kwargs)``.

        Those of a recorded call whose dynamic sizes are all at least 2 and pairwise different, else
        of one resized to be so by cyclic tiling, in which dimensions that were always equal, and
        sums that always held, stay so (rule 4 of docs/decisions/0012). Values that are not on the
        tape are made up within their recorded ranges.

        Args:
            device: where the tensors are made; the CPU by default.

        Raises:
            InferenceError: an argument holds an object of a class that is not known here.
        """
        from calltape_analyzer.exporting.plan import Plan
        from calltape_analyzer.exporting.templates import as_passed, checked
        from calltape_analyzer.samples import resized, sample_in
        from calltape_analyzer.sizes import sizings_for_tracing

        sizing = sizings_for_tracing(self.facts)[0]
        call = self._tape.calls.at(self.facts.rows[sizing.row][1].first)
        sample = sample_in(self.facts, call, self._gatherer, device)
        if sizing.resized:
            sample = resized(sample, self.facts, sizing.row, sizing.values)
        else:
            sample = sample.contiguous()
        plan = Plan.of(self.facts, sample, self._gatherer.signature)
        arguments = plan.build(sample, self._tape.class_index, device)
        checked(arguments)
        return as_passed(arguments, self.facts.group.layout.positional, plan.signature)


def variants_in(tape: Tape) -> list[Variant]:
    """The variants of a tape, in the order of their first call, with their names."""
    gatherer = Gatherer.of(tape)
    observed = gatherer.observations(tape.calls)
    found = named_facts(tape, observed, gatherer)
    attribute(counters_for(tape, observed), found, gatherer.signature, gatherer.renamed)
    return [Variant(tape, facts, gatherer) for facts in found]


def named_facts(tape: Tape, observed: Observations, gatherer: Gatherer) -> list[VariantFacts]:
    """The variants with their names, and no ranges but those of the calls on the tape.

    Args:
        tape: gives the counters, by which some dimension may be known to be constant.
        observed: its calls, by ``gatherer``.
    """
    counters = counters_for(tape, observed)
    names = gatherer.signature, gatherer.renamed
    observed.know_whole(calls_by_likeness(counters, *names))
    found = variants_of(observed, settled(counters, *names))
    name_variants(found, gatherer.signature)
    for facts in found:
        name_symbols(facts)
    return found


def counters_for(tape: Tape, observed: Observations) -> Counters:
    """Those of calls that are evidence, as far as they are known."""
    if observed.raised and not observed.of_raised:
        return tape.counters.of_returned(tape.calls)
    return tape.counters
