"""Exported programs together: each call goes to the one that accepts it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from calltape_analyzer.call import Call
from calltape_analyzer.comparing import (
    ONNX_TOLERANCES,
    Difference,
    Tolerances,
    compared,
    has_values,
    recorded_leaves,
)
from calltape_analyzer.errors import InferenceError, NoVariant, UsageError
from calltape_analyzer.exporting.attempts import Attempt
from calltape_analyzer.exporting.engines import OnnxEngine, TorchEngine
from calltape_analyzer.exporting.handing_back import handed_back
from calltape_analyzer.exporting.judging import Judge, because_of_state
from calltape_analyzer.exporting.program import Program, told_state
from calltape_analyzer.gathering import Gatherer, Sorted
from calltape_analyzer.live_calls import LiveCall
from calltape_analyzer.replaying import report_on
from calltape_analyzer.reports import Report, ReportRow, compared_row, failed_row
from calltape_analyzer.samples import Sample, in_variant, recorded_sample, sample_in

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Programs"]


class Programs(Mapping[str, Program]):
    """The programs of a tape, by the name of their variant.

    Calling it dispatches to the program that accepts the arguments, and returns what the model
    would. ``attempts`` tells what was tried to get there, ``missing`` why a variant has none.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        gatherer: Gatherer,
        *,
        attempts: Sequence[Attempt] = (),
        missing: Mapping[str, str] | None = None,
        judge: Judge | None = None,
        tape: Tape | None = None,
    ) -> None:
        self._programs = {program.name: program for program in programs}
        self._gatherer = gatherer
        self._judge = judge
        self._tape = tape
        self._kept: Any = None
        self.attempts = tuple(attempts)
        self.missing = dict(missing or {})

    def __getitem__(self, name: str) -> Program:
        return self._programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __repr__(self) -> str:
        return f"<Programs {', '.join(self) or 'none'}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model would return for these arguments. A cache, list or dict that the model
        changes and returns has its new state afterwards, as with the model itself; what it changes
        without returning it, stays as it was (:attr:`Program.notes` then says so).

        Raises:
            NoVariant: no program accepts them; says why not, by variant.
        """
        live = LiveCall(args, kwargs, self._gatherer)
        program, outputs = self._dispatch(live.placed, live.sample, clone=False)
        names = self._gatherer.signature.name_at
        given = {names(i): value for i, value in enumerate(args)} | kwargs
        return handed_back(program.value(outputs), program.returned, given)

    @property
    def tolerances(self) -> Tolerances:
        """How far results may be from the model's: what they were judged by, else those of
        ``torch.testing``, wider for ONNX."""
        if self._judge is not None:
            return self._judge.tolerances
        is_onnx = any(isinstance(p.engine, OnnxEngine) for p in self._programs.values())
        return ONNX_TOLERANCES if is_onnx else Tolerances()

    def accepting(self, *args: Any, **kwargs: Any) -> str:
        """The name of the program that would take these arguments, by what is known without
        running it.

        Raises:
            NoVariant: none.
        """
        live = LiveCall(args, kwargs, self._gatherer)
        found, reasons = self._candidates(live.placed)
        if not found:
            raise NoVariant("no program is for these arguments", reasons)
        return found[0].name

    def for_sizes(self, placed: Sorted) -> tuple[str | None, dict[str, str]]:
        """The program that would take a call of these sizes, by its conditions, and why the others
        would not. Nothing is run."""
        found, reasons = self._candidates(placed)
        return (found[0].name if found else None), reasons | self.missing

    def _candidates(self, placed: Sorted) -> tuple[list[Program], dict[str, str]]:
        found: list[Program] = []
        reasons: dict[str, str] = {}
        for program in self._programs.values():
            reason = program.refuses_call(placed)
            if reason is None:
                found.append(program)
            else:
                reasons[program.name] = reason
        return found, reasons

    def _dispatch(
        self, placed: Sorted, sample: Sample, *, clone: bool
    ) -> tuple[Program, list[Any]]:
        found, reasons = self._candidates(placed)
        for program in found:
            own = in_variant(program.variant, sample, placed.key, placed.row, program.device)
            reason = program.refuses_values(own)
            if reason is not None:
                reasons[program.name] = reason
                continue
            own = own.cloned() if clone else own
            try:
                return program, program.outputs(own)
            except Exception as error:
                if len(found) == 1 and not _is_refusal(error):
                    raise
                reasons[program.name] = f"{type(error).__name__}: {str(error).splitlines()[0]:.200}"
        missing = {name: f"not exported: {why:.160}" for name, why in self.missing.items()}
        raise NoVariant("no program accepts these arguments", reasons | missing)

    def verify(
        self,
        tape: Tape | None = None,
        *,
        tolerances: Tolerances | None = None,
        progress: bool = False,
        failing: str | os.PathLike[str] | None = None,
    ) -> Report:
        """Runs every recorded call through the program that accepts it, and compares.

        Args:
            tape: the tape; the one that was exported by default.
            tolerances: how far results may be from the recorded ones; by default those of
                ``torch.testing``, wider for ONNX.
            progress: shows a progress bar.
            failing: where the first call that is not reproduced is written, as a tape of its own.

        Raises:
            UsageError: there is no tape.
        """
        source = tape or self._tape
        if source is None:
            raise UsageError("there is no tape to verify with", advice="pass one: verify(tape)")
        bounds = tolerances or self.tolerances
        report = report_on(source, lambda call: self._row(call, bounds), progress, failing)
        for program in self._programs.values():
            notes = list(program.notes)
            if unknown := program.unknown_classes():
                notes.append(f"returns placeholders for {', '.join(unknown)}, not known here")
            report.notes += [f"{program.name}: {note}" for note in notes]
        return report

    def _row(self, call: Call, tolerances: Tolerances) -> ReportRow:
        from calltape_analyzer.exporting.model_state import apart_from

        placed = self._gatherer.sorted(call.record.inputs)
        found, _ = self._candidates(placed)
        name = found[0].name if found else None
        against = "tape"
        try:
            device = found[0].device if found else None
            sample = recorded_sample(call, self._gatherer, device)
            with self._undisturbed() as modules:
                program, outputs = self._dispatch(placed, sample, clone=True)
                name, got = program.name, program.leaves(outputs)
                for module in modules:
                    got = apart_from(module, got)
            expected, against = self._expected(program, call)
            difference = compared(expected, got, tolerances)
            if not difference.agrees and against == "tape":
                difference = self._explained(program, call, got, difference)
        except Exception as error:  # whatever torch, the runtime or the tape have to say
            return failed_row(call.number, name, error, against)
        return compared_row(call.number, name, difference, against)

    @contextmanager
    def _undisturbed(self) -> Iterator[list[Any]]:
        """Leaves the model's buffers alone, which its programs share and may write to; without the
        model those of the programs. Yields the modules that have them."""
        from calltape_analyzer.exporting.model_state import unchanged

        modules = [
            program.engine.module
            for program in self._programs.values()
            if self._judge is None and program.state and isinstance(program.engine, TorchEngine)
        ]
        modules += [] if self._judge is None else [self._judge.module]
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(unchanged(module))
            yield modules

    def _explained(
        self, program: Program, call: Call, got: Mapping[str, Any], difference: Difference
    ) -> Difference:
        """A difference with its reason, where that is the model's state."""
        if not program.state:
            return difference
        if self._judge is None:
            hint = f"the model has state ({told_state(program.state)}) and was in another then"
            return difference._replace(error=f"{difference.error}; maybe because {hint}")
        sample = sample_in(program.variant, call, self._gatherer, program.device)
        if not self._judge.does_as_model(program, sample, got):
            return difference
        return difference._replace(error=because_of_state(program))

    def _expected(self, program: Program, call: Call) -> tuple[dict[str, Any], str]:
        if self._judge is not None:
            sample = sample_in(program.variant, call, self._gatherer, program.device)
            return self._judge.expected(program, call, sample)
        expected = recorded_leaves(call)
        if expected is None:
            raise InferenceError(
                "the outputs are not on the tape", advice="verify where the model is, after export"
            )
        return expected, "tape" if has_values(expected) else "shapes"

    @property
    def gatherer(self) -> Gatherer:
        """Lays calls out as those were that the programs were made for."""
        return self._gatherer

    def verifies(self, tape: Tape) -> None:
        """Makes a tape the one that :meth:`verify` takes by default."""
        self._tape = tape

    def judged_by(self, judge: Judge) -> None:
        """Lets :meth:`verify` call the model, for calls whose values are not on the tape."""
        self._judge = judge

    def keeps(self, resource: Any) -> None:
        """Lets something live as long as the programs: the files that they are read from."""
        self._kept = resource

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the programs, a manifest and the shapes, as :func:`load_programs` reads them.

        What an earlier save wrote there is replaced; nothing else is ever replaced or removed.

        Raises:
            UsageError: the directory holds something else; nothing was written then.
            TapeError: ``io`` where it cannot be written.
        """
        from calltape_analyzer.exporting.saving import save

        save(self, self._gatherer.signature, directory)


def _is_refusal(error: Exception) -> bool:
    """Whether a program refused its inputs, rather than failing with the model's own error. The
    conditions of an exported program are assertions; ONNX Runtime names its own errors."""
    if isinstance(error, AssertionError):
        return True
    text = str(error)
    words = ("Guard failed", "Runtime assertion failed", "Invalid argument", "INVALID_ARGUMENT")
    return any(word in text for word in words) or type(error).__module__.startswith("onnxruntime")
