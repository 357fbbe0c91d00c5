"""Recorded calls through programs, so that they can be judged.

A program that writes to its model's state is run in two ways. First, each call starts from the
state at the export. A call that is not reproduced may have started from the state that the previous
call left, so then all calls run in order, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol

from calltape_analyzer.arguments.samples import (
    Sample,
    has_synthetic_values,
    in_variant,
    recorded_sample,
)
from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import Run, Runner, judge
from calltape_analyzer.comparison.reports import Against, Verdict
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.sorting import CallSorter, CallSource
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.dispatch import CallOrigin, accepting_programs, serve
from calltape_analyzer.programs.notes import Unwritten
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import (
    InState,
    MaybeState,
    RandomAdvice,
    RandomDiffers,
)
from calltape_analyzer.pytree.nodes import Returned
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef

__all__ = ["ModelReference", "ProgramRun", "ProgramsRunner"]

RunContext = Callable[[], AbstractContextManager[list[Any]]]
"""Returns the context of a run, which yields the modules whose state may change."""


class ModelReference(Protocol):
    """The model that programs were exported from. It runs calls whose values are not on the
    tape."""

    @property
    def module(self) -> Any: ...
    @property
    def tolerances(self) -> Tolerances: ...
    def expected(
        self, program: Program, call: Call, sample: Sample
    ) -> tuple[dict[str, Any], Against]: ...
    def cached_verdict(self, program: Program, call: Call) -> Verdict | None: ...
    def draws(self, program: Program) -> bool: ...
    def agrees_with_model(
        self, program: Program, sample: Sample, got: Mapping[str, Any]
    ) -> bool: ...
    def judge_random(
        self, program: Program, sample: Sample, got: Mapping[str, Any], verdict: Verdict
    ) -> Verdict | None: ...


@dataclass(eq=False)
class ProgramsRunner(Runner):
    """Runs the calls of one tape through programs.

    Attributes:
        programs: by name, in the order in which they are tried.
        sorter: sorts calls as the export did.
        source: the calls.
        missing: why variants have no program, by name.
        reference: the model; None if there is none.
        tolerances: how far results may differ from the recorded ones.
        shapes_suffice: whether a call may be compared in structure, dtypes and shapes if the tape
            has no values and there is no model. Otherwise such a call is not verified.
        origin: whether the programs are known to be exported from these calls.
    """

    raises_as_recorded = False
    may_vary = False

    programs: Mapping[str, Program]
    sorter: CallSorter
    source: CallSource
    missing: Mapping[str, Fact]
    reference: ModelReference | None
    _: KW_ONLY
    tolerances: Tolerances
    shapes_suffice: bool
    origin: CallOrigin

    def __post_init__(self) -> None:
        self.has_model = self.reference is not None

    def prepared(self, call: Call) -> Run:
        return _ServedRun(self, call, self._undisturbed)

    def reconsidered(self, call: Call, run: Run, verdict: Verdict) -> Verdict:
        assert isinstance(run, ProgramRun)
        if verdict.ok or verdict.against != "tape" or run.raised is not None:
            return verdict
        # A run of the program may leave another state behind.
        keeps_state = bool(run.program.state) and run.program.model.has_state
        again = self._verdicts_in_order.get(call.ref) if keeps_state else None
        run.in_order = again is not None
        return again or verdict

    @cached_property
    def _verdicts_in_order(self) -> dict[CallRef, Verdict]:
        """The calls that are reproduced if each starts from the state that the previous one left,
        and the first of each recording from the state at the export."""
        reproduced: dict[CallRef, Verdict] = {}
        for _, calls in groupby(self.source.calls, lambda call: call.ref.tape):
            with self._undisturbed() as modules:
                for call in calls:
                    if call.under_way or has_raised(call):
                        continue
                    run = _ServedRun(self, call, lambda: nullcontext(modules), explains=False)
                    verdict = judge(call, run, self.tolerances)
                    if verdict.ok and verdict.against == "tape":
                        reproduced[call.ref] = verdict
        return reproduced

    @contextmanager
    def _undisturbed(self) -> Iterator[list[Any]]:
        """Restores the buffers that programs write to: the model's, which its programs share, or
        without a model the programs' own. Yields the modules that have them."""
        from calltape_analyzer.model.randomness import generators_kept
        from calltape_analyzer.model.state import unchanged

        modules = [
            program.model.module
            for program in self.programs.values()
            if self.reference is None and program.state and program.model.module is not None
        ]
        modules += [] if self.reference is None else [self.reference.module]
        with ExitStack() as stack:
            model = None if self.reference is None else self.reference.module
            stack.enter_context(generators_kept(model))
            for module in modules:
                stack.enter_context(unchanged(module))
            yield modules


