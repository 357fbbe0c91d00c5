"""``replay``: runs recorded calls through a model, a program or a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from types import GeneratorType
from typing import Any

from calltape_analyzer.arguments.samples import (
    CompleteInputs,
    complete_inputs,
    has_synthetic_values,
)
from calltape_analyzer.comparison.comparing import Tolerances, leaves_of
from calltape_analyzer.comparison.judging import (
    Expect,
    Judge,
    Outcomes,
    Run,
    Runner,
    TimeBound,
    report_on,
    was_interrupted,
)
from calltape_analyzer.comparison.reports import Report
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.observing.contexts import Context
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.loading import opened_model
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.pytree.nodes import Returned
from calltape_analyzer.pytree.placeholder import placeholder_words, unmade_in
from calltape_analyzer.reading.call import Call, advice_on_outputs
from calltape_analyzer.replaying.model_values import advice_for, inputs_of, outputs_by_path
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
    """Runs every recorded call through a target, and compares the results with the recorded ones.

    A call that raised must raise an exception of the same class again, with the same message if the
    tape has it. Exported programs cannot raise these, so such calls are left out. If arguments are
    not on the tape (a recording of shapes, a redacted tape), synthetic ones are used, and only
    structure, dtypes and shapes of the results are compared: such a row has ``against="shapes"``,
    and its values do not count as reproduced.

    Args:
        tape: the tape, with inputs and outputs. Calls that had not ended or were interrupted are
            left out. A call fails without being tried if its arguments hold an object that cannot
            be rebuilt, because its class was not passed to :func:`open_tape` and is no dataclass,
            named tuple or enum of the model's package.
        target: the model (its recorded method is called), a compiled model or any callable, a
            ``torch.export.ExportedProgram``, a ``torch.onnx.ONNXProgram``, an
            ``onnx.ModelProto``, an ``onnxruntime.InferenceSession``, a ``.pt2`` or ``.onnx`` file,
            :class:`Programs`, or a directory that they were saved in.
        tolerances: how far apart values may be; by default, as ``torch.testing.assert_close``
            documents for their dtype, and wider for ONNX.
        expect: ``"recorded"``, or ``"success"`` if every call must return, including calls that
            raised and calls without outputs on the tape. Outputs on the tape are compared.
        slower_than: how long a call may take: seconds, ``"50ms"``, ``"2s"``, or ``"3x"`` for three
            times its recorded duration. A call that takes longer is run 5 times, and the fastest
            run counts.
        progress: shows a progress bar on stderr.
        failing: a path for a new tape with all failing calls. The file must not exist yet.
        trusted: loads ``.pt2`` files, which runs code of their author.

    Returns:
        A report, which is true if no call fails.

    Raises:
        UsageError: the target is none of these, or has a ``.pt2`` file that is not trusted;
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
    """Like :func:`replay`, but also passes the results of failing calls to ``outcomes``."""
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
    """Raises ``InferenceError`` if the tape has nothing to compare with."""
    reasons: set[str | None] = set()
    for call in tape.calls:
        if call.under_way or was_interrupted(call):
            continue
        if call.record.outputs is not None or has_raised(call):
            return
        reasons.add(call.record.outputs_missing)
    if reasons:
        raise InferenceError(
            "no outputs are on the tape",
            advice=Remedy("with expect='success'", "with --expect success").then(
                " calls only have to return; to compare outputs, " + advice_on_outputs(reasons)
            ),
        )


_MAX_CHUNKS = 256
"""How many chunks of a stream the recorder keeps."""


