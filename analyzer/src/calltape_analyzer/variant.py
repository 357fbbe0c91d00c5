"""The calls of a tape that one exported program can serve, and what to export it with.

Takes the calls of a tape; returns its variants, each with its findings, its dynamic shapes and its
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias, overload

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.limits import Allowance, bounded
from calltape_analyzer.observing.distinctions import difference_of
from calltape_analyzer.observing.groups import Observations, SortedCall
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.observing.sorting import CallSorter, CallSource
from calltape_analyzer.observing.traffic_counters import (
    TrafficCounters,
    counters_of_evidence,
    has_raised,
)
from calltape_analyzer.plain_data import MAX_ROWS, Shown, Sketch
from calltape_analyzer.program_source import (
    BatchFor,
    DimKind,
    DimNames,
    GivenArguments,
    MemoryLayout,
    ProgramSource,
    check_batch,
    check_dim_names,
    is_declared_batch,
)
from calltape_analyzer.pytree.rendering import Inputs
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.calls import whole_calls
from calltape_analyzer.text import counted, terminal_width, variant_names
from calltape_analyzer.variants.alternatives import lacking, merged, undivided
from calltape_analyzer.variants.derivation import Pools, constant_pools, find_symbols, variants_of
from calltape_analyzer.variants.facts import DimensionDecision, VariantFacts, add_counted_sizes
from calltape_analyzer.variants.names import name_symbols, name_variants
from calltape_analyzer.variants.variant_findings import VariantFindings, VariantTable, findings_of

if TYPE_CHECKING:
    from calltape_analyzer.arguments.samples import Sample

__all__ = [
    "Acceptance",
    "Chosen",
    "FoundVariant",
    "Variant",
    "VariantList",
    "calls_left_out",
    "chosen_variants",
    "declare_batch",
    "dimension_names",
    "find_variants",
    "named_facts",
    "nested_dimensions",
    "recorded_call",
    "single_graph_of",
]

_MAX_NAMED = 8


class Acceptance(NamedTuple):
    """Whether a variant accepts a call; ``reason`` says why not. It is true in a condition if it
    does."""

    accepted: bool
    reason: str | None = None

    def __bool__(self) -> bool:
        return self.accepted


@dataclass(eq=False)
class FoundVariant:
    """What was found of a variant. All readers of a tape share it; it holds no call and no tape.

    Attributes:
        facts: the evidence.
        sorter: sorts calls as they were sorted.
        address: of its first call, if the tape is of several recordings.
        is_single_graph: whether it is several variants as one.
    """

    facts: VariantFacts
    sorter: CallSorter
    address: str | None
    is_single_graph: bool = False

    @cached_property
    def findings(self) -> VariantFindings:
        """The facts as plain data."""
        return findings_of(self.facts, self.address)


class Variant(ProgramSource, Shown):
    """Calls that one program can serve (rules 2, 7, 8 and 9 of
    docs/decisions/export-strategies.md). ``len(variant)`` is their number, and
    ``for call in variant`` iterates over them, as over those of a tape.

    Attributes:
        facts: the evidence.
        sorter: sorts calls as those of the tape were sorted.
    """

    def __init__(self, tape: CallSource, found: FoundVariant) -> None:
        self._tape = tape
        self._found = found
        self.sorter = found.sorter
        self.facts = found.facts

    @property
    def _allowance(self) -> Allowance | None:
        return next((segment.allowance for segment in self._tape.segments), None)

    def __repr__(self) -> str:
        return f"<Variant {self.name}: {counted(len(self), 'call')}>"

    def _sketch(self) -> Sketch:
        return VariantTable.of(self).sketch()

    def __len__(self) -> int:
        return self.facts.calls

    def __iter__(self) -> Iterator[Call]:
        """Its calls, each compared with its checksums, without those that are damaged, as of a
        tape; :attr:`calls` is the same without that look at the tensors."""
        return whole_calls(self.calls)

    @property
    def name(self) -> str:
        """What distinguishes it from the others, for people: ``prefill``, ``mask present``."""
        return self.facts.name

    @property
    def public_name(self) -> str:
        """The name, unless it contains something that was passed; then ``variant`` and its number.
        Tables and texts that may be published use it."""
        return self.facts.public_name

    @cached_property
    @bounded()
    def calls(self) -> list[Call]:
        """Its calls, in the order of the tape. Calls that raised are not included, unless all
        did."""
        calls_by_raised: dict[bool, list[Call]] = {False: [], True: []}
        for call in self._tape.calls:
            if self.facts.has(self.sorter.sorted(call.record.inputs)):
                calls_by_raised[has_raised(call)].append(call)
        return calls_by_raised[False] or calls_by_raised[True]

    @bounded()
    def accepts(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Acceptance:
        """Whether a program for this variant is meant for a call with these arguments.

        Structure, dtypes, ranks, constants, and the sizes of dimensions that never varied decide.
        Texts and floats that vary from call to call do not. The program itself may still reject
        sizes when it runs.
        """
        from calltape_analyzer.arguments.samples import LiveCall

        return self._accepts(LiveCall(tuple(args), dict(kwargs or {}), self.sorter).placed)

    def _accepts(self, placed: SortedCall) -> Acceptance:
        row = self.facts.row_in(placed.key, placed.row)
        if row is None:
            return Acceptance(False, difference_of(self.facts.group, placed))
        rejection = self.facts.rejects(row)
        return Acceptance(rejection is None, None if rejection is None else str(rejection))

    @property
    @bounded()
    def findings(self) -> VariantFindings:
        """Everything that is known about it, as plain data and without torch."""
        return self._found.findings

    def _signature(self) -> Signature:
        return self.sorter.signature

    def _dynamic_shapes(
        self, declared: BatchFor, names: DimNames, dim: DimKind | None
    ) -> tuple[Any, ...] | dict[str, Any]:
        import torch

        facts = declare_batch(self.facts, declared, self.sorter.signature)
        is_named = bool(names) or dim == "names"
        named = dimension_names(facts, names, self.sorter.signature) if is_named else {}
        is_dynamic = is_named or dim == "dynamic"  # torch has no names for ints
        unnamed = torch.export.Dim.DYNAMIC if is_dynamic else torch.export.Dim.AUTO

        def shown(column: Column) -> Any:
            if facts.dimensions[column].reason == "neighbour":  # no call shows that it varies
                return named.get(column, torch.export.Dim.AUTO)
            return named.get(column, unnamed)

        return nested_dimensions(self, facts, shown)

    def _arguments(self, index: GivenArguments, device: Any, layout: MemoryLayout | None) -> Inputs:
        from calltape_analyzer.arguments.samples import resized, sample_in
        from calltape_analyzer.arguments.sizings import sizings_for_tracing
        from calltape_analyzer.arguments.value_rules import value_rules

        if isinstance(index, int) and not isinstance(index, bool):
            return self.arguments_of(self._call_at(index), device, layout)
        if index is not None:
            return self._completed(index, device)
        # Of several variants, nobody knows which other sizes go together: a call is as recorded.
        rows = set(self.facts.group.rows) if self._found.is_single_graph else None
        sizing = sizings_for_tracing(self.facts, rows)[-1 if self._found.is_single_graph else 0]
        call = recorded_call(self, sizing.row)
        sample = sample_in(self.facts, call, self.sorter, device)
        if sizing.resized:
            rules = value_rules(self.facts, self._tape.calls.at, self.sorter)
            sample = resized(sample, self.facts, sizing.row, sizing.values, rules)
        return self._built(sample if layout == "recorded" else sample.contiguous(), device)

    def arguments_of(self, call: Call, device: Any, layout: MemoryLayout | None) -> Inputs:
        """The arguments of a call, in the form of those of its other calls; see
        :meth:`infer_arguments`.

        Raises:
            InferenceError: the variant does not take such calls.
        """
        from calltape_analyzer.arguments.samples import sample_in

        sample = sample_in(self.facts, call, self.sorter, device)
        return self._built(sample.contiguous() if layout == "contiguous" else sample, device)

    def _built(self, sample: Sample, device: Any) -> Inputs:
        from calltape_analyzer.arguments.plan import ArgumentPlan, as_passed

        plan = ArgumentPlan.of(self.facts, sample, self.sorter.signature)
        arguments = plan.build(sample, self._tape.class_index, device)
        return Inputs(*as_passed(arguments, self.facts.group.layout.positional, plan.signature))

    def _call_at(self, index: int) -> Call:
        calls = self.calls
        if -len(calls) <= index < len(calls):
            return calls[index]
        raise InferenceError(
            f"no call at position {index} of variant {self.name}: it has "
            f"{counted(len(calls), 'call')}",
            advice="count from 0",
        )

    def _completed(self, arguments: Any, device: Any) -> Inputs:
        """Arguments of the caller's own, with the constants that all calls pass."""
        from calltape_analyzer.arguments.samples import LiveCall, in_variant

        if not isinstance(arguments, tuple | Mapping):
            raise UsageError(
                f"{type(arguments)} stands for no arguments",
                advice="give a position, a tuple of arguments or a dict of them",
            )
        args = arguments if isinstance(arguments, tuple) else ()
        kwargs = {} if isinstance(arguments, tuple) else dict(arguments)
        signature, layout = self.sorter.signature, self.facts.group.layout
        passed = {signature.name_at(i) for i in range(len(args))} | kwargs.keys()
        filled = {place.argument for place in layout.tensors}
        if any(name not in passed and name not in filled for name in layout.arguments):
            recorded = self._arguments(0, None, None)
            named = {signature.name_at(i): value for i, value in enumerate(recorded.args)}
            for name, value in (named | recorded.kwargs).items():
                if name not in passed and name not in filled:
                    kwargs[name] = value
        live = LiveCall(args, kwargs, self.sorter)
        accepted = self._accepts(live.placed)
        if not accepted:
            raise UsageError(
                f"variant {self.name} does not take these arguments ({accepted.reason})",
                advice="ask tape.variants() for the one whose accepts() is true",
            )
        if self.facts.completion_of(live.placed.key) is None:
            return Inputs(args, kwargs)
        sample = in_variant(self.facts, live.sample, live.placed.key, live.placed.row, device)
        return self._built(sample, device)


