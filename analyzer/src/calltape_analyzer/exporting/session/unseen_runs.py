"""Runs of the model, and of a program, at sizes that no call had.

The arguments are made up, so that a run may end its process: it is made apart (``sandbox``).
Results are compared there, and only plain data comes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.sizings import Sizing, recorded_sizing
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.comparison.verdicts import Verdict
from calltape_analyzer.exporting.session.model_differences import doubt_of
from calltape_analyzer.exporting.session.model_runs import ModelRuns
from calltape_analyzer.exporting.session.probing import Cost
from calltape_analyzer.exporting.session.sandbox import RunEndedError, Sandbox
from calltape_analyzer.facts import Fact
from calltape_analyzer.foreign_errors import failure_of, is_of_inputs
from calltape_analyzer.programs.exported_model import ConditionError
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import Because, End, Ended, Why

__all__ = ["Failure", "Ran", "UnseenRuns", "unseen_runs"]

_MODEL, _PROGRAM = "model", "program"
"""What a run says that it does."""


@dataclass(frozen=True)
class Failure:
    """An error that the model or a program raised: its type, what it is, and whether it is a
    condition of the program that the sizes do not meet."""

    kind: str
    why: Fact
    is_condition: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What is kept of an error."""
        is_condition = isinstance(error, ConditionError)
        return cls(type(error).__name__, failure_of(error), is_condition)


@dataclass
class Ran:
    """What came of a run.

    Attributes:
        unrun: why the model did not come to its end, other than by an error of its own.
        raised: the error of the model.
        is_finite: whether the model returned neither NaN nor infinity.
        failed: the error of the program.
        died: how the program ended its process.
        found: how what the program returned differs from what the model returned; None if it was
            not run, or did not come to its end.
        doubt: why a difference proves nothing.
        cost: of the model, if it was measured.
        state, changed: what the model, and the program, changed in the model.
    """

    unrun: Fact | None = None
    raised: Failure | None = None
    is_finite: bool = True
    failed: Failure | None = None
    died: Fact | None = None
    found: Verdict | None = None
    doubt: Fact | None = None
    cost: Cost | None = None
    state: Mapping[str, str] = field(default_factory=dict)
    changed: frozenset[str] = frozenset()

    @property
    def is_late(self) -> bool:
        """Whether the model took too long."""
        return isinstance(self.unrun, Ended) and self.unrun.end is End.LATE


@contextlib.contextmanager
def unseen_runs(runner: ModelRuns, program: Program) -> Iterator[UnseenRuns]:
    """Lets a program and the model run at sizes that no call had, within the block.

    Args:
        runner: has the model.
        program: is compared with the model.
    """
    with contextlib.suppress(Exception):  # of the runtime; the run tells it
        program.model.open()  # what it writes is not written again in each fork
    runner.prepare(program.variant)
    runs = UnseenRuns(runner, program)
    first = recorded_sizing(program.variant), False
    with Sandbox(
        runs.answer, runner.device, first=first, begin=program.model.renew
    ) as runs.sandbox:
        yield runs


class UnseenRuns:
    """Runs of one program and the model.

    Args:
        runner, program: as above.

    Attributes:
        sandbox: where they run.
    """

    sandbox: Sandbox

    def __init__(self, runner: ModelRuns, program: Program) -> None:
        self._runner, self._program = runner, program

    def at(self, sizing: Sizing, seconds: float, *, with_program: bool = True) -> Ran:
        """What came of a run.

        Args:
            sizing: the sizes.
            seconds: how long the model may take.
            with_program: whether the program is run as well, and compared.
        """
        variant, runtime = self._program.variant, self._program.model.runtime
        try:
            if with_program and self.sandbox.is_here:
                ran: Ran = self._here(sizing, seconds)
            else:
                ran = self.sandbox.ask((sizing, with_program), seconds)
        except RunEndedError as error:
            ran = Ran(unrun=error.ended)
            if error.doing == _PROGRAM and not ran.is_late:
                ran = Ran(died=replace(error.ended, what=runtime))
        if ran.cost is not None:
            self._runner.probing.costs.add(variant, ran.cost)
        self._runner.add_state(ran.state)
        self._program.changed_state |= ran.changed
        return ran

    def _here(self, sizing: Sizing, seconds: float) -> Ran:
        """A run in this process, which the program must not end."""
        sample = self._runner.sample(self._program.variant, sizing)
        death = self._program.model.death(self._program.inputs(sample), seconds)
        ran: Ran = self.sandbox.ask((sizing, death is None), seconds)
        if death is not None and not ran.raised:
            runtime = self._program.model.runtime
            return replace(ran, died=Ended(death, runtime, seconds=seconds))
        return ran

    def answer(self, question: tuple[Sizing, bool], say: Any) -> Ran:
        """Answers within the sandbox."""
        ran = self._answered(*question, say)
        ran.state, ran.changed = self._runner.state, frozenset(self._program.changed_state)
        return ran

    def _answered(self, sizing: Sizing, with_program: bool, say: Any) -> Ran:
        program, runner = self._program, self._runner
        say(_MODEL)
        try:
            sample = runner.sample(program.variant, sizing)
            run = partial(runner.eager, program.plan, sample)
            expected, cost = runner.probing.measured(program.variant, sizing, run)
        except TimeoutError:
            raise
        except Exception as error:  # models raise errors of any type
            return Ran(raised=Failure.of(error))
        ran = Ran(cost=cost, is_finite=_is_finite(expected))
        if not with_program:
            return ran
        say(_PROGRAM)
        try:
            got = runner.outputs(program, sample)
        except Exception as error:  # torch and runtimes raise errors of any type
            ran.failed = self._why_rejected(sample) or Failure.of(error)
            return ran
        ran.found = compared(expected, got, runner.tolerances)
        if not ran.found.agrees:
            say(_MODEL)
            ran.doubt = doubt_of(runner, program.plan, sample, expected, got)
            if ran.doubt is None and self._agrees_with_others(sizing, say):
                ran.doubt = Because(Why.COINCIDENCE)
        return ran

    def _why_rejected(self, sample: Sample) -> Failure | None:
        """Why the program of torch, which this one was converted from, rejects a sample; None if it
        does not. A runtime that has no assertions may raise an error of its own there."""
        traced = self._program.traced
        if traced is None:
            return None
        try:
            traced.run(self._program.inputs(sample.cloned()))
        except Exception as error:  # torch raises errors of any type
            return replace(Failure.of(error), is_condition=True) if is_of_inputs(error) else None
        return None

    def _agrees_with_others(self, sizing: Sizing, say: Any) -> bool:
        """Whether the program agrees with the model if it is given other values of these sizes: two
        runs prove that it is wrong, and one may be a coincidence."""
        program, runner = self._program, self._runner
        try:
            say(_MODEL)
            sample = runner.sample(program.variant, sizing, salt="again")
            expected = runner.eager(program.plan, sample)
            say(_PROGRAM)
            got = runner.outputs(program, sample)
        except Exception:  # of any type: that is no agreement
            return False
        return compared(expected, got, runner.tolerances).agrees


def _is_finite(leaves: Mapping[str, Any]) -> bool:
    inexact = (
        leaf
        for leaf in leaves.values()
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    )
    return all(bool(leaf.isfinite().all()) for leaf in inexact)
