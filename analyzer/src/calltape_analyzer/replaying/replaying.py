"""The recorded calls through anything that can be run or called, and how far the results are off.

In come a tape and a model, a program or a file. Out goes a report with a row per call.
"""

from __future__ import annotations

import os
from typing import Any

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import (
    Expect,
    Judge,
    Outcomes,
    TimeBound,
    report_on,
    was_interrupted,
)
from calltape_analyzer.comparison.reports import Report
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_analyzer.replaying.runners import runner_of
from calltape_analyzer.tape import Tape, check_tape
from calltape_schema.remedies import Remedy

__all__ = ["replay", "replay_with"]


def replay(
    tape: Tape,
    target: Any,
    *,
    tolerances: Tolerances | None = None,
    expect: Expect = "recorded",
    slower_than: float | str | None = None,
    progress: bool = False,
    failing: str | os.PathLike[str] | None = None,
    trusted: bool = False,
) -> Report:
    """Runs every recorded call through a target and compares with what was recorded.

    A call that raised is to raise an exception of the same class, with the same message if the tape
    has it. An exported program cannot: its calls that raised are left out. If arguments are not on
    the tape (a recording of shapes, a redacted tape), they are made up, and what comes out is
    compared by structure, dtypes and shapes only: such a row is ``against="shapes"``, and no value
    of it counts as reproduced.

    Args:
        tape: with inputs and outputs. Calls that had not ended, or that somebody interrupted, are
            left out. A call whose arguments hold an object that is not rebuilt is not tried, and
            is not ok: its class was not given to :func:`open_tape`, and it is no dataclass, named
            tuple or enum of the model's package.
        target: the model (its recorded method is called), a compiled model or any callable, a
            ``torch.export.ExportedProgram``, a ``torch.onnx.ONNXProgram``, an
            ``onnx.ModelProto``, an ``onnxruntime.InferenceSession``, a ``.pt2`` or ``.onnx`` file,
            :class:`Programs`, or a directory that they were saved in.
        tolerances: how far apart values may be: by default what ``torch.testing.assert_close``
            documents for their dtype, wider for ONNX.
        expect: ``"recorded"``, or ``"success"`` if every call is to return: also one that raised,
            and one whose outputs are not on the tape. Outputs that are there are compared.
        slower_than: how long a call may take: seconds, ``"50ms"``, ``"2s"``, or ``"3x"`` for so
            many times its recorded duration. A call that takes longer is run 5 times, and the
            fastest run counts.
        progress: shows a progress bar on stderr.
        failing: a path to which all calls that are not as they should be are written, as a
            sealed tape. There must be no such file yet.
        trusted: loads ``.pt2`` files, which runs code of their author.

    Returns:
        A report, which is true if every call did what it was to do.

    Raises:
        UsageError: the target is none of these, or has a ``.pt2`` that is not trusted;
            ``slower_than`` is no duration.
        InferenceError: no call has outputs on the tape.
    """
    return replay_with(
        tape,
        target,
        tolerances=tolerances,
        expect=expect,
        slower_than=slower_than,
        progress=progress,
        failing=failing,
        trusted=trusted,
    )


def replay_with(
    tape: Tape,
    target: Any,
    *,
    tolerances: Tolerances | None = None,
    expect: Expect = "recorded",
    slower_than: float | str | None = None,
    progress: bool = False,
    failing: str | os.PathLike[str] | None = None,
    trusted: bool = False,
    outcomes: Outcomes | None = None,
) -> Report:
    """:func:`replay`, which also tells somebody what the calls that fail gave."""
    check_tape(tape, "replay")
    check_trusted(trusted)
    if expect not in ("recorded", "success"):
        raise UsageError(f"expect={expect!r:.100}", advice="pass 'recorded' or 'success'")
    bound = None if slower_than is None else TimeBound.of(slower_than)
    if isinstance(target, str | os.PathLike) and os.path.isdir(target):
        from calltape_analyzer.programs.loading import load_programs

        target = load_programs(target, classes=tape.class_index, trusted=trusted)
    if isinstance(target, Programs):
        return target.replayed(
            tape,
            tolerances=tolerances,
            progress=progress,
            failing=failing,
            shapes_suffice=True,
            expect=expect,
            bound=bound,
        )
    if expect == "recorded":
        _check_outputs(tape)
    with runner_of(tape, target, trusted=trusted) as runner:
        judge = Judge(runner, tolerances or runner.tolerances, expect, bound, outcomes)
        return report_on(tape, judge, progress, failing)


def _check_outputs(tape: Tape) -> None:
    """Raises InferenceError if the tape has nothing to compare with."""
    silent: set[str | None] = set()
    for call in tape.calls:
        if call.under_way or was_interrupted(call):
            continue
        if call.record.outputs is not None or has_raised(call):
            return
        silent.add(call.record.outputs_missing)
    if silent:
        raise InferenceError(
            "no outputs are on the tape",
            advice=Remedy("with expect='success'", "with --expect success").then(
                " calls only have to return; to compare outputs, " + advice_on_outputs(silent)
            ),
        )
