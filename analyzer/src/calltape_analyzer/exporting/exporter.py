"""The ways to make a program for a variant, tried one after another until one is good.

Takes a variant; returns the best program and the attempt that made it; all attempts are kept. A
prefill and its decode steps are tried as one variant first, and what trying that in vain cost is
said.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from calltape_analyzer.arguments.plan import Plan
from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.sizings import (
    Sizing,
    sizes_in_words,
    sizing_of_batch,
    sizings_for_tracing,
    sizings_of_batch,
    sizings_unseen,
)
from calltape_analyzer.comparison.comparing import compared
from calltape_analyzer.exporting.causes import cause_of
from calltape_analyzer.exporting.inspection.untraceable import unread_inputs
from calltape_analyzer.exporting.onnx.untranslated import UntranslatedError
from calltape_analyzer.exporting.session.budget import default_seconds, time_limit
from calltape_analyzer.exporting.session.call_sequences import why_lost
from calltape_analyzer.exporting.session.restrictions import restrict, try_zeros
from calltape_analyzer.exporting.session.sandbox import RunEndedError
from calltape_analyzer.exporting.session.session import Outcome, Session
from calltape_analyzer.exporting.session.unseen_runs import unseen_runs
from calltape_analyzer.exporting.torch_fixes.empty_results import NotEmpty
from calltape_analyzer.exporting.torch_fixes.empty_selections import settle_assertions
from calltape_analyzer.exporting.torch_fixes.kept_assertions import demand_assertions
from calltape_analyzer.exporting.torch_fixes.own_generators import own_generators
from calltape_analyzer.exporting.torch_fixes.recurrence import has_recurrence
from calltape_analyzer.exporting.tracing import WAYS, Narrow, Traced, Way
from calltape_analyzer.facts import Note
from calltape_analyzer.foreign_errors import ErrorKind, failure_of, means
from calltape_analyzer.model.calls import as_called
from calltape_analyzer.model.randomness import generators_kept
from calltape_analyzer.model.state import preserved, unchanged
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs import notes
from calltape_analyzer.programs.caller_objects import as_traced
from calltape_analyzer.programs.conditions import Conditions
from calltape_analyzer.programs.exported_model import ExportedModel, TorchModel
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import OfCall, OfModel, stopped_by
from calltape_analyzer.programs.strategies import Attempt, Sampled, Strategy
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.alternatives import breaks, can_merge, looser_variants, merged
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import name_symbols

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Exporter", "Merging", "Static"]

_MAX_TRIED = 3
_WITH_VALUES = (
    Strategy.OPEN_INTS,
    Strategy.NOT_EMPTY,
    Strategy.OPEN_NUMBERS,
    Strategy.BY_VALUES,
    Strategy.BY_VALUES_OPEN_INTS,
)
"""The strategies for a model that reads values with Python, in their order."""
_WAITING = 4
"""By the clock, a trace may take so many times the processor time that it may take: others may use
the processor as well."""

_WORTH_SAYING = 1.0
"""Seconds; a shorter time nobody misses."""

Static = Literal["last", "never", "only"]
"""When a program for one recorded size only is tried: if all else failed, never, or at once."""


@dataclass
class _Trial:
    """Arguments that are traced, and how.

    Attributes:
        way: how.
        sampled: which arguments.
        sample: the arguments.
        unasked: their sizes, if no call had them and nobody knows whether the model takes them.
        is_rejected: whether the model does not, as was found out.
    """

    way: Way
    sampled: Sampled
    sample: Sample
    unasked: Sizing | None = None
    is_rejected: bool = False


@dataclass
class Exporter:
    """Exports variants of one tape and one model.

    Attributes:
        session: has the model, and runs calls through a program.
        convert: from a program of torch to a model of another runtime (ONNX); None for torch.
        options: for ``torch.export.export``.
        attempts: what was tried, in order.
        seconds: how long one trace may take; None for a limit by the size of the model.
    """

    session: Session
    options: dict[str, Any] = field(default_factory=dict)
    convert: Callable[[Any, Plan, Any, VariantFacts], ExportedModel] | None = None
    attempts: list[Attempt] = field(default_factory=list)
    seconds: float | None = None
    _narrow: dict[Hashable, Narrow] = field(default_factory=dict)
    _slow: set[Hashable] = field(default_factory=set)
    _slow_floats: set[Hashable] = field(default_factory=set)
    _last: Way = WAYS[Strategy.PLAIN]

    def export(
        self,
        variant: VariantFacts,
        wanted: Sequence[SizeRow] | None = None,
        *,
        static: Static = "last",
        whole: bool = False,
    ) -> Outcome | None:
        """The best program for a variant; None if there is none.

        Args:
            variant: what to export.
            wanted: rows that have no program yet, to trace from; all by default.
            static: when a program for one size only is tried.
            whole: whether a program that fails at one recorded size is of no use.
        """
        best: Outcome | None = None
        for trial in self._all_ways(variant, wanted, static):
            way = trial.way
            serves = best is not None and best.served(wanted)
            if self.session.budget.is_spent or (serves and way.narrow):
                break
            around = sizings_of_batch(variant) if way.batch else []
            outcome = self._try(variant, trial, around, whole=whole)
            if self._is_rejected(variant, trial, outcome) or outcome is None:
                continue
            if way.narrow and outcome.served(wanted):
                self._narrow[variant.group.key] = way.narrow
            if best is None or outcome.score(wanted) > best.score(wanted):
                best = outcome
            # What a program rejects, the programs before it serve.
            serves_all = wanted is not None and best.served(wanted) == len(wanted)
            is_enough = best.attempt.perfect or (serves_all and not best.attempt.wrong)
            if is_enough or (whole and "wrong" in outcome.attempt.rows.values()):
                break
        return self._bounded(best)

    def loosened(self, variant: VariantFacts) -> VariantFacts:
        """The variant without equal sizes and relations that only one or two calls suggest, if the
        model takes sizes that contradict them. It is run once or a few times, near what was
        recorded."""
        for looser in looser_variants(variant):
            if self.session.budget.is_spent:
                break
            near = [sizings_for_tracing(looser)[0], *sizings_unseen(looser, _MAX_TRIED)]
            sizing = next(
                (s for s in near if s.resized and breaks(variant, looser, s.values)), None
            )
            if sizing is None or self.session.why_unrun(looser, sizing) is not None:
                continue
            if self.session.why_not(looser, sizing) is None:
                return looser
        return variant

    def extend(
        self, variant: VariantFacts, sizing: Sizing, *, symbolic_ints: bool = False
    ) -> Outcome | None:
        """A program for sizes that no call had and that the other programs reject (the other side
        of a sliding window). It agrees with the model at one size at least; ``attempt.agreed``
        tells at how many."""
        if variant.group.key in self._narrow or variant.group.key in self._slow:
            return None
        sample = self.session.sample(variant, sizing)
        strategy = Strategy.OPEN_SIZE_INTS if symbolic_ints else Strategy.PLAIN
        trial = _Trial(WAYS[strategy], self._sampled(variant, sizing), sample)
        outcome = self._try(variant, trial, [sizing])
        if outcome is None or not outcome.attempt.agreed:
            return None
        self._bounded(outcome)
        return outcome if outcome.program.only is None else None

    def export_call(self, variant: VariantFacts, call: Call) -> Outcome | None:
        """A program by the values of one call: for the other side of an ``if``. It has assertions
        about these values; an ONNX model has them as an output."""
        sample = self.session.sample(variant, call)
        for strategy in (Strategy.OPEN_NUMBERS, Strategy.BY_VALUES):
            outcome = self._try(variant, _Trial(WAYS[strategy], Sampled(call.number), sample))
            if outcome is not None:
                return self._bounded(outcome)
        return None

    def _bounded(self, outcome: Outcome | None) -> Outcome | None:
        """Keeps a program from sizes at which it is wrong, and finds out whether it takes 0."""
        if outcome is not None:
            program, attempt, session = outcome.program, outcome.attempt, self.session
            with unseen_runs(session, program) as runs:
                restrict(program, attempt, session, runs)
                if attempt.agreed or attempt.ok:
                    try_zeros(program, session, attempt.seconds, runs)
        return outcome

    def _all_ways(
        self, variant: VariantFacts, wanted: Sequence[SizeRow] | None, static: Static
    ) -> Iterator[_Trial]:
        """All ways. The last ones are narrow: with open first dimensions only, and for a recorded
        size only. They are not tried if another way gave a program for a row that is wanted. What
        one row of a group needed the others need as well."""
        narrow = self._narrow.get(variant.group.key)
        if static != "only" and narrow is None:
            yield from self._ways(variant, wanted)
        if static == "never":
            return
        recorded = sizings_for_tracing(variant, wanted)[-1]
        batch = sizing_of_batch(variant, recorded.row) if narrow != "static" else None
        if batch is not None and static != "only":
            sample = self.session.sample(variant, batch)
            strategy = Strategy.FIRST_DIMENSIONS
            if not batch.resized or self._runs(variant, batch, strategy):
                yield _Trial(WAYS[strategy], self._sampled(variant, batch), sample)
        sampled = self._sampled(variant, recorded)
        yield _Trial(WAYS[Strategy.ONE_SIZE], sampled, self.session.sample(variant, recorded))

    def _ways(self, variant: VariantFacts, wanted: Sequence[SizeRow] | None) -> Iterator[_Trial]:
        """Representative arguments, each with a way to try, the most promising first."""
        samples: list[tuple[Sampled, Sample]] = []
        for sizing in sizings_for_tracing(variant, wanted):
            if variant.group.key in self._slow:
                return
            sample = self.session.sample(variant, sizing)
            own = self._sampled(variant, sizing), sample
            # A trace computes nothing, so sizes that would cost too much to run can be traced.
            is_cheap = sizing.resized and self.session.why_unrun(variant, sizing) is None
            is_recurrent = has_recurrence(self.session.module)
            strategy = Strategy.OPEN_LENGTHS if is_recurrent else Strategy.PLAIN
            first = _Trial(WAYS[strategy], *own, unasked=sizing if is_cheap else None)
            yield first
            if first.is_rejected:
                continue
            samples.append(own)
            if is_recurrent:
                yield _Trial(WAYS[Strategy.PLAIN], *own)
            if stopped_by(self.attempts[-1].error, ErrorKind.NO_SUCH_INDEX):
                yield _Trial(WAYS[Strategy.GROWING_BUFFERS], *own)
        if variant.group.key in self._slow:
            return
        # Asserts are not deferred for ONNX, which has none: what they check would be lost. It
        # changes what a program rejects, and no values.
        rejected = any(a.rejects for a in self.attempts if a.variant == variant.name)
        for own in samples[:1] if rejected else ():
            yield _Trial(WAYS[Strategy.OPEN_SIZE_INTS], *own)
            if self.convert is None:
                yield _Trial(WAYS[Strategy.DEFERRED], *own)
        yield from self._ways_with_values(variant, samples)
        yield from self._ways_with_floats(variant, samples)
        made = [a for a in self.attempts if a.variant == variant.name]
        is_wrong = any("wrong" in a.rows.values() for a in made)
        for own in samples[-1:] if is_wrong else ():
            yield _Trial(WAYS[Strategy.UNNOTICED], *own)
        # Of transformers' ways to run experts the conversion knows only this one. The values are
        # the same.
        module = self.session.module
        has_experts = hasattr(module, "set_experts_implementation") and any(
            type(part).__name__.endswith("Experts") for part in module.modules()
        )
        for own in samples[:1] if self.convert is not None and has_experts else ():
            yield _Trial(WAYS[Strategy.BATCHED_EXPERTS], *own)

    def _ways_with_values(
        self, variant: VariantFacts, samples: Sequence[tuple[Sampled, Sample]]
    ) -> Iterator[_Trial]:
        """Ways for a model that reads values with Python, if nothing came of the others for that.
        Values that were computed beside the trace are checked by assertions in the program, which
        an ONNX model has as an output."""

        def failed() -> bool:
            own = [a for a in self.attempts if a.variant == variant.name]
            if not own or any(a.reproduced for a in own):
                return False
            # A model may want a number where the last way had a symbol.
            return any(means(a.summary, ErrorKind.NEEDS_VALUE) for a in own[-2:])

        ways = [WAYS[strategy] for strategy in _WITH_VALUES]
        if self.convert is None:
            ways.append(WAYS[Strategy.BY_VALUES_DEFERRED])
        loops = self.session.harmless_loops(variant) if failed() else frozenset()
        if loops:
            ways.insert(0, Way(Strategy.EVERY_ITEM, every_item=loops))
        for one in samples[-1:]:
            for way in ways:
                if failed():
                    yield _Trial(way, *one)

    def _ways_with_floats(
        self, variant: VariantFacts, samples: Sequence[tuple[Sampled, Sample]]
    ) -> Iterator[_Trial]:
        """The last way once more, with floats of sizes open, if its program rejects sizes: a
        detector pads a picture to ``math.ceil(float(height) / 32)`` parts. Conditions on floats are
        slow to trace."""
        own = [a for a in self.attempts if a.variant == variant.name]
        is_wanted = bool(own) and own[-1].tried > 0 and own[-1].rejects
        if not is_wanted or variant.group.key in self._slow_floats:
            return
        way = replace(
            self._last, strategy=Strategy.OPEN_FLOATS, symbolic_ints=True, symbolic_floats=True
        )
        for one in samples[-1:] if way.narrow is None else ():
            yield _Trial(way, *one)

    def warm_up(self) -> None:
        """Loads what every export needs, so that the next one can be timed."""
        torch.export.export(torch.nn.Identity(), (torch.zeros(2),), strict=False)
        if self.convert is not None:
            importlib.import_module("torch.onnx._internal.exporter._core")

    def _note_slow(self, variant: VariantFacts, way: Way) -> None:
        """Notes that a trace took long: other sizes would take as long, or longer."""
        (self._slow_floats if way.symbolic_floats else self._slow).add(variant.group.key)

    def forget_slow(self, variant: VariantFacts) -> None:
        """Forgets that traces of a variant took long: those of its parts may not."""
        self._slow.discard(variant.group.key)

    @property
    def _seconds(self) -> float:
        """How long one trace may take."""
        return self.seconds or default_seconds(self.session.module)

    def _sampled(self, variant: VariantFacts, sizing: Sizing) -> Sampled:
        number = variant.rows.calls_of(sizing.row).first.number
        return Sampled(number, sizes_in_words(variant, sizing) if sizing.resized else "")

    def _is_rejected(self, variant: VariantFacts, trial: _Trial, outcome: Outcome | None) -> bool:
        """Whether the model does not take the sizes of a trial. Nothing follows from what came of
        it then. The model is asked only if the program is not good: one that agrees with it at all
        sizes that were tried needs no other sizes to be traced with."""
        is_good = outcome is not None and outcome.attempt.perfect and outcome.attempt.agreed > 0
        if trial.unasked is None or is_good or self.session.budget.is_spent:
            return False
        trial.is_rejected = not self._runs(variant, trial.unasked, Strategy.PLAIN)
        if trial.is_rejected:
            del self.attempts[-2]  # the trial
        return trial.is_rejected

    def _runs(self, variant: VariantFacts, sizing: Sizing, strategy: Strategy) -> bool:
        why = self.session.why_not(variant, sizing)
        if why is not None:
            sample, error = self._sampled(variant, sizing), OfModel(why)
            attempt = Attempt(variant=variant.name, strategy=strategy, sample=sample, error=error)
            self.attempts.append(attempt)
        return why is None

    def _try(
        self,
        variant: VariantFacts,
        trial: _Trial,
        around: Sequence[Sizing] = (),
        *,
        whole: bool = False,
    ) -> Outcome | None:
        way = self._last = trial.way
        attempt = Attempt(variant=variant.name, strategy=way.strategy, sample=trial.sampled)
        attempt.by_values = way.is_by_values
        self.attempts.append(attempt)
        self.session.budget.say(f"{variant.name}: tracing {attempt.what}")
        begin = time.perf_counter()
        program: Program | None = None
        try:
            program = self._traced(variant, trial.sample, way)
            program.made_by = way.strategy
            self.session.budget.say(f"{variant.name}: comparing with the recorded calls")
            narrow = way.narrow is not None
            self.session.verify(program, attempt, around, begin=begin, whole=whole, narrow=narrow)
        except Exception as error:  # exporters raise errors of any type
            if isinstance(error, TimeoutError) and self.session.budget.is_spent:
                attempt.note(replace(self.session.budget.reason, interrupted=True))
            else:
                attempt.error = cause_of(error)
                attempt.is_untranslated = isinstance(error, UntranslatedError)
            if isinstance(error, TimeoutError):
                self._note_slow(variant, way)
        attempt.seconds = time.perf_counter() - begin
        return None if program is None else Outcome(attempt, program)

    def _traced(self, variant: VariantFacts, sample: Sample, way: Way) -> Program:
        session = self.session
        plan = Plan.of(variant, sample, session.sorter.signature)
        traced = Traced(
            session.module, session.entry, plan, session.classes, own_buffers=way.own_buffers
        )
        exported, assumed = self._exported(traced, variant, plan, sample, way)
        result = traced.traced.found
        if result is None:
            raise RuntimeError("the exporter did not call the model")
        conditions = Conditions.of(exported, plan.names)
        # The model returned objects of these classes, and whoever passed the model trusts them.
        classes = ClassIndex(traced.traced.classes | dict(session.classes.by_name))

        def program(model: ExportedModel) -> Program:
            return Program(variant, plan, result, model, conditions, classes, session.device)

        first = program(TorchModel(exported, plan.names))
        settled = bool(assumed.places) and self._settled(exported, assumed, first, sample)
        # Another one than before: what was settled is gone from the graph.
        model: ExportedModel = TorchModel(exported, plan.names)
        if self.convert is not None:
            try:
                model = self.convert(exported, plan, result, variant)
            except Exception as error:
                if not (shared := variant.group.key.shared):
                    raise
                # torch's own error is one of its assertions.
                raise RuntimeError(
                    f"{shared[0].text(variant.group.layout.tensors)}, which ONNX cannot express "
                    f"where a model writes to it ({failure_of(error)})"
                ) from error
        made = program(model)
        made.traced = TorchModel(exported, plan.names) if self.convert is not None else None
        made.told += [notes.EmptyAgrees()] if settled else []
        made.returned = traced.traced.returned
        made.told += map(notes.Unwritten, traced.traced.changed)
        made.changed_state |= set(exported.graph_signature.buffers_to_mutate.values())
        made.note_state(dict.fromkeys(made.changed_state, ""))
        if way.static and variant.symbols:
            made.note(notes.OneSize())
        if way.real_values:
            made.note(notes.ByValues())
        if unread := unread_inputs(exported, plan.names):
            made.note(notes.UnreadInputs(tuple(unread)))
        if way.every_item:
            made.note(notes.EveryItem())
        return made

    def _settled(self, exported: Any, assumed: NotEmpty, program: Program, sample: Sample) -> bool:
        """Takes out of a program what it wants to be found, if it needs that not. Another runtime
        may do something else with what is empty, so that a program for it keeps it."""
        session = self.session

        def tried(check: Callable[[], bool]) -> bool:
            with suppress(RunEndedError):  # nobody recorded that nothing is found
                limit = session.budget.within(session.probing.seconds)
                return bool(session.in_sandbox(check, limit))
            return False

        return settle_assertions(
            exported,
            assumed,
            tried if self.convert is None else None,
            lambda: session.eager(program.plan, sample),
            lambda: session.outputs(program, sample),
            lambda expected, got: compared(expected, got, session.tolerances).agrees,
        )

    def _exported(
        self, traced: Traced, variant: VariantFacts, plan: Plan, sample: Sample, way: Way
    ) -> tuple[Any, NotEmpty]:
        """What ``torch.export.export`` makes of a model, and what that takes not to be empty. The
        model stays as it is."""
        import torch._dynamo  # now, because an import that the limit interrupts stays half done

        session = self.session
        module = session.module
        args, kwargs = plan.arguments(plan.values(as_traced(variant, sample.cloned())))
        shapes = way.shapes(plan, variant)
        options = {"strict": False, **way.options, **self.options}
        begin = time.thread_time()
        with (
            preserved(module),
            unchanged(module, tracing=True),
            way.entered(module, plan) as assumed,
            _quiet(),
            time_limit(self.session.budget.within(_WAITING * self._seconds), self._seconds),
            generators_kept(module),
            as_called(plan.context, session.device, module),
            own_generators(module) if session.makes_generators(variant) else nullcontext(),
        ):
            traced.training = getattr(module, "training", False)
            exported = torch.export.export(traced, args, kwargs, dynamic_shapes=shapes, **options)
            demand_assertions(exported)
        if time.thread_time() - begin > self._seconds / 2:
            self._note_slow(variant, way)
        return exported, assumed


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps torch from printing the whole graph of a trace that failed."""
    import torch.export._trace as tracing

    names: Any = vars(tracing)
    names["print"] = lambda *_, **__: None
    try:
        yield
    finally:
        names.pop("print", None)