def nested_dimensions(
    variant: Variant, facts: VariantFacts, shown: Callable[[Column], Any]
) -> tuple[Any, ...] | dict[str, Any]:
    """The dynamic columns in the nesting of the arguments.

    Args:
        variant: the variant.
        facts: its facts, or what :func:`declare_batch` made of them.
        shown: gives what stands for a dynamic column.
    """
    from calltape_analyzer.arguments.plan import nested_shapes

    # The first call of a merged variant may lack what the others have.
    first = facts.group.first if facts.completions else facts.rows.first
    tape = variant._tape
    tree = tape.calls.inputs_at(first)
    return nested_shapes(tree, facts, variant.sorter, tape.class_index, shown)


def dimension_names(
    facts: VariantFacts, names: DimNames, signature: Signature
) -> dict[Column, str]:
    """The names of the dynamic dimensions: of their symbols, or the given ones. A given name is
    that of all dimensions that were always equal.

    Args:
        facts: of the variant.
        names: the given names by argument and axis, if any.
        signature: of the calls.

    Raises:
        UsageError: a name is given for an argument that does not exist.
    """
    name_symbols(facts)
    layout = facts.group.layout
    position = _positions(layout)
    names_by_argument = names if isinstance(names, Mapping) else {}
    arguments: set[Key] = {*signature.names, *layout.arguments, *position.values()}
    check_dim_names(names, arguments)
    name_of: dict[Column, str] = {}
    for symbol in facts.symbols:
        given_names: dict[Column, str | None] = {}
        for column in symbol.columns:
            if column.axis is not None:
                argument = layout.path(column).argument
                by_axis = names_by_argument.get(
                    argument, names_by_argument.get(position.get(argument, argument), {})
                )
                given_names[column] = by_axis.get(column.axis)
        shared = next(filter(None, given_names.values()), symbol.name)
        name_of |= {column: name or shared for column, name in given_names.items()}
    return name_of


