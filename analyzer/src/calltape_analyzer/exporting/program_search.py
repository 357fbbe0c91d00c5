"""Which programs a tape needs, made one after another until every recorded size has one.

Takes the variants of a tape; returns programs, and why a variant, or some of its sizes, have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Literal

from calltape_analyzer.arguments.sizings import Bound
from calltape_analyzer.errors import ExportError, InferenceError, TapeError
from calltape_analyzer.exporting.exporter import Exporter, Merging
from calltape_analyzer.exporting.inspection.argument_layouts import key_orders_read, layouts_read
from calltape_analyzer.exporting.inspection.shared_memory import (
    OwnTensors,
    own_tensors,
    sharing_unread,
)
from calltape_analyzer.exporting.inspection.untraceable import (
    asked_facts,
    drawn_by_python,
    why_untraceable,
)
from calltape_analyzer.exporting.session.call_sequences import out_of_sight, why_lost
from calltape_analyzer.exporting.session.model_differences import (
    telling_calls,
    unlike_recorded,
)
from calltape_analyzer.exporting.session.session import Outcome
from calltape_analyzer.exporting.value_parts import (
    calls_by_value,
    constants_that_vary,
    held_values,
    int_value_parts,
    part_of_value,
    rejected_value,
    serves_all_values,
    tensor_value_parts,
    varying_ints,
    with_open_floats,
)
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.foreign_errors import ErrorKind, failure_of, means
from calltape_analyzer.observing.groups import MAX_VALUES
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs import notes, reasons
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.rejections import rejects_constants
from calltape_analyzer.programs.strategies import Attempt, Strategy
from calltape_analyzer.programs.variant_verdicts import (
    Lack,
    VariantVerdict,
    takes,
    verdicts_on,
)
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variant import named_facts
from calltape_analyzer.variants.alternatives import part_of
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import name_symbols

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["ProgramSearch"]

_MAX_PROGRAMS = 12
"""A variant gets at most so many programs."""
_MAX_CONSTANTS = 3
"""A variant gets at most so many programs for one size or one number: more of them would serve no
new call either."""
_MAX_EXTENSIONS = 2
_MAX_SEARCHED, _MAX_RUN = 4096, 32
"""Where a program depends on values, so many calls are searched for those that it rejects, and so
many are run."""


@dataclass
class ProgramSearch:
    """The programs of one tape and one model.

    Attributes:
        tape: the calls.
        exporter: tries to make a program for a variant.
        programs: what was found, in the order in which programs are asked for a call.
        lacks: which variants, or some of their sizes or values, have no program, and why.
        verdicts: which new calls of each variant will be served.
        untraceable: the names of variants that no trace can take, or whose calls no program
            follows.
        told: notes and remarks about the export as a whole.
    """

    tape: Tape
    exporter: Exporter
    programs: list[Program] = field(default_factory=list)
    lacks: dict[str, Lack] = field(default_factory=dict)
    verdicts: list[VariantVerdict] = field(default_factory=list)
    untraceable: set[str] = field(default_factory=set)
    told: list[Note] = field(default_factory=list)
    _own: OwnTensors = field(default_factory=lambda: OwnTensors({}, {}))
    _out_of_sight: dict[CallRef, Fact | None] = field(default_factory=dict)
    _unlike: dict[CallRef, Fact] = field(default_factory=dict)
    _asked: tuple[str, ...] = ()

    @property
    def missing(self) -> dict[str, Fact]:
        """Why variants, or some of their sizes or values, have no program."""
        return {name: lack.reason for name, lack in self.lacks.items()}

    def run(self, *, merging: bool) -> None:
        """Fills ``programs``, ``lacks``, ``verdicts`` and ``told``.

        Args:
            merging: whether one program may serve a prefill and its decode steps.

        Raises:
            InferenceError: there are no calls.
        """
        variants = self._variants()
        self.exporter.session.probing.bound = Bound.of(variants)
        every, variants = variants, [v for v in variants if self._can_be_traced(v)]
        merged = Merging(self.tape, self.exporter)
        left = merged.run(variants) if merging else variants
        self.programs += merged.programs
        for variant in left:
            try:
                self._cover(variant)
            except TapeError:
                raise
            except Exception as error:  # a fault of ours costs this variant only
                self._lack(variant, "variant", reasons.Fault(failure_of(error)))
        self._leave_out_lost()
        for program in self.programs:
            program.reject_own(self._own.minded)
        self.told += (notes.OwnTensor(*one) for one in self._own.minded.items())
        self.told += merged.told
        unlike = sorted(self.exporter.session.unlike.items())
        found = {call: difference for call, difference in unlike if difference is not None}
        if found and self.programs:
            # Programs are kept from the sizes of these calls: nobody knows what else was another.
            self.told.append(self._why_unlike(found))
        self._note_layouts(every)
        self._drop_served()
        self.verdicts = verdicts_on(every, self.programs, [*self.lacks.values()])

    def _drop_served(self) -> None:
        """Lists nothing as missing that another program serves: one for a part of a variant, or one
        that was traced later."""
        for name, (variant, kind, _) in list(self.lacks.items()):
            known = [
                program
                for program in self.programs
                if not (program.depends_on_values or program.plan.frozen)
                and program.variant.constant_scalars.items() <= variant.constant_scalars.items()
            ]
            if kind != "values" and all(takes(known, variant, row) for row in variant.rows):
                del self.lacks[name]

    def _note_layouts(self, variants: Sequence[VariantFacts]) -> None:
        """Notes tensors that came in several layouts. A program takes all of them; what compiles it
        further may not."""
        laid_out = self.exporter.session.sorter.layout_paths
        layouts: dict[str, set[str]] = {}
        for variant in variants:
            places = variant.group.layout.tensors
            for place, formats in zip(places, variant.group.formats, strict=False):
                layouts.setdefault(str(place), set()).update(formats)
        several = sorted(name for name, found in layouts.items() if len(found) > 1)
        if unread := [name for name in several if name not in laid_out]:
            self.told.append(notes.SeveralLayouts(tuple(unread)))

    def _variants(self) -> list[VariantFacts]:
        """The variants of the tape. If the model asks for the modes of its caller, or reads layouts
        in memory, calls that differ in them are of different variants."""
        session = self.exporter.session
        variants = self._sorted()
        traceable = self._traceable(variants)
        # A call or two of each show what the model asks, and whether it is the recorded one.
        if not session.budget.is_spent:
            self._unlike = unlike_recorded(session, traceable, watched=True)
        if asked := session.asked_modes(self._traceable(variants)):
            session.sorter.separate_by(asked)
            variants = self._sorted()
            self.told.append(notes.AskedModes(tuple(sorted(asked))))
        seconds = session.budget.within(session.probing.seconds)
        if unshared := sharing_unread(session, self._traceable(variants), seconds):
            session.sorter.ignore_sharing(unshared)
            variants = self._sorted()
        if ordered := key_orders_read(session, self._traceable(variants), seconds):
            session.sorter.separate_by(ordered=ordered)
            variants = self._sorted()
            self.told.append(notes.KeyOrders(tuple(sorted(ordered))))
        laid_out = self._layouts_read(self._traceable(variants), seconds)
        if laid_out:
            session.sorter.separate_by(layout_paths=laid_out)
            variants = self._sorted()
            self.told.append(notes.StridesRead(tuple(sorted(laid_out))))
        asks = asked_facts(session.module, getattr(session.entry, "__name__", "forward"))
        if asks:
            self._asked = tuple(map(str, asks))
            self.told.append(notes.AskedFacts(self._asked))
        # Last: what the model asks of its arguments may be why it returns something else.
        self._expect_same_model(self._traceable(variants))
        return variants

    def _expect_same_model(self, variants: Sequence[VariantFacts]) -> None:
        """Finds the variants whose calls the model answers in another way than the recorded one.

        Raises:
            ExportError: there are no others.
        """
        session = self.exporter.session
        # What is known by now of the model may be why it answered in another way.
        doubtful = [
            variant
            for variant in variants
            if self._unlike_in(variant)
            or any(session.was_watched(ref) is None for ref in telling_calls(variant))
        ]
        if doubtful and not session.budget.is_spent:
            self._unlike = unlike_recorded(session, doubtful, watched=False)
        if self._unlike and all(self._unlike_in(variant) for variant in variants):
            raise ExportError(
                f"nothing could be exported: {self._why_unlike(self._unlike)}",
                advice="export the model that was recorded, or record this one"
                + ("; or pass what it asks for as an argument" if self._asked else ""),
            )

    def _why_unlike(self, found: Mapping[CallRef, Fact]) -> notes.OtherModel:
        calls = tuple(f"{ref.number}" for ref in found)
        target = self.tape.target
        outside = target.outside if target is not None else None
        first = next(iter(found.values()))
        return notes.OtherModel(calls, first, tuple(outside or ()), self._asked)

    def _unlike_in(self, variant: VariantFacts) -> dict[CallRef, Fact]:
        return {one: self._unlike[one] for one in telling_calls(variant) if one in self._unlike}

    def _layouts_read(self, variants: Sequence[VariantFacts], seconds: float) -> frozenset[str]:
        """The paths of the tensors whose strides the model reads.

        Raises:
            ExportError: it was given its own tensors, which no program gets.
        """
        session = self.exporter.session
        laid_out = layouts_read(session, variants, self.tape.calls, seconds)
        self._own = own_tensors(session, variants, seconds)
        self.told += session.unknown
        if self._own.passed:
            path, (number, name) = next(iter(self._own.passed.items()))
            raise ExportError(
                f"nothing could be exported: {path} of call {number} is the model's own {name}, or "
                "a part of it, and the model returns something else for a copy",
                advice="a program gets copies: pass a copy, and record again",
            )
        return laid_out

    def _sorted(self) -> list[VariantFacts]:
        """The variants of the whole tape; of a tape of one variant those of its calls.

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
        own = {call.ref for call in self.tape.calls}
        return [variant for variant in variants if variant.rows.first in own]

    def _traceable(self, variants: Sequence[VariantFacts]) -> list[VariantFacts]:
        """The variants of which a program may have all state of the model. That is found out once
        for each, before anything else runs the model here or traces it: nobody could put that state
        back."""
        session = self.exporter.session
        known = [variant for variant in variants if variant.rows.first in self._out_of_sight]
        new = [v for v in variants if v not in known and self._why_untraceable(v) is None]
        if new:
            seconds = session.budget.within(session.probing.seconds)
            found = out_of_sight(session, new, known, seconds)
            for first in (variant.rows.first for variant in new):
                is_lost = first in found
                reason = reasons.Because(reasons.Why.OUT_OF_SIGHT) if is_lost else None
                self._out_of_sight[first] = reason
        return [variant for variant in variants if self._why_untraceable(variant) is None]

    def _can_be_traced(self, variant: VariantFacts) -> bool:
        """Whether a trace is worth trying. If not, it is noted why."""
        session = self.exporter.session
        reason, strategy = self._why_untraceable(variant), Strategy.NOT_TRACED
        if reason is not None and reason is self._out_of_sight.get(variant.rows.first):
            strategy = Strategy.IN_A_ROW
        if reason is None and (unlike := self._unlike_in(variant)):
            reason, strategy = self._why_unlike(unlike), Strategy.COMPARED
        reason = reason or session.why_harmful(variant)
        if reason is None:
            drawn = drawn_by_python(session, variant)
            if isinstance(drawn, Note):
                self.told += [drawn] if drawn not in self.told else []
            else:
                reason = drawn
        if reason is None:
            return True
        self._leave_out(variant, strategy, reason)
        return False

    def _leave_out(self, variant: VariantFacts, strategy: Strategy, reason: Fact) -> None:
        self._lack(variant, "variant", reason)
        self.untraceable.add(variant.name)
        attempt = Attempt(variant=variant.name, strategy=strategy, error=reason)
        self.exporter.attempts.append(attempt)

    def _lack(
        self,
        variant: VariantFacts,
        kind: Literal["variant", "sizes", "values"],
        reason: Fact,
        what: str = "",
    ) -> None:
        self.lacks[f"{variant.name}{what}"] = Lack(variant, kind, reason)

    def _why_untraceable(self, variant: VariantFacts) -> Fact | None:
        reason = why_untraceable(variant, self.tape.calls.at(variant.rows.first))
        return reason or self._out_of_sight.get(variant.rows.first)

    def _leave_out_lost(self) -> None:
        """Leaves out programs that recorded calls show to lose state."""
        found = list(self.programs)
        for program in found:
            others = [one for one in found if one is not program]
            why = why_lost(self.exporter.session, program, others, self.tape.calls)
            if why is not None:
                self.programs.remove(program)
                self._leave_out(program.variant, Strategy.IN_A_ROW, why)

    def _cover(self, variant: VariantFacts) -> None:
        """Finds programs until every recorded size of a variant has one: the next program is traced
        from a size that the ones before reject."""
        variant = self.exporter.loosened(variant)
        left: list[SizeRow] = list(variant.rows)
        lost: list[SizeRow] = []
        reason: Fact | None = None
        attempts: list[Attempt] = []
        constants, before = 0, len(self.programs)
        first = self._with_open_floats(variant)
        if first is not None:
            variant = replace(first.program.variant, name=variant.name)
        while left and len(attempts) < _MAX_PROGRAMS and constants < _MAX_CONSTANTS:
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
                if self._cover_int_values(variant):
                    return
                outcome = self.exporter.export(named, static="only")
            if outcome and not self._keeps_to_values(outcome) and not made:
                self._cover_text_values(variant)
                return
            good = {row for row in left if outcome and outcome.serves(row)}
            if outcome is None or not good:
                if not made and self._cover_tensor_values(variant):
                    return
                reason = self._reason(named.name, outcome)
                # After a program that works, another size may still work; or after one whose
                # outputs have no elements.
                rest = left[1:] if made else _rejected_unproven(outcome, left)
                lost += [row for row in left if row not in rest]
                left = rest
                continue
            if made or len(good) < len(left):
                outcome.program.told.append(notes.ServesSome(len(good), len(variant.rows)))
            is_tried = outcome.attempt.probed > 0 and not outcome.attempt.agreed
            if is_tried and len(good) == 1 < len(variant.rows):
                outcome.program.note(notes.OneSize())
            self.programs.append(outcome.program)
            attempts.append(outcome.attempt)
            constants += outcome.program.is_constant
            left = [row for row in left if row not in good]
            if not made and left:
                left = self._cover_left_ints(variant, left)
        if left and constants == _MAX_CONSTANTS:
            reason = reason or reasons.EachAlone(_MAX_CONSTANTS)
        if any(attempt.by_values for attempt in attempts):
            self._cover_other_values(variant, self.programs[before:])
        if attempts and constants < len(attempts):
            self._extend(variant, len(attempts), attempts)
        if missing := len(lost) + len(left):
            reason = reason or reasons.MostPrograms(_MAX_PROGRAMS)
            is_all = missing == len(variant.rows)
            what = "" if is_all else f", {missing} other sizes"
            self._lack(variant, "variant" if is_all else "sizes", reason, what)

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
        for _ in range(_MAX_CONSTANTS):
            if shown is None:
                break
            if self._serves_all_values(named, shown):
                told = [note for note in shown.program.told if isinstance(note, notes.OpenFloats)]
                first.program.told += told if shown is not first else []
                return first
            values = calls_by_value(named, self.tape.calls, session.sorter)
            call = rejected_value(shown.program, values, session)
            shown = None if call is None else self.exporter.export_call(named, call)
        return None

    def _serves_all_values(self, variant: VariantFacts, outcome: Outcome) -> bool:
        session = self.exporter.session
        values, everywhere = (
            calls_by_value(variant, self.tape.calls, session.sorter, of_group=of_group)
            for of_group in (False, True)
        )
        return serves_all_values(outcome.program, outcome.attempt, values, everywhere, session)

    def _keeps_to_values(self, outcome: Outcome) -> bool:
        """Keeps a program from other texts and floats than those of which it is known that it does
        what the model does. Tells whether it does so with all recorded ones."""
        program, session = outcome.program, self.exporter.session
        if not constants_that_vary(program.variant):
            return True
        values = calls_by_value(program.variant, self.tape.calls, session.sorter)
        serves_all = self._serves_all_values(program.variant, outcome)
        program.variant.constant_scalars = held_values(program, values, serves_all=serves_all)
        for row, seen in program.variant.rows.items():
            own = session.sorter.sorted(session.find(seen.first).record.inputs)
            if not serves_all and rejects_constants(program.variant, own) is not None:
                outcome.attempt.rows[row] = "rejected"
        return serves_all

    def _cover_int_values(self, variant: VariantFacts) -> bool:
        """Finds a program per value of the ints that vary. Tells whether there are any."""
        parts = list(int_value_parts(variant))
        if not self._cover_each(parts[:_MAX_CONSTANTS]):
            self.lacks.pop(parts[0].name, None)
            return False
        left = sum(part.calls for part in parts[_MAX_CONSTANTS:])
        columns = varying_ints(variant)
        names = [variant.group.layout.column_name(column) for column in columns]
        self._lack_values(variant, left, names, _MAX_CONSTANTS)
        return True

    def _cover_each(self, parts: Iterable[VariantFacts]) -> bool:
        """Finds programs for parts of a variant, of which each has one value. Tells whether there
        are any: what cannot be traced with one value cannot with another."""
        before = len(self.programs)
        for part in parts:
            name_symbols(part)
            self._cover(part)
            if len(self.programs) == before:
                return False
        return True

    def _cover_left_ints(self, variant: VariantFacts, left: Sequence[SizeRow]) -> list[SizeRow]:
        """Finds programs for the values of ints that a program for all of them rejects, as far as
        several sizes have one: an int that is -1 for "all of them" sends the model another way.
        Returns the rows that are left."""
        if not varying_ints(variant):
            return list(left)
        wanted, rest = set(left), list(left)
        rows = [(row, seen) for row, seen in variant.rows.items() if row in wanted]
        for part in int_value_parts(part_of(variant, rows, variant.name)):
            if len(part.rows) < 2 or len(self.programs) >= _MAX_PROGRAMS:
                continue
            before = len(self.programs)
            name_symbols(part)
            self._cover(part)
            if len(self.programs) > before:
                served = self.programs[before:]
                rest = [r for r in rest if all(p.rejects(r) is not None for p in served)]
            self.lacks.pop(part.name, None)
        return rest

    def _lack_values(
        self, variant: VariantFacts, left: int, names: Sequence[str], most: int
    ) -> None:
        if left:
            reason = reasons.ValuesLeft(left, variant.calls, most)
            self._lack(variant, "values", reason, f", other values of {', '.join(names)}")

    def _extend(self, variant: VariantFacts, made: int, attempts: Sequence[Attempt]) -> None:
        """Finds programs for sizes beyond the recorded ones, if all that were made reject them."""
        if made > 1 and made == len(variant.rows) and not any(a.agreed for a in attempts):
            return  # a program for each size: another would be good for one size as well
        rejected = [set(attempt.rejected) for attempt in attempts]
        # What one program rejects another may take.
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
            self._keeps_to_values(outcome)
            outcome.program.note(notes.TracedUnseen())
            found.append(outcome.program)
            is_wide = is_wide or outcome.attempt.agreed > 1
            waiting = [s for s in waiting[1:] if s in outcome.attempt.rejected]
            made += 1
        # A program for one size that nobody asked for is kept only beside one for a range.
        self.programs += found if is_wide else []

    def _cover_text_values(self, variant: VariantFacts) -> None:
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
        most = _MAX_CONSTANTS if of_floats and not come_back else _MAX_PROGRAMS
        numbered = enumerate(values[:most], 1)
        if self._cover_each(part_of_value(variant, value, number) for number, value in numbered):
            left = variant.calls - sum(value.calls for value in values[:most])
            self._lack_values(variant, left, names, most)

    def _named(self, variant: VariantFacts, more: Sequence[Program] = ()) -> VariantFacts:
        """The variant under a name that no program has, these included: ``decode (2)``."""
        taken = (program.name for program in (*self.programs, *more))
        return replace(variant, name=UniqueNames(taken, numbered="{} ({})").add(variant.name))

    def _cover_other_values(self, variant: VariantFacts, own: list[Program]) -> None:
        """Finds programs for calls of the recorded sizes whose values its programs so far reject:
        from their own values, or else with small tensors as constants."""
        left = self._rejected_calls(variant, own)
        while left and len(own) < _MAX_PROGRAMS:
            named = self._named(variant)
            outcome = self.exporter.export_call(named, left[0])
            if outcome is not None:
                self._keeps_to_values(outcome)
            if outcome is None or left[0] not in self._served(outcome.program, left):
                break
            own.append(outcome.program)
            self.programs.append(outcome.program)
            left = self._rejected_calls(variant, own)
        if left and not self._cover_tensor_values(variant):
            reason = reasons.ValuesRejected(left[0].number)
            self._lack(variant, "values", reason, ", other values")

    def _rejected_calls(self, variant: VariantFacts, programs: Sequence[Program]) -> list[Call]:
        """The calls of a variant, of the first ones, that no program reproduces."""
        sorter = self.exporter.session.sorter
        left: list[Call] = []
        for call in islice(self.tape.calls, _MAX_SEARCHED):
            placed = sorter.sorted(call.record.inputs)
            is_own = variant.group.key.covers(placed.key) and not has_raised(call)
            if is_own and variant.rejects(placed.row) is None:
                left.append(call)
            if len(left) == _MAX_RUN:
                break
        for program in programs:
            served = self._served(program, left)
            left = [call for call in left if call not in served]
        return left

    def _served(self, program: Program, calls: Sequence[Call]) -> list[Call]:
        replayed = self.exporter.session.replayed
        return [call for call in calls if replayed(program, call).outcome == "ok"]

    def _cover_tensor_values(self, variant: VariantFacts) -> bool:
        """Finds programs with a small integer tensor as a constant, one per value of it: a model
        that reads such a tensor with Python (``grid.tolist()``) cannot be traced otherwise. Tells
        whether there are any."""
        own = [a.summary for a in self.exporter.attempts if a.variant == variant.name]
        if not any(means(one, ErrorKind.NEEDS_VALUE) for one in own):
            return False
        sorter = self.exporter.session.sorter
        for where, distinct, parts in tensor_value_parts(variant, self.tape.calls, sorter):
            made: list[Program] = []
            for part in islice(parts, _MAX_CONSTANTS):
                name_symbols(part)
                outcome = self.exporter.export(part)
                if outcome is None or not outcome.attempt.reproduced:
                    if not made:
                        break
                    self._lack(part, "values", self._reason(part.name, outcome))
                    continue
                self._keeps_to_values(outcome)
                outcome.program.told.append(notes.ConstantTensor(str(where)))
                made.append(outcome.program)
            if not made:
                continue
            self.programs += made
            if distinct > _MAX_CONSTANTS:
                most = reasons.ConstantsLeft(distinct - _MAX_CONSTANTS, distinct, _MAX_CONSTANTS)
                self._lack(variant, "values", most, f", other values of {where}")
            return True
        return False

    def _reason(self, name: str, outcome: Outcome | None) -> Fact:
        if outcome is not None and outcome.attempt.summary:
            return outcome.attempt.summary
        own = [a for a in self.exporter.attempts if a.variant == name]
        # The others may say of the same line that it reads a value, which was no obstacle.
        untranslated = [a.summary for a in own if a.is_untranslated and a.summary]
        tried = untranslated or [a.summary for a in own if a.summary]
        budget = self.exporter.session.budget
        untried = budget.reason if budget.is_spent else reasons.Because(reasons.Why.NOT_EXPORTED)
        return tried[-1] if tried else untried


def _rejected_unproven(outcome: Outcome | None, left: Sequence[SizeRow]) -> list[SizeRow]:
    """The rows that a program rejects of which nothing could be compared: it may be for the other
    side of a branch."""
    if outcome is None or outcome.attempt.compared:
        return []
    rejected = [row for row in left if outcome.attempt.rows.get(row) == "rejected"]
    return rejected if len(rejected) < len(left) else []