@dataclass
class Merging:
    """The programs that serve several variants of one tape.

    Attributes:
        tape: the calls.
        exporter: tries to make a program for a variant.
        programs: what was found.
        failed: the names of merged variants that have no program, although one was traced.
        seconds: how long these took.
        narrow: the names of those whose program rejects sizes that the model takes.
    """

    tape: Tape
    exporter: Exporter
    programs: list[Program] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    narrow: list[str] = field(default_factory=list)

    def run(self, variants: Sequence[VariantFacts]) -> list[VariantFacts]:
        """Exports as one program what can be one.

        Returns:
            The variants that still need a program.
        """
        left = list(variants)
        for larger in variants:
            others = [v for v in left if v is not larger] if larger in left else []
            smaller = [v for v in others if can_merge(v, larger) and self._completes(larger, v)]
            if smaller and self._has_program(larger, smaller):
                left = [v for v in left if v is not larger and v not in smaller]
        return left

    @property
    def told(self) -> list[Note]:
        """What ``merge="never"`` may serve, and would have saved: if there were no other programs
        then, and time worth saying was lost."""
        found: list[Note] = [notes.MergeRejects(tuple(self.narrow))] if self.narrow else []
        cost_nothing = not self.failed or self.seconds < _WORTH_SAYING
        if not (cost_nothing or self.programs or self.exporter.session.budget.is_spent):
            found.append(notes.MergeCost(tuple(self.failed), round(self.seconds)))
        return found

    def _has_program(self, larger: VariantFacts, smaller: Sequence[VariantFacts]) -> bool:
        self.exporter.warm_up()  # else the first trace would have to wait for imports
        begin = time.perf_counter()
        whole = self.exporter.loosened(self._merged(larger, smaller))
        outcome = self.exporter.export(whole, static="never", whole=True)
        if outcome is not None and outcome.attempt.ok and outcome.program.only is None:
            program, attempt = outcome.program, outcome.attempt
            # If a recorded call needs state that this one loses, those of one variant may do
            # without it, and get a program of their own.
            if why_lost(self.exporter.session, program, (), self.tape.calls) is None:
                self.programs.append(program)
                if attempt.probed > attempt.agreed + attempt.wrong:
                    self.narrow.append(whole.name)
                return True
        self.exporter.forget_slow(whole)
        self.failed.append(whole.name)
        self.seconds += time.perf_counter() - begin
        return False

    def _completes(self, larger: VariantFacts, smaller: VariantFacts) -> bool:
        """Whether the model itself takes calls of a smaller variant as calls of a larger one, with
        an empty cache. An encoder-decoder does not: it takes an empty cache for a full one. A run
        shows that, and saves a trace."""
        made = self._merged(larger, [smaller])
        call = self.tape.calls.at(smaller.rows.first)
        why = self.exporter.session.why_incomplete(made, call)
        if why is None:
            return True
        error = OfCall(call.number, why)
        self.exporter.attempts.append(
            Attempt(variant=made.name, strategy=Strategy.MERGED, error=error)
        )
        return False

    def _merged(self, larger: VariantFacts, smaller: Sequence[VariantFacts]) -> VariantFacts:
        made = merged(larger, smaller, self.exporter.session.sorter, self.tape.calls)
        made.name = " + ".join([*(v.name for v in smaller), larger.name])
        name_symbols(made)
        return made
