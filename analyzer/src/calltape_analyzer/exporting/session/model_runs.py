"""Runs of the model and of its programs, which leave the state of the model as it is."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample, has_made_up, resized, sample_in
from calltape_analyzer.arguments.sizings import (
    Sizing,
    recorded_sizing,
    row_at,
)
from calltape_analyzer.arguments.value_rules import ValueRule, value_rules
from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    is_described,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.comparison.verdicts import Against, Verdict
from calltape_analyzer.errors import UsageError
from calltape_analyzer.exporting.session.budget import Budget
from calltape_analyzer.exporting.session.observed_calls import (
    MODES,
    Effects,
    ObservedCall,
    Questions,
    hides_questions,
)
from calltape_analyzer.exporting.session.probing import Probing
from calltape_analyzer.exporting.session.sandbox import RunEndedError, Sandbox
from calltape_analyzer.exporting.torch_fixes.patching import PATCHING
from calltape_analyzer.facts import Fact
from calltape_analyzer.model.calls import (
    as_module,
    detached,
    device_of,
    eager,
    entry_of,
    without_saved_tensors,
)
from calltape_analyzer.model.code import may_ask
from calltape_analyzer.model.randomness import Generators, generators_kept, reseed, set_python
from calltape_analyzer.model.state import apart_from, in_words, unchanged
from calltape_analyzer.observing.contexts import Context, Mode
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs import reasons
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

__all__ = ["ModelRuns"]

_MAX_ASKED = 2
"""Variants of which a call is run with and without a mode, if the model's code names the mode."""
_SEEDS = 8
"""Other states of the generators that a call is run in, if no result differs."""


class Finished(NamedTuple):
    """A run of the model that came to its end.

    Attributes:
        leaves: what it returned, by path.
        value: the same, as the model made it.
        given: the arguments, as the run left them.
        moved: the generators of random numbers that it drew from.
    """

    leaves: dict[str, Any]
    value: Any
    given: Sample
    moved: list[str]


class Drawn(NamedTuple):
    """Two results of a call that depend on random numbers.

    Attributes:
        generators: that the model draws from.
        now: the leaves that it returns from their state now.
        other: those from another state.
        seed: of that one.
    """

    generators: Sequence[str]
    now: dict[str, Any]
    other: dict[str, Any]
    seed: int


