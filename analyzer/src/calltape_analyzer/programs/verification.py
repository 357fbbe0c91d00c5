"""Recorded calls through the programs that accept them, each compared with what was recorded.

A program that writes to the state of its model is asked in two ways. First each call begins with
the state at the export. What is not reproduced so may have begun with the state that the call
before left: then all calls run in order, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Protocol

from calltape_analyzer.arguments.complete_inputs import has_made_up
from calltape_analyzer.arguments.samples import Sample, in_variant, recorded_sample
from calltape_analyzer.comparison.comparing import (
    Difference,
    Tolerances,
    compared,
    has_values,
    not_verified,
    recorded_leaves,
)
from calltape_analyzer.comparison.reporting import MADE_UP, made_up_note, withheld_note
from calltape_analyzer.comparison.reports import ReportRow, compared_row, failed_row
from calltape_analyzer.comparison.structures import (
    compared_against,
    what_to_compare,
    without_value,
)
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.facts import Fact
from calltape_analyzer.observing.call_source import CallSource
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.dispatch import CallOrigin, accepting_programs, serve
from calltape_analyzer.programs.notes import Unwritten
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.reasons import InState, MaybeState, RandomAdvice, RandomDiffers
from calltape_analyzer.reading.call import Call
from calltape_analyzer.reading.call_ref import CallRef
from calltape_analyzer.text import counted

__all__ = ["ModelReference", "Verification"]


class ModelReference(Protocol):
    """The model that programs were exported from. It is called for calls whose values are not on
    the tape."""

    @property
    def module(self) -> Any: ...
    @property
    def tolerances(self) -> Tolerances: ...
    def expected(
        self, program: Program, call: Call, sample: Sample
    ) -> tuple[dict[str, Any], str]: ...
    def does_as_model(self, program: Program, sample: Sample, got: Mapping[str, Any]) -> bool: ...
    def if_random(
        self, program: Program, sample: Sample, got: Mapping[str, Any], found: Difference
    ) -> Difference | None: ...


@dataclass
class Verification:
    """The calls of one tape through programs.

    Attributes:
        programs: by name; the first are preferred.
        sorter: lays calls out.
        source: the calls.
        missing: why variants have no program, by name.
        reference: the model; None if it is not here.
        tolerances: how far results may be from the recorded ones.
        shapes_suffice: whether a call may be compared in structure, dtypes and shapes where the
            tape has no values and the model is not here. Otherwise such a call is not verified.
        origin: whether it is known that the programs were exported from these calls.
        explains: whether a difference is explained, for which the model may be called.
        in_order: how many calls were reproduced only in order.
        made_up: how many calls were run with arguments that are not on the tape, and compared in
            dtypes and shapes only.
        withheld: the paths of outputs whose values are not on the tape, of calls that were compared
            in part.
    """

    programs: Mapping[str, Program]
    sorter: CallSorter
    source: CallSource
    missing: Mapping[str, Fact]
    reference: ModelReference | None
    tolerances: Tolerances
    shapes_suffice: bool = False
    origin: CallOrigin = "tape"
    explains: bool = True
    in_order: int = 0
    made_up: int = 0
    withheld: set[str] = field(default_factory=set)

    def row(self, call: Call) -> ReportRow:
        """What became of a call."""
        program, found = self._found(call, self._undisturbed)
        if found.ok or found.against != "tape" or program is None or not _keeps_state(program):
            return found
        again = self._rows_in_order.get(call.ref)
        if again is None:
            return found
        self.in_order += 1
        return again

    @property
    def notes(self) -> list[str]:
        """What a person should know about the comparison."""
        found = [*made_up_note(self.made_up), *withheld_note(self.withheld)]
        if self.in_order:
            are = counted(self.in_order, "call")
            found.append(
                f"{are} reproduced in order, each from the state that the call before left"
            )
        return found

    @cached_property
    def _rows_in_order(self) -> dict[CallRef, ReportRow]:
        """The calls that are reproduced if each begins with the state that the one before left;
        the first of each recording with the state at the export."""
        within = replace(self, explains=False)
        right: dict[CallRef, ReportRow] = {}
        for _, calls in groupby(self.source.calls, lambda call: call.ref.tape):
            with self._undisturbed() as modules:
                for call in calls:
                    if call.under_way or has_raised(call):
                        continue
                    _, found = within._found(call, _changing(modules))
                    if found.ok and found.against == "tape":
                        right[call.ref] = found
        return right

    def _found(
        self, call: Call, held: Callable[[], AbstractContextManager[list[Any]]]
    ) -> tuple[Program | None, ReportRow]:
        """The program that took a call, and the row of the call.

        Args:
            call: the call.
            held: gives what a run is made within, and the modules whose state may change there.
        """
        from calltape_analyzer.model.state import apart_from

        ignored = self.source.removed
        placed = self.sorter.sorted(call.record.inputs)
        found, _ = accepting_programs(self.programs, placed, ignored)
        name = found[0].name if found else None
        against, doubt = "tape", ""
        try:
            if self.shapes_suffice and self.reference is None and found and has_made_up(call):
                self.made_up, doubt = self.made_up + 1, MADE_UP
            device = found[0].device if found else None
            sample = recorded_sample(call, self.sorter, device)
            with held() as modules:
                program, outputs = serve(
                    self.programs,
                    placed,
                    sample,
                    missing=self.missing,
                    clone=True,
                    ignored=ignored,
                    origin=self.origin,
                )
                name, got = program.name, program.leaves(outputs)
                unmade = program.unmade(outputs)
                for module in modules:
                    got = apart_from(module, got)
            # The same values: to read them once more takes as long as a small program.
            own = in_variant(program.variant, sample, placed.key, placed.row, program.device)
            expected, against = self._expected(program, call, own)
            difference = self._difference(against, expected, got)
            if against == "tape" and difference.agrees:
                program.note_layouts(expected, got)
            is_explained = not difference.agrees or bool(program.draws)
            if is_explained and against == "tape" and self.explains:
                difference, against = self._explained(program, own, got, difference)
            if beside := [*(str(Unwritten(name)) for name in program.unwritten), *unmade]:
                difference = not_verified(difference, beside)
        except Exception as error:  # torch, the runtime and the tape raise errors of any type
            return None, _doubted(failed_row(call.number, name, error, against), doubt)
        return program, _doubted(compared_row(call.number, name, difference, against), doubt)

    @contextmanager
    def _undisturbed(self) -> Iterator[list[Any]]:
        """Puts buffers back that programs write to: the model's, which its programs share, or, if
        the model is not here, the programs' own. Yields the modules that have them."""
        from calltape_analyzer.model.randomness import generators_kept
        from calltape_analyzer.model.state import unchanged

        modules = [
            program.model.module
            for program in self.programs.values()
            if self.reference is None and program.state and program.model.module is not None
        ]
        modules += [] if self.reference is None else [self.reference.module]
        with ExitStack() as stack:
            held = None if self.reference is None else self.reference.module
            stack.enter_context(generators_kept(held))
            for module in modules:
                stack.enter_context(unchanged(module))
            yield modules

    def _explained(
        self,
        program: Program,
        sample: Sample,
        got: Mapping[str, Any],
        difference: Difference,
    ) -> tuple[Difference, str]:
        """A difference with its reason, if the model's state or random numbers are the reason, and
        what was compared with. Random numbers are no difference to the model."""
        if self.reference is None:
            return self._explained_by_notes(program, difference), "tape"
        random = self.reference.if_random(program, sample, got, difference)
        if random is not None:
            return random, "module"
        if (
            difference.agrees
            or not program.state
            or not self.reference.does_as_model(program, sample, got)
        ):
            return difference, "tape"
        return difference._replace(error=str(InState(program.state))), "tape"

    def _explained_by_notes(self, program: Program, difference: Difference) -> Difference:
        """A difference with what is known of a model that is not here."""
        if difference.agrees:
            return difference
        if program.draws:
            advice = RandomAdvice.VERIFY_AT_MODEL
            random = RandomDiffers(difference.error, program.draws, advice)
            return difference._replace(error=str(random))
        if not program.state:
            return difference
        return difference._replace(error=str(MaybeState(str(difference.error), program.state)))

    def _difference(
        self, against: str, expected: dict[str, Any], got: dict[str, Any]
    ) -> Difference:
        if not self.shapes_suffice:
            return compared(expected, got, self.tolerances)
        if against == "part":
            self.withheld |= without_value(expected)
        return compared_against(against, expected, got, self.tolerances)

    def _expected(self, program: Program, call: Call, sample: Sample) -> tuple[dict[str, Any], str]:
        if self.reference is not None:
            return self.reference.expected(program, call, sample)
        expected = recorded_leaves(call)
        if expected is None:
            raise InferenceError(
                "the outputs are not on the tape",
                advice="verify on the machine that has the model, after export",
            )
        if self.shapes_suffice:
            return expected, what_to_compare(expected, has_made_up(call))
        return expected, "tape" if has_values(expected) else "shapes"


def _doubted(row: ReportRow, doubt: str) -> ReportRow:
    """A row with what to know about the arguments, if it is not ok."""
    return row if row.error is None else row.model_copy(update={"error": f"{row.error}{doubt}"})


def _keeps_state(program: Program) -> bool:
    """Whether a run of the program may leave another state behind."""
    return bool(program.state) and program.model.has_state


def _changing(modules: list[Any]) -> Callable[[], AbstractContextManager[list[Any]]]:
    """Lets runs change the state of modules that somebody else puts back."""
    return lambda: nullcontext(modules)
