"""Tries the strategies to make a program for a variant, one after another until one is good.

Takes a variant; returns the best program and the attempt that made it, and keeps all attempts.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from calltape_analyzer.arguments.samples import Sample
from calltape_analyzer.arguments.sizings import (
    Sizing,
    sizes_in_words,
    sizing_of_batch,
    sizings_for_tracing,
    sizings_of_batch,
    sizings_unseen,
)
from calltape_analyzer.exporting.causes import cause_of
from calltape_analyzer.exporting.inspection.loops import harmless_loops
from calltape_analyzer.exporting.onnx.untranslated import UntranslatedError
from calltape_analyzer.exporting.session.budget import default_seconds
from calltape_analyzer.exporting.session.session import Session
from calltape_analyzer.exporting.session.unseen_runs import unseen_runs, why_not, why_unrun
from calltape_analyzer.exporting.session.verification import Outcome, restrict, try_zeros, verify
from calltape_analyzer.exporting.torch_fixes.recurrence import has_recurrence
from calltape_analyzer.exporting.tracing import SETTINGS, Convert, Narrow, TraceSettings, trace
from calltape_analyzer.foreign_errors import ErrorKind, means
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import OfModel, Sampled, stopped_by
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.alternatives import breaks, looser_variants
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Exporter", "Static"]

_MAX_TRIED = 3
_WITH_VALUES = (
    Strategy.OPEN_INTS,
    Strategy.NOT_EMPTY,
    Strategy.OPEN_NUMBERS,
    Strategy.BY_VALUES,
    Strategy.BY_VALUES_OPEN_INTS,
)
"""The strategies for a model that reads values with Python, in their order."""

Static = Literal["last", "never", "only"]
"""When a program for one recorded size only is tried: if all else failed, never, or at once."""


@dataclass
class _Trial:
    """Arguments to trace, and how.

    Attributes:
        settings: how.
        sampled: which arguments, for the attempt.
        sample: the arguments.
        unchecked: their sizes, if no call had them and the model may reject them.
        is_rejected: whether the model was found to reject them.
    """

    settings: TraceSettings
    sampled: Sampled
    sample: Sample
    unchecked: Sizing | None = None
    is_rejected: bool = False


@dataclass
class Exporter:
    """Exports variants of one tape and one model.

    Attributes:
        session: has the model, and runs calls through a program.
        options: for ``torch.export.export``.
        convert: from a program of torch to a model of another runtime (ONNX); None for torch.
        attempts: what was tried, in order.
        seconds: how long one trace may take; None for a limit that depends on the model's size.
    """

    session: Session
    options: dict[str, Any] = field(default_factory=dict)
    convert: Convert | None = None
    attempts: list[Attempt] = field(default_factory=list)
    seconds: float | None = None
    _narrow: dict[Hashable, Narrow] = field(default_factory=dict)
    _slow: set[Hashable] = field(default_factory=set)
    _slow_floats: set[Hashable] = field(default_factory=set)
    _last: TraceSettings = SETTINGS[Strategy.PLAIN]

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
            whole: whether a program that fails at one recorded size is useless.
        """
        best: Outcome | None = None
        for trial in self._trials(variant, wanted, static):
            settings = trial.settings
            serves = best is not None and best.served(wanted)
            if self.session.budget.is_spent or (serves and settings.narrow):
                break
            around = sizings_of_batch(variant) if settings.batch else []
            outcome = self._try(variant, trial, around, whole=whole)
            if self._is_rejected(variant, trial, outcome) or outcome is None:
                continue
            if settings.narrow and outcome.served(wanted):
                self._narrow[variant.group.key] = settings.narrow
            if best is None or outcome.score(wanted) > best.score(wanted):
                best = outcome
            # Earlier programs serve what a program rejects.
            serves_all = wanted is not None and best.served(wanted) == len(wanted)
            is_enough = best.attempt.perfect or (serves_all and not best.attempt.wrong)
            if is_enough or (whole and "wrong" in outcome.attempt.rows.values()):
                break
        return self._restricted(best)

    def loosened(self, variant: VariantFacts) -> VariantFacts:
        """The variant without equal sizes and relations that only one or two calls suggest, if the
        model accepts sizes that contradict them. It runs once or a few times, near recorded
        sizes."""
        for looser in looser_variants(variant):
            if self.session.budget.is_spent:
                break
            near = [sizings_for_tracing(looser)[0], *sizings_unseen(looser, _MAX_TRIED)]
            sizing = next(
                (s for s in near if s.resized and breaks(variant, looser, s.values)), None
            )
            if sizing is None or why_unrun(self.session, looser, sizing) is not None:
                continue
            if why_not(self.session, looser, sizing) is None:
                return looser
        return variant

    def extend(
        self, variant: VariantFacts, sizing: Sizing, *, symbolic_ints: bool = False
    ) -> Outcome | None:
        """A program for sizes that no call had and that the other programs reject (the other side
        of a sliding window). It agrees with the model at one size at least; ``attempt.agreed`` says
        at how many."""
        if variant.group.key in self._narrow or variant.group.key in self._slow:
            return None
        sample = self.session.sample(variant, sizing)
        strategy = Strategy.OPEN_SIZE_INTS if symbolic_ints else Strategy.PLAIN
        trial = _Trial(SETTINGS[strategy], self._sampled(variant, sizing), sample)
        outcome = self._try(variant, trial, [sizing])
        if outcome is None or not outcome.attempt.agreed:
            return None
        self._restricted(outcome)
        return outcome if outcome.program.only is None else None

    def export_call(self, variant: VariantFacts, call: Call) -> Outcome | None:
        """A program by the values of one call: for the other side of an ``if``. It has assertions
        about these values; an ONNX model returns them as an output."""
        sample = self.session.sample(variant, call)
        for strategy in (Strategy.OPEN_NUMBERS, Strategy.BY_VALUES):
            trial = _Trial(SETTINGS[strategy], Sampled(call.number), sample)
            if (outcome := self._try(variant, trial)) is not None:
                return self._restricted(outcome)
        return None

    def _restricted(self, outcome: Outcome | None) -> Outcome | None:
        """Lets a program reject sizes at which it is wrong, and finds out whether it accepts 0."""
        if outcome is not None:
            program, attempt, session = outcome.program, outcome.attempt, self.session
            with unseen_runs(session, program) as runs:
                restrict(program, attempt, session, runs)
                if attempt.agreed or attempt.ok:
                    try_zeros(program, session, attempt.seconds, runs)
        return outcome

    def _trials(
        self, variant: VariantFacts, wanted: Sequence[SizeRow] | None, static: Static
    ) -> Iterator[_Trial]:
        """All trials. The last ones are narrow: with open first dimensions only, and for a recorded
        size only. They are skipped if an earlier one gave a program for a wanted row. What one row
        of a group needed, the others need as well."""
        narrow = self._narrow.get(variant.group.key)
        if static != "only" and narrow is None:
            yield from self._open_trials(variant, wanted)
        if static == "never":
            return
        recorded = sizings_for_tracing(variant, wanted)[-1]
        batch = sizing_of_batch(variant, recorded.row) if narrow != "static" else None
        if batch is not None and static != "only":
            sample = self.session.sample(variant, batch)
            strategy = Strategy.FIRST_DIMENSIONS
            if not batch.resized or self._is_accepted(variant, batch, strategy):
                yield _Trial(SETTINGS[strategy], self._sampled(variant, batch), sample)
        sampled = self._sampled(variant, recorded)
        sample = self.session.sample(variant, recorded)
        yield _Trial(SETTINGS[Strategy.ONE_SIZE], sampled, sample)

    def _open_trials(
        self, variant: VariantFacts, wanted: Sequence[SizeRow] | None
    ) -> Iterator[_Trial]:
        """Trials with all dynamic sizes open, the most promising first."""
        samples: list[tuple[Sampled, Sample]] = []
        for sizing in sizings_for_tracing(variant, wanted):
            if variant.group.key in self._slow:
                return
            arguments = self._sampled(variant, sizing), self.session.sample(variant, sizing)
            # A trace computes nothing, so sizes that would cost too much to run can be traced.
            is_cheap = sizing.resized and why_unrun(self.session, variant, sizing) is None
            is_recurrent = has_recurrence(self.session.module)
            strategy = Strategy.OPEN_LENGTHS if is_recurrent else Strategy.PLAIN
            first = _Trial(SETTINGS[strategy], *arguments, unchecked=sizing if is_cheap else None)
            yield first
            if first.is_rejected:
                continue
            samples.append(arguments)
            if is_recurrent:
                yield _Trial(SETTINGS[Strategy.PLAIN], *arguments)
            if stopped_by(self.attempts[-1].error, ErrorKind.NO_SUCH_INDEX):
                yield _Trial(SETTINGS[Strategy.GROWING_BUFFERS], *arguments)
        if variant.group.key in self._slow:
            return
        # Not deferred for ONNX, which has no assertions, so that their checks would be lost. This
        # changes what a program rejects, and no values.
        for arguments in samples[:1] if any(a.rejects for a in self._attempts_at(variant)) else ():
            yield _Trial(SETTINGS[Strategy.OPEN_SIZE_INTS], *arguments)
            if self.convert is None:
                yield _Trial(SETTINGS[Strategy.DEFERRED], *arguments)
        yield from self.value_trials(variant, samples)
        yield from self._float_trials(variant, samples)
        is_wrong = any("wrong" in a.rows.values() for a in self._attempts_at(variant))
        for arguments in samples[-1:] if is_wrong else ():
            yield _Trial(SETTINGS[Strategy.UNNOTICED], *arguments)
        # The only implementation of experts in transformers that can be converted. The values are
        # the same.
        module = self.session.module
        has_experts = hasattr(module, "set_experts_implementation") and any(
            type(part).__name__.endswith("Experts") for part in module.modules()
        )
        for arguments in samples[:1] if self.convert is not None and has_experts else ():
            yield _Trial(SETTINGS[Strategy.BATCHED_EXPERTS], *arguments)

    def value_trials(
        self, variant: VariantFacts, samples: Sequence[tuple[Sampled, Sample]]
    ) -> Iterator[_Trial]:
        """Trials for a model that reads values with Python, if the others failed for that. Values
        that were computed beside the trace are checked by assertions in the program, which an ONNX
        model returns as an output."""

        def failed() -> bool:
            attempts = self._attempts_at(variant)
            if not attempts or any(a.reproduced for a in attempts):
                return False
            # A model may need a number where the last trial had a symbol.
            return any(means(a.summary, ErrorKind.NEEDS_VALUE) for a in attempts[-2:])

        every = [SETTINGS[strategy] for strategy in _WITH_VALUES]
        if self.convert is None:
            every.append(SETTINGS[Strategy.BY_VALUES_DEFERRED])
        loops = harmless_loops(self.session, variant) if failed() else frozenset()
        if loops:
            every.insert(0, TraceSettings(Strategy.EVERY_ITEM, every_item=loops))
        for arguments in samples[-1:]:
            for settings in every:
                if failed():
                    yield _Trial(settings, *arguments)

    def _float_trials(
        self, variant: VariantFacts, samples: Sequence[tuple[Sampled, Sample]]
    ) -> Iterator[_Trial]:
        """The last trial again, with floats of sizes open, if its program rejects sizes: a detector
        pads a picture to ``math.ceil(float(height) / 32)`` parts. Conditions on floats are slow to
        trace."""
        attempts = self._attempts_at(variant)
        is_wanted = bool(attempts) and attempts[-1].tried > 0 and attempts[-1].rejects
        if not is_wanted or variant.group.key in self._slow_floats or self._last.narrow:
            return
        settings = replace(
            self._last, strategy=Strategy.OPEN_FLOATS, symbolic_ints=True, symbolic_floats=True
        )
        for arguments in samples[-1:]:
            yield _Trial(settings, *arguments)

    def _attempts_at(self, variant: VariantFacts) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.variant == variant.name]

    def warm_up(self) -> None:
        """Loads what every export needs, so that the next one can be timed."""
        torch.export.export(torch.nn.Identity(), (torch.zeros(2),), strict=False)
        if self.convert is not None:
            importlib.import_module("torch.onnx._internal.exporter._core")

    def forget_slow(self, variant: VariantFacts) -> None:
        """Forgets that traces of a variant were slow: those of its parts may not be."""
        self._slow.discard(variant.group.key)

    def _sampled(self, variant: VariantFacts, sizing: Sizing) -> Sampled:
        number = variant.rows.calls_of(sizing.row).first.number
        return Sampled(number, sizes_in_words(variant, sizing) if sizing.resized else "")

    def _is_rejected(self, variant: VariantFacts, trial: _Trial, outcome: Outcome | None) -> bool:
        """Whether the model rejects the sizes of a trial, so that its result proves nothing. The
        model runs only if the program is not good: one that agrees with it at all sizes that were
        tried needs no trace at other sizes."""
        is_good = outcome is not None and outcome.attempt.perfect and outcome.attempt.agreed > 0
        if trial.unchecked is None or is_good or self.session.budget.is_spent:
            return False
        if self._is_accepted(variant, trial.unchecked, Strategy.PLAIN):
            return False
        trial.is_rejected = True
        del self.attempts[-2]  # the trial
        return True

    def _is_accepted(self, variant: VariantFacts, sizing: Sizing, strategy: Strategy) -> bool:
        """Whether the model accepts sizes. If not, that is an attempt."""
        why = why_not(self.session, variant, sizing)
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
        """Traces a trial and verifies its program; the arguments are those of :func:`verify`."""
        session, settings = self.session, trial.settings
        self._last = settings
        attempt = Attempt(variant=variant.name, strategy=settings.strategy, sample=trial.sampled)
        attempt.by_values = settings.is_by_values
        self.attempts.append(attempt)
        session.budget.say(f"{variant.name}: tracing {attempt.what}")
        begin = time.perf_counter()
        seconds = self.seconds or default_seconds(session.module)
        slow = self._slow_floats if settings.symbolic_floats else self._slow

        def took(taken: float) -> None:
            if taken > seconds / 2:  # other sizes would take as long, or longer
                slow.add(variant.group.key)

        program: Program | None = None
        try:
            program = trace(
                session,
                variant,
                trial.sample,
                settings,
                seconds=seconds,
                options=self.options,
                convert=self.convert,
                took=took,
            )
            session.budget.say(f"{variant.name}: comparing with the recorded calls")
            narrow = settings.narrow is not None
            verify(session, program, attempt, around, begin=begin, whole=whole, narrow=narrow)
        except Exception as error:  # exporters raise errors of any type
            if isinstance(error, TimeoutError) and session.budget.is_spent:
                attempt.note(replace(session.budget.reason, interrupted=True))
            else:
                attempt.error = cause_of(error)
                attempt.is_untranslated = isinstance(error, UntranslatedError)
            if isinstance(error, TimeoutError):
                slow.add(variant.group.key)
        attempt.seconds = time.perf_counter() - begin
        return None if program is None else Outcome(attempt, program)
