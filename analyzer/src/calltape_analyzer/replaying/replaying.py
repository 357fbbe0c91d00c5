"""The recorded calls through anything that can be run or called, and how far the results are off.

In come a tape and a model, a program or a file. Out goes a report with a row per call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from types import GeneratorType
from typing import Any

from calltape_analyzer.comparison.comparing import (
    Tolerances,
    compared,
    has_values,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.comparison.reporting import omitted_note, report_on, without_removed
from calltape_analyzer.comparison.reports import Report, ReportRow, compared_row, failed_row
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.runtimes import opened_model
from calltape_analyzer.pytree.result_values import Returned
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.model_outputs import outputs_of
from calltape_analyzer.tape import Tape, check_tape

__all__ = ["replay"]


Runner = Callable[[Call], Returned]


def replay(
    tape: Tape,
    target: Any,
    *,
    tolerances: Tolerances | None = None,
    progress: bool = False,
    failing: str | os.PathLike[str] | None = None,
    trusted: bool = False,
) -> Report:
    """Runs every recorded call through a target and compares with what was recorded.

    Args:
        tape: with inputs and outputs. Calls that raised, or had not ended, are left out.
        target: the model (its recorded method is called), a compiled model or any callable, a
            ``torch.export.ExportedProgram``, a ``torch.onnx.ONNXProgram``, an
            ``onnx.ModelProto``, an ``onnxruntime.InferenceSession``, a ``.pt2`` or ``.onnx`` file,
            :class:`Programs`, or a directory that they were saved in.
        tolerances: how far apart values may be: by default what ``torch.testing.assert_close``
            documents for their dtype, wider for ONNX.
        progress: shows a progress bar on stderr.
        failing: a path to which the first call that is not reproduced is written, as a tape.
        trusted: loads ``.pt2`` files, which runs code of their author.

    Returns:
        A report, which is true if every call was reproduced.

    Raises:
        UsageError: the target is none of these, or has a ``.pt2`` that is not trusted.
        InferenceError: no call has outputs on the tape.
    """
    check_tape(tape, "replay")
    if isinstance(target, str | os.PathLike) and os.path.isdir(target):
        from calltape_analyzer.programs.loading import load_programs

        target = load_programs(target, classes=tape.class_index.by_name, trusted=trusted)
    if isinstance(target, Programs):
        return target.verify(tape, tolerances=tolerances, progress=progress, failing=failing)
    returned = [c for c in tape.calls if not has_raised(c) and not c.under_way]
    if returned and all(call.record.outputs is None for call in returned):
        raise InferenceError(
            "no outputs are on the tape", advice="record with outputs=True to compare with them"
        )
    with _runner(tape, target, trusted) as (run, default):
        bounds = tolerances or default
        omitted: set[str] = set()
        report = report_on(tape, lambda call: _row(call, run, bounds, omitted), progress, failing)
        report.notes += omitted_note(omitted)
        return report


def _row(call: Call, run: Runner, tolerances: Tolerances, omitted: set[str]) -> ReportRow:
    against = "tape"
    try:
        expected = recorded_leaves(call)
        if expected is None:
            missing = "its outputs are not on the tape"
            return ReportRow(call=call.number, variant=None, ok=False, error=missing)
        against = "tape" if has_values(expected) else "shapes"
        returned = run(call)
        omitted |= returned.omitted
        found = compared(expected, returned.leaves, tolerances, returned.omitted)
    except Exception as error:  # an error of the target is the result of this row
        return failed_row(call.number, None, error, against)
    return compared_row(call.number, None, found, against)


@contextmanager
def _runner(tape: Tape, target: Any, trusted: bool) -> Iterator[tuple[Runner, Tolerances]]:
    """What runs the calls, and how far its results may be off by default."""
    with opened_model(target, tape, trusted=trusted, to_run=True) as model:
        if model is None:
            with _callable(tape, target) as run:
                yield run, Tolerances()
        else:
            sorter = CallSorter.of(tape)
            yield lambda call: outputs_of(model, call, sorter), model.tolerances


@contextmanager
def _callable(tape: Tape, target: Any) -> Iterator[Runner]:
    """Calls a model, which is as before when all calls were run, or any other callable."""
    import torch

    device: Any = "cpu"
    with ExitStack() as stack:
        if isinstance(target, torch.nn.Module):
            from calltape_analyzer.model.calls import device_of, entry_of
            from calltape_analyzer.model.state import unchanged

            # The calls run one after another, each from the state that the one before left.
            stack.enter_context(unchanged(target))
            device = device_of(target)
            target = entry_of(target, tape.target)
        if not callable(target):
            raise UsageError(
                f"a {type(target).__name__} cannot be called", advice="see help(replay)"
            )
        signature = tape.signature
        yield lambda call: _called(target, call, signature, device)


def _called(target: Callable[..., Any], call: Call, signature: Signature, device: Any) -> Returned:
    import torch

    args, kwargs = without_removed(*call.inputs_on(device), signature)
    with torch.no_grad():
        result = target(*args, **kwargs)
        # A stream was recorded as the list of its chunks, of which a call has 256 at most.
        value = list(islice(result, 257)) if type(result) is GeneratorType else result
        return Returned(leaves_of(value))
