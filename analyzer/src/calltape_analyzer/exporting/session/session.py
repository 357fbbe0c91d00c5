"""Whether a program does what the model does: at recorded sizes, and at others.

A program is good if it reproduces every recorded size, and better if it also agrees with the model
at sizes that no call had. A program that returns wrong values at one of them serves only the sizes
at which it was right (:mod:`calltape_analyzer.exporting.session.restrictions`). The best one and
its attempt are an :class:`Outcome`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, facts_of_tensors
from calltape_analyzer.arguments.sizings import (
    Sizing,
    is_between,
    is_part_way,
    recorded_sizing,
    row_at,
    sizes_in_words,
    sizings_of_one,
)
from calltape_analyzer.comparison.comparing import (
    compared,
    has_values,
    is_described,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.comparison.judging import judge
from calltape_analyzer.comparison.verdicts import Verdict
from calltape_analyzer.exporting.session.budget import time_limit
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.exporting.session.observed_calls import Effects, measured
from calltape_analyzer.exporting.session.sandbox import RunEndedError, half_of_free
from calltape_analyzer.exporting.session.unseen_runs import UnseenRuns, unseen_runs
from calltape_analyzer.exporting.torch_fixes.nonzero_loops import Line, LoopEvidence
from calltape_analyzer.exporting.torch_fixes.patching import PATCHING
from calltape_analyzer.facts import Fact
from calltape_analyzer.foreign_errors import failure_of
from calltape_analyzer.model.calls import eager
from calltape_analyzer.model.state import apart_from
from calltape_analyzer.observing.memory_layout import layout_in_memory
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.dispatch import ProgramRun
from calltape_analyzer.programs.exported_model import ConditionError
from calltape_analyzer.programs.notes import NotCompared, OtherModel
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import InState
from calltape_analyzer.programs.strategies import Attempt, RowOutcome
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Outcome", "Session"]

_MAX_ROWS = 24
_MAX_LOOKED, _MAX_SMALL = 4, 2
"""Recorded calls of which the loops are looked at, and sizes of one."""
_AT_ONCE = 2
"""What the model returned is in memory while the program runs."""
_LEAST_MEMORY = 256 * 2**20
"""Bytes that a run and the one that it is compared with may take in any case."""
_SECONDS = 60.0
"""How long a run with arguments that a call lacks may take."""


class _Known(NamedTuple):
    """The verdict on a call, and the weights that it was found with."""

    program: Program
    verdict: Verdict
    weights: tuple[tuple[int, int], ...] | None


class Replayed(NamedTuple):
    """What became of a recorded call, as :attr:`Attempt.rows` has it, what was wrong or could be
    better, and the verdict if the program ran to its end."""

    outcome: RowOutcome
    error: Fact | None = None
    found: Verdict | None = None


@dataclass
class Outcome:
    """A program for a variant, and the attempt that made it."""

    attempt: Attempt
    program: Program

    def score(self, wanted: Collection[SizeRow] | None = None) -> tuple[int, ...]:
        """Greater is better. What counts first is how many of the sizes that still have no program
        it reproduces: a better copy of another program is of no use. How many sizes were probed
        depends on the time that there was, so that those count at which it failed.

        Args:
            wanted: the recorded sizes that have no program yet; None for all.
        """
        found = self.attempt
        unseen = (found.agreed > 0, found.agreed - found.probed, not found.by_values, found.agreed)
        return (self.served(wanted), found.ok, found.reproduced, -found.wrong, *unseen)

    def served(self, wanted: Collection[SizeRow] | None = None) -> int:
        """How many of some recorded sizes were reproduced; of all by default."""
        if wanted is None:
            return self.attempt.reproduced
        return sum(self.serves(row) for row in wanted)

    def serves(self, row: SizeRow) -> bool:
        """Whether a recorded size was reproduced. If there are very many sizes, not all are run,
        and the conditions of the program decide about the others."""
        found = self.attempt.rows.get(row)
        return found == "ok" if found is not None else self.program.rejects(row) is None


@dataclass
class Session(ModelRuns):
    """One export of one model: all runs of it and of its programs, what they may cost, and what
    came of those that were made. It compares what programs return with what was recorded, and with
    what the model returns now."""

    _known: dict[tuple[int, CallRef], _Known] = field(default_factory=dict)

    def verify(
        self,
        program: Program,
        attempt: Attempt,
        around: Sequence[Sizing],
        *,
        begin: float,
        whole: bool = False,
        narrow: bool = False,
    ) -> None:
        """Runs recorded calls and other sizes through a program. Fills in what came of the attempt;
        the program gets notes about state and about what could not be verified.

        Args:
            program: what the attempt made.
            attempt: is filled in.
            around: sizes that no call had and that the program was made for.
            begin: when the attempt began, by :func:`time.perf_counter`.
            whole: whether the program is of no use if it fails at one recorded size; then it is run
                no further.
            narrow: whether it takes no other sizes than recorded ones and those of ``around``.
        """
        self.find_state(program)
        for row, seen in program.variant.rows.items()[:_MAX_ROWS]:
            has_failed = whole and attempt.reproduced < attempt.tried
            if has_failed or self.budget.is_spent:
                attempt.rows[row] = "untried"
                attempt.unrun += 1
                if not has_failed:
                    attempt.note(self.budget.reason)
                continue
            attempt.tried += 1
            found = self.replayed(program, self.find(seen.first))
            attempt.add(found.found)
            if found.outcome in ("wrong", "failed"):
                attempt.error = attempt.error or found.error
            elif found.error is not None:
                attempt.note(found.error)
            attempt.note_row(row, found.outcome)
        if attempt.reproduced and not attempt.compared:
            # All outputs are empty, or not a number: any program returns that.
            attempt.reproduced = 0
            for row, became in attempt.rows.items():
                attempt.rows[row] = "wrong" if became == "ok" else became
            attempt.error = reasons.Because(reasons.Why.NOTHING_COMPARED)
        program.told += map(NotCompared, attempt.unverified)
        effects = self._effects.get((program.variant.group.key, program.variant.rows.first))
        if effects is not None and program.model.has_state:  # of another runtime none are views
            program.note_views(effects.views)
        program.note_state(self.state)
        if (not attempt.reproduced and not around) or (whole and not attempt.ok):
            return
        now = time.perf_counter()
        until = now + self.probing.patience(now - begin)
        sizings = self.probing.sizings(program.variant, around, narrow=narrow)
        self._probe_all(program, attempt, sizings, until)
        if sizings and not attempt.probed and not narrow:
            self._probe_all(program, attempt, self.probing.cheaper(program.variant), until)
        self.probing.note(program, attempt)

    def _probe_all(
        self, program: Program, attempt: Attempt, sizings: Sequence[Sizing], until: float
    ) -> None:
        variant, probing = program.variant, self.probing
        with unseen_runs(self, program) as runs:
            for sizing in sizings:
                # Cheaper ones may follow.
                is_late = time.perf_counter() + probing.predicted(variant, sizing) > until
                if is_late or self.budget.is_spent:
                    why = reasons.Because(reasons.Why.LATE) if is_late else self.budget.reason
                    attempt.untried.append(_untried(variant, sizing, why))
                    continue
                self.probe(program, attempt, sizing, runs)

    def replayed(self, program: Program, call: Call) -> Replayed:
        """What became of a recorded call."""
        sample = self.sample(program.variant, call)
        rejection = program.rejects_call(self.sorter.sorted(call.record.inputs))
        rejection = rejection or program.rejects_values(sample)
        if rejection is not None:
            return Replayed("rejected", reasons.OfCall(call.number, rejection))
        run = _RecordedRun(self, program, sample)
        found = judge(call, run, self.tolerances)
        if found.error is not None and run.raised is not None:
            outcome: RowOutcome = "failed"  # instead of rejecting the call
            if isinstance(run.raised, ConditionError):
                outcome = "rejected"
            return Replayed(outcome, reasons.OfCall(call.number, found.error))
        if found.ok and found.against == "tape" and not run.unmade_outputs:
            self._known[id(program), call.ref] = _Known(program, found, self._weights())
        if found.error is None or found.agrees:
            return Replayed("ok", found=found)
        is_unlike = isinstance(found.error, OtherModel)
        wrong = found.error if is_unlike else reasons.OfCall(call.number, found.error)
        return Replayed("ok" if isinstance(found.error, InState) else "wrong", wrong, found)

    def known(self, program: Program, call: Call) -> Verdict | None:
        """The verdict on a recorded call that a program reproduced, if the weights are those that
        it had then, as far as torch counts what is written to them, and nothing else decides."""
        found = self._known.get((id(program), call.ref))
        depends = program.state or program.draws or program.unwritten
        if found is None or depends or found.weights is None or found.weights != self._weights():
            return None
        return found.verdict

    def _weights(self) -> tuple[tuple[int, int], ...] | None:
        """Where parameters and buffers lie, and how often they were written to; None if torch does
        not tell, as in inference mode."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        try:
            return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        except RuntimeError:
            return None

    def why_unrun(self, variant: VariantFacts, sizing: Sizing) -> Fact | None:
        """Why the model is not run at sizes that no call had; None if it may be run."""
        if self._lies_otherwise(variant, sizing):
            return reasons.Because(reasons.Why.OTHER_STRIDES)
        probing = self.probing
        if probing.probe == "none":
            return reasons.RecordedOnly(probing.probe)
        if probing.probe == "near" and not probing.bound.allows(variant, sizing):
            return reasons.Because(reasons.Why.TOO_LARGE)
        if probing.is_slow(variant):
            return reasons.TooSlow(probing.seconds, was_run=True)
        reason = self._too_much(variant, sizing)
        if reason is None:
            return None
        # No run like it was measured yet, or the measured ones are too far from it.
        recorded = recorded_sizing(variant, sizing.row)
        if probing.costs.has(variant, recorded.values):
            return reason
        try:
            with time_limit(probing.seconds):
                _, cost = probing.measured(
                    variant, recorded, lambda: self.eager(*self.planned(variant, recorded))
                )
        except Exception as error:  # the model's own
            if isinstance(error, TimeoutError):
                probing.note_slow(variant)
            return reasons.OfModel(failure_of(error), at_recorded=True)
        if cost is not None:
            probing.costs.add(variant, cost)
        return self._too_much(variant, sizing)

    def _too_much(self, variant: VariantFacts, sizing: Sizing) -> Fact | None:
        """Why a run would cost too much, as predicted from runs that were measured."""
        costs, imagine = self.probing.costs, partial(self._imagined, variant)
        if not costs.has(variant):
            return reasons.Because(reasons.Why.UNMEASURED)
        needed = _AT_ONCE * costs.memory(variant, sizing)
        # What a run and the one that it is compared with may take.
        allowed: float
        if self.probing.memory is not None:
            allowed = self.probing.memory
        else:
            allowed = half_of_free(self.device)
            if self.probing.probe != "far" and needed > _LEAST_MEMORY:
                allowed = min(allowed, max(_LEAST_MEMORY, costs.recorded(variant, imagine)))
            elif self.probing.probe != "far":
                allowed = min(allowed, _LEAST_MEMORY)
        if needed > allowed:
            needed = min(needed, _AT_ONCE * costs.imagined(variant, sizing, imagine))
        if needed > allowed:
            is_given = self.probing.memory is not None
            return reasons.TooMuchMemory(int(needed), int(allowed), is_given)
        if costs.seconds(variant, sizing) > self.probing.seconds:
            return reasons.TooSlow(self.probing.seconds, was_run=False)
        return None

    def _lies_otherwise(self, variant: VariantFacts, sizing: Sizing) -> bool:
        """Whether a model that reads layouts would be asked for a call of another variant: a
        transposed tensor with one row is contiguous."""
        read = [i for i, facts in enumerate(variant.group.facts) if facts.memory]
        if not read or not sizing.resized:
            return False
        leaves = facts_of_tensors(self.sample(variant, sizing).tensors)
        return any(layout_in_memory(leaves[i]) != variant.group.facts[i].memory for i in read)

    def why_not(self, variant: VariantFacts, sizing: Sizing) -> Fact | None:
        """Why the model does not come to its end at sizes that no call had; None if it does."""
        limit = self.budget.within(self.probing.seconds)
        try:
            why: Fact | None = self.in_sandbox(lambda: self._failure(variant, sizing), limit)
            return why
        except RunEndedError as error:
            if error.ended.end is reasons.End.LATE:
                self.probing.note_slow(variant)
            return error.ended

    def why_harmful(self, variant: VariantFacts) -> reasons.SyntheticHarms | None:
        """Why the model is not run with a recorded call whose values are not on the tape: with the
        values that are made up it ends its process, or does not come to its end."""
        call = self.find(variant.rows.first)
        if all(leaf.key for leaf in call.record.inputs.facts()):
            return None
        try:
            self.in_sandbox(
                lambda: self._failure(variant, recorded_sizing(variant)), self.probing.seconds
            )
        except RunEndedError as error:
            return reasons.SyntheticHarms(call.number, error.ended)
        return None

    def _failure(self, variant: VariantFacts, sizing: Sizing) -> Fact | None:
        try:
            self.probing.measured(
                variant, sizing, lambda: self.eager(*self.planned(variant, sizing))
            )
        except Exception as error:  # models raise errors of any type
            return failure_of(error)
        return None

    def _imagined(self, variant: VariantFacts, sizing: Sizing) -> int:
        """The bytes that a run of the model takes, by a run with tensors that have no memory.

        Raises:
            Exception: whatever the model raises where it asks for a value.
        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        plan, sample = self.planned(variant, sizing)
        with self.undisturbed(), FakeTensorMode(allow_non_fake_inputs=True):
            return measured(
                lambda: eager(self.entry, plan, sample.cloned(), self.classes, self.device),
                fused=self.probing.fused,
            ).peak

    def harmless_loops(self, variant: VariantFacts) -> frozenset[Line]:
        """The model's loops over what is hit that may run for every item, as recorded calls of a
        variant show. A few calls are run three times each."""
        found = LoopEvidence()
        # From the last: a decode step has the fewest tokens.
        firsts = [seen.first for _, seen in variant.rows.items()]
        for ref in firsts[: -_MAX_LOOKED - 1 : -1]:
            plan, sample = self.planned(variant, ref)
            with PATCHING, suppress(Exception):  # errors of any type are no evidence
                found.look(partial(self._with_buffers, plan, sample), self._are_same)
        for sizing in sizings_of_one(variant, _MAX_SMALL) if found.is_open else ():
            with suppress(RunEndedError):  # nobody recorded these sizes
                found.add(self.in_sandbox(partial(self._loops_at, variant, sizing), _SECONDS))
        return found.allowed

    def _loops_at(self, variant: VariantFacts, sizing: Sizing) -> LoopEvidence:
        found = LoopEvidence()
        with PATCHING, suppress(Exception):
            run = partial(self._with_buffers, *self.planned(variant, sizing))
            found.look(run, self._are_same)
        return found

    def _with_buffers(self, plan: Plan, sample: Sample) -> dict[str, Any]:
        """The leaves of what the model returns now, and its buffers after that."""
        with self.undisturbed():
            value = eager(self.entry, plan, sample.cloned(), self.classes, self.device)
            found = apart_from(self.module, leaves_of(value))
            buffers = self.module.named_buffers()
            return {**found, **{f"buffer {name}": one.clone() for name, one in buffers}}

    def _are_same(self, expected: Mapping[str, Any], got: Mapping[str, Any]) -> bool:
        found = compared(expected, got, self.tolerances)
        return found.agrees and found.compared > 0

    def why_incomplete(self, variant: VariantFacts, call: Call) -> Fact | None:
        """Why the model itself does not return what was recorded, if a call is given what it lacks
        in a variant: an empty cache. None if it does. Also if that is unknown: no program was
        tried."""
        expected = recorded_leaves(call)
        if expected is None or not is_described(expected) or not has_values(expected):
            return None
        try:
            differs, effects = self.in_sandbox(
                lambda: self._differs(variant, call, expected), _SECONDS
            )
        except RunEndedError as error:
            if error.ended.end is reasons.End.LATE:  # a trace may do without what fails here
                return None
            return replace(error.ended, empty_cache=True)
        if effects is not None:
            self._effects[variant.group.key, call.ref] = effects
        return reasons.Because(reasons.Why.OTHER_WITHOUT_CACHE) if differs else None

    def _differs(
        self, variant: VariantFacts, call: Call, expected: Mapping[str, Any]
    ) -> tuple[bool, Effects | None]:
        """Whether the model returns something else than was recorded, in what both have; and what
        else the run does."""
        planned = self.planned(variant, call)
        try:
            got, effects = self._with_effects(*planned)
        except Exception:  # a trace may do without what fails here
            return False, None
        found = {path: leaf for path, leaf in got.items() if path in expected}
        wanted = {path: expected[path] for path in found}
        difference = compared(wanted, found, self.tolerances)
        return bool(difference.compared) and not difference.agrees, effects

    def probe(self, program: Program, attempt: Attempt, sizing: Sizing, runs: UnseenRuns) -> None:
        """Runs one size that no call had. What the model returns is right.

        Args:
            program: is compared with the model.
            attempt: is filled in.
            sizing: the sizes.
            runs: of the program.
        """
        variant = program.variant
        reason = self.why_unrun(variant, sizing)
        if reason is not None:
            attempt.untried.append(_untried(variant, sizing, reason))
            return
        rejection = program.rejects(row_at(variant, sizing))
        limit = self.budget.within(self.probing.seconds)
        ran = runs.at(sizing, limit, with_program=rejection is None)
        if ran.is_late:
            self.probing.note_slow(variant)
        if ran.unrun is not None:
            attempt.untried.append(_untried(variant, sizing, ran.unrun))
        elif ran.raised is not None:  # the model does not take these sizes: that is no evidence
            attempt.declined += 1
        elif rejection is not None:
            self._note_rejected(variant, attempt, sizing, rejection)
        elif ran.died is not None:
            attempt.probed += 1
            attempt.note_wrong(sizing)
            attempt.note(reasons.Unseen(ran.died))
        elif ran.failed is not None:  # it rejects
            attempt.probed += 1
            attempt.note(reasons.Unseen(ran.failed.why))
            attempt.rejected.append(sizing)
            if not ran.failed.is_condition:
                attempt.note_failed(sizing)
        elif ran.doubt is not None:
            attempt.untried.append(_untried(variant, sizing, ran.doubt))
        elif ran.found is not None:
            attempt.note_compared(sizing, ran.found)

    def _note_rejected(
        self, variant: VariantFacts, attempt: Attempt, sizing: Sizing, rejection: Fact
    ) -> None:
        """Notes sizes that the model takes and the program rejects."""
        if is_between(variant, sizing):
            # A condition that all recorded sizes keep. Another program may be for the others.
            attempt.rejected += [sizing] if is_part_way(variant, sizing) else []
            return
        attempt.probed += 1
        attempt.note(reasons.Unseen(rejection))
        if 1 not in sizing.values:
            attempt.rejected.append(sizing)


class _RecordedRun(ProgramRun):
    """A recorded call through a program that is being made.

    Attributes:
        unmade_outputs: the objects in what it returned that cannot be made.
    """

    def __init__(self, session: Session, program: Program, sample: Sample) -> None:
        super().__init__(session)
        self._verifier, self.program, self.sample = session, program, sample

    def run(self) -> dict[str, Any]:
        leaves, self.unmade_outputs = self._verifier.served(self.program, self.sample)
        return leaves

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        verdict = super().explained(call, verdict, expected)
        if verdict.agrees or verdict.against != "tape" or isinstance(verdict.error, InState):
            return verdict
        got = self.returned.leaves
        unlike = self._verifier.why_unlike(self.program, call, self.sample, expected, got)
        return (
            verdict if unlike is None else verdict.but(OtherModel((f"{call.ref.number}",), unlike))
        )


def _untried(variant: VariantFacts, sizing: Sizing, why: Fact) -> reasons.UntriedSize:
    return reasons.UntriedSize(sizes_in_words(variant, sizing), why)
