"""One export of one model: runs of the model and of its programs, and what is known from them.

A run leaves the state of the model and the random number generators unchanged. Takes calls of a
tape; returns what the model, or a program, returns for them now.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from calltape_analyzer.arguments.plan import ArgumentPlan
from calltape_analyzer.arguments.samples import Sample, has_synthetic_values, resized, sample_in
from calltape_analyzer.arguments.sizings import (
    Sizing,
    recorded_sizing,
)
from calltape_analyzer.arguments.value_rules import ValueRule, value_rules
from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    is_described,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.comparison.reports import Against, Verdict
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session.budget import Probing, TimeBudget
from calltape_analyzer.exporting.session.observed_calls import (
    Effects,
    ObservedCall,
    QueryWatcher,
    hides_queries,
)
from calltape_analyzer.exporting.session.sandbox import RunEndedError, Sandbox
from calltape_analyzer.exporting.torch_fixes.patching import PATCHING
from calltape_analyzer.facts import Fact
from calltape_analyzer.model.calls import (
    as_module,
    called,
    detached,
    device_of,
    entry_of,
)
from calltape_analyzer.model.randomness import Generators, generators_kept, reseed, set_python
from calltape_analyzer.model.state import copied_from_state, number_text, unchanged
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.caller_objects import (
    changed_arguments,
    contents_of,
    returned_arguments,
)
from calltape_analyzer.programs.notes import NotAsked, Question
from calltape_analyzer.programs.program import Program
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

if TYPE_CHECKING:
    from typing_extensions import Self

    from calltape_analyzer.model.randomness import Numbers
    from calltape_analyzer.tape import Tape

__all__ = ["Session"]

_SEEDS = 8
"""How many other generator states a call is run from, as long as no result differs."""


class ModelRun(NamedTuple):
    """A run of the model that returned.

    Attributes:
        leaves: what it returned, by path.
        value: the same, as the model returned it.
        given: the tensors among the arguments as the run left them.
        generators: the random number generators that it drew from.
        changed: as :attr:`Effects.changed`, if it was asked for.
    """

    leaves: dict[str, Any]
    value: Any
    given: Sample
    generators: list[str]
    changed: list[str]


class RandomResults(NamedTuple):
    """Two results of a call that depends on random numbers.

    Attributes:
        generators: that the model draws from.
        now: the leaves that it returns from their current state.
        other: those from another state.
        seed: of the other state.
    """

    generators: Sequence[str]
    now: dict[str, Any]
    other: dict[str, Any]
    seed: int


class _CachedVerdict(NamedTuple):
    """The verdict on a call that a program reproduced, and the weights at that time."""

    program: Program
    verdict: Verdict
    weights: tuple[tuple[int, int], ...]


@dataclass
class Session:
    """One export of one model: runs calls of a tape through the model and through its programs.

    Attributes:
        module: the model.
        entry: what a recorded call called: the model, or one of its methods.
        sorter: sorts calls into groups.
        find: returns the call of a reference.
        classes: the classes that arguments may be made of.
        device: of the model.
        tolerances: how far the results of a program may be off.
        state: the parameters, buffers and attributes of the model that calls changed, with their
            values before, in words.
        unanswered: what could not be found out about the model, and why.
        differences: by recorded call, how the model's result now differs from the recorded one;
            None if it does not.
        probing: at which unrecorded sizes the model is run, and what that may cost.
        budget: the time of the export. What is not run when it is spent counts as not reproduced.
    """

    module: Any
    entry: Callable[..., Any]
    sorter: CallSorter
    find: Callable[[CallRef], Call]
    classes: ClassIndex
    device: str
    tolerances: Tolerances
    state: dict[str, str] = field(default_factory=dict)
    unanswered: list[NotAsked] = field(default_factory=list)
    differences: dict[CallRef, Fact | None] = field(default_factory=dict)
    probing: Probing = field(default_factory=Probing)
    budget: TimeBudget = field(default_factory=TimeBudget)
    _observed: dict[CallRef, ObservedCall] = field(default_factory=dict)
    _effects: dict[tuple[Hashable, CallRef], Effects] = field(default_factory=dict)
    _drawing: set[Hashable] = field(default_factory=set)
    _searched: set[Hashable] = field(default_factory=set)
    _rules: dict[Hashable, Mapping[int, ValueRule]] = field(default_factory=dict)
    _verdicts: dict[tuple[int, CallRef], _CachedVerdict] = field(default_factory=dict)

    @classmethod
    def of(cls, tape: Tape, module: Any, tolerances: Tolerances) -> Self:
        """For the calls of a tape and the recorded model.

        Raises:
            UsageError: ``module`` is neither a module nor a function, or lacks the recorded method.
        """
        is_function = not hasattr(module, "named_parameters")
        if is_function:
            if not callable(module) or isinstance(module, type):
                raise UsageError(
                    f"{type(module).__name__} is neither a torch.nn.Module nor a function",
                    advice="pass the module or function whose calls are on the tape",
                )
            module = as_module(module)
        classes = tape.class_index.with_model(module)
        sorter = CallSorter.of(tape, classes.renamed).with_model(module)
        entry = module if is_function else entry_of(module, tape.target)
        device = str(device_of(module))
        return cls(module, entry, sorter, tape.calls.at, classes, device, tolerances)

    def sample(
        self, variant: VariantFacts, where: Sizing | Call | CallRef, *, salt: str = ""
    ) -> Sample:
        """The values of a recorded call in the layout of a variant, or those of a recorded row
        resized to other sizes. Another ``salt`` gives other values where they are free."""
        if not isinstance(where, Sizing):
            call = self.find(where) if isinstance(where, CallRef) else where
            return sample_in(variant, call, self.sorter, self.device)
        sample = self.sample(variant, variant.rows.calls_of(where.row).first)
        if not where.resized:
            return sample
        rules = self.rules_of(variant)
        return resized(sample, variant, where.row, where.values, rules, salt=salt)

    def planned(
        self, variant: VariantFacts, where: Sizing | Call | CallRef
    ) -> tuple[ArgumentPlan, Sample]:
        """The values of :meth:`sample`, and the plan that makes arguments of them."""
        sample = self.sample(variant, where)
        return ArgumentPlan.of(variant, sample, self.sorter.signature), sample

    def rules_of(self, variant: VariantFacts) -> Mapping[int, ValueRule]:
        """How the values of integer tensors depend on sizes, by the number of the tensor."""
        key = variant.group.key, tuple(tuple(symbol.columns) for symbol in variant.symbols)
        if key not in self._rules:
            self._rules[key] = value_rules(variant, self.find, self.sorter)
        return self._rules[key]

    def recorded(self, call: Call) -> dict[str, Any] | None:
        """What a call returned; None if the tape lacks some value of its arguments or outputs."""
        outputs = call.record.outputs
        if outputs is None:
            return None
        leaves = (*call.record.inputs.facts(), *outputs.facts())
        return recorded_leaves(call) if all(leaf.key for leaf in leaves) else None

    def expected(
        self, program: Program, call: Call, sample: Sample
    ) -> tuple[dict[str, Any], Against]:
        """What a call should return: the recorded result (``"tape"``), or what the model returns
        now (``"module"``) if the tape lacks it."""
        recorded = self.recorded(call)
        if recorded is not None and is_described(recorded):
            return recorded, "tape"
        now = self.eager(program.plan, sample)
        if recorded is not None and not is_described(now):
            return recorded, "tape"  # a new run describes the result no better
        return now, "module"

    def run(
        self,
        plan: ArgumentPlan,
        sample: Sample,
        *,
        seed: int | None = None,
        python: Numbers | None = None,
        context: Context | None = None,
        changes: Mapping[int, Callable[[Any], Any]] | None = None,
        within: AbstractContextManager[Any] | None = None,
        compares: bool = False,
    ) -> ModelRun:
        """Runs the model. Its state and the random number generators stay as they are, so every run
        starts from the same state.

        Args:
            plan: makes the arguments.
            sample: their values.
            seed: puts the generators into another state.
            python: replaces the numbers of Python's and numpy's generators.
            context: to run in; by default the context of the variant's calls.
            changes: by the number of a tensor, a function that makes of its copy what the model
                gets instead.
            within: entered around the call alone.
            compares: whether to find the arguments that the run changes, which describes all of
                them twice.

        Raises:
            Exception: whatever the model raises.
        """
        with self.undisturbed():
            if seed is not None:
                reseed(self.module, seed)
            if python is not None:
                set_python(self.module, python)
            given = sample.cloned()
            for number, change in (changes or {}).items():
                given.tensors[number] = change(given.tensors[number])
            arguments = plan.build(given, self.classes, self.device)
            before = contents_of(arguments) if compares else None
            generators = Generators(self.module)
            value = called(self.entry, plan, arguments, self.device, context, within)
            drawn_from = generators.drawn_from()
            leaves = copied_from_state(self.module, detached(leaves_of(value)))
            changed: list[str] = []
            if before is not None:
                returned = returned_arguments(value, arguments)
                changed = changed_arguments(before, arguments, returned)
        return ModelRun(leaves, value, given, drawn_from, changed)

    def eager(self, plan: ArgumentPlan, sample: Sample, **how: Any) -> dict[str, Any]:
        """The leaves of what the model returns now; the arguments are those of :meth:`run`."""
        return self.run(plan, sample, **how).leaves

    def observe(self, variant: VariantFacts, ref: CallRef) -> dict[str, Any] | None:
        """Runs a recorded call, and remembers what the model queried and what the run cost, so that
        no other run has to find out.

        Returns:
            The leaves of what the model returned; None if it raised.
        """
        rows = variant.rows.items()
        row = next(i for i, (_, seen) in enumerate(rows) if seen.first == ref)
        run = partial(self._observe, variant, ref)
        leaves: dict[str, Any] | None
        leaves, cost = self.probing.measured(variant, recorded_sizing(variant, row), run)
        if cost is not None and leaves is not None:
            self.probing.costs.add(variant, cost, ref)
        return leaves

    def _observe(self, variant: VariantFacts, ref: CallRef) -> dict[str, Any] | None:
        call, leaves = self.find(ref), None
        observation = self._observed[ref] = ObservedCall()
        if has_synthetic_values(call):  # synthetic values may end the process
            return None
        with suppress(Exception):  # the model raises, or cannot be watched: nothing is known
            plan, sample = self.planned(variant, call)
            watcher = QueryWatcher(self.module)
            with PATCHING:
                leaves, effects = self.run_with_effects(plan, sample, watcher)
            observation.queries = None if hides_queries(self.module) else watcher.queries
            observation.makes_generators = watcher.makes_generators
            observation.generators = effects.generators
            self.keep_effects(variant, ref, effects)
        return leaves

    def run_with_effects(
        self, plan: ArgumentPlan, sample: Sample, within: AbstractContextManager[Any] | None = None
    ) -> tuple[dict[str, Any], Effects]:
        """The leaves of what the model returns now, and the other effects of the run."""
        ran = self.run(plan, sample, within=within, compares=True)
        return ran.leaves, Effects.of(ran.generators, ran.value, sample, ran.given, ran.changed)

    def may_query(self, variant: VariantFacts, names: Collection[str]) -> bool:
        """Whether the model may query any of these in calls of a variant: it did in an observed
        call, or no call was observed.

        Args:
            variant: of the calls.
            names: as in :attr:`ObservedCall.queries`.
        """
        known = [one.queries for one in self._observations(variant)]
        return not known or any(one is None or not one.isdisjoint(names) for one in known)

    def makes_generators(self, variant: VariantFacts) -> bool:
        """Whether in every observed call of a variant the model created the generators that it drew
        from."""
        observations = self._observations(variant)
        return bool(observations) and all(one.makes_generators for one in observations)

    def _observations(self, variant: VariantFacts) -> list[ObservedCall]:
        refs = {seen.first for _, seen in variant.rows.items()}
        return [one for ref, one in self._observed.items() if ref in refs]

    def observation(self, ref: CallRef) -> ObservedCall | None:
        """The observation of a call; None if it was not observed."""
        return self._observed.get(ref)

    def differ(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether two results differ. Results that cannot be compared do not count as different."""
        verdict = compared(one, other, self.tolerances)
        return not verdict.agrees and (verdict.compared > 0 or one.keys() != other.keys())

    def outputs(
        self, program: Program, sample: Sample, *, seed: int | None = None
    ) -> dict[str, Any]:
        """The leaves of what a program returns, as of :meth:`run_program`."""
        return self.run_program(program, sample, seed=seed)[0]

    def run_program(
        self, program: Program, sample: Sample, *, seed: int | None = None
    ) -> tuple[dict[str, Any], list[Fact]]:
        """Runs a program. The state of the model stays as it is, and the generators start as in
        :meth:`run`.

        Returns:
            The leaves of what it returns, and which objects in that cannot be made.

        Raises:
            Exception: whatever the runtime raises.
        """
        with self.undisturbed() as changed:
            if seed is not None:
                reseed(self.module, seed)
            outputs = program.outputs(sample.cloned())
            leaves = copied_from_state(self.module, program.leaves(outputs))
        program.changed_state |= changed.keys()
        return leaves, program.unmade(outputs)

    @contextmanager
    def undisturbed(self) -> Iterator[dict[str, Any]]:
        """Restores the model and the generators after the block, and adds to ``state`` what the
        block changed in the model. Yields these changes, which are complete after the block."""
        with generators_kept(self.module), unchanged(self.module) as changed:
            yield changed
        self.add_state({name: number_text(value) for name, value in changed.items()})

    def add_state(self, changed: Mapping[str, str]) -> None:
        """Adds what a call changed in the model, with the values before, in words."""
        for name, value in changed.items():
            self.state.setdefault(name, value)

    def in_sandbox(self, function: Callable[[], Any], seconds: float) -> Any:
        """What a function returns that runs the model with arguments that nobody recorded.

        Args:
            function: returns plain data.
            seconds: how long it may take.

        Raises:
            RunEndedError: as ``Sandbox.ask``.
        """

        def answer(_: Any, __: Any) -> Any:
            return function(), self.state

        with Sandbox(answer, self.device) as sandbox:
            value, state = sandbox.ask(None, seconds)
        self.add_state(state)
        return value

    def answer(
        self,
        question: Callable[[], Any],
        seconds: float,
        unknown: tuple[str, Question] | None = None,
    ) -> Any:
        """As :meth:`in_sandbox`, but None if the run ends the process or does not finish.

        Args:
            question: returns plain data.
            seconds: how long it may take.
            unknown: the variant and the question to add to ``unanswered`` then; None for neither.
        """
        try:
            return self.in_sandbox(question, seconds)
        except RunEndedError as error:
            self.unanswered += [NotAsked(*unknown, error.ended)] if unknown else []
            return None

    def agrees_with_model(self, program: Program, sample: Sample, got: Mapping[str, Any]) -> bool:
        """Whether a program of a model with state returned what the model returns from its current
        state. The recorded call may have started from another state."""
        program.note_state(self.state)
        if not program.state:
            return False
        try:
            now = self.eager(program.plan, sample)
        except Exception:  # the model raises: that is no evidence
            return False
        return compared(now, got, self.tolerances).agrees

    def difference_from_tape(
        self,
        program: Program,
        call: Call,
        sample: Sample,
        expected: Mapping[str, Any],
        got: Mapping[str, Any],
    ) -> Fact | None:
        """How the model's result differs from the recorded one, if the program returned what the
        model returns now: the call was recorded with other weights, or with state that calltape
        cannot see. None if the model reproduces the call, the program is wrong, or the model
        returns something else each time.

        Args:
            program: that was run.
            call: the call.
            sample: its values.
            expected: what was recorded.
            got: what the program returned.
        """
        if call.ref in self.differences:
            return self.differences[call.ref]
        try:
            now, again = (self.eager(program.plan, sample) for _ in range(2))
        except Exception:  # the model raises: that is no evidence
            return None
        difference = compared(expected, now, self.tolerances)
        if difference.agrees:
            self.differences[call.ref] = None
        elif all(compared(now, one, self.tolerances).agrees for one in (got, again)):
            self.differences[call.ref] = difference.error
        return self.differences.get(call.ref)

    def judge_random(
        self, program: Program, sample: Sample, got: Mapping[str, Any], verdict: Verdict
    ) -> Verdict | None:
        """The verdict against the model instead of the tape, if the call depends on random numbers.
        Model and program start from the same generator state. None for any other call.

        Args:
            program: that was run.
            sample: the values of the call.
            got: what the program returned.
            verdict: on that, against the tape.
        """
        try:
            random = self.random_results(program.plan, sample, 1 if verdict.agrees else _SEEDS)
        except Exception:  # the model raises: that is no evidence
            return None
        if random is None:
            return None
        program.note_draws(random.generators)
        difference = compared(random.now, got, self.tolerances, against="module")
        advice = reasons.RandomAdvice.OTHERS_DRAWN
        if difference.agrees:
            # A number that was drawn during the trace looks right from one state only.
            other = self.outputs(program, sample, seed=random.seed)
            again = compared(random.other, other, self.tolerances, against="module")
            if again.agrees:
                return difference
            difference = again
            advice = reasons.RandomAdvice.CONSTANT
        assert difference.error is not None
        generators = tuple(random.generators)
        return difference.with_error(reasons.RandomDiffers(difference.error, generators, advice))

    def random_results(
        self, plan: ArgumentPlan, sample: Sample, seeds: int = _SEEDS
    ) -> RandomResults | None:
        """What the model returns from two generator states, if it draws random numbers in a call
        and the results differ; None otherwise.

        Args:
            plan: of the call.
            sample: the values of the call.
            seeds: how many other states to try. One proves little: a coin may show heads twice.

        Raises:
            Exception: whatever the model raises.
        """
        now, effects = self.run_with_effects(plan, sample)
        for seed in range(seeds if effects.generators else 0):
            other = self.eager(plan, sample, seed=seed)
            if not compared(now, other, self.tolerances).agrees:
                return RandomResults(effects.generators, now, other, seed)
        return None

    def draws(self, program: Program) -> bool:
        """Whether calls of a program's variant are known to draw random numbers."""
        return bool(program.random_generators) or program.variant.group.key in self._drawing

    def note_effects(self, program: Program) -> None:
        """Finds out once per group what calls change and draw, from an earlier run or a new one,
        and notes on a program what it does not do. A run of the program does not show all of it: no
        program changes Python attributes, and an ONNX model writes to no input."""
        variant = program.variant
        key, ref = variant.group.key, variant.rows.first
        if key not in self._searched or not program.model.has_state:
            self._searched.add(key)
            with suppress(Exception):  # the model raises: that is no evidence
                if (key, ref) not in self._effects:
                    sample = self.sample(variant, ref)
                    _, self._effects[key, ref] = self.run_with_effects(program.plan, sample)
        for effects in [own for (known, _), own in self._effects.items() if known == key]:
            if "torch" in effects.generators:
                self._drawing.add(key)
            program.note_written(effects.written, effects.changed)

    def keep_effects(self, variant: VariantFacts, ref: CallRef, effects: Effects) -> None:
        """Remembers the effects of a call, so that no other run has to show them."""
        self._effects[variant.group.key, ref] = effects

    def effects_of(self, variant: VariantFacts) -> Effects | None:
        """The effects of the first call of a variant, if a run has shown them."""
        return self._effects.get((variant.group.key, variant.rows.first))

    def cache_verdict(self, program: Program, call: Call, verdict: Verdict) -> None:
        """Remembers the verdict on a recorded call that a program reproduced."""
        if (weights := self._weights()) is not None:
            self._verdicts[id(program), call.ref] = _CachedVerdict(program, verdict, weights)

    def cached_verdict(self, program: Program, call: Call) -> Verdict | None:
        """The remembered verdict, if it still holds: nothing but the weights decides about the
        call, and they are unchanged as far as torch counts writes to them."""
        cached = self._verdicts.get((id(program), call.ref))
        depends = program.state or program.random_generators or program.unwritten
        if cached is None or depends or cached.weights != self._weights():
            return None
        return cached.verdict

    def _weights(self) -> tuple[tuple[int, int], ...] | None:
        """The addresses of parameters and buffers, and how often they were written to; None if
        torch does not count, as in inference mode."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        try:
            return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        except RuntimeError:
            return None