class ProgramRun(Run):
    """A recorded call through a program.

    Args:
        reference: the model; None if there is none.
        explains: whether to explain a difference, for which the model may run.

    Attributes:
        program: that serves the call.
        sample: the values of the call in the layout of the program's variant.
    """

    program: Program
    sample: Sample

    def __init__(self, reference: ModelReference | None, *, explains: bool = True) -> None:
        self._reference, self._explains = reference, explains

    def leaves(self, result: Any) -> Returned:
        return Returned(result)

    def expected(self, call: Call) -> tuple[dict[str, Any] | None, Against]:
        if self._reference is None:
            return super().expected(call)
        return self._reference.expected(self.program, call, self.sample)

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        """The verdict with its reason, if that is the model's state or random numbers. A call that
        only draws other random numbers does not differ from the model."""
        program, reference, got = self.program, self._reference, self.returned.leaves
        if verdict.against == "tape" and verdict.agrees:
            program.note_layouts(expected, got)
        if verdict.against != "tape" or not self._explains:
            return verdict
        if reference is not None:
            if verdict.agrees and not reference.draws(program):
                return verdict
            random = reference.judge_random(program, self.sample, got, verdict)
            if random is not None:
                return random
            if verdict.agrees or not reference.agrees_with_model(program, self.sample, got):
                return verdict
            return verdict.with_error(InState(program.state))
        if verdict.error is None or verdict.agrees:
            return verdict
        if program.random_generators:
            advice = RandomAdvice.VERIFY_AT_MODEL
            return verdict.with_error(
                RandomDiffers(verdict.error, program.random_generators, advice)
            )
        if program.state:
            return verdict.with_error(MaybeState(verdict.error, program.state))
        return verdict


class _ServedRun(ProgramRun):
    """A call through the first program that accepts it."""

    def __init__(
        self, runner: ProgramsRunner, call: Call, context: RunContext, *, explains: bool = True
    ) -> None:
        super().__init__(runner.reference, explains=explains)
        self._runner, self._context = runner, context
        self._placed = runner.sorter.sorted(call.record.inputs)
        accepting, _ = accepting_programs(runner.programs, self._placed, runner.source.removed)
        self._first = accepting[0] if accepting else None
        self.variant = self._first.name if self._first else None
        self._compares_shapes = runner.shapes_suffice and runner.reference is None
        may_be_synthetic = self._compares_shapes and self._first is not None
        self.is_synthetic = may_be_synthetic and has_synthetic_values(call)
        device = self._first.device if self._first else None
        self._given = recorded_sample(call, runner.sorter, device)

    def cached_verdict(self, call: Call, tolerances: Tolerances) -> Verdict | None:
        reference, is_same_tape = self._reference, self._runner.origin == "exported"
        if reference is None or self._first is None or not is_same_tape:
            return None
        return (
            reference.cached_verdict(self._first, call)
            if tolerances == reference.tolerances
            else None
        )

    def run(self) -> dict[str, Any]:
        from calltape_analyzer.model.state import copied_from_state

        runner, placed = self._runner, self._placed
        with self._context() as modules:
            program, outputs = serve(
                runner.programs,
                placed,
                self._given,
                missing=runner.missing,
                clone=True,
                ignored=runner.source.removed,
                origin=runner.origin,
            )
            leaves = program.leaves(outputs)
            self._unmade = program.unmade(outputs)
            for module in modules:
                leaves = copied_from_state(module, leaves)
        self.program, self.variant = program, program.name
        # The same values, because reading them again takes as long as a small program.
        device = program.device
        self.sample = in_variant(program.variant, self._given, placed.key, placed.row, device)
        return leaves

    def expected(self, call: Call) -> tuple[dict[str, Any] | None, Against]:
        expected, against = super().expected(call)
        keeps_against = expected is None or self._reference is not None or self._compares_shapes
        return expected, against if keeps_against else "tape"

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        verdict = super().explained(call, verdict, expected)
        unwritten = [Unwritten(name) for name in self.program.unwritten]
        return verdict.with_uncompared((*unwritten, *self._unmade))
