"""Searches for the programs that a tape needs, until every recorded size has one.

Takes a tape and a model; returns programs, and why a variant, or some of its sizes, have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

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
from calltape_analyzer.exporting.session.verification import Outcome
from calltape_analyzer.exporting.value_parts import (
    calls_by_value,
    int_value_parts,
    keep_to_values,
    part_of_value,
    rejected_value,
    reproduces,
    serves_all_values,
    tensor_value_parts,
    unserved_calls,
    varying_ints,
    with_open_floats,
)
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.foreign_errors import ErrorKind, failure_of, means
from calltape_analyzer.observing.groups import MAX_VALUES
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs import notes, reasons
from calltape_analyzer.programs.attempts import Attempt, Gap, VariantVerdict, takes, verdicts_on
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variant import named_facts
from calltape_analyzer.variants.alternatives import part_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import name_symbols

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["ProgramSearch"]

MAX_PROGRAMS = 12
"""How many programs a variant gets at most."""
MAX_CONSTANTS = 3
"""How many programs for one size or one number a variant gets at most. More of them would serve no
new call either."""
_MAX_EXTENSIONS = 2


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
        variants = self._variants()
        self.exporter.session.probing.bound = Bound.of(variants)
        traceable = [variant for variant in variants if self._can_be_traced(variant)]
        merged = Merging(self.tape, self.exporter)
        left = merged.run(traceable) if merging else traceable
        self.programs += merged.programs
        for variant in left:
            try:
                self._export_variant(variant)
            except TapeError:
                raise
            except Exception as error:  # a fault of ours costs this variant only
                self._add_gap(variant, "variant", reasons.Fault(failure_of(error)))
        made = list(self.programs)
        for program in made:
            others = [one for one in made if one is not program]
            why = why_state_lost(self.exporter.session, program, others, self.tape.calls)
            if why is not None:
                self.programs.remove(program)
                self._leave_out(program.variant, Strategy.IN_A_ROW, why)
        for program in self.programs:
            program.reject_aliases(self._aliases.matter)
        self.all_notes += (notes.OwnTensor(*one) for one in self._aliases.matter.items())
        self.all_notes += merged.notes
        known = sorted(self.exporter.session.differences.items())
        differences = {call: difference for call, difference in known if difference is not None}
        if differences and self.programs:
            # Programs reject the sizes of these calls, because more than these may differ.
            self.all_notes.append(self._other_model(differences))
        if unread := strides_unread(self.exporter.session, variants):
            self.all_notes.append(notes.SeveralLayouts(unread))
        self._drop_served_gaps()
        self.verdicts = verdicts_on(variants, self.programs, [*self.gaps.values()])

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

    def _variants(self) -> list[VariantFacts]:
        """The variants of the tape. Calls that differ in what the model reads besides values (the
        mode of its caller, strides, the order of keys) belong to different variants.

        Raises:
            ExportError: this is not the recorded model, or it was given its own tensors.
        """
        session = self.exporter.session
        variants = self._sorted()
        traceable = self._traceable(variants)
        # A call or two of each show what the model queries, and whether it is the recorded one.
        if not session.budget.is_spent:
            self._differences = differences_from_tape(
                session, traceable, self.tape.calls, observe=True
            )
        if modes := modes_read(session, self._traceable(variants)):
            session.sorter.separate_by(modes)
            variants = self._sorted()
            self.all_notes.append(notes.AskedModes(tuple(sorted(modes))))
        seconds = session.budget.within(session.probing.seconds)
        if grads := grads_read(session, self._traceable(variants), seconds):
            session.sorter.separate_by(grad_paths=grads)
            variants = self._sorted()
            self.all_notes.append(notes.GradsRead(tuple(sorted(grads))))
        if unshared := sharing_unread(session, self._traceable(variants), seconds):
            session.sorter.ignore_sharing(unshared)
            variants = self._sorted()
        if ordered := key_orders_read(session, self._traceable(variants), self.tape.calls, seconds):
            session.sorter.separate_by(ordered=ordered)
            variants = self._sorted()
            scalars = {str(place) for one in variants for place in one.group.layout.scalars}
            if dicts := ordered - scalars:
                self.all_notes.append(notes.KeyOrders(tuple(sorted(dicts))))
        traceable = self._traceable(variants)
        laid_out = strides_read(session, traceable, self.tape.calls, seconds)
        self._aliases = aliases_read(session, traceable, seconds)
        self.all_notes += session.unanswered
        if self._aliases.recorded:
            path, (number, name) = next(iter(self._aliases.recorded.items()))
            raise ExportError(
                f"nothing could be exported: {path} of call {number} is the model's own {name}, or "
                "a part of it, and the model returns something else for a copy",
                advice="a program gets copies: pass a copy, and record again",
            )
        if laid_out:
            session.sorter.separate_by(layout_paths=laid_out)
            variants = self._sorted()
            self.all_notes.append(notes.StridesRead(tuple(sorted(laid_out))))
        queried = queried_facts(session.module, getattr(session.entry, "__name__", "forward"))
        if queried:
            self._queries = tuple(map(str, queried))
            self.all_notes.append(notes.AskedFacts(self._queries))
        # Last, because what the model reads of its arguments may be why its results differ.
        self._expect_recorded_model(self._traceable(variants))
        return variants

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
        first = next(iter(differences.values()))
        return notes.OtherModel(calls, first, tuple(outside or ()), self._queries)

    def _differences_in(self, variant: VariantFacts) -> dict[CallRef, Fact]:
        known = self._differences
        return {ref: known[ref] for ref in telling_calls(variant) if ref in known}

    def _sorted(self) -> list[VariantFacts]:
        """The variants of the whole tape, or those that have selected calls if variants were
        selected.

        Raises:
            InferenceError: there are no calls.
        """
        session, whole = self.exporter.session, self.tape.whole
        session.sorter, observations = session.sorter.settled(whole.calls)
        if not observations.groups:
            raise InferenceError("there are no calls", advice="record at least one call")
        variants = named_facts(whole, observations, session.sorter)
        if "variant" not in self.tape.selected:
            return variants
        selected = {call.ref for call in self.tape.calls}
        return [variant for variant in variants if variant.rows.first in selected]

    def _traceable(self, variants: Sequence[VariantFacts]) -> list[VariantFacts]:
        """The variants that can be traced, and for which a program can have all state of the model.
        Hidden state is searched for once per variant, before anything else runs or traces the model
        here, because nothing can restore it."""
        session = self.exporter.session
        known = [variant for variant in variants if variant.rows.first in self._hidden_state]
        new = [v for v in variants if v not in known and self._why_untraceable(v) is None]
        if new:
            seconds = session.budget.within(session.probing.seconds)
            hidden = calls_with_hidden_state(session, new, known, seconds)
            for first in (variant.rows.first for variant in new):
                is_hidden = first in hidden
                reason = reasons.Because(reasons.Why.OUT_OF_SIGHT) if is_hidden else None
                self._hidden_state[first] = reason
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
        self._add_gap(variant, "variant", reason)
        self.untraceable.add(variant.name)
        attempt = Attempt(variant=variant.name, strategy=strategy, error=reason)
        self.exporter.attempts.append(attempt)

    def _add_gap(
        self,
        variant: VariantFacts,
        kind: Literal["variant", "sizes", "values"],
        reason: Fact,
        what: str = "",
    ) -> None:
        self.gaps[f"{variant.name}{what}"] = Gap(variant, kind, reason)

    def _why_untraceable(self, variant: VariantFacts) -> Fact | None:
        reason = why_untraceable(variant, self.tape.calls.at(variant.rows.first))
        return reason or self._hidden_state.get(variant.rows.first)

    def _export_variant(self, variant: VariantFacts) -> None:
        """Makes programs until every recorded size of a variant has one. Each is traced from a size
        that the earlier ones reject."""
        variant = self.exporter.loosened(variant)
        left: list[SizeRow] = list(variant.rows)
        lost: list[SizeRow] = []
        reason: Fact | None = None
        attempts: list[Attempt] = []
        constants, before = 0, len(self.programs)
        first = self._with_open_floats(variant)
        if first is not None:
            variant = replace(first.program.variant, name=variant.name)
        while left and len(attempts) < MAX_PROGRAMS and constants < MAX_CONSTANTS:
            made = len(attempts)
            named = self._named(variant)
            is_first = not (made or lost)
            by_ints = is_first and bool(varying_ints(variant))
            outcome, first = first, None
            if outcome is None:
                outcome = self.exporter.export(
                    named, None if is_first else left, static="never" if by_ints else "last"
                )
            if by_ints and not (outcome and outcome.served()):
                if self._export_int_values(variant):
                    return
                outcome = self.exporter.export(named, static="only")
            if (
                outcome
                and not keep_to_values(outcome, self.tape.calls, self.exporter.session)
                and not made
            ):
                self._export_text_values(variant)
                return
            good = {row for row in left if outcome and outcome.serves(row)}
            if outcome is None or not good:
                if not made and self._export_tensor_values(variant):
                    return
                reason = self._reason(named.name, outcome)
                # After a program that works, another size may still work; or after one whose
                # outputs have no elements.
                rest = left[1:] if made else _rejected_unproven(outcome, left)
                lost += [row for row in left if row not in rest]
                left = rest
                continue
            if made or len(good) < len(left):
                outcome.program.all_notes.append(notes.ServesSome(len(good), len(variant.rows)))
            is_tried = outcome.attempt.probed > 0 and not outcome.attempt.agreed
            if is_tried and len(good) == 1 < len(variant.rows):
                outcome.program.note(notes.OneSize())
            self.programs.append(outcome.program)
            attempts.append(outcome.attempt)
            constants += outcome.program.is_constant
            left = [row for row in left if row not in good]
            if not made and left:
                left = self._export_left_ints(variant, left)
        if left and constants == MAX_CONSTANTS:
            reason = reason or reasons.EachAlone(MAX_CONSTANTS)
        if any(attempt.by_values for attempt in attempts):
            self._export_other_values(variant, self.programs[before:])
        if attempts and constants < len(attempts):
            self._extend(variant, len(attempts), attempts)
        if missing := len(lost) + len(left):
            reason = reason or reasons.MostPrograms(MAX_PROGRAMS)
            is_all = missing == len(variant.rows)
            what = "" if is_all else f", {missing} other sizes"
            self._add_gap(variant, "variant" if is_all else "sizes", reason, what)

    def _with_open_floats(self, variant: VariantFacts) -> Outcome | None:
        """A program that has the floats that vary as inputs, and returns what the model does for
        several of their values; None if there is none. If it rejects all others than the one that
        it was traced with, one that is traced with one of those shows that they can be inputs."""
        opened = with_open_floats(variant)
        if opened is None:
            return None
        session, named = self.exporter.session, self._named(opened)
        first = shown = self.exporter.export(named, static="never")
        if first is None or not first.served():
            return None
        for _ in range(MAX_CONSTANTS):
            if shown is None:
                break
            if serves_all_values(shown, self.tape.calls, session):
                floats = [n for n in shown.program.all_notes if isinstance(n, notes.OpenFloats)]
                first.program.all_notes += floats if shown is not first else []
                return first
            values = calls_by_value(named, self.tape.calls, session.sorter)
            call = rejected_value(shown.program, values, session)
            shown = None if call is None else self.exporter.export_call(named, call)
        return None

    def _export_int_values(self, variant: VariantFacts) -> bool:
        """Finds a program per value of the ints that vary. Tells whether there are any."""
        parts = list(int_value_parts(variant))
        if not self._export_parts(parts[:MAX_CONSTANTS]):
            self.gaps.pop(parts[0].name, None)
            return False
        left = sum(part.calls for part in parts[MAX_CONSTANTS:])
        columns = varying_ints(variant)
        names = [variant.group.layout.column_name(column) for column in columns]
        self._add_value_gap(variant, left, names, MAX_CONSTANTS)
        return True

    def _export_parts(self, parts: Iterable[VariantFacts]) -> bool:
        """Makes programs for parts of a variant with one value each. Returns whether there are any,
        and stops at the first failure: another value could not be traced either."""
        before = len(self.programs)
        for part in parts:
            name_symbols(part)
            self._export_variant(part)
            if len(self.programs) == before:
                return False
        return True

    def _export_left_ints(self, variant: VariantFacts, left: Sequence[SizeRow]) -> list[SizeRow]:
        """Makes programs for values of ints that a program for all of them rejects, if several
        sizes have the value: the model takes another branch if an int is -1 for "all of them".
        Returns the rows that are left."""
        if not varying_ints(variant):
            return list(left)
        wanted, rest = set(left), list(left)
        rows = [(row, seen) for row, seen in variant.rows.items() if row in wanted]
        for part in int_value_parts(part_of(variant, rows, variant.name)):
            if len(part.rows) < 2 or len(self.programs) >= MAX_PROGRAMS:
                continue
            before = len(self.programs)
            name_symbols(part)
            self._export_variant(part)
            if len(self.programs) > before:
                served = self.programs[before:]
                rest = [r for r in rest if all(p.rejects(r) is not None for p in served)]
            self.gaps.pop(part.name, None)
        return rest

    def _add_value_gap(
        self, variant: VariantFacts, left: int, names: Sequence[str], most: int
    ) -> None:
        if left:
            reason = reasons.ValuesLeft(left, variant.calls, most)
            self._add_gap(variant, "values", reason, f", other values of {', '.join(names)}")

    def _extend(self, variant: VariantFacts, made: int, attempts: Sequence[Attempt]) -> None:
        """Makes programs for unrecorded sizes that all earlier programs reject."""
        if made > 1 and made == len(variant.rows) and not any(a.agreed for a in attempts):
            return  # each program serves one size, and so would another
        rejected = [set(attempt.rejected) for attempt in attempts]
        # What one program rejects, another may accept.
        everywhere = set.intersection(*rejected) if rejected else set()
        waiting = sorted(everywhere, key=lambda sizing: sizing.values)
        found: list[Program] = []
        is_wide = False
        while waiting and made < _MAX_EXTENSIONS + len(attempts):
            if self.exporter.session.budget.is_spent:
                break
            named = self._named(variant, found)
            by_ints = any(attempt.by_values for attempt in attempts)
            outcome = self.exporter.extend(named, waiting[0], symbolic_ints=by_ints)
            if outcome is None:
                break
            keep_to_values(outcome, self.tape.calls, self.exporter.session)
            outcome.program.note(notes.TracedUnseen())
            found.append(outcome.program)
            is_wide = is_wide or outcome.attempt.agreed > 1
            waiting = [s for s in waiting[1:] if s in outcome.attempt.rejected]
            made += 1
        # Programs for single unrecorded sizes are kept only if one serves a range.
        self.programs += found if is_wide else []

    def _export_text_values(self, variant: VariantFacts) -> None:
        """Finds a program per value of the texts and floats that vary."""
        calls, sorter = self.tape.calls, self.exporter.session.sorter
        values = calls_by_value(variant, calls, sorter)
        # Where texts vary as well, the floats may be inputs of a program for one text.
        by_text = calls_by_value(variant, calls, sorter, texts=True)
        values = by_text if any(value.values for value in by_text) else values
        names = [str(variant.group.layout.scalars[i]) for i in values[0].values]
        # Of texts there are few, as of floats that come back, and nobody expects a program to take
        # another one.
        of_floats = any(type(v) is float for value in values for v in value.values.values())
        come_back = len(values) <= MAX_VALUES and 2 * len(values) <= variant.calls
        most = MAX_CONSTANTS if of_floats and not come_back else MAX_PROGRAMS
        numbered = enumerate(values[:most], 1)
        if self._export_parts(part_of_value(variant, value, number) for number, value in numbered):
            left = variant.calls - sum(value.calls for value in values[:most])
            self._add_value_gap(variant, left, names, most)

    def _named(self, variant: VariantFacts, more: Sequence[Program] = ()) -> VariantFacts:
        """The variant under a name that no program has yet, nor any in ``more``: ``decode (2)``."""
        taken = (program.name for program in (*self.programs, *more))
        return replace(variant, name=UniqueNames(taken, numbered="{} ({})").add(variant.name))

    def _export_other_values(self, variant: VariantFacts, own: list[Program]) -> None:
        """Makes programs for calls of recorded sizes whose values the earlier programs reject: from
        their own values, or else with small tensors as constants."""
        calls, session = self.tape.calls, self.exporter.session
        left = unserved_calls(variant, own, calls, session)
        while left and len(own) < MAX_PROGRAMS:
            named = self._named(variant)
            outcome = self.exporter.export_call(named, left[0])
            if outcome is not None:
                keep_to_values(outcome, calls, session)
            if outcome is None or not reproduces(outcome.program, left[0], session):
                break
            own.append(outcome.program)
            self.programs.append(outcome.program)
            left = unserved_calls(variant, own, calls, session)
        if left and not self._export_tensor_values(variant):
            reason = reasons.ValuesRejected(left[0].number)
            self._add_gap(variant, "values", reason, ", other values")

    def _export_tensor_values(self, variant: VariantFacts) -> bool:
        """Makes programs with a small integer tensor as a constant, one for each of its values: a
        model that reads such a tensor with Python (``grid.tolist()``) cannot be traced otherwise.
        Returns whether there are any."""
        own = [a.summary for a in self.exporter.attempts if a.variant == variant.name]
        if not any(means(one, ErrorKind.NEEDS_VALUE) for one in own):
            return False
        sorter = self.exporter.session.sorter
        for where, distinct, parts in tensor_value_parts(variant, self.tape.calls, sorter):
            made: list[Program] = []
            for part in islice(parts, MAX_CONSTANTS):
                name_symbols(part)
                outcome = self.exporter.export(part)
                if outcome is None or not outcome.attempt.reproduced:
                    if not made:
                        break
                    self._add_gap(part, "values", self._reason(part.name, outcome))
                    continue
                keep_to_values(outcome, self.tape.calls, self.exporter.session)
                outcome.program.all_notes.append(notes.ConstantTensor(str(where)))
                made.append(outcome.program)
            if not made:
                continue
            self.programs += made
            if distinct > MAX_CONSTANTS:
                most = reasons.ConstantsLeft(distinct - MAX_CONSTANTS, distinct, MAX_CONSTANTS)
                self._add_gap(variant, "values", most, f", other values of {where}")
            return True
        return False

    def _reason(self, name: str, outcome: Outcome | None) -> Fact:
        if outcome is not None and outcome.attempt.summary:
            return outcome.attempt.summary
        own = [a for a in self.exporter.attempts if a.variant == name]
        # Other attempts may report that the same line reads a value, which was no obstacle.
        untranslated = [a.summary for a in own if a.is_untranslated and a.summary]
        tried = untranslated or [a.summary for a in own if a.summary]
        budget = self.exporter.session.budget
        untried = budget.reason if budget.is_spent else reasons.Because(reasons.Why.NOT_EXPORTED)
        return tried[-1] if tried else untried


def _rejected_unproven(outcome: Outcome | None, left: Sequence[SizeRow]) -> list[SizeRow]:
    """The rows that a program rejects, if nothing could be compared: it may be for the other side
    of a branch."""
    if outcome is None or outcome.attempt.compared:
        return []
    rejected = [row for row in left if outcome.attempt.rows.get(row) == "rejected"]
    return rejected if len(rejected) < len(left) else []
