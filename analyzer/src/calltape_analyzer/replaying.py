"""The recorded calls through anything that can be called, and how far the results are off."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from calltape_analyzer.binding import Signature
from calltape_analyzer.call import Call
from calltape_analyzer.comparing import (
    ONNX_TOLERANCES,
    Tolerances,
    compared,
    has_values,
    leaves_of,
    recorded_leaves,
)
from calltape_analyzer.errors import InferenceError, TapeError, UsageError
from calltape_analyzer.explanation import counted
from calltape_analyzer.printable import some_of
from calltape_analyzer.reports import Report, ReportRow, compared_row, failed_row
from calltape_analyzer.results import Returned
from calltape_analyzer.segment import UNDER_WAY_WORDS
from calltape_analyzer.trust import WANTED, demand_trust, exported_program, is_pt2

if TYPE_CHECKING:
    from calltape_analyzer.tape import Tape

__all__ = ["replay", "report_on"]


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
        failing: where the first call that is not reproduced is written, as a tape of its own.
        trusted: loads ``.pt2`` files, which runs code of their author.

    Returns:
        A report, true where every call was reproduced.

    Raises:
        UsageError: the target is none of these, or has a ``.pt2`` that is not trusted.
        InferenceError: no call has outputs on the tape.
    """
    from calltape_analyzer.exporting.programs import Programs

    if isinstance(target, str | os.PathLike) and os.path.isdir(target):
        from calltape_analyzer.exporting.loading import load_programs

        target = load_programs(target, classes=tape.class_index.by_name, trusted=trusted)
    if isinstance(target, Programs):
        return target.verify(tape, tolerances=tolerances, progress=progress, failing=failing)
    returned = [c for c in tape.calls if c.record.error is None and not c.under_way]
    if returned and all(call.record.outputs is None for call in returned):
        raise InferenceError(
            "no outputs are on the tape", advice="record with outputs=True to compare with them"
        )
    with _runner(tape, target, trusted) as (run, is_onnx):
        bounds = tolerances or (ONNX_TOLERANCES if is_onnx else Tolerances())
        omitted: set[str] = set()
        report = report_on(tape, lambda call: _row(call, run, bounds, omitted), progress, failing)
        report.notes += _omitted_note(omitted)
        return report


def report_on(
    tape: Tape,
    row: Callable[[Call], ReportRow],
    progress: bool,
    failing: str | os.PathLike[str] | None,
) -> Report:
    """The rows of all calls that returned; the first that is not ok is written where ``failing``
    says."""
    from calltape_analyzer.discrepancies import with_progress

    returned = [call for call in tape.calls if call.record.error is None]
    calls = [call for call in returned if not call.under_way]
    rows = [row(call) for call in with_progress(calls, progress)]
    report = Report(rows)
    wrong = [call for call, found in zip(calls, report, strict=True) if not found.ok]
    if failing is not None and wrong:
        from calltape_analyzer.extracting import extract

        extract(wrong[:1], failing)
    raised, ahead = len(tape.calls) - len(returned), len(returned) - len(calls)
    notes = [f"{raised} calls raised and are left out"] if raised else []
    if ahead:
        notes.append(f"{counted(ahead, 'call')} {UNDER_WAY_WORDS}: left out")
    if damage := len(tape.damage):
        notes.append(
            f"the tape is damaged in {counted(damage, 'place')}: what was there is left out"
        )
    report.notes += notes
    return report


def _row(call: Call, run: Runner, tolerances: Tolerances, omitted: set[str]) -> ReportRow:
    against = "tape"
    try:
        expected = recorded_leaves(call)
        if expected is None:
            return ReportRow(call.number, None, False, error="its outputs are not on the tape")
        against = "tape" if has_values(expected) else "shapes"
        returned = run(call)
        omitted |= returned.omitted
        found = compared(expected, returned.leaves, tolerances, returned.omitted)
    except Exception as error:  # whatever the target raises is the finding
        return failed_row(call.number, None, error, against)
    return compared_row(call.number, None, found, against)


def _omitted_note(omitted: set[str]) -> list[str]:
    if not omitted:
        return []
    names = some_of([f"outputs{path}" for path in sorted(omitted)], 5)
    return [f"not compared, because the model does not return them: {names}"]


@contextmanager
def _runner(tape: Tape, target: Any, trusted: bool) -> Iterator[tuple[Runner, bool]]:
    """What runs the calls, and whether it is ONNX Runtime."""
    import torch

    with contextlib.ExitStack() as stack:
        if isinstance(target, str | os.PathLike):
            target = _loaded(os.fspath(target), tape, stack, trusted)
        if _is_onnx(target):
            from calltape_analyzer.feeding import OnnxRunner

            try:
                runner = OnnxRunner(tape, target)
            except TapeError:
                raise
            except Exception as error:  # the runtime's own, of any type
                if not isinstance(target, str):
                    raise
                reason = f"ONNX Runtime cannot load it: {type(error).__name__}: {str(error)[:200]}"
                raise TapeError("invalid", reason, path=target, advice=WANTED) from None
            stack.callback(runner.close)
            yield runner, True
            return
        if isinstance(target, torch.export.ExportedProgram):
            from calltape_analyzer.feeding import ExportedRunner

            _register(tape, stack)
            yield ExportedRunner(tape, target), False
            return
        if isinstance(target, torch.nn.Module):
            from calltape_analyzer.exporting.model_state import unchanged
            from calltape_analyzer.exporting.module_calls import entry_of

            # The calls run one after another, and the model is as before when all have.
            stack.enter_context(unchanged(target))
            target = entry_of(target, tape.target)
        if not callable(target):
            raise UsageError(
                f"a {type(target).__name__} cannot be called", advice="see help(replay)"
            )
        signature = tape.signature
        yield lambda call: _called(target, call, signature), False


def _called(target: Callable[..., Any], call: Call, signature: Signature) -> Returned:
    import torch

    args, kwargs = _left(*call.inputs, signature)
    with torch.no_grad():
        result = target(*args, **kwargs)
        # A stream was recorded as the list of its chunks, of which a call has 256 at most.
        value = list(islice(result, 257)) if type(result) is GeneratorType else result
        return Returned(leaves_of(value))


def _left(
    args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as they were passed, without those that were taken out. What stands behind one of
    these goes by name, where it can."""
    if not signature.removed:
        return args, kwargs
    from calltape_analyzer.exporting.templates import as_passed

    names = [signature.complete.name_at(i) for i in range(len(args))]
    leading = next((i for i, n in enumerate(names) if n in signature.removed), len(names))
    named = dict(zip(names, args, strict=True)) | kwargs
    left = {name: value for name, value in named.items() if name not in signature.removed}
    return as_passed(left, leading, signature)


def _loaded(path: str, tape: Tape, stack: contextlib.ExitStack, trusted: bool) -> Any:
    if not os.path.exists(path):
        raise TapeError("not_found", "no such file", path=path)
    if not is_pt2(path):
        return path
    demand_trust(path, trusted)
    _register(tape, stack)
    return exported_program(path, trusted=trusted)


def _register(tape: Tape, stack: contextlib.ExitStack) -> None:
    """Programs of classes need these registered to be loaded and called."""
    from calltape_analyzer.registration import register_flattening_functions

    stack.enter_context(register_flattening_functions(tape=tape))


def _is_onnx(target: Any) -> bool:
    return isinstance(target, str | bytes) or type(target).__name__ in (
        "ONNXProgram", "ModelProto", "InferenceSession"
    )  # fmt: skip
