"""All programs of an export. Each call goes to the first program that accepts it (``dispatch.py``).

Takes live or recorded calls; returns results, or a report that compares them with the recorded
ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from calltape_analyzer.arguments.samples import LiveCall
from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import Expect, Judge, TimeBound, report_on
from calltape_analyzer.comparison.reports import Report
from calltape_analyzer.errors import UsageError
from calltape_analyzer.facts import Fact, Note
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.plain_data import Shown, Sketch
from calltape_analyzer.programs.attempts import Attempt, VariantVerdict
from calltape_analyzer.programs.caller_objects import in_own_objects
from calltape_analyzer.programs.dispatch import (
    accepting_programs,
    accepting_values,
    no_variant,
    serve,
)
from calltape_analyzer.programs.notes import OfProgram, ReturnsPlaceholders, ValuesUnchecked
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.runner import ModelReference, ProgramsRunner
from calltape_analyzer.text import variant_names

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["Programs"]

_ABSENT = object()


class Programs(Mapping[str, Program], Shown):
    """The programs of a tape, by the name of their variant.

    Calling it runs the program that accepts the arguments, and returns what the model would. It has
    the signature of the recorded method, so that it can replace it (``model.forward = programs``).

    Attributes:
        attempts: what the export tried.
        missing: why variants have no program, by name.
        all_notes: notes and remarks about the export as a whole.
        verdicts: which new calls of each variant will be served.
        parts: programs of submodules that were exported as well, by the submodule's name.
        sorter: sorts calls as the export did.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        sorter: CallSorter,
        *,
        attempts: Sequence[Attempt] = (),
        missing: Mapping[str, Fact] | None = None,
        all_notes: Sequence[Note] = (),
        verdicts: Sequence[VariantVerdict] = (),
        reference: ModelReference | None = None,
        tape: Tape | None = None,
    ) -> None:
        self._programs = {program.name: program for program in programs}
        # A program that accepts any int accepts its default as well.
        self.sorter = sorter.agreeing(program.variant.group.layout for program in programs)
        self._reference = reference
        if reference is not None:
            for program in programs:
                program.owner = reference.module
        self._tape = tape
        self._resources: list[Any] = []
        self.parts: dict[str, Programs] = {}
        self.attempts = tuple(attempts)
        self.missing = dict(missing or {})
        self.all_notes = tuple(all_notes)
        self.verdicts = tuple(verdicts)
        # transformers inspects the signature of ``forward``, also after ``model.forward =
        # programs``.
        self.__signature__ = self.sorter.signature.as_python()

    def __getitem__(self, name: str) -> Program:
        return self._programs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def __len__(self) -> int:
        return len(self._programs)

    def __repr__(self) -> str:
        return f"<Programs {variant_names(list(self)) or 'none'}>"

    @property
    def notes(self) -> tuple[Note, ...]:
        """What a user should know about the export as a whole."""
        return tuple(note for note in self.all_notes if not note.is_remark)

    @property
    def remarks(self) -> tuple[Note, ...]:
        """What could have taken less time."""
        return tuple(note for note in self.all_notes if note.is_remark)

    def _sketch(self) -> Sketch:
        rows: list[tuple[str, str]] = []
        for name, program in self._programs.items():
            kind = type(program.model).__name__.removesuffix("Model")
            sizes = "one recorded size or value only"
            sizes = sizes if program.is_constant else "any size that it takes"
            rows.append((name, "; ".join([f"{kind}, {sizes}", *map(str, program.notes[:2])])))
        rows += [(name, f"none: {reason}") for name, reason in self.missing.items()]
        return Sketch("Programs", head=("variant", "program"), rows=rows)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model would return for these arguments. A cache, list or dict that the model
        changes and returns has its new state afterwards, as with the model itself. An argument that
        the model changes and does not return stays as it is (:attr:`Program.notes` mentions it).

        Raises:
            NoVariant: no program accepts them; says why not, by variant. No program accepts an
                argument that :meth:`Tape.remove_inputs` left out, if it is not its default.
        """
        live = LiveCall(args, kwargs, self.sorter)
        program, outputs = serve(self, live.placed, live.sample, missing=self.missing, clone=False)
        names = self.sorter.signature.name_at
        given = {names(i): value for i, value in enumerate(args)} | kwargs
        return in_own_objects(program.value(outputs), program.returned, given)

    @contextmanager
    def installed(self, module: Any, *, method: str | None = None) -> Iterator[None]:
        """Replaces the recorded method of a model by these programs within the block, and the
        ``forward`` of its :attr:`parts` by theirs. So ``generate()`` runs exported programs.

        Args:
            module: the model that was recorded.
            method: the recorded method; by default the one that the tape names. Loaded programs
                have no tape, and replace ``forward``.

        Raises:
            UsageError: it has no such part, or no such method.
        """
        modules = dict(module.named_modules())
        target = self._tape.target if self._tape is not None else None
        replaced_method = method or (target.method if target is not None else "forward")
        if not callable(getattr(module, replaced_method, None)):
            raise UsageError(
                f"{type(module).__name__} has no method {replaced_method!r}",
                advice="pass the model that was recorded, and method= if it was another one",
            )
        replaced: list[tuple[Any, str, Programs]] = [(module, replaced_method, self)]
        for name, programs in self.parts.items():
            if name not in modules:
                raise UsageError(
                    f"{type(module).__name__} has no part {name!r}",
                    advice="pass the model that was recorded",
                )
            replaced.append((modules[name], "forward", programs))
        before = [vars(part).get(name, _ABSENT) for part, name, _ in replaced]
        sorter = self.sorter
        try:
            for part, name, programs in replaced:
                part.__dict__[name] = programs
            # Modules of it may be keys of dicts.
            self.sorter = sorter.with_model(module)
            yield
        finally:
            self.sorter = sorter
            for (part, name, _), old in zip(replaced, before, strict=True):
                if old is _ABSENT:
                    part.__dict__.pop(name, None)
                else:
                    part.__dict__[name] = old

    @property
    def is_general(self) -> bool:
        """Whether the programs serve calls of every variant with unrecorded values of each size
        that varied."""
        return all(verdict.scope == "general" for verdict in self.verdicts)

    @property
    def tolerances(self) -> Tolerances:
        """How far results may differ from the model's: the tolerances of the export, or else of the
        runtime."""
        if self._reference is not None:
            return self._reference.tolerances
        # All programs of one export have the same runtime.
        return next((p.model.tolerances for p in self._programs.values()), Tolerances())

    def inputs_for(self, *args: Any, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        """The name of the program that accepts these arguments, and the inputs of its file by name
        and in order, to run the file without calltape. What the call lacks, such as the cache of a
        prefill, is empty.

        Raises:
            NoVariant: no program accepts them; says why not.
        """
        live = LiveCall(args, kwargs, self.sorter)
        placed = live.placed
        accepting, reasons = accepting_programs(self, placed)
        for program, sample in accepting_values(accepting, placed, live.sample, reasons):
            return program.name, program.model.named(program.inputs(sample))
        raise no_variant("no program is for these arguments", self, placed, reasons, self.missing)

    def for_sizes(
        self,
        placed: SortedCall,
        ignored: Collection[str] = (),
        *,
        leaf_at: Callable[[int], Any],
    ) -> tuple[str | None, dict[str, Fact]]:
        """The name of the program that would accept a call of these sizes, None if none would, and
        why the others would not. Nothing is run.

        Args:
            placed: the call.
            ignored: arguments to ignore (:meth:`Tape.remove_inputs`).
            leaf_at: returns a tensor of the call by the number of its leaf. It is called for those
                that are constants of a program.
        """
        accepting, reasons = accepting_programs(self, placed, ignored)
        for program in accepting:
            rejection = None
            if program.variant.group.key.covers(placed.key):
                rejection = program.rejects_constants(
                    lambda place: leaf_at(placed.layout.tensors[place].number)
                )
            if rejection is None:
                return program.name, {**reasons, **self.missing}
            reasons[program.name] = rejection
        return None, {**reasons, **self.missing}

    @property
    def value_warnings(self) -> list[Note]:
        """Which programs may reject calls whose sizes they accept, as a note."""
        names = [program.name for program in self.values() if program.depends_on_values]
        return [ValuesUnchecked(tuple(names))] if names else []

    @property
    def has_constant_tensors(self) -> bool:
        """Whether a program serves one value of a tensor, so that sizes do not decide which calls
        it accepts."""
        return any(program.plan.frozen for program in self.values())

    def verify(
        self,
        tape: Tape | None = None,
        *,
        tolerances: Tolerances | None = None,
        progress: bool = False,
        failing: str | os.PathLike[str] | None = None,
    ) -> Report:
        """Runs every recorded call through the program that accepts it, and compares the results.
        Calls that the export compared with the model's current weights do not run again. A program
        that writes to the state of its model starts each call from the state at the export; calls
        that are not reproduced then also run in order.

        After an export, values that are not on the tape are compared with the model's. Loaded
        programs have no model, so such a call is not verified; :func:`replay` compares its
        structure, dtypes and shapes.

        Args:
            tape: the tape; by default the exported one.
            tolerances: how far results may differ from the recorded ones; by default as in
                ``torch.testing``, wider for ONNX.
            progress: shows a progress bar.
            failing: a path to which all failing calls are written as a sealed tape. The file must
                not exist.

        Raises:
            UsageError: there is no tape.
        """
        source = tape or self._tape
        if source is None:
            raise UsageError("there is no tape to verify with", advice="pass one: verify(tape)")
        return self.replayed(source, tolerances=tolerances, progress=progress, failing=failing)

    def replayed(
        self,
        tape: Tape,
        *,
        tolerances: Tolerances | None = None,
        progress: bool = False,
        failing: str | os.PathLike[str] | None = None,
        shapes_suffice: bool = False,
        expect: Expect = "recorded",
        bound: TimeBound | None = None,
    ) -> Report:
        """As :meth:`verify`.

        Args:
            tape, tolerances, progress, failing: as there.
            shapes_suffice: whether a call whose values are not on the tape may be compared in
                structure, dtypes and shapes, if there is no model. It does not count as reproduced.
            expect, bound: what a call should do, and how long it may take; None for any time.
        """
        runner = ProgramsRunner(
            self,
            self.sorter,
            tape,
            self.missing,
            self._reference,
            tolerances=tolerances or self.tolerances,
            shapes_suffice=shapes_suffice,
            origin="exported" if tape is self._tape else "tape",
        )
        judge = Judge(runner, runner.tolerances, expect, bound)
        report = report_on(tape, judge, progress, failing)
        program_notes: list[Note] = []
        for program in self._programs.values():
            program_notes += [OfProgram(program.name, note) for note in program.all_notes]
            if unknown := program.unknown_classes():
                program_notes.append(OfProgram(program.name, ReturnsPlaceholders(tuple(unknown))))
        for note in (*program_notes, *self.all_notes):
            (report.remarks if note.is_remark else report.notes).append(note)
        return report

    def set_resource(self, resource: Any) -> None:
        """Keeps what the programs need alive: the tapes that they are verified with."""
        self._resources.append(resource)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes the programs, a manifest and the shapes, for :func:`load_programs`: with
        :attr:`attempts`, :attr:`missing`, :attr:`verdicts` and :attr:`notes`. Those of
        :attr:`parts` have a ``save`` of their own.

        Replaces what an earlier save wrote into the directory, and nothing else.

        Raises:
            UsageError: the directory holds something else; nothing was written then.
            TapeError: ``io`` if it cannot be written.
        """
        from calltape_analyzer.programs.saving import save

        save(self, self.sorter, directory)
