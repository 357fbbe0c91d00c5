"""One way after another to make a program for a variant, until one is as good as it gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.exporting.attempts import Attempt, Outcome, said
from calltape_analyzer.exporting.conditions import Conditions
from calltape_analyzer.exporting.constants import known_constants
from calltape_analyzer.exporting.engines import Engine, TorchEngine
from calltape_analyzer.exporting.judging import Judge, restrict
from calltape_analyzer.exporting.module_calls import experts_as, preserved
from calltape_analyzer.exporting.patience import default_seconds, time_limit
from calltape_analyzer.exporting.plan import Plan
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.exporting.recurrence import has_recurrence, open_lengths
from calltape_analyzer.exporting.tracing import Traced
from calltape_analyzer.observations import Row
from calltape_analyzer.samples import Sample
from calltape_analyzer.sizes import Sizing, sizes_in_words, sizings_for_tracing
from calltape_analyzer.variants import VariantFacts

__all__ = ["Exporter"]


@dataclass
class Exporter:
    """Exports variants of one tape and one model.

    Attributes:
        judge: has the model, and says what a program is worth.
        convert: from a Traced module and its program to another engine (ONNX); None for torch.
        options: for ``torch.export.export``.
        seconds: how long one trace may take.
    """

    judge: Judge
    options: dict[str, Any] = field(default_factory=dict)
    convert: Callable[[Any, Plan, Any, VariantFacts], Engine] | None = None
    attempts: list[Attempt] = field(default_factory=list)
    seconds: float | None = None
    _static: set[Hashable] = field(default_factory=set)

    def export(self, variant: VariantFacts, wanted: Sequence[Row] | None = None) -> Outcome:
        """The best program for a variant.

        Args:
            variant: what to export.
            wanted: rows to trace from; all by default.
        """
        best = Outcome()
        for what, sample, options in self._all_ways(variant, wanted):
            if best.program is not None and "static" in options:
                break
            outcome = self._try(variant, what, sample, options)
            if "static" in options and outcome.program is not None:
                self._static.add(variant.group.key)
            if outcome.score > best.score:
                best = outcome
            if best.attempt is not None and best.attempt.perfect:
                break
        if best.program is not None and best.attempt is not None:
            restrict(best.program, best.attempt)
        return best

    def extend(self, variant: VariantFacts, sizing: Sizing) -> Outcome:
        """A program for sizes that were never recorded and that the others refuse (the other side
        of a sliding window). It holds at these at least; ``attempt.held`` tells at how many."""
        sample = self.judge.sample(variant, sizing)
        outcome = self._try(variant, self._described(variant, sizing), sample, {}, [sizing])
        if outcome.program is None or outcome.attempt is None or not outcome.attempt.held:
            return Outcome()
        restrict(outcome.program, outcome.attempt)
        return Outcome() if outcome.program.only is not None else outcome

    def _all_ways(
        self, variant: VariantFacts, wanted: Sequence[Row] | None
    ) -> Iterator[tuple[str, Sample, dict[str, Any]]]:
        """The ways below, and last, where none gives a program: one for a recorded size only."""
        if variant.group.key not in self._static:
            yield from self._ways(variant, wanted)
        sizing = sizings_for_tracing(variant, wanted)[-1]
        what = f"{self._described(variant, sizing)}, for these sizes only"
        yield what, self.judge.sample(variant, sizing), {"static": True}

    def _ways(
        self, variant: VariantFacts, wanted: Sequence[Row] | None
    ) -> Iterator[tuple[str, Sample, dict[str, Any]]]:
        """Representative arguments and options to try, the most promising first."""
        samples: list[tuple[str, Sample]] = []
        for sizing in sizings_for_tracing(variant, wanted):
            sample = self.judge.sample(variant, sizing)
            what = self._described(variant, sizing)
            # A trace computes nothing: it is made of sizes that would cost too much to run as well.
            is_cheap = sizing.resized and self.judge.refuses(variant, sizing) is None
            if is_cheap and not self._runs(variant, sample, what):
                continue
            samples.append((what, sample))
            if has_recurrence(self.judge.module):
                yield f"{what}, lengths of recurrent layers open", sample, {"open_lengths": True}
            yield what, sample, {}
        # Not for ONNX, which has no runtime asserts: what they guard would be lost.
        deferred = {"prefer_deferred_runtime_asserts_over_guards": True}
        for what, sample in samples[:1] if self.convert is None else ():
            yield f"{what}, runtime asserts deferred", sample, deferred
        # The conversion knows one of transformers' ways to run experts; the values are the same.
        for what, sample in samples[:1] if self.convert is not None and self.has_experts else ():
            yield f"{what}, experts as batched_mm", sample, {"experts": "batched_mm"}

    @property
    def has_experts(self) -> bool:
        """Whether the model is a mixture of experts whose implementation can be chosen."""
        if not hasattr(self.judge.module, "set_experts_implementation"):
            return False
        return any(type(part).__name__.endswith("Experts") for part in self.judge.module.modules())

    def _described(self, variant: VariantFacts, sizing: Sizing) -> str:
        number = variant.rows[sizing.row][1].first.number
        if not sizing.resized:
            return f"call {number} as recorded"
        return f"call {number} resized to {sizes_in_words(variant, sizing)}"

    def _runs(self, variant: VariantFacts, sample: Sample, what: str) -> bool:
        plan = Plan.of(variant, sample, self.judge.gatherer.signature)
        try:
            self.judge.eager(plan, sample)
        except Exception as error:  # the model's own
            attempt = Attempt(variant.name, what, error=f"the model itself: {said(error)}")
            self.attempts.append(attempt)
            return False
        return True

    def _try(
        self,
        variant: VariantFacts,
        what: str,
        sample: Sample,
        options: dict[str, Any],
        around: Sequence[Sizing] = (),
    ) -> Outcome:
        attempt = Attempt(variant.name, what)
        self.attempts.append(attempt)
        begin = time.perf_counter()
        outcome = Outcome(attempt=attempt)
        try:
            outcome.program = self._traced(variant, sample, options)
            self.judge.judge(outcome.program, attempt, around)
        except Exception as error:  # the exporter's own, of any type
            attempt.error = said(error)
        attempt.seconds = time.perf_counter() - begin
        return outcome

    def _traced(self, variant: VariantFacts, sample: Sample, options: dict[str, Any]) -> Program:
        import torch
        import torch._dynamo  # an import that the limit below interrupts would stay half done

        from calltape_analyzer.exporting.model_state import unchanged

        plan = Plan.of(variant, sample, self.judge.gatherer.signature)
        traced = Traced(self.judge.module, self.judge.entry, plan, self.judge.classes)
        args, kwargs = plan.arguments(plan.values(sample.cloned()))
        auto = torch.export.Dim.AUTO
        given = dict(options)
        is_static = given.pop("static", False)
        shapes = None if is_static else plan.shapes(lambda _: auto, variant) or None
        experts = experts_as(self.judge.module, given.pop("experts", None))
        lengths = open_lengths(given.pop("open_lengths", False))
        known = known_constants(bool(plan.frozen))
        limit = time_limit(self.seconds or default_seconds(self.judge.module))
        stays = (preserved(self.judge.module), unchanged(self.judge.module, tracing=True))
        with stays[0], stays[1], experts, lengths, known, limit, torch.no_grad():
            exported = torch.export.export(
                traced,
                args,
                kwargs,
                dynamic_shapes=shapes,
                **{"strict": False, **given, **self.options},
            )
        result = traced.traced.found
        if result is None:
            raise RuntimeError("the exporter did not call the model")
        conditions = Conditions.of(exported, plan.names)
        engine: Engine = TorchEngine(exported)
        if self.convert is not None:
            engine = self.convert(exported, plan, result, variant)
        judge = self.judge
        # The model returned objects of these classes: whoever passed it trusts them.
        classes = ClassIndex(traced.traced.classes | dict(judge.classes.by_name))
        made = Program(variant, plan, result, engine, conditions, classes, judge.device)
        made.returned = traced.traced.returned
        made.notes += self._unchanged(exported, traced.traced.changed)
        made.kept |= set(exported.graph_signature.buffers_to_mutate.values())
        made.has_state(dict.fromkeys(made.kept, ""))
        return made

    def _unchanged(self, exported: Any, changed: Sequence[str]) -> list[str]:
        """What the model changes in place and a call of the program leaves as it was."""
        lost = list(changed)
        if self.convert is not None:
            # A torch program writes to its inputs; ONNX has no such thing.
            lost += sorted(exported.graph_signature.user_inputs_to_mutate.values())
        return [f"leaves {name} as it was, which the model changes in place" for name in lost]
