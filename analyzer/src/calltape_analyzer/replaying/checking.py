"""``check``: whether an exported model would accept the calls on a tape, without running it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from calltape_analyzer.comparison.judging import verdict_of_error
from calltape_analyzer.comparison.reports import (
    CallsKind,
    Incomparable,
    Report,
    ReportRow,
    SomeCalls,
    Verdict,
)
from calltape_analyzer.errors import TapeError, UsageError
from calltape_analyzer.facts import Note, Rejection
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs import reasons
from calltape_analyzer.programs.conditions import Sized
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.loading import declared_programs, opened_model
from calltape_analyzer.programs.manifest import within_manifest
from calltape_analyzer.programs.notes import NotCompared
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.pytree.caches import is_cache_argument
from calltape_analyzer.pytree.nodes import ABSENT, Unknown, values_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.replaying import (
    CallValue,
    advice_for,
    match_inputs,
    values_of_layout,
)
from calltape_analyzer.tape import Tape, check_tape

__all__ = ["check"]


Decision = tuple[str | None, Rejection | None]
"""The name of the program that accepts a call, if the model has several, and why the call is
rejected."""

Decide = Callable[[Call, SortedCall], Decision]


class _Decider(NamedTuple):
    """Decides whether a model accepts calls.

    Attributes:
        decide: the decision for a call.
        by_values: whether decisions depend on values of tensors.
        value_warnings: notes on what only a run can show.
    """

    decide: Decide
    by_values: bool = False
    value_warnings: Sequence[Note] = ()


def check(tape: Tape, exported_model: Any, *, trusted: bool = False) -> Report:
    """Whether a model would accept the calls on a tape. Compares its declared inputs, dimensions
    and guards with the recorded calls, and runs nothing. Reads tensor values only where they are
    compared with small constant tensors of a program.

    Args:
        tape: the calls. Those that raised are left out.
        exported_model: an ``.onnx`` or ``.pt2`` file, an ``onnx.ModelProto``, a
            ``torch.onnx.ONNXProgram``, a ``torch.export.ExportedProgram``, :class:`Programs`, or a
            directory that they were saved in, of which only the manifest is read.
        trusted: loads ``.pt2`` files, which runs code of their author.

    Returns:
        A report, which is true if every call would be accepted. Its rows have
        ``against="declared"``.

    Raises:
        UsageError: the model is none of these, or a ``.pt2`` file that is not trusted.
        TapeError: the tape or the model cannot be read.
    """
    check_tape(tape, "check")
    check_trusted(trusted)
    with _decider_for(exported_model, tape, trusted) as decider:
        rows = list(_rows(tape, decider))
    report = Report(rows=rows, notes=[*decider.value_warnings, *_not_compared(tape)])
    if raised := sum(map(has_raised, tape.calls)):
        report.notes.append(SomeCalls(CallsKind.RAISED, raised))
    return report


def _rows(tape: Tape, decider: _Decider) -> Iterator[ReportRow]:
    """A row for each call that returned. Calls of equal sizes and scalars share a verdict, unless
    it depends on values of tensors."""
    sorter = CallSorter.of(tape)
    verdicts: dict[Any, tuple[str | None, Verdict]] = {}
    for call in tape.calls:
        if has_raised(call):
            continue
        inputs = call.record.inputs
        key = (inputs.structure, inputs.leaves, tuple(map(repr, inputs.scalars)))
        if decider.by_values or key not in verdicts:
            try:
                name, rejection = decider.decide(call, sorter.sorted(inputs))
                verdicts[key] = name, Verdict(error=rejection, against="declared")
            except TapeError as error:
                verdicts[key] = None, verdict_of_error(error, "declared")
        name, verdict = verdicts[key]
        address = tape.calls.address_of(call.ref)
        yield ReportRow(call=call.number, variant=name, address=address, **dict(verdict))


def _not_compared(tape: Tape) -> list[Note]:
    """Notes on the parts of recorded outputs that no replay can compare."""
    notes: dict[Note, None] = {}
    visited: set[bytes] = set()
    for call in tape.calls:
        tree = call.record.outputs
        if tree is None or tree.structure in visited:
            continue
        visited.add(tree.structure)
        parts = values_in(tree.spec().root, lambda _: ABSENT, tree.scalars.__getitem__)
        for path, part in parts.items():
            if not isinstance(part, Unknown) or part.is_withheld or len(notes) == _MAX_NOTES:
                continue
            notes[NotCompared(Incomparable.of(path, part))] = None
    return list(notes)


_MAX_NOTES = 5


@contextmanager
def _decider_for(model: Any, tape: Tape, trusted: bool) -> Iterator[_Decider]:
    if isinstance(model, Programs):
        decide = partial(_decided_by_programs, model, tape)
        yield _Decider(decide, model.has_constant_tensors, model.value_warnings)
        return
    if isinstance(model, str | os.PathLike) and os.path.isdir(model):
        folder = os.fspath(model)
        programs = declared_programs(folder, classes=tape.class_index)

        def decide_within(call: Call, placed: SortedCall) -> Decision:
            return within_manifest(
                folder, lambda: _decided_by_programs(programs, tape, call, placed)
            )

        yield _Decider(decide_within, programs.has_constant_tensors, programs.value_warnings)
        return
    with opened_model(model, tape, trusted=trusted, to_run=False) as opened:
        if opened is None:
            raise UsageError(
                f"a {type(model).__name__} is not an exported model", advice="see help(check)"
            )
        yield _Decider(partial(_decided_by_model, opened, advice_for(model, "check")))


def _decided_by_programs(programs: Programs, tape: Tape, call: Call, _: SortedCall) -> Decision:
    # The sorter of the programs leaves out arguments that the export left out.
    placed = programs.sorter.sorted(call.record.inputs)
    programs_for, rejected = programs.for_sizes(
        placed, tape.removed, leaf_at=lambda number: call.tensor("inputs", number)
    )
    if programs_for is not None:
        return programs_for, None
    return None, reasons.NoProgram(tuple(rejected), tuple(rejected.values()))


def _decided_by_model(model: ExportedModel, advice: str, _: Call, placed: SortedCall) -> Decision:
    values = match_inputs(model.input_names, values_of_layout(placed.layout), advice)
    ints = placed.layout.column_of_scalar

    def sized(value: CallValue) -> Sized | int:
        if value.kind == "int":
            return placed.row.ints[ints[value.number].index]
        if value.kind == "float":
            return Sized("float64", ())
        return Sized(placed.key.facts[value.number].dtype, placed.row.shapes[value.number])

    sizes = {name: sized(value) for name, value in values.items()}
    return None, model.rejects(sizes) or _unused_state(placed, values.values())


def _unused_state(placed: SortedCall, used: Iterable[CallValue]) -> reasons.FilledState | None:
    """A filled cache that is not an input of the model, which would compute something else. Other
    arguments are fine: an exporter drops those that the model does not use."""
    inputs = {value.argument for value in used if value.kind == "tensor"}
    filled = {place.argument for place in placed.layout.tensors}
    for name, node in placed.layout.nodes.items():
        if name in filled and name not in inputs and is_cache_argument(name, node):
            return reasons.FilledState(name)
    return None
