"""Runs with arguments that nobody recorded: whether they are allowed, and what they prove.

Most such arguments have sizes that no call had. Synthetic values may end the process, so these runs
happen in the ``sandbox``. Results are compared there, and only plain data comes back. For such
values, the model may return NaN, something else each time, or a result that depends on the last
digit of an input. Then a difference proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from calltape_analyzer.arguments.plan import ArgumentPlan
from calltape_analyzer.arguments.samples import Sample, nudged
from calltape_analyzer.arguments.sizings import Sizing, recorded_sizing
from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    has_values,
    is_described,
    recorded_leaves,
)
from calltape_analyzer.comparison.reports import Verdict
from calltape_analyzer.exporting.session.budget import Cost, time_limit
from calltape_analyzer.exporting.session.observed_calls import Effects, measured
from calltape_analyzer.exporting.session.sandbox import RunEndedError, Sandbox, half_of_free
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.facts import Fact
from calltape_analyzer.foreign_errors import failure_of, is_of_inputs
from calltape_analyzer.model.calls import eager
from calltape_analyzer.observing.memory_layout import layout_in_memory
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.exported_model import ConditionError
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, End, Ended, Why
from calltape_analyzer.pytree.tensors import facts_of_tensors
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.facts import VariantFacts

__all__ = [
    "Failure",
    "UnseenRun",
    "UnseenRuns",
    "doubt_of",
    "why_harmful",
    "why_incomplete",
    "why_not",
    "why_unrun",
]

_AT_ONCE = 2
"""What the model returned is in memory while the program runs."""
LEAST_MEMORY = 256 * 2**20
"""Bytes that a run and the run that it is compared with may take in any case."""
_SECONDS = 60.0
"""How long a run with an empty cache may take."""


def why_unrun(session: Session, variant: VariantFacts, sizing: Sizing) -> Fact | None:
    """Why the model is not run at sizes that no call had; None if it may be run. A recorded call
    runs first if the cost of the variant is unknown.

    Args:
        session: has the model, and says which runs are allowed.
        variant: of the call.
        sizing: the sizes.
    """
    probing = session.probing
    # A model that reads strides would get a call of another variant: a transposed tensor with one
    # row is contiguous.
    read = [i for i, facts in enumerate(variant.group.facts) if facts.memory]
    if read and sizing.resized:
        leaves = facts_of_tensors(session.sample(variant, sizing).tensors)
        if any(layout_in_memory(leaves[i]) != variant.group.facts[i].memory for i in read):
            return Because(Why.OTHER_STRIDES)
    if probing.probe == "none":
        return reasons.RecordedOnly(probing.probe)
    if probing.probe == "near" and not probing.bound.allows(variant, sizing):
        return Because(Why.TOO_LARGE)
    if probing.is_slow(variant):
        return reasons.TooSlow(probing.seconds, was_run=True)
    reason = _why_too_costly(session, variant, sizing)
    # If no similar run was measured yet, a recorded call is.
    recorded = recorded_sizing(variant, sizing.row)
    if reason is None or probing.costs.has(variant, recorded.values):
        return reason
    try:
        with time_limit(probing.seconds):
            _, cost = probing.measured(
                variant, recorded, lambda: session.eager(*session.planned(variant, recorded))
            )
    except Exception as error:  # the model's own
        if isinstance(error, TimeoutError):
            probing.note_slow(variant)
        return reasons.OfModel(failure_of(error), at_recorded=True)
    if cost is not None:
        probing.costs.add(variant, cost)
    return _why_too_costly(session, variant, sizing)


def _why_too_costly(session: Session, variant: VariantFacts, sizing: Sizing) -> Fact | None:
    """Why a run would take too much memory or time, as predicted from measured runs."""
    probing, costs = session.probing, session.probing.costs
    if not costs.has(variant):
        return Because(Why.UNMEASURED)

    def imagined(sizing: Sizing) -> int:
        """The bytes that a run takes, found with tensors that have no memory. Raises what the model
        raises where it needs a value."""
        from torch._subclasses.fake_tensor import FakeTensorMode

        plan, sample = session.planned(variant, sizing)
        with session.undisturbed(), FakeTensorMode(allow_non_fake_inputs=True):
            return measured(
                lambda: eager(
                    session.entry, plan, sample.cloned(), session.classes, session.device
                ),
                fused=probing.fused,
            ).peak

    needed = _AT_ONCE * costs.memory(variant, sizing)
    # For a run and the run that it is compared with.
    allowed: float
    if probing.memory is not None:
        allowed = probing.memory
    else:
        allowed = half_of_free(session.device)
        if probing.probe != "far" and needed > LEAST_MEMORY:
            allowed = min(allowed, max(LEAST_MEMORY, costs.recorded(variant, imagined)))
        elif probing.probe != "far":
            allowed = min(allowed, LEAST_MEMORY)
    if needed > allowed:
        needed = min(needed, _AT_ONCE * costs.imagined(variant, sizing, imagined))
    if needed > allowed:
        is_given = probing.memory is not None
        return reasons.TooMuchMemory(int(needed), int(allowed), is_given)
    if costs.seconds(variant, sizing) > probing.seconds:
        return reasons.TooSlow(probing.seconds, was_run=False)
    return None


def why_not(
    session: Session, variant: VariantFacts, sizing: Sizing, seconds: float | None = None
) -> Fact | None:
    """Why the model raises, ends its process or does not finish at some sizes; None if it returns.

    Args:
        session: has the model.
        variant: of the call.
        sizing: the sizes.
        seconds: how long the run may take; by default what probes may take.
    """

    def failure() -> Fact | None:
        try:
            session.probing.measured(
                variant, sizing, lambda: session.eager(*session.planned(variant, sizing))
            )
        except Exception as error:  # models raise errors of any type
            return failure_of(error)
        return None

    limit = session.budget.within(session.probing.seconds) if seconds is None else seconds
    try:
        why: Fact | None = session.in_sandbox(failure, limit)
        return why
    except RunEndedError as error:
        if error.ended.end is End.LATE:
            session.probing.note_slow(variant)
        return error.ended


def why_harmful(session: Session, variant: VariantFacts) -> reasons.SyntheticHarms | None:
    """Why the model is not run with a recorded call whose values are not on the tape: with
    synthetic values it ends its process, or does not finish."""
    call = session.find(variant.rows.first)
    if all(leaf.key for leaf in call.record.inputs.facts()):
        return None
    why = why_not(session, variant, recorded_sizing(variant), session.probing.seconds)
    return reasons.SyntheticHarms(call.number, why) if isinstance(why, Ended) else None


def why_incomplete(session: Session, variant: VariantFacts, call: Call) -> Fact | None:
    """Why the model itself does not return what was recorded if a call is completed for a variant,
    with an empty cache; None if it does, or if that is unknown, because no program was tried."""
    expected = recorded_leaves(call)
    if expected is None or not is_described(expected) or not has_values(expected):
        return None

    def differs() -> tuple[bool, Effects | None]:
        try:
            got, effects = session.run_with_effects(*session.planned(variant, call))
        except Exception:  # a trace may not need what fails here
            return False, None
        comparable = {path: leaf for path, leaf in got.items() if path in expected}
        verdict = compared(
            {path: expected[path] for path in comparable}, comparable, session.tolerances
        )
        return bool(verdict.compared) and not verdict.agrees, effects

    try:
        is_other, effects = session.in_sandbox(differs, _SECONDS)
    except RunEndedError as error:
        if error.ended.end is End.LATE:  # a trace may not need what is slow here
            return None
        return replace(error.ended, empty_cache=True)
    if effects is not None:
        session.keep_effects(variant, call.ref, effects)
    return Because(Why.OTHER_WITHOUT_CACHE) if is_other else None


_ROUNDING = 16
"""A program adds and fuses in another order than the model. Its rounding error may be this many
times as large as the effect of one unit in the last place of all inputs on the model's results."""


