"""Whether a program does what the model does: at recorded sizes, and at others.

A program counts when it reproduces every recorded size. Among those that do, one that also holds
at sizes that were never recorded is better; a program that returns wrong values at one of them is
kept to the sizes that it was right at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from calltape_analyzer.call import Call
from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.comparing import Tolerances, compared, leaves_of, recorded_leaves
from calltape_analyzer.exporting.attempts import Attempt, said
from calltape_analyzer.exporting.engines import OnnxEngine
from calltape_analyzer.exporting.module_calls import eager, unchanged
from calltape_analyzer.exporting.plan import Plan
from calltape_analyzer.exporting.program import Program
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.samples import Sample, resized, resized_row, sample_in
from calltape_analyzer.sizes import (
    Sizing,
    sizings_around,
    sizings_far,
    sizings_of_one,
    sizings_unseen,
)
from calltape_analyzer.splitting import Fixed, column_name
from calltape_analyzer.symbols import value_in
from calltape_analyzer.tallies import CallRef
from calltape_analyzer.variants import VariantFacts

__all__ = ["Judge", "restrict"]

_MAX_ROWS = 24
_MAX_PROBES = 3


class Replayed(NamedTuple):
    """Whether a call was reproduced, whether the program ran at all, what was wrong, and whether it
    broke while it ran instead of refusing the call."""

    ok: bool
    ran: bool
    error: str | None
    broke: bool = False


@dataclass
class Judge:
    """Runs calls through programs of one model, and through the model itself.

    Attributes:
        module: the model; ``entry`` is what its calls call.
        gatherer: lays calls out.
        find: gives the call that a reference is to.
        classes: those that arguments may be made of.
        device: where the model is.
        tolerances: how far a program may be off.
    """

    module: Any
    entry: Callable[..., Any]
    gatherer: Gatherer
    find: Callable[[CallRef], Call]
    classes: ClassIndex
    device: str
    tolerances: Tolerances

    def sample(self, variant: VariantFacts, sizing: Sizing) -> Sample:
        """The values of a recorded row, with other sizes."""
        call = self.find(variant.rows[sizing.row][1].first)
        sample = sample_in(variant, call, self.gatherer, self.device)
        return resized(sample, variant, sizing.row, sizing.values) if sizing.resized else sample

    def judge(self, program: Program, attempt: Attempt, around: Sequence[Sizing]) -> None:
        """Fills in what came of an attempt.

        Args:
            program: what it made.
            attempt: what is filled in.
            around: sizes that were never recorded and that it was made for.
        """
        for row, seen in program.variant.rows[:_MAX_ROWS]:
            attempt.tried += 1
            found = self.replayed(program, self.find(seen.first))
            attempt.reproduced += found.ok
            attempt.failed += found.broke
            attempt.error = attempt.error or found.error
            attempt.rows[row] = "ok" if found.ok else "wrong" if found.ran else "refused"
        if not attempt.reproduced and not around:
            return
        probes = sizings_unseen(program.variant, _MAX_PROBES)
        probes += sizings_of_one(program.variant, _MAX_PROBES)
        probes += sizings_far(program.variant)
        for sizing in [*around, *sizings_around(program.variant, around), *probes]:
            self._probe(program, attempt, sizing)

    def replayed(self, program: Program, call: Call) -> Replayed:
        """What became of a recorded call."""
        sample = sample_in(program.variant, call, self.gatherer, self.device)
        refusal = program.refuses_call(self.gatherer.sorted(call.record.inputs))
        refusal = refusal or program.refuses_values(sample)
        if refusal is not None:
            return Replayed(False, False, f"call {call.number}: {refusal}")
        expected, _ = self.expected(program, call, sample)
        try:
            got = self._outputs(program, sample)
        except Exception as error:  # torch's or the runtime's own
            return Replayed(False, False, f"call {call.number}: {said(error)}", broke=True)
        found = compared(expected, got, self.tolerances)
        return Replayed(found.ok, True, None if found.ok else f"call {call.number}: {found.error}")

    def expected(self, program: Program, call: Call, sample: Sample) -> tuple[dict[str, Any], str]:
        """What a call should give: what was recorded (``"tape"``), or where that is not on the
        tape, what the model gives now (``"module"``)."""
        facts = call.record.inputs.facts()
        outputs = call.record.outputs
        kept = outputs is not None and all(leaf.key for leaf in (*facts, *outputs.facts()))
        found = recorded_leaves(call) if kept else None
        if found is not None:
            return found, "tape"
        return leaves_of(self.eager(program.plan, sample)), "module"

    def eager(self, plan: Plan, sample: Sample) -> Any:
        """What the model returns now, whose buffers stay as they are."""
        with unchanged(self.module):
            return eager(self.entry, plan, sample.cloned(), self.classes, self.device)

    def _outputs(self, program: Program, sample: Sample) -> dict[str, Any]:
        with unchanged(self.module):
            return program.leaves(program.outputs(sample.cloned()))

    def _probe(self, program: Program, attempt: Attempt, sizing: Sizing) -> None:
        """One size that was never recorded: the model says what is right."""
        sample = self.sample(program.variant, sizing)
        try:
            value = self.eager(program.plan, sample)
        except Exception:  # the model does not take these sizes: no evidence
            return
        expected = leaves_of(value)
        attempt.probed += 1
        refusal = program.refuses(resized_row(program.variant, sizing.row, sizing.values))
        if refusal is not None:
            attempt.error = attempt.error or f"at unseen sizes: {refusal}"
            if 1 not in sizing.values:
                attempt.refused.append(sizing)
            return
        try:
            got = self._outputs(program, sample)
        except Exception as error:  # it refuses
            attempt.error = attempt.error or f"at unseen sizes: {said(error)}"
            attempt.refused.append(sizing)
            attempt.failed += 1
            return
        found = compared(expected, got, self.tolerances)
        attempt.held += found.ok
        if not found.ok:
            attempt.wrong_at.append(sizing)
            attempt.error = attempt.error or f"at unseen sizes: {found.error}"


def restrict(program: Program, attempt: Attempt) -> None:
    """Keeps a program from sizes at which it gave wrong values: from a size of 1, where that was
    all that was wrong, else to the sizes that it reproduced."""
    wrong = sum(found == "wrong" for found in attempt.rows.values())
    if not program.is_understood():
        _keep_to_verified(program, attempt, "it has conditions that cannot be checked here")
        return
    if attempt.failed and isinstance(program.engine, OnnxEngine):
        # What breaks at one size that it should take may be wrong at another: the conversion made a
        # constant of something that was none.
        failed = f"ONNX Runtime failed at {attempt.failed} sizes that it should take"
        _keep_to_verified(program, attempt, failed)
        return
    if not attempt.wrong and not wrong:
        return
    if not wrong and _forbid_ones(program, attempt):
        return
    what = (
        f"{wrong} recorded sizes"
        if wrong
        else f"{attempt.wrong} of {attempt.probed} sizes that were never recorded"
    )
    _keep_to_verified(program, attempt, f"it returned wrong values at {what}")


def _keep_to_verified(program: Program, attempt: Attempt, why: str) -> None:
    program.only = frozenset(row for row, found in attempt.rows.items() if found == "ok")
    program.notes.append(f"serves {len(program.only)} recorded sizes only: {why}")


def _forbid_ones(program: Program, attempt: Attempt) -> bool:
    """Refuses 1 for the symbols that were 1 whenever the program was wrong; whether that is all."""
    variant = program.variant
    ones = [{i for i, v in enumerate(s.values) if v == 1} for s in attempt.wrong_at]
    if not all(ones):
        return False
    columns = [variant.symbols[i].columns[0] for i in sorted(set().union(*ones))]
    if any(value_in(row, column) == 1 for row, _ in variant.rows for column in columns):
        return False
    forbidden = tuple(Fixed(column, 1, negated=True) for column in columns)
    program.variant = replace(variant, conditions=(*variant.conditions, *forbidden))
    names = ", ".join(column_name(variant.group.layout, column) for column in columns)
    program.notes.append(f"does not take a size of 1 for {names}: the model does something else")
    return True
