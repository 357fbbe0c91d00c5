"""Whether a call does what was recorded: one judge for every kind of target, and a report.

Takes a call and a prepared run of it, so that its duration excludes reading the tape; returns a
verdict. A call is judged by what the tape has of it (an exception, values, or only dtypes and
shapes) and by how long it may take.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    paths_without_value,
    recorded_leaves,
    what_to_compare,
)
from calltape_analyzer.comparison.reports import (
    Against,
    ArgumentsUnmade,
    CallsKind,
    CallsUnmade,
    CorruptedTape,
    Doubted,
    LeafDifference,
    NoOutputs,
    OtherException,
    PartsUncompared,
    Report,
    ReportRow,
    SlowCall,
    SomeCalls,
    Unsteady,
    Verdict,
    output_path,
)
from calltape_analyzer.errors import UsageError
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.foreign_errors import ErrorMeaning, failure_of, means, text_of
from calltape_analyzer.observing.sorting import CallSource
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.progress import watched
from calltape_analyzer.pytree.classes import class_name
from calltape_analyzer.pytree.nodes import Returned
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.segment import Segment
from calltape_schema.errors import OF_CALLS, TapeError
from calltape_schema.privacy import is_without_text
from calltape_schema.records import (
    MAX_ERROR_CHARACTERS,
    MAX_UNHELD_ERROR_CHARACTERS,
    ModelError,
)

__all__ = [
    "Expect",
    "Judge",
    "Outcomes",
    "Run",
    "Runner",
    "TimeBound",
    "judge",
    "report_on",
    "verdict_of_error",
    "was_interrupted",
]

RUNS = 5
"""How often a slow call runs. The fastest run counts, because the first one also allocates memory
and selects kernels, and other processes use the machine."""

_FORM = re.compile(
    r"((?:\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})(?:e[-+]?\d{1,2})?) ?(us|ms|s|x)?", re.ASCII
)
_PER_SECOND = {"us": 1_000_000, "ms": 1000, "s": 1, None: 1}


@dataclass(frozen=True)
class TimeBound:
    """A bound on the duration of calls.

    Attributes:
        seconds: that a call may take.
        times: how many times its recorded duration a call may take, if ``seconds`` is None.
    """

    seconds: float | None = None
    times: float = 1.0

    @classmethod
    def of(cls, bound: float | str) -> TimeBound:
        """The bound of seconds, or of a text: ``"50ms"``, ``"2s"``, ``"0.05"``, ``"3x"``.

        Raises:
            UsageError: it has another form.
        """
        if not isinstance(bound, str):
            if isinstance(bound, bool) or not (0 < bound < math.inf):
                raise UsageError(f"{bound!r} is not a duration", advice="pass seconds above 0")
            return cls(float(bound))
        match = _FORM.fullmatch(bound.strip())
        if match is None or not float(match[1]):
            advice = "write it like 50ms, 2s, 0.05, or 3x for three times the recorded duration"
            raise UsageError(f"{bound!r:.100} is not a duration", advice=advice)
        if match[2] == "x":
            return cls(times=float(match[1]))
        return cls(float(match[1]) / _PER_SECOND[match[2]])

    def of_call(self, call: Call) -> float | None:
        """How many seconds a call may take; None if its duration was not measured."""
        if self.seconds is not None:
            return self.seconds
        return None if call.duration is None else self.times * call.duration

    def exceeded(self, call: Call, seconds: float, runs: int) -> SlowCall | None:
        """What is wrong about a call whose fastest run took some seconds; None if nothing is.

        Args:
            call: the call.
            seconds, runs: of the fastest run, of how many.
        """
        most = self.of_call(call)
        if most is None or seconds <= most:
            return None
        return SlowCall(seconds, runs, most, self.times if self.seconds is None else None)


Expect = Literal["recorded", "success"]
"""What a call should do: what it did when it was recorded, or just return."""

Outcomes = Callable[[Call, Any, BaseException | None], None]
"""Is called with a call, what it returned, and what it raised."""

_FAILURES = (Exception, SystemExit)
"""Exceptions of a target that are results. Ctrl-C and the timeouts of test runners are not."""
_INTERRUPTIONS = frozenset(
    {
        "builtins:BaseException",  # hooks did not see which one
        "builtins:GeneratorExit",
        "builtins:KeyboardInterrupt",
        "asyncio.exceptions:CancelledError",
        "trio:Cancelled",
    }
)
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+")
_CUT_TO = (MAX_UNHELD_ERROR_CHARACTERS, MAX_ERROR_CHARACTERS)


class Run(ABC):
    """A call that is ready to run, once.

    Attributes:
        variant: the program that serves it, as far as that is known; None for a model.
        is_synthetic: whether some of its arguments are not the recorded ones.
        is_contiguous: whether some of its tensors are contiguous although the recorded ones were
            not.
        missing: an object among its arguments that was not rebuilt, in words; empty for none.
        unmade: the classes of objects that cannot be made, so that the call cannot run, each with
            the reason.
        seconds: how long it took, after the run.
        draws: whether it drew random numbers.
        result, raised: what the target returned, or raised.
        returned: what it returned, by path.
        withheld: the paths of outputs for which the tape has only a dtype and a shape, if others
            were compared.
        in_order: whether it was reproduced only from the state that the previous call left.
    """

    variant: str | None = None
    is_synthetic: bool = False
    is_contiguous: bool = False
    missing: str = ""
    unmade: Mapping[str, str] = {}
    seconds: float = 0.0
    draws: bool = False
    result: Any = None
    raised: BaseException | None = None
    returned: Returned = Returned({})
    withheld: frozenset[str] = frozenset()
    in_order: bool = False

    def start(self) -> Any:
        """Runs the call, and raises what the target raises."""
        _finished()
        began = time.perf_counter()
        try:
            self.result = self.run()
            _finished()
        except BaseException as error:
            self.raised = error
            raise
        finally:
            self.seconds = time.perf_counter() - began
        return self.result

    @abstractmethod
    def run(self) -> Any: ...

    def cached_verdict(self, call: Call, tolerances: Tolerances) -> Verdict | None:
        """The verdict of an earlier run, if nothing has changed since; None if there is none."""
        return None

    @abstractmethod
    def leaves(self, result: Any) -> Returned:
        """The outputs by the paths of the recorded ones."""

    def expected(self, call: Call) -> tuple[dict[str, Any] | None, Against]:
        """The expected outputs, None if the call only has to return; and what they are compared
        with. It is called after the run."""
        expected = recorded_leaves(call)
        if expected is None:
            return None, "success"
        return expected, what_to_compare(expected, self.is_synthetic)

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        """The verdict with what the target can add to it."""
        return verdict


def _finished() -> None:
    """Waits for a device, which computes while Python continues."""
    import torch

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


class Runner(ABC):
    """Runs calls through one target.

    Attributes:
        tolerances: how far its results may be off by default.
        raises_as_recorded: whether it can raise what the model raised. An exported program cannot.
        has_model: whether it supplies outputs that are not on the tape.
        may_vary: whether it may return other values each time.
        module: the model, if that is the target.
    """

    tolerances: Tolerances = Tolerances()
    raises_as_recorded: bool = True
    has_model: bool = False
    may_vary: bool = True
    module: Any = None

    @abstractmethod
    def prepared(self, call: Call) -> Run:
        """A run of a call, with arguments of its own.

        Raises:
            TapeError: the arguments cannot be read, or the target takes others.
        """

    def undisturbed(self) -> AbstractContextManager[Any]:
        """Restores the target and the random number generators after the block."""
        from calltape_analyzer.model.randomness import generators_kept

        return generators_kept()

    def reconsidered(self, call: Call, run: Run, verdict: Verdict) -> Verdict:
        """The verdict, or another one if the call can run in another way."""
        return verdict


def judge(call: Call, run: Run, tolerances: Tolerances, expect: Expect = "recorded") -> Verdict:
    """Runs a call, and returns whether it does what it should.

    Args:
        call: as it was recorded.
        run: of the call.
        tolerances: how far values may differ.
        expect: ``"success"`` if it only has to return, whatever was recorded.
    """
    recorded = call.record.error if expect == "recorded" else None
    against: Against = "shapes" if run.is_synthetic else "tape"
    try:
        result = run.start()
        if recorded is not None:
            # It may have raised because of values that the tape lacks.
            against = "nothing" if run.is_synthetic else "exception"
            error = OtherException(recorded.type)
            return _doubted(Verdict(error=error, against=against, compared=1), run)
        expected, against = run.expected(call)
        if expected is None:
            return Verdict(against=against)
        run.returned = run.leaves(result)
        run.withheld = paths_without_value(expected) if against == "part" else frozenset()
        leaves, omitted = run.returned
        verdict = compared(expected, leaves, tolerances, omitted, against)
        return _doubted(run.explained(call, verdict, expected), run)
    except BaseException as error:
        is_recorded = recorded is not None and _same_class(recorded, error)
        if not is_recorded and not isinstance(error, _FAILURES):
            raise
        error.__traceback__ = None  # its frames hold the tensors of the call
        if recorded is None:
            return _doubted(verdict_of_error(error, against), run)
        verdict = Verdict(
            error=_other_exception(recorded, error),
            against="exception",
            compared=1 + has_message(recorded),
        )
        return _doubted(verdict, run)


def verdict_of_error(error: BaseException, against: Against = "tape") -> Verdict:
    """The verdict on a call that raised an error instead of returning. An error of the tape proves
    nothing about the target."""
    why = failure_of(error)
    of_tape = means(why, ErrorMeaning.OF_TAPE)
    against = "nothing" if of_tape else against
    return Verdict(error=why, against=against, max_abs=math.inf, max_rel=math.inf)


def _doubted(verdict: Verdict, run: Run) -> Verdict:
    """The verdict with other possible reasons. With an argument that was not recorded, a failure
    proves nothing about the target."""
    is_doubtful = run.is_synthetic or run.missing or run.draws
    if verdict.error is None or not is_doubtful:
        return verdict
    doubted = verdict.with_error(Doubted(verdict.error, run.is_synthetic, run.missing, run.draws))
    return doubted.model_copy(update={"against": "nothing"}) if run.missing else doubted


def was_interrupted(call: Call) -> bool:
    """Whether a call was interrupted from outside (Ctrl-C, a cancelled request), which its model
    does not repeat."""
    return call.record.error is not None and call.record.error.type in _INTERRUPTIONS


def has_message(recorded: ModelError) -> bool:
    """Whether the tape has the message of an exception, and not only its length."""
    return not is_without_text(recorded.message)


def _same_class(recorded: ModelError, error: BaseException) -> bool:
    """Whether an exception has the recorded class, by name: nothing that a tape names is imported.
    The classes of a script have other names if it is imported."""
    now = class_name(type(error))
    if now == recorded.type:
        return True
    (module, _, name), (other_module, _, other_name) = (
        now.partition(":"),
        recorded.type.partition(":"),
    )
    return name == other_name and "__main__" in (module, other_module)


def _other_exception(recorded: ModelError, error: BaseException) -> Fact | None:
    """How an exception differs from the recorded one: in its class, or in its message if that is on
    the tape; None if it does not. Memory addresses in the message may differ."""
    if not _same_class(recorded, error):
        return OtherException(recorded.type, failure_of(error), _is_known_class(recorded.type))
    if not has_message(recorded):
        return None
    recorded_text, raised_text = (
        _ADDRESS.sub("0x", text) for text in (recorded.message, text_of(error))
    )
    if recorded_text == raised_text or (
        len(recorded.message) in _CUT_TO and raised_text.startswith(recorded_text)
    ):
        return None
    name, (was, now) = (
        type(error).__name__,
        (f"{text.strip()!r:.200}" for text in (recorded_text, raised_text)),
    )
    return LeafDifference(f"the message of {name}", was, now)


def _is_known_class(name: str) -> bool:
    module, _, qualified = name.partition(":")
    known_class: Any = sys.modules.get(module)
    for part in qualified.split("."):
        known_class = getattr(known_class, "__dict__", {}).get(part)
    return isinstance(known_class, type)


@dataclass
class Judge:
    """Runs calls one after another, and judges each.

    Attributes:
        runner: runs them.
        tolerances: how far values may differ.
        expect: ``"recorded"``, or ``"success"`` if every call only has to return.
        bound: how long a call may take; None for any time.
        outcomes: is called with the outcome of each failing call; None for nothing.
    """

    runner: Runner
    tolerances: Tolerances
    expect: Expect = "recorded"
    bound: TimeBound | None = None
    outcomes: Outcomes | None = None
    _counts: Counter[CallsKind] = field(default_factory=Counter)
    _omitted: set[str] = field(default_factory=set)
    _withheld: set[str] = field(default_factory=set)
    _unmade: dict[str, str] = field(default_factory=dict)
    _untried: int = 0
    _unsteady: Unsteady | None = None
    _was_checked: bool = False

    def row(self, call: Call) -> ReportRow:
        """Runs and judges one call."""
        run: Run | None = None
        seconds = None
        is_wanted = self.expect == "recorded" and call.record.error is None
        lacks = call.record.outputs is None or call.record.outputs_missing is not None
        if is_wanted and lacks and not self.runner.has_model:
            error: Fact = NoOutputs(call.record.outputs_missing)
            verdict = Verdict(error=error, against="nothing")
        else:
            try:
                run = self.runner.prepared(call)
            except Exception as raised:  # of the tape, or of what the target is
                verdict = verdict_of_error(raised)
            else:
                verdict = self._verdict(call, run)
                if self.bound is not None and not run.unmade:
                    verdict, seconds = self._within_time(call, run, verdict)
        variant = None if run is None else run.variant
        return ReportRow(call=call.number, variant=variant, seconds=seconds, **dict(verdict))

    def leaves_out(self, call: Call) -> CallsKind | None:
        """Why a call has no row; None if it has one."""
        if was_interrupted(call):
            return CallsKind.INTERRUPTED
        is_wanted = self.expect == "success" or self.runner.raises_as_recorded
        return CallsKind.RAISED if has_raised(call) and not is_wanted else None

    def _verdict(self, call: Call, run: Run) -> Verdict:
        if run.unmade:
            self._unmade |= run.unmade
            self._untried += 1
            error = ArgumentsUnmade(tuple(run.unmade), tuple(run.unmade.values()))
            return Verdict(error=error, against="nothing")
        may_be_known = self.expect == "recorded" and self.bound is None
        cached = run.cached_verdict(call, self.tolerances) if may_be_known else None
        verdict = cached or judge(call, run, self.tolerances, self.expect)
        verdict = self.runner.reconsidered(call, run, verdict)
        self._note(call, run, verdict)
        if not verdict.ok:
            # An exported model returns flat outputs, not what the recorded call would return.
            if self.outcomes is not None and self.runner.raises_as_recorded:
                self.outcomes(call, run.result, run.raised)
            if verdict.against in ("tape", "part") and run.raised is None:
                self._check_steadiness(call, run)
        return verdict

    def _note(self, call: Call, run: Run, verdict: Verdict) -> None:
        """Counts what a reader of the report should know."""
        self._counts[CallsKind.SYNTHETIC] += run.is_synthetic
        self._counts[CallsKind.CONTIGUOUS] += run.is_contiguous
        self._counts[CallsKind.IN_ORDER] += run.in_order
        self._counts[CallsKind.UNTIMED] += (
            self.bound is not None and self.bound.of_call(call) is None
        )
        if verdict.against == "exception" and verdict.ok:
            assert call.record.error is not None
            self._counts[CallsKind.CLASS_ONLY] += not has_message(call.record.error)
        self._omitted |= run.returned.omitted
        self._withheld |= run.withheld

    def _check_steadiness(self, call: Call, run: Run) -> None:
        """Checks once per report whether the target returns other values each time."""
        if self._was_checked or not self.runner.may_vary:
            return
        self._was_checked = True
        from calltape_analyzer.model.randomness import Generators, reseed

        try:
            with self.runner.undisturbed():
                second = self.runner.prepared(call)
                reseed(self.runner.module)
                generators = Generators(self.runner.module)
                again = second.leaves(second.start())
                moved = generators.drawn_from()
                leaves = run.returned.leaves
                difference = compared(leaves, again.leaves, self.tolerances, again.omitted)
        except _FAILURES:
            return
        has_leaves = bool(leaves or again.leaves)  # None differs from nothing
        if has_leaves and not difference.agrees:
            self._unsteady = Unsteady(call.number, tuple(moved))

    def _within_time(self, call: Call, run: Run, verdict: Verdict) -> tuple[Verdict, float]:
        """The verdict, which fails if each run was too slow; and the seconds of the fastest."""
        assert self.bound is not None
        seconds, runs = run.seconds, 1
        while verdict.ok and runs < RUNS and self.bound.exceeded(call, seconds, runs):
            with self.runner.undisturbed():
                again = self.runner.prepared(call)
                # It may have to raise, or not work twice; its time counts all the same.
                with suppress(*_FAILURES):
                    again.start()
            seconds, runs = min(seconds, again.seconds), runs + 1
        slow = self.bound.exceeded(call, seconds, runs) if verdict.ok else None
        return (verdict if slow is None else verdict.with_error(slow)), seconds

    def notes(self) -> Iterator[Note]:
        """What a reader of the report should know about all calls together."""
        yield from (SomeCalls(kind, count) for kind, count in self._counts.items() if count)
        for is_omitted, paths in ((True, self._omitted), (False, self._withheld)):
            if paths:
                yield PartsUncompared(tuple(map(output_path, sorted(paths))), is_omitted)
        if self._unmade:
            classes, reasons = tuple(self._unmade), tuple(self._unmade.values())
            yield CallsUnmade(self._untried, classes, reasons)
        if self._unsteady is not None:
            yield self._unsteady


def report_on(
    tape: CallSource, judge: Judge, progress: bool, failing: str | os.PathLike[str] | None
) -> Report:
    """The rows of all calls that have ended and that the judge does not leave out.

    Args:
        tape: the calls.
        judge: makes the row of a call.
        progress: shows a progress bar on stderr.
        failing: a path to which failing calls are written as a sealed tape; None for none. Nothing
            is written if all are ok.
    """
    left_out: Counter[CallsKind] = Counter()
    # Positions, not calls: a call holds its record once that was read.
    calls, places = tape.calls, list[int]()
    for call in calls:
        kind = CallsKind.UNDER_WAY if call.under_way else judge.leaves_out(call)
        left_out.update([kind] if kind else [])
        places += [] if kind else [call.index]
    rows: list[ReportRow] = []
    for place in watched(places, progress):
        call = calls[place]
        address = tape.calls.address_of(call.ref)
        rows.append(judge.row(call).model_copy(update={"address": address}))
    report = Report(rows=rows)
    pairs = zip(places, report.rows, strict=True)
    wrong = [calls[place] for place, row in pairs if not row.ok]
    if failing is not None and wrong:
        left_out[CallsKind.UNWRITTEN] = _write_failing(tape.segments, wrong, failing)
    report.notes += [SomeCalls(kind, count) for kind, count in left_out.items() if count]
    report.notes += [CorruptedTape(len(tape.damage))] if tape.damage else []
    report.notes += judge.notes()
    return report


def _write_failing(
    segments: Sequence[Segment], calls: Sequence[Call], path: str | os.PathLike[str]
) -> int:
    """Writes the calls that failed to a new tape, whose history says so.

    Returns:
        How many of them are damaged, and not on it.

    Raises:
        TapeError: ``exists`` or ``io``.
    """
    from calltape_analyzer.writing.lineage import coverage_for, derived_manifest, numbering_of
    from calltape_analyzer.writing.new_tape import NewTape

    numbering, left_out, damaged = numbering_of(segments), Counter[bytes](), 0
    for segment in segments:
        left_out[segment.manifest.tape] += len(segment)
    left_out.subtract(call.ref.tape for call in calls)
    manifest = derived_manifest(
        segments, "replay", {"failing": "yes"}, numbering=numbering, left_out=left_out
    )
    with NewTape(path, manifest, inputs=[segment.path for segment in segments]) as writer:
        for call in calls:
            try:
                writer.copy(call, number=numbering.number_of(call.ref.tape, call.ref.number))
            except TapeError as error:
                if error.kind not in OF_CALLS:
                    raise
                damaged += 1
        writer.seal(coverage_for(segments, writer.calls, left_out.total()))
    return damaged
