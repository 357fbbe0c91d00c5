"""Tape files as one sequence of calls, and what can be asked of it.

Takes the files that were opened; returns calls, what the recorder said of them, and answers:
observations, variants, explanations, dynamic shapes and arguments.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from calltape_analyzer.errors import Damage, InferenceError, UsageError
from calltape_analyzer.limits import Allowance, Limits, bounded
from calltape_analyzer.observing.layout import data_keys_of
from calltape_analyzer.observing.signature import DataKeys, Signature
from calltape_analyzer.observing.traffic_counters import (
    TrafficCounters,
    counters_of_evidence,
    trusted_counters,
)
from calltape_analyzer.program_source import (
    DimKind,
    GivenArguments,
    MemoryLayout,
    ProgramSource,
    check_arguments,
)
from calltape_analyzer.pytree.classes import Classes
from calltape_analyzer.pytree.rendering import Inputs
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.calls import Calls, RecordedCalls
from calltape_analyzer.reading.segment import Segment
from calltape_analyzer.reading.selection import (
    ChosenCalls,
    only_calls,
    only_known,
    only_one,
    ranges_of,
)
from calltape_analyzer.reading.urls import displayed_url
from calltape_analyzer.text import counted
from calltape_schema.errors import OF_CALLS, TapeError

if TYPE_CHECKING:
    import pyarrow

    from calltape_analyzer.explanation import Explanation
    from calltape_analyzer.observing.groups import Observations
    from calltape_analyzer.observing.sorting import CallSorter
    from calltape_analyzer.program_source import BatchFor, DimNames
    from calltape_analyzer.variant import Chosen, FoundVariant, Variant, VariantList

__all__ = ["Tape", "check_tape", "leave_out_corrupted"]

T = TypeVar("T")


def check_tape(value: Any, what: str) -> None:
    """Raises UsageError if this is not a tape.

    Args:
        value: what somebody passed as one.
        what: the name of the function that takes it.
    """
    if isinstance(value, Tape):
        return
    if isinstance(value, str | os.PathLike):
        raise UsageError(
            f"{what} takes a tape, not a path",
            advice=f"pass open_tape({displayed_url(str(value))!r})",
        )
    kind = type(value).__name__
    one_variant = "pass tape.only(variant=...), which is the part of a tape that is one variant"
    raise UsageError(
        f"{what} takes a tape, not {kind}",
        advice=one_variant if kind == "Variant" else "pass what open_tape(path) gives",
    )


def leave_out_corrupted(tape: Tape) -> None:
    """Compares every byte with its checksum, and drops the calls that turn out to be corrupted."""
    tape.verify()
    tape._leave_out_damaged()


class Tape(RecordedCalls, ProgramSource):
    """One or several tape files as one sequence of calls. :func:`open_tape` returns it.

    ``len(tape)`` counts the calls with a complete record, and ``tape[i]`` is one of them (``i`` can
    be negative or a slice). Iterating also verifies the checksum of each call's tensors and skips
    corrupted calls, which :attr:`damage` then lists. :attr:`calls` is the same sequence without
    verification.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        damage: Damage,
        classes: Classes = (),
        other_ranks: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        super().__init__(segments, damage, classes)
        self._allowance = Allowance(
            lambda: sum(segment.disk_bytes for segment in self._segments), limits, self._is_forged
        )
        for segment in self._segments:
            segment.allowance = self._allowance
        self._other_ranks = tuple(other_ranks)
        self._variants: list[FoundVariant] | None = None
        self._united: FoundVariant | None = None
        self._counters: TrafficCounters | None = None
        self._data_keys = self._new_data_keys()
        self._removed: list[str | int] = []
        self._whole = self
        self._scanned = 0
        self._chosen: list[Variant] | None = None
        self._selected: dict[str, Any] = {}

    @property
    def signature(self) -> Signature:
        """The parameters of the recorded method, without those that :meth:`remove_inputs`
        removed."""
        signature = Signature.of(self._target).without(frozenset(self.removed))
        return replace(signature, data_keys=self._data_keys)

    def _new_data_keys(self) -> DataKeys:
        # A part of this tape has the same: it is laid out as the whole.
        return data_keys_of(lambda: self._calls, Signature.of(self._target))

    @property
    def removed(self) -> tuple[str, ...]:
        """The names of the arguments that :meth:`remove_inputs` removed."""
        signature = Signature.of(self._target)
        return tuple(signature.name_of(name) for name in self._removed)

    @property
    def other_ranks(self) -> tuple[str, ...]:
        """Files that were left out because another rank of their job made the same calls: a step of
        a model that is split over several processes counts as one call. To see what a rank
        returned, open its file alone."""
        return self._other_ranks

    @property
    @bounded()
    def counters(self) -> TrafficCounters:
        """Counts of all traffic, whether or not a call is on the tape: the number of calls of each
        structure, and the sizes of every axis. :attr:`TrafficCounters.missing` names files that
        have no counters, or whose counters contradict the calls on the tape (which is
        corruption)."""
        self._follow_source()
        if self._counters is None:
            self._counters = trusted_counters(self._segments, self._damage)
        return self._counters

    @bounded()
    def only(
        self,
        *,
        calls: ChosenCalls | None = None,
        variant: Chosen | None = None,
        ignore: Sequence[str | int] = (),
    ) -> Tape:
        """This tape with only some of its calls, or without some arguments. Every function that
        takes a tape accepts it. It reads from the same files, so closing either tape
        (:meth:`close`) closes both. Counts of all traffic (:attr:`counters`) do not apply to a part
        of the calls.

        Args:
            calls: numbers, ranges and addresses of calls, such as ``"0..99,3f9a01bc:120"`` or
                ``[3, 5]``; or a :class:`Call` of this tape.
            variant: one or several variants, by name or by position in :meth:`variants`, after
                ``calls`` and ``ignore`` were applied. The findings about a variant stay the same,
                because the other variants remain evidence.
            ignore: parameters to leave out, as :meth:`remove_inputs` does.

        Raises:
            UsageError: for calls or variants that do not exist, or an argument that no call passes.
        """
        part = self._part(self._segments)
        names = [ignore] if isinstance(ignore, str) else list(ignore)
        names_of_parameters = part.signature.names
        for name in names:  # one of *args has its place only as long as those before it are there
            alone = part._part(part._segments)
            if (
                not alone.remove_inputs([name])
                and part.signature.name_of(name) not in names_of_parameters
            ):
                advice = f"the parameters are: {', '.join(names_of_parameters)}"
                raise UsageError(f"no call passes {name}", advice=advice)
        if names:
            part.remove_inputs(names)
        if calls is not None:
            ranges = ranges_of(calls)
            part = part._part(
                only_one(part._segments, calls)
                if isinstance(calls, Call)
                else only_calls(part._segments, ranges)
            )
            part._selected = {"calls": [str(range_) for range_ in ranges]}
            if self._selected:  # what was chosen before is in what is left
                part._selected = {"calls": [call.address for call in part._calls]}
        return part if variant is None else part._only_variants(variant)

    @property
    def whole(self) -> Tape:
        """The tape whose variants :meth:`only` selected from. All its calls are evidence for the
        findings. If no variant was selected, this is the tape itself."""
        return self._whole

    def _part(self, segments: Sequence[Segment]) -> Tape:
        """A tape of the same files, with other calls."""
        part = copy.copy(self)
        if segments is not self._segments:
            part._counters = TrafficCounters(missing=frozenset(self.paths))
        part._segments = tuple(segments)
        part._calls = Calls(part._segments, part._classes)
        part._removed = list(self._removed)
        part._variants = part._united = part._chosen = None
        part._whole = part
        return part

    def _only_variants(self, choice: Chosen) -> Tape:
        from calltape_analyzer.variant import chosen_variants

        places, chosen = chosen_variants(self.variants(), choice)
        refs = (call.ref for variant in chosen for call in variant.calls)
        part = self._part(only_known(self._segments, refs))
        part._whole, part._chosen = self, chosen
        part._selected = {**self._selected, "variant": places}
        return part

    @property
    def selected(self) -> dict[str, Any]:
        """Which calls :meth:`only` selected, as its arguments ``calls`` and ``variant``; empty for
        a whole tape."""
        return dict(self._selected)

    def _signature(self) -> Signature:
        return self.signature

    def _dynamic_shapes(
        self, declared: BatchFor, names: DimNames, dim: DimKind | None
    ) -> tuple[Any, ...] | dict[str, Any]:
        is_variant = self._chosen is not None and len(self._chosen) == 1
        default: DimKind = "auto" if is_variant else "dynamic"
        return self._with_records(
            lambda: self.single.infer_dynamic_shapes(declared, names, dim=dim or default)
        )

    def _arguments(self, index: GivenArguments, device: Any, layout: MemoryLayout | None) -> Inputs:
        def answer() -> Inputs:
            single = self.single
            if not isinstance(index, int) or isinstance(index, bool):
                return single.infer_arguments(index, device=device, layout=layout)
            if not -len(self._calls) <= index < len(self._calls):
                raise InferenceError(
                    f"no call at position {index}: there are {len(self._calls)} calls",
                    advice="count from 0",
                )
            return single.arguments_of(self._calls[index], device, layout)

        return self._with_records(answer)

    @property
    @bounded()
    def single(self) -> Variant:
        """The calls as those of one program: the only variant, or all of them united. Calls that
        leave an argument out are completed.

        Raises:
            InferenceError: there are no calls, or one program cannot serve them. The message says
                in what they differ, and lists the variants.
        """
        variants = self.variants()
        if len(variants) == 1:
            return variants[0]
        if not variants and (places := len(self.damage)):
            reason = f"no call is usable: the tape is corrupted in {counted(places, 'place')}"
            raise InferenceError(reason, advice="run calltape info to see where")
        if not variants:
            raise InferenceError(
                "No inputs were captured", advice="record at least one call of the model"
            )
        from calltape_analyzer.variant import Variant, single_graph_of

        if self._united is None:
            self._united = single_graph_of(self, variants)
        return Variant(self, self._united)

    def _with_records(self, question: Callable[[], T]) -> T:
        """The answer of a question that reads calls. A file of which a call is read is scanned,
        which may show that its end was forged: then what the end said is no part of the answer."""
        damage_before = len(self._damage.list())
        try:
            answer = question()
        except (TapeError, IndexError):
            if len(self._damage.list()) == damage_before:
                raise
        else:
            if len(self._damage.list()) == damage_before:
                return answer
        self._variants = self._united = self._counters = None
        return question()

    def _soundly(self, question: Callable[[], T]) -> T:
        """The answer, without the calls that break the format and are in the way."""
        damaged_before = self._damaged
        try:
            answer = question()
        except TapeError as error:
            if error.kind not in OF_CALLS or not self._leave_out_unsound():
                raise
            return question()
        if self._damaged != damaged_before:
            self._leave_out_damaged()
        return answer

    def _is_forged(self) -> bool:
        """Whether the ends of the files turn out not to be true of their calls."""
        if self._calls.has_single_calls:
            self._calls.scan()
        return bool(self._damage)

    @property
    def _damaged(self) -> int:
        """How many calls are known to be damaged, although their records are whole."""
        return sum(segment.damaged for segment in self._segments)

    def _leave_out_unsound(self) -> bool:
        """Takes calls off the list whose trees break the format."""
        before = len(self)
        for segment in self._segments:
            if not segment.is_survey:
                segment.drop_unsound()
        self._leave_out_damaged()
        return len(self) < before

    def _leave_out_damaged(self) -> None:
        super()._leave_out_damaged()
        self._variants = self._united = None
        self._data_keys = self._new_data_keys()

    def _follow_source(self) -> None:
        """Forgets answers from the ends of files that were scanned since: damage may have shown."""
        scanned = sum(segment.is_scanned for segment in self._segments)
        if scanned != self._scanned:
            self._scanned = scanned
            if self._damage:
                self._variants = self._united = self._counters = None
                self._data_keys = self._new_data_keys()

    @bounded()
    def observations(self, sorter: CallSorter | None = None) -> Observations:
        """What was seen of all calls, by group. Reads the end of a sealed file, or every record
        once, but no tensor bytes.

        Args:
            sorter: of the calls, if more ints are known to vary than the tape shows.
        """
        from calltape_analyzer.observing.sorting import CallSorter

        sorter = sorter or CallSorter.of(self)
        observations = self._soundly(lambda: sorter.observations(self._calls))
        counters = counters_of_evidence(self.counters, self._calls, observations.left_out)
        return observations.with_counters(counters, sorter.signature, sorter.renamed)

    @bounded()
    def variants(self) -> VariantList:
        """The calls, grouped by the program that can serve them, in the order of their first call.
        Calls that raised are left out, unless all did. (In a survey, they can affect the order,
        because it does not know which of several equal calls came first.) Reads no tensor bytes.

        Two variants differ in structure, constants, dtypes or ranks (rule 2 of
        docs/decisions/export-strategies.md); in whether the sliding window of a cache is full (rule
        7); in bools, or in texts and floats that have few, recurring values (rule 8); or in
        broadcasting (rule 9). Findings about a variant hold for all its calls. The variants are
        computed once and cached. A REPL or notebook shows the list as the tables that
        ``calltape variants`` prints.
        """
        from calltape_analyzer.variant import Variant, VariantList, find_variants

        if self._chosen is not None:
            return VariantList(self._chosen)
        self._follow_source()
        if self._variants is None:
            variants = self._soundly(lambda: find_variants(self))
            self._variants = variants
        return VariantList(Variant(self, variant) for variant in self._variants)

    @bounded()
    def explain(self, argument: str, axis: int | None = None) -> Explanation:
        """Explains, for each variant, why a dimension, an int or an argument is what it is, and
        which calls show it. ``str()`` of the result is text for people. Reads no tensor bytes.

        Args:
            argument: the name of an argument, the position of a positional one (``"0"``), a place
                inside one as :meth:`variants` writes it (``"cache.layers.0.keys"``, also with a
                dimension: ``"input_ids[1]"``), or the name of a symbol (``"batch_size"``).
            axis: one dimension, counted from the end if negative; by default all of them.

        Raises:
            UsageError: for something that no call passes, or a dimension that no tensor there has;
                the message lists what exists.
        """
        from calltape_analyzer.explaining import explain

        chosen = None if self._chosen is None else [variant.name for variant in self._chosen]
        return explain(self.whole, self.whole.variants(), argument, axis, only=chosen)

    @bounded()
    def remove_inputs(self, names: Sequence[str | int]) -> int:
        """Leaves parameters out of everything that is inferred from now on.

        Returns:
            How many arguments of calls this removes; 0 for names that no call passes.

        Raises:
            UsageError: for ``*args`` or ``**kwargs`` as a whole.
        """
        from calltape_analyzer.observing.sorting import CallSorter

        check_arguments("remove_inputs", names)
        signature = self.signature
        variadic = signature.variadic_positional
        for name in names:
            if name == signature.variadic_keyword or (variadic is not None and name in variadic):
                raise UsageError(
                    f"Cannot remove variadic {name!r}", advice="name the arguments in it"
                )
        without = self._part(self._segments)
        without._removed += names
        sorter, removed = CallSorter.of(without), {*without.removed} - signature.removed

        def count() -> int:
            return sum(
                seen.calls * len(removed.intersection(sorter.sorted(seen.inputs).layout.left_out))
                for seen in self._calls.by_inputs()
            )

        counts = self._soundly(count)
        self._removed.extend(names)
        self._variants = self._united = None
        return counts

    @bounded()
    def to_arrow(self, *, leaves: bool = False) -> pyarrow.RecordBatchReader:
        """The calls as a table, in batches that are produced as you read them. ``.read_all()``
        returns a ``pyarrow.Table``; DuckDB and pandas accept the reader as it is. docs/tables.md
        lists the columns, and each column describes itself (``schema.field(name).metadata``). Reads
        every record, but no tensor bytes. Calls with corrupted records are left out, and listed in
        :attr:`damage`.

        Args:
            leaves: one row per tensor of each call instead, with path, dtype and shape.

        Raises:
            UsageError: pyarrow is not installed (the extra ``table``).
        """
        from calltape_analyzer.tables.table_file import require_pyarrow

        require_pyarrow()
        from calltape_analyzer.tables.rows import call_table, leaf_table

        if leaves:
            return leaf_table(self)
        return call_table(self, [variant.facts for variant in self.variants()])