def _positions(layout: ArgumentLayout) -> dict[str, int]:
    """The positions of the arguments that are passed by position."""
    return {name: i for i, name in enumerate(layout.arguments[: layout.positional])}


def declare_batch(facts: VariantFacts, declared: BatchFor, signature: Signature) -> VariantFacts:
    """The facts of a variant, in which the declared first dimensions are dynamic too.

    Args:
        facts: of the variant.
        declared: the arguments whose dimension 0 is declared dynamic.
        signature: of the calls.

    Raises:
        UsageError: there is no such argument.
    """
    layout = facts.group.layout
    # What another variant has as **kwargs is not known here.
    arguments = {*signature.names, *layout.arguments} if not signature.variadic_keyword else None
    check_batch(declared, arguments)
    if not declared:
        return facts
    with_declared = replace(facts, dimensions=dict(facts.dimensions))
    position = _positions(layout)
    for column, decision in with_declared.dimensions.items():
        if column.axis != 0 or decision.dynamic:
            continue
        argument = layout.path(column).argument
        if is_declared_batch(position.get(argument, argument), declared, signature):
            with_declared.dimensions[column] = DimensionDecision(True, "declared")
    find_symbols(with_declared, Pools([]))
    return with_declared


def recorded_call(variant: Variant, row: int) -> Call:
    """The first call of a variant that has the sizes of a row of its facts."""
    return variant._tape.calls.at(variant.facts.rows.calls_of(row).first)


class VariantList(list[Variant], Shown):
    """The variants of a tape, as a list. A REPL or notebook shows the tables that
    ``calltape variants`` prints."""

    def __repr__(self) -> str:
        try:
            return self._text() if self else "[]"
        except Exception:  # of a closed tape, for instance
            return super().__repr__()

    def _text(self) -> str:
        width = terminal_width()
        tables = ["\n".join(VariantTable.of(variant).lines(width)) for variant in self[:MAX_ROWS]]
        more = len(self) - len(tables)
        return "\n\n".join(
            [*tables, *([f"and {counted(more, 'more variant')}"] if more > 0 else [])]
        )

    def _sketch(self) -> Sketch:
        parts = [VariantTable.of(variant).sketch() for variant in self[:MAX_ROWS]]
        more = len(self) - len(parts)
        if more > 0:
            parts.append(Sketch(note=f"and {counted(more, 'more variant')}"))
        return Sketch("" if parts else "no variants", parts=parts)

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Variant: ...
    @overload
    def __getitem__(self, index: slice, /) -> VariantList: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> Variant | VariantList:
        if isinstance(index, slice):
            return VariantList(super().__getitem__(index))
        return super().__getitem__(index)


