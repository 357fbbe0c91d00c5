"""The limits of an export: the time for all of it and for one trace, and the cost of unrecorded
sizes.

torch reasons about symbolic sizes with a computer algebra system, and for some models (a Swin
transformer with images of any size, torch 2.15) it never finishes. Such a trace is interrupted, so
that the next attempt can start. Runs at unrecorded sizes are predicted from measured runs.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from typing import Any, Literal, NamedTuple

import torch

from calltape_analyzer.arguments.sizings import (
    Bound,
    Sizing,
    elements_at,
    recorded_sizing,
    sizings_around,
    sizings_below,
    sizings_between,
    sizings_beyond,
    sizings_far,
    sizings_of_one,
    sizings_unrelated,
    sizings_unseen,
    values_at,
)
from calltape_analyzer.exporting.session.observed_calls import measured
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.notes import Probed, Untried
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import TimeUp
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["Cost", "Probe", "Probing", "Progress", "TimeBudget", "default_seconds", "time_limit"]

Progress = Callable[[str], None]
"""Is called with a description of the current step."""

_LEAST = 0.001
"""Seconds of a limit; 0 would be none."""


@dataclass
class TimeBudget:
    """The time of one export. Programs that exist when it is spent are kept, and the rest is
    reported as missing.

    Attributes:
        seconds: for the whole export, from the creation of this object; None for no limit.
        progress: is called with a description of each step.
    """

    seconds: float | None = None
    progress: Progress | None = None
    _begin: float = field(init=False)

    def __post_init__(self) -> None:
        self._begin = time.monotonic()

    @property
    def is_spent(self) -> bool:
        """Whether the time is up."""
        return self._left <= 0

    @property
    def reason(self) -> TimeUp:
        """Why something was not tried when the time was up."""
        return TimeUp(self.seconds or 0)

    def within(self, seconds: float) -> float:
        """Some seconds, or what is left if that is less; never 0."""
        return max(min(seconds, self._left), _LEAST)

    def say(self, text: str) -> None:
        """Reports the current step, with the time since the export began."""
        if self.progress is not None:
            self.progress(f"{time.monotonic() - self._begin:.0f} s: {text}")

    @property
    def _left(self) -> float:
        if self.seconds is None:
            return math.inf
        return self.seconds - (time.monotonic() - self._begin)


_BASE, _PER_MODULE = 30.0, 0.1
_AGAIN = 5.0
_SOON = 0.01


class _Interrupt(BaseException):
    """Not an Exception, because the interrupted code might handle that."""


def default_seconds(module: Any) -> float:
    """A limit of processor time, several times longer than the longest trace that ever finished:
    half a minute, and a tenth of a second for each submodule (a UNet of 220 million parameters
    takes 9 of 100 s)."""
    return _BASE + _PER_MODULE * sum(1 for _ in module.modules())


@contextlib.contextmanager
def time_limit(seconds: float, processor: float = math.inf) -> Iterator[None]:
    """Interrupts the code in the block after some seconds.

    There is no limit outside of the main thread, on a platform without an alarm signal, or if other
    code uses that signal.

    Args:
        seconds: by the clock.
        processor: of processor time of this thread. A trace that shares its processor with other
            work takes longer by the clock, which is no reason to interrupt it.

    Raises:
        TimeoutError: the time is up.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not (
        in_main
        and hasattr(signal, "setitimer")
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
    ):
        yield
        return

    end, busy_end = time.monotonic() + seconds, time.thread_time() + processor

    def ring(*_: Any) -> None:
        remaining = min(end - time.monotonic(), busy_end - time.thread_time())
        if remaining <= 0:
            raise _Interrupt
        signal.setitimer(signal.ITIMER_REAL, max(remaining, _SOON), _AGAIN)

    before = signal.signal(signal.SIGALRM, ring)
    # Again every few seconds, because the interrupted code may catch it.
    signal.setitimer(signal.ITIMER_REAL, min(seconds, processor), _AGAIN)
    try:
        yield
    except _Interrupt:
        spent = f"{seconds:.0f} s"
        if time.monotonic() < end:
            spent = f"{processor:.0f} s of processor time"
        raise TimeoutError(f"not done after {spent}, and interrupted") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


Probe = Literal["near", "far", "none"]

_MAX_OF_A_KIND = 3
_SECONDS = 60.0
_PATIENCE = 1 / 3
"""The time for all runs at unrecorded sizes, relative to the time that it took to make a program
and to reproduce the recorded calls."""
MIN_PATIENCE = 1.0
"""The seconds that they may take in any case. Tests set it to much more."""
_RUNS_PER_PROBE = 2
"""The model runs, and the program."""

Imagine = Callable[[Sizing], int]
"""Returns the bytes that a run takes, found with tensors that have no memory. It may raise."""

_MAX_POWER = 3.0
"""No known model needs more memory than the fourth power of a size."""
_NEAR = 2
"""A run with half the elements of another one shows what that takes."""
_SECONDS_IMAGINED = 10.0
"""How long a run without memory may take."""


