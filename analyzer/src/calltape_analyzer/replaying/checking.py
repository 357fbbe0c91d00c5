"""Whether an exported model would have accepted the traffic on a tape, without running it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from calltape_analyzer.comparison.reporting import raised_note
from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.facts import Note, Rejection
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs import rejections
from calltape_analyzer.programs.conditions import Sized
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.input_matching import (
    CallValue,
    advice_for,
    match_inputs,
    values_of_layout,
)
from calltape_analyzer.programs.loading import declared_programs
from calltape_analyzer.programs.manifest import within_manifest
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.runtimes import opened_model
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.pytree.caches import is_cache_argument
from calltape_analyzer.pytree.result_values import ABSENT, Unknown, values_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.check_report import CheckReport, CheckRow
from calltape_analyzer.tape import Tape, check_tape

__all__ = ["check"]


Verdict = tuple[str | None, Rejection | None]
"""The program that would take a call, if the model has several, and why the call is rejected."""

Verdicts = Callable[[Call, SortedCall], Verdict]


class _Decided(NamedTuple):
    """What decides about calls, whether values of tensors do too, and what it cannot know."""

    verdict_on: Verdicts
    by_values: bool = False
    doubts: Sequence[Note] = ()


def _decided(programs: Programs, verdict_on: Verdicts) -> _Decided:
    return _Decided(verdict_on, programs.has_constant_tensors, programs.doubts)


def check(tape: Tape, exported_model: Any, *, trusted: bool = False) -> CheckReport:
    """Whether a model would have accepted the calls on a tape: its declared inputs, dimensions and
    conditions are compared with what was recorded. Nothing is run, and no tensor bytes are read but
    those of small tensors that are constants of a program.

    Args:
        tape: the traffic. Calls that raised are left out.
        exported_model: an ``.onnx`` or ``.pt2`` file, an ``onnx.ModelProto``, a
            ``torch.onnx.ONNXProgram``, a ``torch.export.ExportedProgram``, :class:`Programs`, or a
            directory that they were saved in, of which only the manifest is read.
        trusted: loads a ``.pt2``, which runs code of its author.

    Returns:
        A report, which is true if every call would be accepted.

    Raises:
        UsageError: the model is none of these, or a ``.pt2`` that is not trusted.
        TapeError: it cannot be read.
    """
    check_tape(tape, "check")
    check_trusted(trusted)
    rows: list[CheckRow] = []
    with _verdicts(tape, exported_model, trusted) as decided:
        for call, (variant, rejection) in _each(tape, decided):
            rows.append(
                CheckRow(
                    call=call.number,
                    accepted=rejection is None,
                    variant=variant,
                    rejection=rejection,
                    address=tape.calls.address_of(call.ref),
                )
            )
    left_out = raised_note(sum(map(has_raised, tape.calls)))
    notes = [*map(str, decided.doubts), *_unverifiable(tape), *left_out]
    return CheckReport(rows=rows, notes=notes)


def _each(tape: Tape, decided: _Decided) -> Iterator[tuple[Call, Verdict]]:
    """The calls that returned. Calls of equal sizes and scalars have one verdict, which is found
    once, unless it depends on values of tensors."""
    sorter = CallSorter.of(tape)
    known: dict[Any, Verdict] = {}
    for call in tape.calls:
        if has_raised(call):
            continue
        inputs = call.record.inputs
        key = (inputs.structure, inputs.leaves, tuple(map(repr, inputs.scalars)))
        if decided.by_values or key not in known:
            try:
                known[key] = decided.verdict_on(call, sorter.sorted(inputs))
            except TapeError as error:
                known[key] = (None, rejections.Unreadable(error.reason))
        yield call, known[key]


def _unverifiable(tape: Tape) -> list[str]:
    """The parts of recorded outputs that nothing can be compared with, each once."""
    found: dict[str, None] = {}
    known: set[bytes] = set()
    for call in tape.calls:
        tree = call.record.outputs
        if tree is None or tree.structure in known:
            continue
        known.add(tree.structure)
        parts = values_in(tree.spec().root, lambda _: ABSENT, tree.scalars.__getitem__)
        for path, part in parts.items():
            if not isinstance(part, Unknown) or part.is_withheld or len(found) == _MAX_NOTES:
                continue
            found[f"not verified: outputs{path} {part}"] = None
    return list(found)


_MAX_NOTES = 5


@contextmanager
def _verdicts(tape: Tape, model: Any, trusted: bool) -> Iterator[_Decided]:
    """What decides about a call."""
    if isinstance(model, Programs):
        yield _decided(model, partial(_verdict_of_programs, model, tape))
        return
    if isinstance(model, str | os.PathLike) and os.path.isdir(model):
        folder = os.fspath(model)
        programs = declared_programs(folder, classes=tape.class_index)

        def verdict_on(call: Call, placed: SortedCall) -> Verdict:
            return within_manifest(
                folder, lambda: _verdict_of_programs(programs, tape, call, placed)
            )

        yield _decided(programs, verdict_on)
        return
    with opened_model(model, tape, trusted=trusted, to_run=False) as opened:
        if opened is None:
            raise UsageError(
                f"a {type(model).__name__} is not an exported model", advice="see help(check)"
            )
        yield _Decided(partial(_verdict_of_model, opened, advice_for(model, "check")))


def _verdict_of_programs(programs: Programs, tape: Tape, call: Call, _: SortedCall) -> Verdict:
    # Their own sorter leaves out the arguments that were left out at their export.
    placed = programs.sorter.sorted(call.record.inputs)
    found, reasons = programs.for_sizes(
        placed, tape.removed, leaf_at=lambda number: call.tensor("inputs", number)
    )
    if found is not None:
        return found, None
    return None, rejections.NoProgram(tuple(reasons), tuple(reasons.values()))


def _verdict_of_model(model: ExportedModel, advice: str, _: Call, placed: SortedCall) -> Verdict:
    try:
        values = match_inputs(model.input_names, values_of_layout(placed.layout), advice)
    except InferenceError as error:
        return None, rejections.InputsMissing(error.reason, str(error.advice))
    ints = placed.layout.column_of_scalar
    sizes: dict[str, Sized | int] = {
        name: Sized(placed.facts[value.number].dtype, placed.row.shapes[value.number])
        if value.kind == "tensor"
        else placed.row.ints[ints[value.number].index]
        for name, value in values.items()
    }
    return None, model.rejects(sizes) or _unused_state(placed, values.values())


def _unused_state(placed: SortedCall, used: Iterable[CallValue]) -> rejections.FilledState | None:
    """A state that the call brings and the model does not take: it would compute something else. An
    exporter leaves out other arguments if the model does not use them."""
    taken = {value.argument for value in used if value.kind == "tensor"}
    filled = {place.argument for place in placed.layout.tensors}
    for name, node in placed.layout.nodes.items():
        if name in filled and name not in taken and is_cache_argument(name, node):
            return rejections.FilledState(name)
    return None