def doubt_of(
    session: Session,
    plan: ArgumentPlan,
    sample: Sample,
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    changes: Mapping[int, Callable[[Any], Any]] | None = None,
) -> Because | None:
    """Why a difference from the results of the model proves nothing; None if it proves that the
    program is wrong.

    Args:
        session: has the model.
        plan: makes the arguments.
        sample: the values that were tried.
        expected: what the model returned.
        got: what the program returned.
        changes: of the arguments, as of :meth:`Session.run`.
    """
    if any(bool(leaf.isnan().any()) for leaf in _inexact(expected)):
        return Because(Why.MODEL_IS_NAN)
    try:
        again = session.eager(plan, sample, seed=0, changes=changes)
        if not compared(expected, again, session.tolerances).agrees:
            return Because(Why.MODEL_VARIES)
        near = session.eager(plan, nudged(sample), changes=changes)
    except Exception:  # models raise errors of any type
        return Because(Why.MODEL_MAY_FAIL)
    if _is_within(expected, got, near, session.tolerances):
        return Because(Why.INEXACT)
    return None


def _inexact(leaves: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors of floats and complex numbers among leaves."""
    tensors = [leaf for leaf in leaves.values() if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex()]


def _is_within(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    near: Mapping[str, Any],
    tolerances: Tolerances,
) -> bool:
    """Whether no result differs by much more than the model's own results do if its inputs change
    in their last digit."""
    if not expected.keys() == got.keys() == near.keys():
        return False
    for path, value in expected.items():
        difference = compared({path: value}, {path: got[path]}, tolerances)
        if difference.agrees:
            continue
        nudged_difference = compared({path: value}, {path: near[path]}, tolerances)
        if not difference.max_abs <= _ROUNDING * nudged_difference.max_abs < math.inf:
            return False
    return True


_MODEL, _PROGRAM = "model", "program"
"""What a run tells the sandbox that it does."""


@dataclass(frozen=True)
class Failure:
    """An error that the model or a program raised.

    Attributes:
        kind: the name of its type.
        why: the error.
        is_condition: whether the sizes break a condition of the program.
    """

    kind: str
    why: Fact
    is_condition: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What is kept of an error."""
        return cls(type(error).__name__, failure_of(error), isinstance(error, ConditionError))


@dataclass
class UnseenRun:
    """The result of a run at sizes that no call had.

    Attributes:
        unrun: why the model did not finish, other than by an error of its own.
        model_error: the error of the model.
        is_finite: whether the model returned neither NaN nor infinity.
        program_error: the error of the program.
        crash: how the program ended its process.
        verdict: on the program, against the model; None if it was not run or did not return.
        doubt: why a difference proves nothing.
        cost: of the model, if it was measured.
        state, changed: what the model and the program changed in the model.
    """

    unrun: Fact | None = None
    model_error: Failure | None = None
    is_finite: bool = True
    program_error: Failure | None = None
    crash: Fact | None = None
    verdict: Verdict | None = None
    doubt: Fact | None = None
    cost: Cost | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()

    @property
    def is_late(self) -> bool:
        """Whether the model took too long."""
        return isinstance(self.unrun, Ended) and self.unrun.end is End.LATE


class UnseenRuns:
    """Runs of one program and the model at sizes that no call had, until it is closed.

    Args:
        session: has the model.
        program: is compared with the model.

    Attributes:
        program: the same.
    """

    def __init__(self, session: Session, program: Program) -> None:
        with suppress(Exception):  # of the runtime; the run reports it
            program.model.open()  # so that each fork need not write its files again
        session.rules_of(program.variant)
        self._session, self.program = session, program
        first = recorded_sizing(program.variant), False
        self._sandbox = Sandbox(
            self.answer, session.device, first=first, begin=program.model.after_fork
        )

    def close(self) -> None:
        """Ends the sandbox. The next run would begin another one."""
        self._sandbox.close()

    def at(self, sizing: Sizing, seconds: float, *, with_program: bool = True) -> UnseenRun:
        """A run at some sizes.

        Args:
            sizing: the sizes.
            seconds: how long the model may take.
            with_program: whether the program is run as well, and compared.
        """
        variant, runtime = self.program.variant, self.program.model.runtime
        try:
            if with_program and self._sandbox.runs_here:
                ran: UnseenRun = self._run_here(sizing, seconds)
            else:
                ran = self._sandbox.ask((sizing, with_program), seconds)
        except RunEndedError as error:
            ran = UnseenRun(unrun=error.ended)
            if error.doing == _PROGRAM and not ran.is_late:
                ran = UnseenRun(crash=replace(error.ended, what=runtime))
        if ran.cost is not None:
            self._session.probing.costs.add(variant, ran.cost)
        self._session.add_state(ran.state)
        self.program.changed_state |= ran.changed
        return ran

    def _run_here(self, sizing: Sizing, seconds: float) -> UnseenRun:
        """A run in this process, which the program must not end."""
        sample = self._session.sample(self.program.variant, sizing)
        death = self.program.model.crash(self.program.inputs(sample), seconds)
        ran: UnseenRun = self._sandbox.ask((sizing, death is None), seconds)
        if death is not None and not ran.model_error:
            runtime = self.program.model.runtime
            return replace(ran, crash=Ended(death, runtime, seconds=seconds))
        return ran

    def answer(self, question: tuple[Sizing, bool], report: Any) -> UnseenRun:
        """The answer to a question, within the sandbox."""
        ran = self._answer(*question, report)
        ran.state, ran.changed = self._session.state, frozenset(self.program.changed_state)
        return ran

    def _answer(self, sizing: Sizing, with_program: bool, report: Any) -> UnseenRun:
        program, session = self.program, self._session
        report(_MODEL)
        try:
            sample = session.sample(program.variant, sizing)
            run = partial(session.eager, program.plan, sample)
            expected, cost = session.probing.measured(program.variant, sizing, run)
        except TimeoutError:
            raise
        except Exception as error:  # models raise errors of any type
            return UnseenRun(model_error=Failure.of(error))
        is_finite = all(bool(leaf.isfinite().all()) for leaf in _inexact(expected))
        ran = UnseenRun(cost=cost, is_finite=is_finite)
        if not with_program:
            return ran
        report(_PROGRAM)
        try:
            got = session.outputs(program, sample)
        except Exception as error:  # torch and runtimes raise errors of any type
            ran.program_error = self._why_rejected(sample) or Failure.of(error)
            return ran
        ran.verdict = compared(expected, got, session.tolerances)
        if not ran.verdict.agrees:
            report(_MODEL)
            ran.doubt = doubt_of(session, program.plan, sample, expected, got)
            if ran.doubt is None and self._agrees_with_others(sizing, report):
                ran.doubt = Because(Why.COINCIDENCE)
        return ran

    def _why_rejected(self, sample: Sample) -> Failure | None:
        """Why the torch program that this one was converted from rejects a sample; None if it does
        not. A runtime without assertions may raise an error of its own there."""
        traced = self.program.traced
        if traced is None:
            return None
        try:
            traced.run(self.program.inputs(sample.cloned()))
        except Exception as error:  # torch raises errors of any type
            return replace(Failure.of(error), is_condition=True) if is_of_inputs(error) else None
        return None

    def _agrees_with_others(self, sizing: Sizing, report: Any) -> bool:
        """Whether the program agrees with the model for other values of these sizes. One difference
        may be a coincidence; two prove that the program is wrong."""
        program, session = self.program, self._session
        try:
            report(_MODEL)
            sample = session.sample(program.variant, sizing, salt="again")
            expected = session.eager(program.plan, sample)
            report(_PROGRAM)
            got = session.outputs(program, sample)
        except Exception:  # of any type: that is no agreement
            return False
        return compared(expected, got, session.tolerances).agrees