def calls_left_out(tape: CallSource, variants: Sequence[Variant]) -> int:
    """How many calls of a tape are in none of its variants: they raised, and others did not."""
    return len(tape.calls) - sum(map(len, variants))


def single_graph_of(tape: CallSource, variants: Sequence[Variant]) -> FoundVariant:
    """All of these variants as one. Those of one structure become one whatever their sizes are,
    and in calls that leave an argument out, it has the size that others have, or none.

    Raises:
        InferenceError: they differ in something else.
    """
    sorter = variants[0].sorter
    groups: dict[int, list[VariantFacts]] = {}
    for variant in variants:
        groups.setdefault(id(variant.facts.group), []).append(variant.facts)
    by_tensors = sorted(
        groups.values(), key=lambda variant_facts: -len(variant_facts[0].group.layout.tensors)
    )
    larger, *smaller = map(undivided, by_tensors)
    for part in smaller:
        if not lacking(part, larger):
            placed = sorter.sorted(tape.calls.inputs_at(part.group.first))
            raise InferenceError(
                f"the calls are {len(variants)} variants, and no program serves all of them: in "
                f"call {tape.calls.label_of(part.group.first)}, "
                f"{difference_of(larger.group, placed)}",
                advice="ask each of tape.variants(): "
                + variant_names([variant.name for variant in variants], _MAX_NAMED),
            )
    whole = merged(larger, smaller, sorter, tape.calls)
    whole.name = whole.public_name = " + ".join(variant.name for variant in variants)
    name_symbols(whole)
    address = tape.calls.address_of(whole.all_rows.first)
    return FoundVariant(whole, sorter, address, is_single_graph=True)


def find_variants(tape: CallSource, sorter: CallSorter | None = None) -> list[FoundVariant]:
    """The variants of a tape, in the order of their first call, with their names.

    Args:
        tape: the tape.
        sorter: of its calls, if more ints are known to vary than the tape shows.
    """
    sorter, observed = (sorter or CallSorter.of(tape)).settled(tape.calls)
    counters = counters_of_evidence(tape.counters, tape.calls, observed.left_out)
    variants = named_facts(observed, sorter, counters)
    add_counted_sizes(counters, variants, sorter.signature, sorter.renamed)
    address_of = tape.calls.address_of
    return [FoundVariant(facts, sorter, address_of(facts.all_rows.first)) for facts in variants]


def named_facts(
    observed: Observations, sorter: CallSorter, counters: TrafficCounters
) -> list[VariantFacts]:
    """The variants with their names, and no ranges but those of the calls on the tape.

    Args:
        observed: the calls of a tape, as ``sorter`` sorted them.
        sorter: has the signature of the calls.
        counters: of the tape, by which some dimension may be known to be constant; without calls
            that are no evidence (:func:`counters_of_evidence`).
    """
    observed = observed.with_counters(counters, sorter.signature, sorter.renamed)
    variants = variants_of(observed, constant_pools(counters, sorter.signature, sorter.renamed))
    name_variants(variants, sorter.signature)
    for facts in variants:
        name_symbols(facts)
    return variants


_MAX_CHOICES = 12

Chosen: TypeAlias = str | int | Variant | Iterable[str | int | Variant]
"""Variants of a tape: names, positions, or the variants."""


def chosen_variants(variants: Sequence[Variant], wanted: Chosen) -> tuple[list[int], list[Variant]]:
    """Some of the variants of a tape, with their positions.

    Args:
        variants: all.
        wanted: a name, a position, a variant, or several of these. ``"2"`` is a position unless
            it is a name.

    Raises:
        UsageError: there is no such variant; says which there are.
    """
    names = [variant.name for variant in variants]
    places: list[int] = []
    choices = [wanted] if isinstance(wanted, str | int | Variant) else list(wanted)
    for choice in choices:
        name = choice.name if isinstance(choice, Variant) else choice
        position = int(name) if isinstance(name, str) and name.isdecimal() else name
        if name in names:
            places.append(names.index(str(name)))
        elif isinstance(position, int) and position in range(len(names)):
            places.append(position)
        else:
            existing = variant_names(names, _MAX_CHOICES) or "none"
            raise UsageError(f"there is no variant {choice!r}", advice=f"there are: {existing}")
    places = sorted(set(places))
    return places, [variants[place] for place in places]
