"""All programs of an export: each call goes to the program that accepts it (``dispatch.py``).

In come calls, live or recorded. Out go results, or a report of how far they are from the recorded
ones.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from calltape_analyzer.arguments.live_calls import LiveCall, with_int_defaults
from calltape_analyzer.arguments.samples import Sample, recorded_sample, sample_in
from calltape_analyzer.comparison.comparing import (
    Difference,
    Tolerances,
    compared,
    has_values,
    not_verified,
    recorded_leaves,
)
from calltape_analyzer.comparison.reporting import report_on
from calltape_analyzer.comparison.reports import Report, ReportRow, compared_row, failed_row
from calltape_analyzer.errors import InferenceError, NoVariant, UsageError
from calltape_analyzer.notebook import Shown, Sketch
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.attempts import Attempt
from calltape_analyzer.programs.dispatch import accepting_programs, serve
from calltape_analyzer.programs.program import (
    Program,
    because_of_state,
    shown_state,
    unchanged_note,
)
from calltape_analyzer.programs.returned_arguments import in_own_objects
from calltape_analyzer.reading.call import Call

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Programs"]

_ABSENT = object()


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


class Programs(Mapping[str, Program], Shown):
    """The programs of a tape, by the name of their variant.

    A call of it runs the program that accepts the arguments, and returns what the model would. It
    has the signature of what was recorded, so that it can stand in for the method
    (``model.forward = programs``).

    Attributes:
        attempts: what was tried to export them.
        missing: why variants have no program, by name.
        notes: what a person should know about the export as a whole.
        parts: programs of submodules that were exported as well, by the submodule's name.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        sorter: CallSorter,
        *,
        attempts: Sequence[Attempt] = (),
        missing: Mapping[str, str] | None = None,
        notes: Sequence[str] = (),
        reference: ModelReference | None = None,
        tape: Tape | None = None,
    ) -> None:
        self._programs = {program.name: program for program in programs}
        self._sorter = sorter
        self._reference = reference
        self._tape = tape
        self._resources: list[Any] = []
        self.parts: dict[str, Programs] = {}
        self.attempts = tuple(attempts)
        self.missing = dict(missing or {})
        self.notes = tuple(notes)
        # transformers asks what ``forward`` takes, also after ``model.forward = programs``.
        self.__signature__ = sorter.signature.as_python()

    def __getitem__(self, name: str) -> Program:
        return self._programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __repr__(self) -> str:
        return f"<Programs {', '.join(self) or 'none'}>"

    def _sketch(self) -> Sketch:
        rows = [(name, _outcome(program)) for name, program in self._programs.items()]
        rows += [(name, f"none: {reason}") for name, reason in self.missing.items()]
        return Sketch("Programs", head=("variant", "program"), rows=rows)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model would return for these arguments. A cache, list or dict that the model
        changes and returns has its new state afterwards, as with the model itself. An argument that
        the model changes and does not return stays as it was (:attr:`Program.notes` says so).

        Raises:
            NoVariant: no program accepts them; says why not, by variant. No program accepts an
                argument that :meth:`Tape.remove_inputs` left out, if it is not its default.
        """
        program, outputs = self._served(args, kwargs)
        names = self._sorter.signature.name_at
        given = {names(i): value for i, value in enumerate(args)} | kwargs
        return in_own_objects(program.value(outputs), program.returned, given)

    def _served(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Program, list[Any]]:
        live = LiveCall(args, kwargs, self._sorter)
        run = partial(serve, self, missing=self.missing, clone=False)
        try:
            return run(live.placed, live.sample)
        except NoVariant:
            filled = with_int_defaults(args, kwargs, self._sorter, self._arguments())
            if filled is not None:
                with suppress(NoVariant):
                    return run(filled.placed, filled.sample)
            raise

    def _arguments(self) -> set[str]:
        """The arguments that any program is for."""
        every = (program.variant.group.layout.arguments for program in self._programs.values())
        return {name for arguments in every for name in arguments}

    @contextmanager
    def installed(self, module: Any, *, method: str | None = None) -> Iterator[None]:
        """Lets a model run by its programs in the block: they, and those of its :attr:`parts`, take
        the place of the recorded method and of the parts' ``forward``. So ``generate()`` runs
        exported programs.

        Args:
            module: the model that was recorded.
            method: the method that was recorded. By default the one that the tape names; programs
                that were loaded have no tape, and take the place of ``forward``.

        Raises:
            UsageError: it has no such part, or no such method.
        """
        modules = dict(module.named_modules())
        target = self._tape.target if self._tape is not None else None
        own = method or (target.method if target is not None else "forward")
        if not callable(getattr(module, own, None)):
            raise UsageError(
                f"{type(module).__name__} has no method {own!r}",
                advice="pass the model that was recorded, and method= if it was another one",
            )
        replaced: list[tuple[Any, str, Programs]] = [(module, own, self)]
        for name, programs in self.parts.items():
            if name not in modules:
                raise UsageError(
                    f"{type(module).__name__} has no part {name!r}",
                    advice="pass the model that was recorded",
                )
            replaced.append((modules[name], "forward", programs))
        before = [vars(one).get(method, _ABSENT) for one, method, _ in replaced]
        try:
            for one, method, programs in replaced:
                one.__dict__[method] = programs
            yield
        finally:
            for (one, method, _), old in zip(replaced, before, strict=True):
                if old is _ABSENT:
                    one.__dict__.pop(method, None)
                else:
                    one.__dict__[method] = old

    @property
    def generalises(self) -> bool:
        """Whether a program may serve calls that differ from the recorded ones in size or value.
        False if there are several programs, and each is for one size, or for one value of a tensor,
        because no program for more could be made."""
        return len(self) < 2 or not all(program.is_constant for program in self.values())

    @property
    def tolerances(self) -> Tolerances:
        """How far results may be from the model's: the tolerances of the export, else the
        runtime's."""
        if self._reference is not None:
            return self._reference.tolerances
        # All programs of one export have the same runtime.
        return next((p.model.tolerances for p in self._programs.values()), Tolerances())

    def accepting(self, *args: Any, **kwargs: Any) -> str:
        """The name of the program that would take these arguments, as far as is known without
        running it.

        Raises:
            NoVariant: no program would; says why not.
        """
        live = LiveCall(args, kwargs, self._sorter)
        found, reasons = accepting_programs(self, live.placed)
        filled = with_int_defaults(args, kwargs, self._sorter, self._arguments())
        if not found and filled is not None:
            found, _ = accepting_programs(self, filled.placed)
        if not found:
            raise NoVariant("no program is for these arguments", reasons)
        return found[0].name

    def for_sizes(
        self, placed: SortedCall, ignored: Collection[str] = ()
    ) -> tuple[str | None, dict[str, str]]:
        """The name of the program that would take a call of these sizes, None if none would, and
        why the others would not. Nothing is run.

        Args:
            placed: the call.
            ignored: arguments that it passes and that do not count (:meth:`Tape.remove_inputs`).
        """
        found, reasons = accepting_programs(self, placed, ignored)
        return (found[0].name if found else None), reasons | self.missing

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
            tolerances: how far results may be from the recorded ones; by default as in
                ``torch.testing``, wider for ONNX.
            progress: shows a progress bar.
            failing: a path to which all calls that are not as they should be are written, as a
                sealed tape. There must be no such file yet.

        Raises:
            UsageError: there is no tape.
        """
        source = tape or self._tape
        if source is None:
            raise UsageError("there is no tape to verify with", advice="pass one: verify(tape)")
        bounds = tolerances or self.tolerances
        report = report_on(
            source, lambda call: self._row(call, bounds, source.removed), progress, failing
        )
        for program in self._programs.values():
            notes = list(program.notes)
            if unknown := program.unknown_classes():
                notes.append(f"returns placeholders for {', '.join(unknown)}, not known here")
            report.notes += [f"{program.name}: {note}" for note in notes]
        report.notes += self.notes
        return report

    def _row(self, call: Call, tolerances: Tolerances, ignored: Collection[str]) -> ReportRow:
        from calltape_analyzer.model.state import apart_from

        placed = self._sorter.sorted(call.record.inputs)
        found, _ = accepting_programs(self, placed, ignored)
        name = found[0].name if found else None
        against = "tape"
        try:
            device = found[0].device if found else None
            sample = recorded_sample(call, self._sorter, device)
            with self._undisturbed() as modules:
                program, outputs = serve(
                    self, placed, sample, missing=self.missing, clone=True, ignored=ignored
                )
                name, got = program.name, program.leaves(outputs)
                unmade = program.unmade(outputs)
                for module in modules:
                    got = apart_from(module, got)
            expected, against = self._expected(program, call)
            difference = compared(expected, got, tolerances)
            if not difference.agrees and against == "tape":
                difference = self._explained(program, call, got, difference)
            if beside := [*map(unchanged_note, program.unwritten), *unmade]:
                difference = not_verified(difference, beside)
        except Exception as error:  # torch, the runtime and the tape raise errors of any type
            return failed_row(call.number, name, error, against)
        return compared_row(call.number, name, difference, against)

    @contextmanager
    def _undisturbed(self) -> Iterator[list[Any]]:
        """Puts buffers back that programs write to: the model's, which its programs share, or, if
        the model is not here, the programs' own. Yields the modules that have them."""
        from calltape_analyzer.model.state import unchanged

        modules = [
            program.model.module
            for program in self._programs.values()
            if self._reference is None and program.state and program.model.module is not None
        ]
        modules += [] if self._reference is None else [self._reference.module]
        with ExitStack() as stack:
            for module in modules:
                stack.enter_context(unchanged(module))
            yield modules

    def _explained(
        self, program: Program, call: Call, got: Mapping[str, Any], difference: Difference
    ) -> Difference:
        """A difference with its reason, if the model's state is the reason."""
        if not program.state:
            return difference
        if self._reference is None:
            hint = f"the model has state ({shown_state(program.state)}) and was in another then"
            return difference._replace(error=f"{difference.error}; maybe because {hint}")
        sample = sample_in(program.variant, call, self._sorter, program.device)
        if not self._reference.does_as_model(program, sample, got):
            return difference
        return difference._replace(error=because_of_state(program))

    def _expected(self, program: Program, call: Call) -> tuple[dict[str, Any], str]:
        if self._reference is not None:
            sample = sample_in(program.variant, call, self._sorter, program.device)
            return self._reference.expected(program, call, sample)
        expected = recorded_leaves(call)
        if expected is None:
            raise InferenceError(
                "the outputs are not on the tape",
                advice="verify on the machine that has the model, after export",
            )
        return expected, "tape" if has_values(expected) else "shapes"

    @property
    def sorter(self) -> CallSorter:
        """Lays calls out in the way in which the programs were made for them."""
        return self._sorter

    def set_tape(self, tape: Tape) -> None:
        """Makes a tape the default of :meth:`verify`."""
        self._tape = tape

    def set_reference(self, reference: ModelReference) -> None:
        """Lets :meth:`verify` call the model for calls whose values are not on the tape."""
        self._reference = reference

    def set_resource(self, resource: Any) -> None:
        """Holds a reference to what the programs need: the folder that they are read from."""
        self._resources.append(resource)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the programs, a manifest and the shapes, for :func:`load_programs`: with
        :attr:`attempts`, :attr:`missing` and :attr:`notes`. Those of :attr:`parts` have a ``save``
        of their own.

        What an earlier save wrote into the directory is replaced; nothing else is replaced or
        removed.

        Raises:
            UsageError: the directory holds something else; nothing was written then.
            TapeError: ``io`` if it cannot be written.
        """
        from calltape_analyzer.programs.saving import save

        save(self, self._sorter.signature, directory)


def _outcome(program: Program) -> str:
    sizes = "one recorded size or value only" if program.is_constant else "any size that it takes"
    kind = type(program.model).__name__.removesuffix("Model")
    return "; ".join([f"{kind}, {sizes}", *program.notes[:2]])