class Cost(NamedTuple):
    """The cost of one run: the values of all symbols, the elements of its inputs, the peak memory
    of its tensors in bytes, and its duration in seconds."""

    values: tuple[int, ...]
    elements: int
    memory: int
    seconds: float


@dataclass
class RunCosts:
    """The measured runs of all variants, and predictions of other runs. The cost of a recorded call
    holds for each variant that has the call.

    Memory is predicted to grow with all inputs together, and again with the symbol that grows most
    (attention), or with a power of it if the measured runs grew like that. This overestimates more
    often than it underestimates. Where it matters, the model runs with tensors that have no memory.
    """

    _measured: dict[Hashable, list[Cost]] = field(default_factory=lambda: defaultdict(list))
    _of_calls: dict[CallRef, Cost] = field(default_factory=dict)
    _imagined: dict[Hashable, float] = field(default_factory=dict)

    def add(self, variant: VariantFacts, cost: Cost, call: CallRef | None = None) -> None:
        """Adds a run, with its recorded call if it has one."""
        self._measured[variant_key(variant)].append(cost)
        if call is not None:
            self._of_calls[call] = cost

    def _costs(self, variant: VariantFacts) -> list[Cost]:
        """The runs of a variant, or while there are none, of its calls in other variants."""
        costs = self._measured[variant_key(variant)]
        if not costs and self._of_calls:
            for row, (_, seen) in enumerate(variant.rows.items()):
                if seen.first in self._of_calls:
                    known, elements = self._of_calls[seen.first], variant.rows.elements(row)
                    costs.append(known._replace(values=values_at(variant, row), elements=elements))
        return costs

    def has(self, variant: VariantFacts, values: tuple[int, ...] | None = None) -> bool:
        """Whether any run was measured, or one at these sizes."""
        costs = self._costs(variant)
        return any(values is None or cost.values == values for cost in costs)

    def memory(self, variant: VariantFacts, sizing: Sizing) -> float:
        """An upper bound of the bytes that a run takes; infinity if none was measured."""
        costs = self._costs(variant)
        powers = _powers(costs)
        grown = [(cost, *_grown(variant, sizing, cost, powers)) for cost in costs]
        return min((c.memory * inputs * more for c, inputs, _, more in grown), default=math.inf)

    def seconds(self, variant: VariantFacts, sizing: Sizing) -> float:
        """A prediction of how many seconds a run takes; 0 if none was measured."""
        costs = self._costs(variant)
        grown = [(cost, *_grown(variant, sizing, cost, _powers(costs))) for cost in costs]
        return min((c.seconds * max(inputs, size) for c, inputs, size, _ in grown), default=0.0)

    def imagined(self, variant: VariantFacts, sizing: Sizing, imagine: Imagine) -> float:
        """The bytes that a run takes, found with tensors that have no memory; infinity if the model
        needs values, or is slow even so."""
        key = variant_key(variant), sizing.values
        if key not in self._imagined:
            try:
                with time_limit(_SECONDS_IMAGINED):
                    self._imagined[key] = imagine(sizing)
            except Exception:  # the model's own
                self._imagined[key] = math.inf
        return self._imagined[key]

    def recorded(self, variant: VariantFacts, imagine: Imagine) -> float:
        """The bytes that the largest recorded call of a variant takes."""
        rows = variant.rows
        row = max(range(len(rows)), key=rows.elements)
        costs = self._costs(variant)
        least = max(
            (c.memory * max(rows.elements(row) / max(c.elements, 1), 1.0) for c in costs),
            default=0.0,
        )
        if any(_NEAR * cost.elements >= rows.elements(row) for cost in costs):
            return least  # a similar run was measured
        imagined = self.imagined(variant, recorded_sizing(variant, row), imagine)
        return least if math.isinf(imagined) else max(least, imagined)


def variant_key(variant: VariantFacts) -> Hashable:
    """A key that is the same for all attempts at a variant."""
    columns = tuple(tuple(symbol.columns) for symbol in variant.symbols)
    return variant.group.key, columns, len(variant.completions)


def _grown(
    variant: VariantFacts, sizing: Sizing, cost: Cost, powers: Sequence[float]
) -> tuple[float, float, float]:
    """The factors by which a run is larger than a measured one, each at least 1: of the elements of
    all inputs, of the symbol that grows most, and of the memory besides the inputs.

    Args:
        variant: that is run.
        sizing: its sizes.
        cost: of the measured run.
        powers: as of :func:`_powers`.
    """
    inputs = max(elements_at(variant, sizing), 1) / max(cost.elements, 1)
    sizes = [max(n, 1) / max(o, 1) for n, o in zip(sizing.values, cost.values, strict=True)]
    beside_inputs = [max(size, 1.0) ** power for size, power in zip(sizes, powers, strict=True)]
    return max(inputs, 1.0), max([1.0, *sizes]), max([1.0, *beside_inputs])


