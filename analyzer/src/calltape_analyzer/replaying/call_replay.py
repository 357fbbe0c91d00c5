"""One recorded call through a target, and whether it does what was recorded.

In comes a call. Out goes the row of the report. What a call is judged by depends on what the tape
has of it: an exception, values, or only dtypes and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from calltape_analyzer.comparison.comparing import (
    Difference,
    Tolerances,
    compared,
    recorded_leaves,
)
from calltape_analyzer.comparison.leaf_differences import leaf_differences
from calltape_analyzer.comparison.reporting import made_up_note, withheld_note
from calltape_analyzer.comparison.reports import ReportRow, compared_row, failed_row
from calltape_analyzer.comparison.structures import (
    compared_against,
    what_to_compare,
    without_value,
)
from calltape_analyzer.programs.reasons import Drawing
from calltape_analyzer.pytree.placeholder import unmade_advice
from calltape_analyzer.pytree.result_values import Returned
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.exceptions import has_message, other_exception, same_class
from calltape_analyzer.replaying.runners import Run, Runner, UnmadeError
from calltape_analyzer.replaying.time_bound import RUNS, TimeBound
from calltape_analyzer.text import counted, printable, some_of

__all__ = ["CallReplay", "Expect", "Outcomes"]

Expect = Literal["recorded", "success"]
"""What a call is to do: what it did when it was recorded, or to return."""

Outcomes = Callable[[Call, Any, BaseException | None], None]
"""Takes what a call returned, and what it raised if it did."""

_DREW = "the call draws random numbers"
_FAILURES = (Exception, SystemExit)
"""What a target may raise that is a result. Ctrl-C, and the timeouts of test runners, are not."""


class CallReplay:
    """Runs calls, and judges each.

    Args:
        runner: runs them.
        tolerances: how far values may be apart.
        expect: ``"recorded"``, or ``"success"`` if every call is to return.
        bound: how long a call may take; None for any time.
        outcomes: is told what each call that fails returned, or raised; None for nobody.
    """

    def __init__(
        self,
        runner: Runner,
        tolerances: Tolerances,
        expect: Expect,
        bound: TimeBound | None,
        outcomes: Outcomes | None = None,
    ) -> None:
        self._runner = runner
        self._tolerances = tolerances
        self._expect = expect
        self._bound = bound
        self._outcomes = outcomes
        self._omitted: set[str] = set()
        self._withheld: set[str] = set()
        self._made_up = self._classes_only = self._unmeasured = self._without_arguments = 0
        self._laid_out = 0
        self._unmade: dict[str, str] = {}
        self._unsteady: int | None = None
        self._draws: list[str] = []
        self._was_asked = False

    def row(self, call: Call) -> ReportRow:
        """What came of one call."""
        try:
            expected = recorded_leaves(call)
            if expected is None and call.error is None and self._expect == "recorded":
                missing = call.record.outputs_missing
                why = f" ({printable(missing)})" if missing else ""
                return _untried(call, f"its outputs are not on the tape{why}")
            run = self._runner.prepared(call)
        except UnmadeError as error:
            self._unmade |= error.classes
            self._without_arguments += 1
            return _untried(call, f"not tried: {error.reason}")
        except Exception as error:
            return failed_row(call.number, None, error, "tape")
        self._made_up += run.made_up
        self._laid_out += run.laid_out
        if call.error is not None and self._expect == "recorded":
            row = self._raising(call, run)
        else:
            row = self._returning(call, run, expected)
        # With another argument than the recorded one, a failure says nothing about the target.
        return row if row.ok or run.is_whole else row.model_copy(update={"against": "nothing"})

    def _raising(self, call: Call, run: Run) -> ReportRow:
        """The row of a call that is to raise what it raised."""
        recorded = call.record.error
        assert recorded is not None
        result: Any = None
        raised: BaseException | None = None
        try:
            result = run.start()
        except BaseException as error:
            raised = error
            if not isinstance(error, _FAILURES) and not same_class(recorded, error):
                raise
            wrong = other_exception(recorded, error)
            self._classes_only += wrong is None and not has_message(recorded)
            found = Difference(
                wrong is None,
                error=None if wrong is None else wrong + run.doubt,
                compared=1 + has_message(recorded),
            )
        else:
            error_text = f"returned, instead of raising {recorded.type}{run.doubt}"
            if run.made_up:  # it may have raised because of values that the tape does not have
                return _untried(call, error_text)
            found = Difference(False, error=error_text, compared=1)
        row = compared_row(call.number, None, found, "exception")
        self._tell(call, row, result, raised)
        return self._within_time(call, run, row)

    def _returning(self, call: Call, run: Run, expected: dict[str, Any] | None) -> ReportRow:
        """The row of a call that is to return."""
        from calltape_analyzer.model.randomness import Generators

        against = _against(expected, run)
        try:
            generators = Generators(self._runner.module)
            result = run.start()
            drew = bool(generators.moved())
            if expected is None:
                row = compared_row(call.number, None, Difference(True), against)
            else:
                row = self._compared(call, run, expected, run.leaves(result), against)
                self._tell(call, row, result, None)
            if drew and row.error is not None:
                row = row.model_copy(update={"error": f"{row.error}; {_DREW}"})
        except _FAILURES as error:  # an error of the target is the result of this row
            row = failed_row(call.number, None, error, against)
            return row.model_copy(update={"error": f"{row.error}{run.doubt}"})
        return self._within_time(call, run, row)

    def _tell(self, call: Call, row: ReportRow, result: Any, raised: BaseException | None) -> None:
        # What an exported model returns is flat, and not what the recorded call would return.
        if self._outcomes is not None and not row.ok and self._runner.raises_as_recorded:
            self._outcomes(call, result, raised)

    def _compared(
        self, call: Call, run: Run, expected: dict[str, Any], returned: Returned, against: str
    ) -> ReportRow:
        self._omitted |= returned.omitted
        leaves, omitted = returned.leaves, returned.omitted
        found = compared_against(against, expected, leaves, self._tolerances, omitted)
        if against == "shapes" and found.error is not None:
            found = found._replace(error=found.error + run.doubt)
        row = compared_row(call.number, None, found, against)
        if against == "part":
            self._withheld |= without_value(expected)
        if row.ok or against == "shapes":
            return row
        differences = leaf_differences(
            expected, returned.leaves, self._tolerances, returned.omitted
        )
        self._ask_again(call, returned)
        return row.model_copy(update={"differences": differences})

    def _ask_again(self, call: Call, returned: Returned) -> None:
        """Whether the target gives other values each time: it is asked once per report."""
        if self._was_asked:
            return
        self._was_asked = True
        from calltape_analyzer.model.randomness import Generators, reseed

        try:
            with self._runner.undisturbed():
                run = self._runner.prepared(call)
                reseed(self._runner.module)
                generators = Generators(self._runner.module)
                again = run.leaves(run.start())
                moved = generators.moved()
                found = compared(returned.leaves, again.leaves, self._tolerances, again.omitted)
        except _FAILURES:
            return
        has_leaves = bool(returned.leaves or again.leaves)  # None differs from nothing
        if has_leaves and found.error is not None and not found.agrees:
            self._unsteady, self._draws = call.number, moved

    def _within_time(self, call: Call, run: Run, row: ReportRow) -> ReportRow:
        """The row, not ok if the call was too slow each time."""
        if self._bound is None:
            return row
        self._unmeasured += self._bound.of_call(call) is None
        seconds, runs = run.seconds, 1
        while row.ok and runs < RUNS and self._bound.exceeded(call, seconds, runs):
            seconds, runs = min(seconds, self._timed(call)), runs + 1
        slow = self._bound.exceeded(call, seconds, runs) if row.ok else None
        changed: dict[str, Any] = {"seconds": seconds}
        return row.model_copy(update=changed | ({"ok": False, "error": slow} if slow else {}))

    def _timed(self, call: Call) -> float:
        """How long the call takes once more."""
        with self._runner.undisturbed():
            run = self._runner.prepared(call)
            # It may be to raise, or not work twice: its time counts all the same.
            with suppress(*_FAILURES):
                run.start()
            return run.seconds

    @property
    def unmade(self) -> dict[str, str]:
        """The classes of arguments that could not be made, so that their calls were not tried, each
        with the reason."""
        return self._unmade

    @property
    def is_unsteady(self) -> bool:
        """Whether a call that failed gave other values when it was run once more."""
        return self._unsteady is not None

    def notes(self) -> list[str]:
        """What a reader of the report should know of all calls together."""
        found = [*made_up_note(self._made_up), *withheld_note(self._withheld)]
        if self._laid_out:
            calls = counted(self._laid_out, "call")
            found.append(
                f"{calls} got contiguous copies of tensors that were recorded in another layout: "
                "the package computes with the strides it was compiled for and does not look at "
                "those of its inputs, so pass it contiguous tensors, or it returns other values"
            )
        if self._unmade:
            not_tried = counted(self._without_arguments, "call")
            verb = "was" if self._without_arguments == 1 else "were"
            found.append(f"{not_tried} {verb} not tried: {unmade_advice(self._unmade)}")
        if self._classes_only:
            found.append(
                f"of {counted(self._classes_only, 'exception')} only the class was compared: the "
                "message is not on the tape"
            )
        if self._omitted:
            names = some_of([f"outputs{path}" for path in sorted(self._omitted)], 5)
            found.append(f"not compared, because the model does not return them: {names}")
        if self._unsteady is not None:
            why = (
                str(Drawing(tuple(self._draws)))
                if self._draws
                else "the model is not deterministic (dropout, random numbers)"
            )
            found.append(
                f"call {self._unsteady} gives other values each time it is run: {why}, so no tape "
                "can be reproduced"
            )
        if self._unmeasured:
            found.append(
                f"{counted(self._unmeasured, 'call')} may take any time: the tape has no duration"
            )
        return found


def _untried(call: Call, error: str) -> ReportRow:
    return ReportRow(call=call.number, variant=None, ok=False, error=error, against="nothing")


def _against(expected: Mapping[str, Any] | None, run: Run) -> str:
    """What the result can be compared with."""
    return "success" if expected is None else what_to_compare(expected, run.made_up)
