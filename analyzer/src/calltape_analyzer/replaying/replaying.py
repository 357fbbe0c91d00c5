"""``replay``: runs recorded calls through a model, a program or a file.

The values of a call are matched with the inputs of an exported model by name, or else by position.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import islice
from types import GeneratorType
from typing import Any, Literal, NamedTuple

from calltape_analyzer.arguments.plan import float_input, identifier
from calltape_analyzer.arguments.samples import (
    CompleteInputs,
    Sample,
    complete_inputs,
    has_synthetic_values,
    recorded_sample,
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
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.signature import Signature
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.loading import folder_of_programs, opened_model
from calltape_analyzer.programs.programs import Programs
from calltape_analyzer.programs.untrusted_files import check_trusted
from calltape_analyzer.pytree.nodes import Returned, Unknown, values_in
from calltape_analyzer.pytree.placeholder import placeholder_words, unmade_in
from calltape_analyzer.reading.call import Call, advice_on_outputs
from calltape_analyzer.tape import Tape, check_tape
from calltape_analyzer.text import counted, some_of
from calltape_schema.remedies import Remedy

__all__ = [
    "CallValue",
    "advice_for",
    "inputs_of",
    "match_inputs",
    "outputs_by_path",
    "replay",
    "values_of_layout",
]

EXPORT_FOR_CALLS = "export with the arguments and shapes of these calls"


class CallValue(NamedTuple):
    """A tensor or a number of a call: its argument, the path within it, and its number among the
    tensors or scalars."""

    argument: str
    path: str
    kind: Literal["tensor", "int", "float"]
    number: int


def values_of_layout(layout: ArgumentLayout) -> list[CallValue]:
    """The tensors of a layout, followed by its ints and floats."""
    values = [CallValue(p.argument, p.path, "tensor", i) for i, p in enumerate(layout.tensors)]
    for i, path in enumerate(layout.scalars):
        if path.kind == "int" or path.kind == "float":
            values.append(CallValue(path.argument, path.path, path.kind, i))
    return values


def advice_for(source: Any, command: str) -> str:
    """What to do if a call lacks inputs of a model.

    Args:
        source: the model, or the path of its file.
        command: the ``calltape`` verb that runs.
    """
    folder = folder_of_programs(source)
    if folder is None:
        return EXPORT_FOR_CALLS
    return f"give the directory, which has a manifest: calltape {command} TAPE {folder}"


def match_inputs(
    names: Sequence[str], values: Iterable[CallValue], advice: str = EXPORT_FOR_CALLS
) -> dict[str, CallValue]:
    """The value of a call for each input of a model.

    Values are matched by name if possible (``cache.layers.0.keys``, the same as an identifier, or
    an argument and the number of the value in it), because an exporter drops unused inputs. If
    there are as many tensors as inputs, they are matched by position otherwise.

    Args:
        names: the names of the inputs.
        values: the values of the call.
        advice: what to do if both fail.

    Raises:
        InferenceError: the values do not match.
    """
    by_name: dict[str, CallValue] = {}
    counts: Counter[str] = Counter()
    tensors: list[CallValue] = []
    for value in values:
        argument, number = identifier(value.argument), counts[value.argument]
        counts[value.argument] += 1
        place = f"{value.argument}{value.path}"
        for name in (place, identifier(place), f"{argument}_{number}"):
            by_name.setdefault(name, value)
        if value.kind == "tensor":
            tensors.append(value)
    # The exporter appends _orig to the name of an input that is also a value within the graph.
    matched = {name: by_name.get(name) or by_name.get(name.removesuffix("_orig")) for name in names}
    missing = [name for name, value in matched.items() if value is None]
    if not missing:
        return {name: value for name, value in matched.items() if value is not None}
    if len(names) != len(tensors):
        raise InferenceError(
            f"the model's inputs {some_of(missing, 3)} are not in the call, which has "
            f"{counted(len(tensors), 'tensor')} for {counted(len(names), 'input')}",
            advice=advice,
        )
    return dict(zip(names, tensors, strict=True))


_TENSOR = object()
"""Any tensor among recorded outputs."""


def inputs_of(model: ExportedModel, call: Call, sorter: CallSorter, advice: str) -> dict[str, Any]:
    """The inputs of a model for a recorded call, by name.

    Args:
        model: the exported model.
        call: the call.
        sorter: the sorter for calls of this tape.
        advice: what to do if the model has other inputs than the call.

    Raises:
        InferenceError: the model has other inputs than the call.
    """
    layout = sorter.sorted(call.record.inputs).layout
    sample = recorded_sample(call, sorter)
    matched = match_inputs(model.input_names, values_of_layout(layout), advice)
    return {name: _value_in(sample, value) for name, value in matched.items()}


def _value_in(sample: Sample, value: CallValue) -> Any:
    if value.kind == "tensor":
        return sample.tensors[value.number]
    number = sample.scalars[value.number]
    return float_input(number) if value.kind == "float" else number


def outputs_by_path(outputs: Sequence[Any], call: Call) -> Returned:
    """Flat outputs of a model by the paths of the recorded ones.

    The model may return all recorded tensors, the tensors and ints, or the tensors and numbers; the
    count tells. Other recorded values are not compared, and the report says so.

    Raises:
        InferenceError: the model has other outputs than the call.
    """
    tree = call.record.outputs
    if tree is None:
        raise InferenceError("the outputs of the call are not on the tape")
    values = values_in(tree.spec().root, lambda _: _TENSOR, tree.scalars.__getitem__)
    for types in ((), (int,), (int, float, bool)):
        paths = [path for path, value in values.items() if value is _TENSOR or type(value) in types]
        if len(paths) == len(outputs):
            leaves = dict(zip(paths, outputs, strict=True))
            others = [
                p for p, v in values.items() if p not in leaves and not isinstance(v, Unknown)
            ]
            return Returned(leaves, frozenset(others))
    tensors = counted(sum(value is _TENSOR for value in values.values()), "tensor")
    raise InferenceError(
        f"the model has {counted(len(outputs), 'output')}, and the call returned {tensors}"
    )


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
    outcomes: Outcomes | None = None,
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
        outcomes: is called with each failing call, and what it returned or raised.

    Returns:
        A report, which is true if no call fails.

    Raises:
        UsageError: the target is none of these, or has a ``.pt2`` file that is not trusted;
            ``slower_than`` is no duration.
        InferenceError: no call has outputs on the tape.
    """
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