class _CallableRunner(Runner):
    """Calls a model, or another callable."""

    def __init__(self, tape: Tape, target: Any, stack: ExitStack) -> None:
        import torch

        from calltape_analyzer.model.code import modes_named
        from calltape_analyzer.model.randomness import generators_kept

        self._device: Any = "cpu"
        if isinstance(target, torch.nn.Module):
            from calltape_analyzer.model.calls import device_of, entry_of
            from calltape_analyzer.model.state import unchanged

            # Each call begins with the state that the previous one left.
            stack.enter_context(unchanged(target))
            stack.enter_context(generators_kept(target))
            self._device = device_of(target)
            self.module = target
            target = entry_of(target, tape.target)
        if not callable(target):
            raise UsageError(
                f"a {type(target).__name__} cannot be called", advice="see help(replay)"
            )
        # It assumes the strides that it was compiled for, and does not check those of its inputs.
        self._takes_contiguous = type(target).__name__ == "AOTICompiledModel"
        stack.enter_context(generators_kept())
        self._classes = tape.class_index.with_model(getattr(target, "__self__", target))
        self._modes = modes_named(target if self.module is None else self.module)
        self.function: Callable[..., Any] = target
        self.signature = tape.signature

    def prepared(self, call: Call) -> Run:
        from calltape_analyzer.model.calls import as_called

        inputs = complete_inputs(
            call.rebuilt_from(self._classes), self._device, are_contiguous=self._takes_contiguous
        )
        tree = call.record.inputs
        devices = [leaf.device for leaf in tree.facts()]
        context = Context.of(tree.spec().context, devices, self._modes)
        return _CallableRun(self, inputs, as_called(context, str(self._device), self.module))

    def undisturbed(self) -> AbstractContextManager[Any]:
        from calltape_analyzer.model.randomness import generators_kept
        from calltape_analyzer.model.state import unchanged

        stack = ExitStack()
        stack.enter_context(generators_kept(self.module))
        if self.module is not None:
            stack.enter_context(unchanged(self.module))
        return stack


class _CallableRun(Run):
    def __init__(
        self,
        runner: _CallableRunner,
        inputs: CompleteInputs,
        context: AbstractContextManager[None],
    ) -> None:
        self._runner, self._context = runner, context
        self._arguments = without_removed(inputs.args, inputs.kwargs, runner.signature)
        self.is_synthetic = inputs.synthetic > 0
        self.is_contiguous = inputs.laid_out > 0
        self.unmade = unmade_in(self._arguments)
        self.missing = placeholder_words(self._arguments)

    def run(self) -> Any:
        from calltape_analyzer.model.randomness import Generators

        args, kwargs = self._arguments
        generators = Generators(self._runner.module)
        with self._context:
            result = self._runner.function(*args, **kwargs)
            # The recorder records a stream as a list of its chunks.
            if type(result) is GeneratorType:
                result = list(islice(result, _MAX_CHUNKS + 1))
        self.draws = bool(generators.drawn_from())
        return result

    def leaves(self, result: Any) -> Returned:
        from calltape_analyzer.model.calls import detached

        return Returned(detached(leaves_of(result)))


def without_removed(
    args: tuple[Any, ...], kwargs: dict[str, Any], signature: Signature
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments without those that :meth:`Tape.remove_inputs` removes. Positional arguments after a
    removed one are passed by name, if possible."""
    if not signature.removed:
        return args, kwargs
    from calltape_analyzer.arguments.plan import as_passed

    names = [signature.complete.name_at(i) for i in range(len(args))]
    leading = next((i for i, n in enumerate(names) if n in signature.removed), len(names))
    by_name = dict(zip(names, args, strict=True)) | kwargs
    remaining = {name: value for name, value in by_name.items() if name not in signature.removed}
    return as_passed(remaining, leading, signature)


class _ModelRunner(Runner):
    """Runs an exported program, package or ONNX model."""

    raises_as_recorded = False

    def __init__(self, tape: Tape, model: ExportedModel, source: Any) -> None:
        self._model, self._advice = model, advice_for(source, "replay")
        self._sorter = CallSorter.of(tape)
        self.tolerances = model.tolerances

    def prepared(self, call: Call) -> Run:
        return _ModelRun(self._model, call, self._sorter, self._advice)


class _ModelRun(Run):
    def __init__(self, model: ExportedModel, call: Call, sorter: CallSorter, advice: str) -> None:
        self._model, self._call = model, call
        self._inputs = inputs_of(model, call, sorter, advice)
        self.is_synthetic = has_synthetic_values(call)

    def run(self) -> Any:
        from calltape_analyzer.model.calls import with_default_dtype

        with with_default_dtype(Context.of(self._call.record.inputs.spec().context)):
            return self._model.run(self._inputs)

    def leaves(self, result: Any) -> Returned:
        return outputs_by_path(result, self._call)


@contextmanager
def runner_of(tape: Tape, target: Any, *, trusted: bool) -> Iterator[Runner]:
    """A runner for a target, whose state is restored at the end of the block.

    Raises:
        UsageError: the target cannot be run, or is a ``.pt2`` file that is not trusted.
        TapeError: ``not_found``, or ``invalid`` if the target cannot be loaded.
    """
    with opened_model(target, tape, trusted=trusted, to_run=True) as model, ExitStack() as stack:
        if model is None:
            yield _CallableRunner(tape, target, stack)
        else:
            yield _ModelRunner(tape, model, target)
