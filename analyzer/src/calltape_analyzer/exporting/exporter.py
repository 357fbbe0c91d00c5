"""Tries the strategies to make a program for a variant, one after another until one is good.

Takes a variant; returns the best program with the attempt that made it, and keeps all attempts.
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
from calltape_analyzer.exporting.session.unseen_runs import UnseenRuns, why_not, why_unrun
from calltape_analyzer.exporting.session.verification import restrict, try_zeros, verify
from calltape_analyzer.exporting.torch_fixes.recurrence import has_recurrence
from calltape_analyzer.exporting.tracing import SETTINGS, Convert, Narrow, TraceSettings, trace
from calltape_analyzer.foreign_errors import ErrorMeaning, means
from calltape_analyzer.observing.size_table import SizeRow
from calltape_analyzer.programs.attempts import Attempt, Candidate
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import OfModel, Sampled, stopped_by
from calltape_analyzer.programs.strategies import Strategy
from calltape_analyzer.reading.call import Call
from calltape_analyzer.variants.alternatives import breaks, looser_variants
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Exporter"]

_MAX_TRIED = 3
_WITH_VALUES = (
    Strategy.OPEN_INTS,
    Strategy.NOT_EMPTY,
    Strategy.OPEN_NUMBERS,
    Strategy.BY_VALUES,
    Strategy.BY_VALUES_OPEN_INTS,
)
"""The strategies for a model that reads values with Python, in their order."""

SingleSize = Literal["last", "never", "only"]
"""When a program for a single recorded size is tried: if all else failed, never, or at once."""


@dataclass
class _Trial:
    """A trace to try.

    Attributes:
        settings: how to trace.
        sampled: which arguments are traced, for the attempt.
        sample: their values.
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
    # By the key of a group: what served one of its rows, and whose traces are slow.
    _narrow: dict[Hashable, Narrow] = field(default_factory=dict)
    _slow: set[Hashable] = field(default_factory=set)
    _slow_floats: set[Hashable] = field(default_factory=set)
    _last_settings: TraceSettings = SETTINGS[Strategy.PLAIN]
    _runs: UnseenRuns | None = None

    def export(
        self,
        variant: VariantFacts,
        unserved: Sequence[SizeRow] | None = None,
        *,
        single_size: SingleSize = "last",
        all_or_nothing: bool = False,
    ) -> Candidate | None:
        """The best program for a variant; None if there is none.

        Args:
            variant: what to export.
            unserved: rows that have no program yet, to trace from; all by default.
            single_size: when a program for a single recorded size is tried.
            all_or_nothing: whether a program that fails at one recorded size is useless.
        """
        best: Candidate | None = None
        for trial in self._trials(variant, unserved, single_size):
            settings = trial.settings
            serves_some = best is not None and best.served(unserved)
            if self.session.budget.is_spent or (serves_some and settings.narrow):
                break
            target_sizings = sizings_of_batch(variant) if settings.batch else []
            candidate = self._try(variant, trial, target_sizings, all_or_nothing=all_or_nothing)
            if self._is_rejected(variant, trial, candidate) or candidate is None:
                continue
            if settings.narrow and candidate.served(unserved):
                self._narrow[variant.group.key] = settings.narrow
            if best is None or candidate.score(unserved) > best.score(unserved):
                best = candidate
            # Earlier programs serve what a program rejects.
            serves_all = unserved is not None and best.served(unserved) == len(unserved)
            is_enough = best.attempt.perfect or (serves_all and not best.attempt.wrong)
            if is_enough or (all_or_nothing and "wrong" in candidate.attempt.rows.values()):
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
    ) -> Candidate | None:
        """A program for sizes that no call had and that the other programs reject (the other side
        of a sliding window). It agrees with the model at one size at least.

        Args:
            variant: what is exported.
            sizing: the sizes to trace with.
            symbolic_ints: whether ints that the model reads from tensors become symbols.
        """
        if variant.group.key in self._narrow or variant.group.key in self._slow:
            return None
        sample = self.session.sample(variant, sizing)
        strategy = Strategy.OPEN_SIZE_INTS if symbolic_ints else Strategy.PLAIN
        trial = _Trial(SETTINGS[strategy], self._sampled(variant, sizing), sample)
        candidate = self._try(variant, trial, [sizing])
        if candidate is None or not candidate.attempt.agreed:
            return None
        self._restricted(candidate)
        return candidate if candidate.program.only_rows is None else None

    def export_call(self, variant: VariantFacts, call: Call) -> Candidate | None:
        """A program traced with the values of one call, for the other side of an ``if``. It asserts
        what the trace assumed about them; an ONNX model returns the assertions as an output."""
        sample = self.session.sample(variant, call)
        for strategy in (Strategy.OPEN_NUMBERS, Strategy.BY_VALUES):
            trial = _Trial(SETTINGS[strategy], Sampled(call.number), sample)
            if (candidate := self._try(variant, trial)) is not None:
                return self._restricted(candidate)
        return None

    def _restricted(self, candidate: Candidate | None) -> Candidate | None:
        """The same candidate, after its program was made to reject the sizes at which it is wrong,
        and it is known whether it accepts sizes of 0."""
        if candidate is not None:
            program, attempt, session = candidate.program, candidate.attempt, self.session
            runs = self._runs_of(program)
            restrict(program, attempt, session, runs)
            if attempt.agreed or attempt.ok:
                try_zeros(program, session, attempt.seconds, runs)
            self.close()
        return candidate

    def _runs_of(self, program: Program) -> UnseenRuns:
        """The runs of a program at unrecorded sizes. Those of the last program stay open: a fork of
        a process that has a large model costs as much as a small run."""
        if self._runs is None or self._runs.program is not program:
            self.close()
            self._runs = UnseenRuns(self.session, program)
        return self._runs

    def close(self) -> None:
        """Ends the runs at unrecorded sizes."""
        if self._runs is not None:
            self._runs.close()
            self._runs = None

    def _trials(
        self, variant: VariantFacts, unserved: Sequence[SizeRow] | None, single_size: SingleSize
    ) -> Iterator[_Trial]:
        """All trials. The last two are narrow: only first dimensions are open, or no dimension is.
        :meth:`export` skips them if an earlier trial gave a program for a wanted row. If one row of
        a group needed a narrow trial, only narrow ones are tried for its other rows."""
        narrow = self._narrow.get(variant.group.key)
        if single_size != "only" and narrow is None:
            yield from self._open_trials(variant, unserved)
        if single_size == "never":
            return
        recorded = sizings_for_tracing(variant, unserved)[-1]
        batch = sizing_of_batch(variant, recorded.row) if narrow != "static" else None
        if batch is not None and single_size != "only":
            sample = self.session.sample(variant, batch)
            strategy = Strategy.FIRST_DIMENSIONS
            if not batch.resized or self._is_accepted(variant, batch, strategy):
                yield _Trial(SETTINGS[strategy], self._sampled(variant, batch), sample)
        sampled = self._sampled(variant, recorded)
        sample = self.session.sample(variant, recorded)
        yield _Trial(SETTINGS[Strategy.ONE_SIZE], sampled, sample)

    def _open_trials(
        self, variant: VariantFacts, unserved: Sequence[SizeRow] | None
    ) -> Iterator[_Trial]:
        """Trials with all dynamic sizes open, the most promising first."""
        accepted: list[tuple[Sampled, Sample]] = []
        for sizing in sizings_for_tracing(variant, unserved):
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
            accepted.append(arguments)
            if is_recurrent:
                yield _Trial(SETTINGS[Strategy.PLAIN], *arguments)
            if stopped_by(self.attempts[-1].error, ErrorMeaning.NO_SUCH_INDEX):
                yield _Trial(SETTINGS[Strategy.GROWING_BUFFERS], *arguments)
        if variant.group.key in self._slow:
            return
        # Not deferred for ONNX, which has no assertions, so that their checks would be lost. This
        # changes what a program rejects, and no values.
        has_rejected = any(a.rejects for a in self._attempts_at(variant))
        for arguments in accepted[:1] if has_rejected else ():
            yield _Trial(SETTINGS[Strategy.OPEN_SIZE_INTS], *arguments)
            if self.convert is None:
                yield _Trial(SETTINGS[Strategy.DEFERRED], *arguments)
        yield from self.value_trials(variant, accepted)
        yield from self._float_trials(variant, accepted)
        is_wrong = any("wrong" in a.rows.values() for a in self._attempts_at(variant))
        for arguments in accepted[-1:] if is_wrong else ():
            yield _Trial(SETTINGS[Strategy.UNNOTICED], *arguments)
        # The only implementation of experts in transformers that can be converted. The values are
        # the same.
        module = self.session.module
        has_experts = hasattr(module, "set_experts_implementation") and any(
            type(part).__name__.endswith("Experts") for part in module.modules()
        )
        for arguments in accepted[:1] if self.convert is not None and has_experts else ():
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
            return any(means(a.summary, ErrorMeaning.NEEDS_VALUE) for a in attempts[-2:])

        all_settings = [SETTINGS[strategy] for strategy in _WITH_VALUES]
        if self.convert is None:
            all_settings.append(SETTINGS[Strategy.BY_VALUES_DEFERRED])
        loops = harmless_loops(self.session, variant) if failed() else frozenset()
        if loops:
            all_settings.insert(0, TraceSettings(Strategy.EVERY_ITEM, every_item=loops))
        for arguments in samples[-1:]:
            for settings in all_settings:
                if failed():
                    yield _Trial(settings, *arguments)

    def _float_trials(
        self, variant: VariantFacts, samples: Sequence[tuple[Sampled, Sample]]
    ) -> Iterator[_Trial]:
        """The last trial again, with floats that come from sizes open, if its program rejects
        sizes: a detector pads a picture to ``math.ceil(float(height) / 32)`` parts. It comes late
        because guards on floats are slow to trace."""
        attempts = self._attempts_at(variant)
        is_wanted = bool(attempts) and attempts[-1].tried > 0 and attempts[-1].rejects
        if not is_wanted or variant.group.key in self._slow_floats or self._last_settings.narrow:
            return
        settings = replace(
            self._last_settings,
            strategy=Strategy.OPEN_FLOATS,
            symbolic_ints=True,
            symbolic_floats=True,
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
        """Forgets that traces of a merged variant were slow: those of its parts may not be."""
        self._slow.discard(variant.group.key)

    def _sampled(self, variant: VariantFacts, sizing: Sizing) -> Sampled:
        number = variant.rows.calls_of(sizing.row).first.number
        return Sampled(number, sizes_in_words(variant, sizing) if sizing.resized else "")

    def _is_rejected(
        self, variant: VariantFacts, trial: _Trial, candidate: Candidate | None
    ) -> bool:
        """Whether the model rejects the sizes of a trial, so that its result proves nothing. The
        model runs only if the program is not good: one that agrees with it at all sizes that were
        tried needs no trace at other sizes."""
        is_good = (
            candidate is not None and candidate.attempt.perfect and candidate.attempt.agreed > 0
        )
        if trial.unchecked is None or is_good or self.session.budget.is_spent:
            return False
        if self._is_accepted(variant, trial.unchecked, Strategy.PLAIN):
            return False
        trial.is_rejected = True
        del self.attempts[-2]  # the trial
        return True

    def _is_accepted(self, variant: VariantFacts, sizing: Sizing, strategy: Strategy) -> bool:
        """Whether the model accepts sizes. If not, an attempt says why."""
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
        target_sizings: Sequence[Sizing] = (),
        *,
        all_or_nothing: bool = False,
    ) -> Candidate | None:
        """Traces a trial and verifies its program.

        Args:
            variant: what is exported.
            trial: what to trace.
            target_sizings: as for :func:`verify`.
            all_or_nothing: as for :func:`verify`.

        Returns:
            None if the trace failed; the attempt says why.
        """
        session, settings = self.session, trial.settings
        self._last_settings = settings
        attempt = Attempt(variant=variant.name, strategy=settings.strategy, sample=trial.sampled)
        attempt.by_values = settings.is_by_values
        self.attempts.append(attempt)
        session.budget.say(f"{variant.name}: tracing {attempt.what}")
        self.close()  # the memory of the last program's runs may be needed
        begin = time.perf_counter()
        limit = self.seconds or default_seconds(session.module)
        slow = self._slow_floats if settings.symbolic_floats else self._slow

        def note_seconds(seconds: float) -> None:
            if seconds > limit / 2:  # other sizes would take as long, or longer
                slow.add(variant.group.key)

        program: Program | None = None
        try:
            program = trace(
                session,
                variant,
                trial.sample,
                settings,
                seconds=limit,
                options=self.options,
                convert=self.convert,
                note_seconds=note_seconds,
            )
            session.budget.say(f"{variant.name}: comparing with the recorded calls")
            narrow = settings.narrow is not None
            verify(
                session,
                program,
                attempt,
                target_sizings,
                self._runs_of(program),
                begin=begin,
                all_or_nothing=all_or_nothing,
                narrow=narrow,
            )
        except Exception as error:  # exporters raise errors of any type
            if isinstance(error, TimeoutError) and session.budget.is_spent:
                attempt.note(replace(session.budget.reason, interrupted=True))
            else:
                attempt.error = cause_of(error)
                attempt.is_untranslated = isinstance(error, UntranslatedError)
            if isinstance(error, TimeoutError):
                slow.add(variant.group.key)
        attempt.seconds = time.perf_counter() - begin
        return None if program is None else Candidate(attempt, program)