@dataclass
class ModelRuns:
    """Runs calls of a tape through the model, and through its programs.

    Attributes:
        module: the model.
        entry: what a recorded call called: the model, or a method of it.
        sorter: lays calls out.
        find: gives the call of a reference.
        classes: the classes that arguments may be made of.
        device: of the model.
        tolerances: how far results of a program may be off.
        state: the parameters, buffers and attributes of the model that calls changed, with what
            they were, in words.
        unknown: what could not be found out about the model, and why.
        unlike: in what calls with recorded results differ from what the model returns now; None
            for calls that do not.
        probing: at which other sizes the model is run, and what that may cost.
        budget: the time of the export. What is not run when it is up counts as not reproduced.
    """

    module: Any
    entry: Callable[..., Any]
    sorter: CallSorter
    find: Callable[[CallRef], Call]
    classes: ClassIndex
    device: str
    tolerances: Tolerances
    state: dict[str, str] = field(default_factory=dict)
    unknown: list[NotAsked] = field(default_factory=list)
    unlike: dict[CallRef, Fact | None] = field(default_factory=dict)
    probing: Probing = field(default_factory=Probing)
    budget: Budget = field(default_factory=Budget)
    _observed: dict[CallRef, ObservedCall] = field(default_factory=dict)
    _effects: dict[tuple[Hashable, CallRef], Effects] = field(default_factory=dict)
    _drawing: set[Hashable] = field(default_factory=set)
    _searched: set[Hashable] = field(default_factory=set)
    _rules: dict[Hashable, Mapping[int, ValueRule]] = field(default_factory=dict)

    @classmethod
    def of(cls, tape: Tape, module: Any, tolerances: Tolerances) -> Self:
        """For the calls of a tape, and the model that was recorded.

        Raises:
            UsageError: this is no module or function, or does not have the recorded method.
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
        resized to other sizes; with another ``salt`` other ones, as far as they are free."""
        if not isinstance(where, Sizing):
            call = self.find(where) if isinstance(where, CallRef) else where
            return sample_in(variant, call, self.sorter, self.device)
        sample = self.sample(variant, variant.rows.calls_of(where.row).first)
        if not where.resized:
            return sample
        rules = self._rules_of(variant)
        return resized(sample, variant, where.row, where.values, rules, salt=salt)

    def planned(self, variant: VariantFacts, where: Sizing | Call | CallRef) -> tuple[Plan, Sample]:
        """The values of :meth:`sample`, and how they become arguments of the model."""
        sample = self.sample(variant, where)
        return Plan.of(variant, sample, self.sorter.signature), sample

    def prepare(self, variant: VariantFacts) -> None:
        """Learns once what the values of tensors have to do with sizes."""
        self._rules_of(variant)

    def points_to_nothing(self, variant: VariantFacts, sizing: Sizing) -> str | None:
        """The argument whose values point into a size that would be 0; None if there is none."""
        shapes = row_at(variant, sizing).shapes
        for number, rule in self._rules_of(variant).items():
            is_zero = rule.symbol is not None and sizing.values[rule.symbol] == 0
            if rule.needs_one and is_zero and 0 not in shapes[number]:
                return str(variant.group.layout.tensors[number])
        return None

    def _rules_of(self, variant: VariantFacts) -> Mapping[int, ValueRule]:
        key = variant.group.key, tuple(tuple(symbol.columns) for symbol in variant.symbols)
        if key not in self._rules:
            self._rules[key] = value_rules(variant, self.find, self.sorter)
        return self._rules[key]

    def recorded(self, call: Call) -> dict[str, Any] | None:
        """What a call returned; None if the tape lacks a value of it, or of its arguments."""
        outputs = call.record.outputs
        if outputs is None:
            return None
        every = (*call.record.inputs.facts(), *outputs.facts())
        return recorded_leaves(call) if all(leaf.key for leaf in every) else None

    def expected(
        self, program: Program, call: Call, sample: Sample
    ) -> tuple[dict[str, Any], Against]:
        """What a call should return: what was recorded (``"tape"``), or if that is not on the tape,
        what the model returns now (``"module"``)."""
        found = self.recorded(call)
        if found is not None and is_described(found):
            return found, "tape"
        now = self.eager(program.plan, sample)
        if found is not None and not is_described(now):
            return found, "tape"  # what the model returns can be described no better
        return now, "module"

    def run(
        self,
        plan: Plan,
        sample: Sample,
        *,
        seed: int | None = None,
        python: Numbers | None = None,
        context: Context | None = None,
        changes: Mapping[int, Callable[[Any], Any]] | None = None,
        within: AbstractContextManager[Any] | None = None,
    ) -> Finished:
        """Runs the model. Its state stays as it is, and so do the generators of random numbers:
        each run begins with one state of them.

        Args:
            plan: makes its arguments,
            sample: of these values.
            seed: gives the generators another state.
            python: other numbers for the generators of Python and numpy only.
            context: that it runs in; by default that of the variant's calls.
            changes: make of the copy of a tensor, by its number, what the model gets in its place.
            within: is around the call alone.

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
            generators = Generators(self.module)
            value = eager(self.entry, plan, given, self.classes, self.device, context, within)
            moved = generators.moved()
            leaves = apart_from(self.module, detached(leaves_of(value)))
        return Finished(leaves, value, given, moved)

    def eager(self, plan: Plan, sample: Sample, **how: Any) -> dict[str, Any]:
        """The leaves of what the model returns now, as of :meth:`run`."""
        return self.run(plan, sample, **how).leaves

    def observed(self, variant: VariantFacts, ref: CallRef) -> dict[str, Any] | None:
        """Watches a run of a recorded call: what it asks, and what it costs, is learned, so that no
        other run has to tell.

        Returns:
            The leaves of what the model returned; None if it raised.
        """
        rows = variant.rows.items()
        row = next(i for i, (_, seen) in enumerate(rows) if seen.first == ref)
        run = partial(self._watch, variant, ref)
        leaves: dict[str, Any] | None
        leaves, cost = self.probing.measured(variant, recorded_sizing(variant, row), run)
        if cost is not None and leaves is not None:
            self.probing.costs.add(variant, cost, ref)
        return leaves

    def _watch(self, variant: VariantFacts, ref: CallRef) -> dict[str, Any] | None:
        call, leaves = self.find(ref), None
        found = self._observed[ref] = ObservedCall()
        if has_made_up(call):  # with other values than recorded it may end the process
            return None
        with suppress(Exception):  # the model raises, or cannot be watched: nobody knows
            plan, sample = self.planned(variant, call)
            questions = Questions(self.module)
            with PATCHING:
                leaves, effects = self._with_effects(plan, sample, questions)
            found.asked = None if hides_questions(self.module) else questions.asked
            found.makes_generators = questions.makes_generators
            found.effects = self._effects[variant.group.key, ref] = effects
        return leaves

    def _with_effects(
        self, plan: Plan, sample: Sample, within: AbstractContextManager[Any] | None = None
    ) -> tuple[dict[str, Any], Effects]:
        """The leaves of what the model returns now, and what else the run does."""
        ran = self.run(plan, sample, within=within)
        return ran.leaves, Effects.of(ran.moved, ran.value, sample, ran.given)

    def asks(self, variant: VariantFacts, names: Collection[str]) -> bool:
        """Whether the model may ask for any of these in calls of a variant: it did in one that was
        watched, or none was.

        Args:
            variant: of the calls.
            names: as of :class:`~calltape_analyzer.exporting.session.observed_calls.ObservedCall`.
        """
        known = [one.asked for one in self._watched(variant)]
        return not known or any(asked is None or not asked.isdisjoint(names) for asked in known)

    def makes_generators(self, variant: VariantFacts) -> bool:
        """Whether the model makes the generators that it draws from anew in each call, in calls of
        a variant that were watched."""
        own = self._watched(variant)
        return bool(own) and all(one.makes_generators for one in own)

    def _watched(self, variant: VariantFacts) -> list[ObservedCall]:
        refs = {seen.first for _, seen in variant.rows.items()}
        return [one for ref, one in self._observed.items() if ref in refs]

    def differ(self, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether two results differ. What cannot be compared is no evidence."""
        found = compared(one, other, self.tolerances)
        return not found.agrees and (found.compared > 0 or one.keys() != other.keys())

    def was_watched(self, ref: CallRef) -> ObservedCall | None:
        """What came of a call that was watched, without what it returned."""
        return self._observed.get(ref)

    def asked_modes(self, variants: Sequence[VariantFacts]) -> frozenset[Mode]:
        """The modes that the model asks for, and that change what it returns. If its code names
        one, the first calls of a few variants are run with and without it."""
        found: set[Mode] = set()
        for variant in variants[:_MAX_ASKED]:
            for mode in may_ask(self.module) - found if self.asks(variant, MODES) else ():
                with suppress(Exception):  # errors of any type are no evidence
                    if self._minds(variant, mode):
                        found.add(mode)
        return frozenset(found)

    def _minds(self, variant: VariantFacts, mode: Mode) -> bool:
        plan, sample = self.planned(variant, variant.rows.first)
        plain = replace(plan.context, grad=False, inference=False, modes=frozenset({mode}))
        with_mode = replace(plain, grad=mode == "grad", inference=mode == "inference")
        with without_saved_tensors():
            on, off = (self.eager(plan, sample, context=one) for one in (with_mode, plain))
        return not compared(on, off, self.tolerances).agrees

    def outputs(
        self, program: Program, sample: Sample, *, seed: int | None = None
    ) -> dict[str, Any]:
        """The leaves of what a program returns. The state of the model stays as it is, and the
        generators begin as for :meth:`eager`.

        Raises:
            Exception: what the runtime raises.
        """
        return self.served(program, sample, seed=seed)[0]

    def served(
        self, program: Program, sample: Sample, *, seed: int | None = None
    ) -> tuple[dict[str, Any], list[Fact]]:
        """As :meth:`outputs`, with the objects in what the program returns that cannot be made."""
        with self.undisturbed() as changed:
            if seed is not None:
                reseed(self.module, seed)
            outputs = program.outputs(sample.cloned())
            leaves = apart_from(self.module, program.leaves(outputs))
        program.changed_state |= changed.keys()
        return leaves, program.unmade(outputs)

    @contextmanager
    def undisturbed(self) -> Iterator[dict[str, Any]]:
        """Undoes what a call changes in the model, and adds to ``state`` what that was. Random
        numbers that are drawn do not move the generators."""
        with generators_kept(self.module), unchanged(self.module) as changed:
            yield changed
        self.add_state({name: in_words(value) for name, value in changed.items()})

    def add_state(self, changed: Mapping[str, str]) -> None:
        """Adds what a call changed in the model, with what it was, in words."""
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

        with Sandbox(answer, self.device) as runs:
            found, state = runs.ask(None, seconds)
        self.add_state(state)
        return found

    def asked(
        self,
        question: Callable[[], Any],
        seconds: float,
        unknown: tuple[str, Question] | None = None,
    ) -> Any:
        """The answer of the model to a question that its runs have an answer to, as :meth:`apart`;
        None if a run ends the process, or does not come to its end.

        Args:
            question: returns plain data.
            seconds: how long it may take.
            unknown: the variant, and what is not known of it then: it is noted with the reason.
        """
        try:
            return self.in_sandbox(question, seconds)
        except RunEndedError as error:
            self.unknown += [NotAsked(*unknown, error.ended)] if unknown else []
            return None

    def does_as_model(self, program: Program, sample: Sample, got: Mapping[str, Any]) -> bool:
        """Whether a program of a model with state does what the model does from its state now. The
        recorded call may have begun with another state."""
        program.note_state(self.state)
        if not program.state:
            return False
        try:
            now = self.eager(program.plan, sample)
        except Exception:  # the model raises: that is no evidence
            return False
        return compared(now, got, self.tolerances).agrees

    def why_unlike(
        self,
        program: Program,
        call: Call,
        sample: Sample,
        expected: Mapping[str, Any],
        got: Mapping[str, Any],
    ) -> Fact | None:
        """In what the model differs from the tape, if a program does what the model does now: the
        call was recorded with other weights, or another state that nobody sees. None if it does
        not, the program is wrong, or the model returns something else each time. A call is asked
        for again only as long as no program does what the model does now.

        Args:
            program: that was run.
            call: the call.
            sample: its values.
            expected: what was recorded.
            got: what the program returned.
        """
        if call.ref in self.unlike:
            return self.unlike[call.ref]
        try:
            now, again = (self.eager(program.plan, sample) for _ in range(2))
        except Exception:  # the model raises: that is no evidence
            return None
        difference = compared(expected, now, self.tolerances)
        if difference.agrees:
            self.unlike[call.ref] = None
        elif all(compared(now, one, self.tolerances).agrees for one in (got, again)):
            self.unlike[call.ref] = difference.error
        return self.unlike.get(call.ref)

    def if_random(
        self, program: Program, sample: Sample, got: Mapping[str, Any], found: Verdict
    ) -> Verdict | None:
        """In what a program differs from the model, if what a call returns depends on random
        numbers, so that no tape has it. Both run from one state of the generators. None for other
        calls.

        Args:
            program: that was run.
            sample: the values of the call.
            got: what the program returned.
            found: in what that differs from what was recorded.
        """
        try:
            drawn = self.drawn(program.plan, sample, 1 if found.agrees else _SEEDS)
        except Exception:  # the model raises: that is no evidence
            return None
        if drawn is None:
            return None
        program.note_draws(drawn.generators)
        difference = compared(drawn.now, got, self.tolerances, against="module")
        advice = reasons.RandomAdvice.OTHERS_DRAWN
        if difference.agrees:
            # From one state, a number that was drawn while the model was traced looks right.
            other = self.outputs(program, sample, seed=drawn.seed)
            again = compared(drawn.other, other, self.tolerances, against="module")
            if again.agrees:
                return difference
            difference = again
            advice = reasons.RandomAdvice.CONSTANT
        assert difference.error is not None
        random = reasons.RandomDiffers(difference.error, tuple(drawn.generators), advice)
        return difference.but(random)

    def drawn(self, plan: Plan, sample: Sample, seeds: int = _SEEDS) -> Drawn | None:
        """What the model returns from two states of the generators, if it draws random numbers in a
        call and that differs; None if not.

        Args:
            plan: of the call.
            sample: the values of the call.
            seeds: how many other states are tried. One proves little: a coin shows heads twice.

        Raises:
            Exception: whatever the model raises.
        """
        now, effects = self._with_effects(plan, sample)
        for seed in range(seeds if effects.moved else 0):
            other = self.eager(plan, sample, seed=seed)
            if not compared(now, other, self.tolerances).agrees:
                return Drawn(effects.moved, now, other, seed)
        return None

    def draws(self, program: Program) -> bool:
        """Whether calls of a program's variant are known to draw random numbers."""
        return bool(program.draws) or program.variant.group.key in self._drawing

    def find_state(self, program: Program) -> None:
        """Finds out once for each kind of call what the model changes, by a run that was made
        before, or one now. A run of the program does not show all of it: no program changes Python
        attributes, and an ONNX model writes to no input."""
        variant = program.variant
        key, ref = variant.group.key, variant.rows.first
        writes = program.model.has_state
        if key in self._searched and writes:
            return
        self._searched.add(key)
        with suppress(Exception):  # the model raises: that is no evidence
            sample = self.sample(variant, ref)
            if (key, ref) not in self._effects:
                _, self._effects[key, ref] = self._with_effects(program.plan, sample)
            effects = self._effects[key, ref]
            if "torch" in effects.moved:
                self._drawing.add(key)
            # A program that cannot write to its inputs may return what the model writes there.
            returned, places = set(program.returned.values()), variant.group.layout.tensors
            for number, is_returned in ({} if writes else effects.written).items():
                if places[number].argument not in returned:
                    program.note_unwritten(str(places[number]), is_returned=is_returned)
