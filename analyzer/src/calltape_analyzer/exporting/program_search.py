"""Searches for the programs that a tape needs, until every recorded size has one.

Takes a tape and a model; returns programs, and why a variant, or some of its sizes, have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from calltape_analyzer.arguments.sizings import Bound
from calltape_analyzer.errors import ExportError, InferenceError, TapeError
from calltape_analyzer.exporting.exporter import Exporter
from calltape_analyzer.exporting.inspection.aliases import ModelAliases, aliases_read
from calltape_analyzer.exporting.inspection.arguments import (
    grads_read,
    key_orders_read,
    modes_read,
    sharing_unread,
    strides_read,
    strides_unread,
)
from calltape_analyzer.exporting.inspection.untraceable import (
    drawn_by_python,
    queried_facts,
    why_untraceable,
)
from calltape_analyzer.exporting.merging import Merging
from calltape_analyzer.exporting.session.model_differences import (
    calls_with_hidden_state,
    differences_from_tape,
    telling_calls,
    why_state_lost,
)
from calltape_analyzer.exporting.session.unseen_runs import why_harmful
from calltape_analyzer.exporting.variant_export import VariantExport
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.foreign_errors import failure_of
from calltape_analyzer.observing.traffic_counters import counters_of_evidence
from calltape_analyzer.programs import notes, reasons
from calltape_analyzer.programs.attempts import Attempt, Gap, VariantVerdict, takes, verdicts_on
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variant import named_facts
from calltape_analyzer.variants.facts import VariantFacts

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["ProgramSearch"]


@dataclass
class ProgramSearch:
    """The programs of one tape and one model.

    Attributes:
        tape: the calls.
        exporter: tries to make a program for a variant.
        programs: what was found. The first program that accepts a call serves it.
        gaps: by name, which variants, or some of their sizes or values, have no program, and why.
        verdicts: which new calls of each variant will be served.
        untraceable: the names of variants that cannot be traced, or whose state no program keeps.
        all_notes: notes and remarks about the export as a whole.
    """

    tape: Tape
    exporter: Exporter
    programs: list[Program] = field(default_factory=list)
    gaps: dict[str, Gap] = field(default_factory=dict)
    verdicts: list[VariantVerdict] = field(default_factory=list)
    untraceable: set[str] = field(default_factory=set)
    all_notes: list[Note] = field(default_factory=list)
    _aliases: ModelAliases = field(default_factory=lambda: ModelAliases({}, {}))
    _hidden_state: dict[CallRef, Fact | None] = field(default_factory=dict)
    _differences: dict[CallRef, Fact] = field(default_factory=dict)
    _queries: tuple[str, ...] = ()

    @property
    def missing(self) -> dict[str, Fact]:
        """Why variants, or some of their sizes or values, have no program."""
        return {name: gap.reason for name, gap in self.gaps.items()}

    def run(self, *, merging: bool) -> None:
        """Fills ``programs``, ``gaps``, ``verdicts`` and ``all_notes``.

        Args:
            merging: whether one program may serve a prefill and its decode steps.

        Raises:
            InferenceError: there are no calls.
        """
        variants = self._separated_variants()
        self.exporter.session.probing.bound = Bound.of(variants)
        traceable = [variant for variant in variants if self._can_be_traced(variant)]
        merged = Merging(self.tape, self.exporter)
        unmerged = merged.run(traceable) if merging else traceable
        self.programs += merged.programs
        variant_export = VariantExport(self.tape, self.exporter, self.programs, self.gaps)
        for variant in unmerged:
            try:
                variant_export.export(variant)
            except TapeError:
                raise
            except Exception as error:  # a fault of ours costs this variant only
                variant_export.add_gap(variant, "variant", reasons.Fault(failure_of(error)))
        self._drop_programs_without_state()
        for program in self.programs:
            program.reject_aliases(self._aliases.matter)
        self.all_notes += (notes.OwnTensor(*names) for names in self._aliases.matter.items())
        self.all_notes += merged.notes
        compared = sorted(self.exporter.session.differences.items())
        differences = {ref: difference for ref, difference in compared if difference is not None}
        if differences and self.programs:
            # Programs reject the sizes of these calls, because more than these may differ.
            self.all_notes.append(self._other_model(differences))
        if unread := strides_unread(self.exporter.session, variants):
            self.all_notes.append(notes.SeveralLayouts(unread))
        self._drop_served_gaps()
        self.verdicts = verdicts_on(variants, self.programs, [*self.gaps.values()])

    def _drop_programs_without_state(self) -> None:
        """Drops programs that do not keep state of the model which recorded calls need."""
        programs = list(self.programs)
        for program in programs:
            others = [other for other in programs if other is not program]
            why = why_state_lost(self.exporter.session, program, others, self.tape.calls)
            if why is not None:
                self.programs.remove(program)
                self._leave_out(program.variant, Strategy.IN_A_ROW, why)

    def _drop_served_gaps(self) -> None:
        """Drops gaps that another program fills: one for a part of a variant, or one that was
        traced later."""
        for name, (variant, kind, _) in list(self.gaps.items()):
            programs = [
                program
                for program in self.programs
                if not (program.depends_on_values or program.plan.frozen)
                and program.variant.constant_scalars.items() <= variant.constant_scalars.items()
            ]
            if kind != "values" and all(takes(programs, variant, row) for row in variant.rows):
                del self.gaps[name]

    def _separated_variants(self) -> list[VariantFacts]:
        """The variants of the tape. Calls that differ in what the model reads besides values (the
        mode of its caller, strides, the order of keys) belong to different variants.

        Raises:
            ExportError: this is not the recorded model, or it was given its own tensors.
        """
        session = self.exporter.session
        variants = self._sorted_variants()
        traceable = self._traceable(variants)
        # A call or two of each show what the model queries, and whether it is the recorded one.
        if not session.budget.is_spent:
            self._differences = differences_from_tape(
                session, traceable, self.tape.calls, observe=True
            )
        if modes := modes_read(session, self._traceable(variants)):
            session.sorter.separate_by(modes)
            variants = self._sorted_variants()
            self.all_notes.append(notes.AskedModes(tuple(sorted(modes))))
        seconds = session.budget.within(session.probing.seconds)
        if grads := grads_read(session, self._traceable(variants), seconds):
            session.sorter.separate_by(grad_paths=grads)
            variants = self._sorted_variants()
            self.all_notes.append(notes.GradsRead(tuple(sorted(grads))))
        if unshared := sharing_unread(session, self._traceable(variants), seconds):
            session.sorter.ignore_sharing(unshared)
            variants = self._sorted_variants()
        if ordered := key_orders_read(session, self._traceable(variants), self.tape.calls, seconds):
            session.sorter.separate_by(ordered=ordered)
            variants = self._sorted_variants()
            scalars = {str(path) for variant in variants for path in variant.group.layout.scalars}
            if dicts := ordered - scalars:
                self.all_notes.append(notes.KeyOrders(tuple(sorted(dicts))))
        traceable = self._traceable(variants)
        laid_out = strides_read(session, traceable, self.tape.calls, seconds)
        self._aliases = aliases_read(session, traceable, seconds)
        self.all_notes += session.unanswered
        self._reject_recorded_aliases()
        if laid_out:
            session.sorter.separate_by(layout_paths=laid_out)
            variants = self._sorted_variants()
            self.all_notes.append(notes.StridesRead(tuple(sorted(laid_out))))
        queried = queried_facts(session.module, getattr(session.entry, "__name__", "forward"))
        if queried:
            self._queries = tuple(map(str, queried))
            self.all_notes.append(notes.AskedFacts(self._queries))
        # Last, because what the model reads of its arguments may be why its results differ.
        self._expect_recorded_model(self._traceable(variants))
        return variants

    def _reject_recorded_aliases(self) -> None:
        """Raises ExportError if the model got its own tensor in a recorded call, and returns
        something else for a copy of it."""
        if self._aliases.recorded:
            path, (number, name) = next(iter(self._aliases.recorded.items()))
            raise ExportError(
                f"nothing could be exported: {path} of call {number} is the model's own {name}, or "
                "a part of it, and the model returns something else for a copy",
                advice="a program gets copies: pass a copy, and record again",
            )

    def _expect_recorded_model(self, variants: Sequence[VariantFacts]) -> None:
        """Finds the variants for whose calls the model does not return what was recorded.

        Raises:
            ExportError: there are no others.
        """
        session = self.exporter.session
        # What the model was found to read since the first comparison may explain a difference.
        doubtful = [
            variant
            for variant in variants
            if self._differences_in(variant)
            or any(session.observation(ref) is None for ref in telling_calls(variant))
        ]
        if doubtful and not session.budget.is_spent:
            self._differences = differences_from_tape(
                session, doubtful, self.tape.calls, observe=False
            )
        if self._differences and all(self._differences_in(variant) for variant in variants):
            raise ExportError(
                f"nothing could be exported: {self._other_model(self._differences)}",
                advice="export the model that was recorded, or record this one"
                + ("; or pass what it asks for as an argument" if self._queries else ""),
            )

    def _other_model(self, differences: Mapping[CallRef, Fact]) -> notes.OtherModel:
        calls = tuple(f"{ref.number}" for ref in differences)
        target = self.tape.target
        outside = target.outside if target is not None else None
        first_difference = next(iter(differences.values()))
        return notes.OtherModel(calls, first_difference, tuple(outside or ()), self._queries)

    def _differences_in(self, variant: VariantFacts) -> dict[CallRef, Fact]:
        differences = self._differences
        return {ref: differences[ref] for ref in telling_calls(variant) if ref in differences}

    def _sorted_variants(self) -> list[VariantFacts]:
        """The variants of the whole tape, or those that have selected calls if variants were
        selected.

        Raises:
            InferenceError: there are no calls.
        """
        session, whole = self.exporter.session, self.tape.whole
        session.sorter, observations = session.sorter.settled(whole.calls)
        if not observations.groups:
            raise InferenceError("there are no calls", advice="record at least one call")
        counters = counters_of_evidence(whole.counters, whole.calls, observations.left_out)
        variants = named_facts(observations, session.sorter, counters)
        if "variant" not in self.tape.selected:
            return variants
        selected = {call.ref for call in self.tape.calls}
        return [variant for variant in variants if variant.rows.first in selected]

    def _traceable(self, variants: Sequence[VariantFacts]) -> list[VariantFacts]:
        """The variants that can be traced, and for which a program can have all state of the model.
        Hidden state is searched for once per variant, before anything else runs or traces the model
        here, because nothing can restore it."""
        session = self.exporter.session
        searched = [variant for variant in variants if variant.rows.first in self._hidden_state]
        new = [v for v in variants if v not in searched and self._why_untraceable(v) is None]
        if new:
            seconds = session.budget.within(session.probing.seconds)
            hidden = calls_with_hidden_state(session, new, searched, seconds)
            for first_call in (variant.rows.first for variant in new):
                is_hidden = first_call in hidden
                reason = reasons.Because(reasons.Why.OUT_OF_SIGHT) if is_hidden else None
                self._hidden_state[first_call] = reason
        return [variant for variant in variants if self._why_untraceable(variant) is None]

    def _can_be_traced(self, variant: VariantFacts) -> bool:
        """Whether a trace is worth trying. If not, the variant is left out."""
        session = self.exporter.session
        reason, strategy = self._why_untraceable(variant), Strategy.NOT_TRACED
        if reason is not None and reason is self._hidden_state.get(variant.rows.first):
            strategy = Strategy.IN_A_ROW
        if reason is None and (differences := self._differences_in(variant)):
            reason, strategy = self._other_model(differences), Strategy.COMPARED
        reason = reason or why_harmful(session, variant)
        if reason is None:
            drawn = drawn_by_python(session, variant)
            if isinstance(drawn, Note):
                self.all_notes += [drawn] if drawn not in self.all_notes else []
            else:
                reason = drawn
        if reason is None:
            return True
        self._leave_out(variant, strategy, reason)
        return False

    def _leave_out(self, variant: VariantFacts, strategy: Strategy, reason: Fact) -> None:
        self.gaps[variant.name] = Gap(variant, "variant", reason)
        self.untraceable.add(variant.name)
        attempt = Attempt(variant=variant.name, strategy=strategy, error=reason)
        self.exporter.attempts.append(attempt)

    def _why_untraceable(self, variant: VariantFacts) -> Fact | None:
        reason = why_untraceable(variant, self.tape.calls.at(variant.rows.first))
        return reason or self._hidden_state.get(variant.rows.first)
