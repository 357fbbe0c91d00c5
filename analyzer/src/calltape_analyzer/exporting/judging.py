"""Whether a program does what the model does: at recorded sizes, and at others.

A program counts when it reproduces every recorded size. Among those that do, one that also holds
at sizes that were never recorded is better; a program that returns wrong values at one of them is
kept to the sizes that it was right at.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from calltape_analyzer.call import Call
from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.comparing import (
    Tolerances,
    compared,
    is_described,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.exporting.attempts import Attempt, said
from calltape_analyzer.exporting.engines import OnnxEngine
from calltape_analyzer.exporting.module_calls import eager
from calltape_analyzer.exporting.plan import Plan
from calltape_analyzer.exporting.probing import Probing
from calltape_analyzer.exporting.program import Program, told_state
from calltape_analyzer.gathering import Gatherer
from calltape_analyzer.samples import Sample, resized, resized_row, sample_in
from calltape_analyzer.sizes import Sizing, sizes_in_words
from calltape_analyzer.splitting import Fixed, column_name
from calltape_analyzer.symbols import value_in
from calltape_analyzer.tallies import CallRef
from calltape_analyzer.variants import VariantFacts

__all__ = ["Judge", "because_of_state", "restrict"]

_MAX_ROWS = 24


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
        state: the parameters, buffers and attributes of the model that calls were seen to change,
            with what they were, in words.
        probing: at which other sizes the model is run.
    """

    module: Any
    entry: Callable[..., Any]
    gatherer: Gatherer
    find: Callable[[CallRef], Call]
    classes: ClassIndex
    device: str
    tolerances: Tolerances
    probing: Probing = field(default_factory=Probing)
    state: dict[str, str] = field(default_factory=dict)
    _looked: set[Hashable] = field(default_factory=set)

    def sample(self, variant: VariantFacts, sizing: Sizing) -> Sample:
        """The values of a recorded row, with other sizes."""
        call = self.find(variant.rows[sizing.row][1].first)
        sample = sample_in(variant, call, self.gatherer, self.device)
        return resized(sample, variant, sizing.row, sizing.values) if sizing.resized else sample

    def judge(self, program: Program, attempt: Attempt, around: Sequence[Sizing]) -> None:
        """Fills in what came of an attempt, and notes state and what could not be verified.

        Args:
            program: what it made.
            attempt: what is filled in.
            around: sizes that were never recorded and that it was made for.
        """
        self._look_for_state(program)
        for row, seen in program.variant.rows[:_MAX_ROWS]:
            attempt.tried += 1
            found = self.replayed(program, self.find(seen.first), attempt)
            attempt.reproduced += found.ok
            attempt.failed += found.broke
            attempt.error = attempt.error or found.error
            attempt.rows[row] = "ok" if found.ok else "wrong" if found.ran else "refused"
        if attempt.reproduced and not attempt.compared:
            # All that came out is empty, or not a number: that any program returns.
            attempt.reproduced, attempt.rows = 0, dict.fromkeys(attempt.rows, "wrong")
            attempt.error = (
                "nothing was compared: no recorded output has an element that is a number"
            )
        program.notes += [f"not verified: {what}" for what in attempt.unverified]
        program.has_state(self.state)
        if not attempt.reproduced and not around:
            return
        for sizing in self.probing.sizings(program.variant, around):
            self._probe(program, attempt, sizing)
        program.notes += self.probing.notes(program.variant, attempt)

    def _look_for_state(self, program: Program) -> None:
        """Calls the model once for each kind of call. A program shows only what it changes itself,
        which Python attributes never are."""
        variant = program.variant
        if variant.group.key in self._looked:
            return
        self._looked.add(variant.group.key)
        call = self.find(variant.rows[0][1].first)
        with suppress(Exception):  # the model's own: no evidence
            self.eager(program.plan, sample_in(variant, call, self.gatherer, self.device))

    def replayed(self, program: Program, call: Call, attempt: Attempt) -> Replayed:
        """What became of a recorded call."""
        sample = sample_in(program.variant, call, self.gatherer, self.device)
        refusal = program.refuses_call(self.gatherer.sorted(call.record.inputs))
        refusal = refusal or program.refuses_values(sample)
        if refusal is not None:
            return Replayed(False, False, f"call {call.number}: {refusal}")
        expected, against = self.expected(program, call, sample)
        try:
            got = self._outputs(program, sample)
        except Exception as error:  # torch's or the runtime's own
            return Replayed(False, False, f"call {call.number}: {said(error)}", broke=True)
        found = compared(expected, got, self.tolerances)
        attempt.add(found)
        wrong = None if found.agrees else f"call {call.number}: {found.error}"
        if wrong is not None and against == "tape" and self.does_as_model(program, sample, got):
            return Replayed(True, True, f"call {call.number}: {because_of_state(program)}")
        return Replayed(found.agrees, True, wrong)

    def does_as_model(self, program: Program, sample: Sample, got: Mapping[str, Any]) -> bool:
        """Whether a program of a model with state does what the model does from the state that it
        has now. What was recorded began in another state."""
        program.has_state(self.state)
        if not program.state:
            return False
        try:
            now = self.eager(program.plan, sample)
        except Exception:  # the model's own: no evidence
            return False
        return compared(now, got, self.tolerances).agrees

    def expected(self, program: Program, call: Call, sample: Sample) -> tuple[dict[str, Any], str]:
        """What a call should give: what was recorded (``"tape"``), or where that is not on the
        tape, what the model gives now (``"module"``)."""
        facts = call.record.inputs.facts()
        outputs = call.record.outputs
        kept = outputs is not None and all(leaf.key for leaf in (*facts, *outputs.facts()))
        found = recorded_leaves(call) if kept else None
        if found is not None and is_described(found):
            return found, "tape"
        now = self.eager(program.plan, sample)
        if found is not None and not is_described(now):
            return found, "tape"  # the model would tell no more
        return now, "module"

    def eager(self, plan: Plan, sample: Sample) -> dict[str, Any]:
        """The leaves of what the model returns now, whose state stays as it is."""
        from calltape_analyzer.exporting.model_state import apart_from

        with self._undisturbed():
            value = eager(self.entry, plan, sample.cloned(), self.classes, self.device)
            return apart_from(self.module, leaves_of(value))

    def _outputs(self, program: Program, sample: Sample) -> dict[str, Any]:
        from calltape_analyzer.exporting.model_state import apart_from

        with self._undisturbed() as changed:
            found = program.leaves(program.outputs(sample.cloned()))
            leaves = apart_from(self.module, found)
        program.kept |= changed.keys()
        return leaves

    @contextmanager
    def _undisturbed(self) -> Iterator[dict[str, Any]]:
        """Takes back what a call changes in the model, and remembers what that was."""
        from calltape_analyzer.exporting.model_state import in_words, unchanged

        with unchanged(self.module) as changed:
            yield changed
        for name, value in changed.items():
            self.state.setdefault(name, in_words(value))

    def refuses(self, variant: VariantFacts, sizing: Sizing) -> str | None:
        """Why the model is not run at sizes that no call had: they would cost too much."""
        return self.probing.refuses(
            variant, sizing, lambda recorded: self._run(variant, recorded), self.device
        )

    def _run(self, variant: VariantFacts, sizing: Sizing) -> Any:
        sample = self.sample(variant, sizing)
        return self.eager(Plan.of(variant, sample, self.gatherer.signature), sample)

    def _probe(self, program: Program, attempt: Attempt, sizing: Sizing) -> None:
        """One size that was never recorded: the model says what is right."""
        variant = program.variant
        reason = self.refuses(variant, sizing)
        if reason is not None:
            attempt.untried.append(f"{sizes_in_words(variant, sizing)}: {reason}")
            return
        sample = self.sample(variant, sizing)
        try:
            run = self.probing.run
            expected = run(variant, sizing, lambda: self.eager(program.plan, sample))
        except TimeoutError as error:
            attempt.untried.append(f"{sizes_in_words(variant, sizing)}: {error}")
            return
        except Exception:  # the model does not take these sizes: no evidence
            return
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
        attempt.add(found)
        attempt.held += found.agrees
        if not found.agrees:
            attempt.wrong_at.append(sizing)
            attempt.error = attempt.error or f"at unseen sizes: {found.error}"


def because_of_state(program: Program) -> str:
    """Why a call is not reproduced by a program that does what the model does."""
    return (
        f"the model itself returns something else now, because its calls change its state "
        f"({told_state(program.state)}); from the state that it has now the program does the same"
    )


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