def _powers(costs: Sequence[Cost]) -> list[float]:
    """The power of each symbol with which memory besides the inputs grows: 1 for the length of
    attention, 2 for all triples of a sequence's rows.

    It is 1 unless measured runs show more: at small sizes the fastest growth may not show yet.
    """
    if not costs:
        return []
    sizes = torch.tensor([[1, *cost.values] for cost in costs], dtype=torch.float64)
    sizes[:, 1:] = sizes[:, 1:].clamp(min=1).log()
    memory = torch.tensor([[max(cost.memory, 1)] for cost in costs], dtype=torch.float64).log()
    fitted = torch.linalg.pinv(sizes) @ memory
    return [min(max(power - 1, 1.0), _MAX_POWER) for power in fitted.flatten().tolist()[1:]]


@dataclass
class Probing:
    """At which unrecorded sizes a model runs, within bounds
    (docs/decisions/guards-and-verdicts.md). The cost of a run is predicted (:class:`RunCosts`); the
    first measured run has recorded sizes.

    Attributes:
        probe: ``"near"`` for sizes within :class:`~calltape_analyzer.arguments.sizings.Bound`: no
            run has more than 4 times the elements of the largest recorded call, in all input
            tensors together, and no size or int is more than 4 times its largest recorded value.
            ``"far"`` for these and sizes up to 500 times the recorded ones, as long as the inputs
            stay small: only this finds a model that changes its behavior from some size on.
            ``"none"`` for recorded sizes only.
        memory: the most bytes that a run and the run that it is compared with may take; None for
            what the largest recorded call takes, or 256 MiB if that is more. It is half of what is
            free at that moment if that is less, or the probe is ``"far"``. A run that is predicted
            to take more is not made, and ``attempts`` and the notes of the report say so.
        seconds: how long a run may take.
        bound: of the tape.
        fused: whether programs have the torch kernels that keep the scores of attention out of
            memory.
        costs: of the measured runs.
    """

    probe: Probe = "near"
    memory: int | None = None
    seconds: float = _SECONDS
    bound: Bound = field(default_factory=lambda: Bound(0))
    fused: bool = True
    costs: RunCosts = field(default_factory=RunCosts)
    _slow: set[Hashable] = field(default_factory=set)

    def sizings(
        self, variant: VariantFacts, target_sizings: Sequence[Sizing], *, narrow: bool = False
    ) -> list[Sizing]:
        """The sizes to run.

        Args:
            variant: what is run.
            target_sizings: sizes that must be among them, with some a little larger.
            narrow: whether these alone are run.
        """
        if self.probe == "none":
            return []
        if narrow:
            return [sizing for sizing in target_sizings if self.bound.allows(variant, sizing)]
        kinds = (
            sizings_unseen,
            sizings_of_one,
            sizings_beyond,
            sizings_unrelated,
            sizings_between,
        )
        found_of_kind = [kind(variant, _MAX_OF_A_KIND) for kind in kinds]
        # One of each kind comes first: there may be no time for all.
        in_turn = chain.from_iterable(zip_longest(*found_of_kind))
        near = [*target_sizings, *sizings_around(variant, target_sizings), *filter(None, in_turn)]
        sizings = [sizing for sizing in near if self.bound.allows(variant, sizing)]
        sizings += sizings_far(variant) if self.probe == "far" else []
        return list(dict.fromkeys(sizings))

    def cheaper(self, variant: VariantFacts) -> list[Sizing]:
        """Sizes that cost less than a recorded call, for a model that is too large for other
        sizes."""
        return [] if self.probe == "none" else sizings_below(variant, _MAX_OF_A_KIND)

    def patience(self, seconds: float) -> float:
        """How long all runs at unrecorded sizes may take together.

        Args:
            seconds: how long the trace and the runs of recorded calls took.
        """
        return math.inf if self.probe == "far" else max(seconds * _PATIENCE, MIN_PATIENCE)

    def predicted(self, variant: VariantFacts, sizing: Sizing) -> float:
        """The predicted seconds of the model and a program together; 0 if no run was measured."""
        return _RUNS_PER_PROBE * self.costs.seconds(variant, sizing)

    def measured(
        self, variant: VariantFacts, sizing: Sizing, function: Callable[[], Any]
    ) -> tuple[Any, Cost | None]:
        """What a function returns at some sizes, and its cost, unless no other runs are predicted
        from it."""
        if sizing.resized and self.probe != "far":
            return function(), None
        begin = time.perf_counter()
        value, peak = measured(function, fused=self.fused)
        seconds = time.perf_counter() - begin
        return value, Cost(sizing.values, elements_at(variant, sizing), peak, seconds)

    def is_slow(self, variant: VariantFacts) -> bool:
        """Whether a run of a variant took too long."""
        return variant_key(variant) in self._slow

    def note_slow(self, variant: VariantFacts) -> None:
        """Notes that a run took too long, so that no other sizes of the variant are run."""
        self._slow.add(variant_key(variant))

    def note(self, program: Program, attempt: Attempt) -> None:
        """Notes on a program at which sizes it was tried."""
        probed = Probed(
            attempt.probed,
            attempt.agreed,
            attempt.wrong,
            self.probe,
            attempt.declined,
            bool(program.variant.symbols),
        )
        program.all_notes.append(probed)
        if attempt.untried:
            first, untried_count = attempt.untried[0], len(attempt.untried) - 1
            program.all_notes.append(Untried(first, untried_count, probed.is_remark))
