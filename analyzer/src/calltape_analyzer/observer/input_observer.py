"""A drop-in for ``torch.onnx.InputObserver`` and its sibling in yobx, which records on a tape.

The one place of the analyzer that may use the recorder: an observer is used in the process that
has the model.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calltape_analyzer.comparison.comparing import Tolerances
from calltape_analyzer.comparison.judging import Run, judge
from calltape_analyzer.comparison.reports import Against, Verdict
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.facts import Fact
from calltape_analyzer.observer.single_graph import SingleGraph
from calltape_analyzer.observer.stored_calls import ObserverInfo, StoredCall
from calltape_analyzer.observing.signature import Key, Signature
from calltape_analyzer.observing.traffic_counters import has_raised
from calltape_analyzer.opening import open_tape
from calltape_analyzer.program_source import BatchFor, DimNames, as_one
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.onnx_model import OnnxModel
from calltape_analyzer.progress import watched
from calltape_analyzer.pytree.nodes import Returned
from calltape_analyzer.pytree.rendering import render
from calltape_analyzer.reading.call import Call
from calltape_analyzer.replaying.replaying import CallValue, match_inputs
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.output_file import TemporaryFolder

if TYPE_CHECKING:
    from calltape_recorder import Recorder

# The names that the peers' modules have, for code that was written for them.
__all__ = ["InputObserver"]

# An observer keeps a few calls on purpose; the bound is for servers.
_QUEUE_BYTES = 2**40


class InputObserver:
    """Records the calls of a model on a tape and infers from them how to export it.

    Used like ``torch.onnx.InputObserver``, with the same answers on the same calls; nothing has to
    be registered with torch, and the tape stays if ``path`` is given::

        observer = InputObserver()
        with observer(model):
            model(x1, y1)
            model(x2, y2)
        torch.export.export(
            model, observer.infer_arguments(), dynamic_shapes=observer.infer_dynamic_shapes()
        )

    Args:
        value_if_missing: values, by parameter name or position, for arguments that some calls
            leave out; only inferred from, the model never sees them.
        path: where the tape goes (``runs/model.tape``; a second ``with`` block writes
            ``runs/model-2.tape``). A temporary file otherwise.
        overwrite: replaces tapes that are there already, instead of refusing.
    """

    def __init__(
        self,
        value_if_missing: Mapping[Key, Any] | None = None,
        path: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
    ) -> None:
        self.value_if_missing: dict[Key, Any] = dict(value_if_missing or {})
        self._path = None if path is None else Path(path)
        self._overwrite = overwrite
        self._folder: TemporaryFolder | None = None
        self._segments: list[_Segment] = []
        self._removed: list[Key] = []
        self._known: tuple[list[Tape], object, _Stored] | None = None

    @contextlib.contextmanager
    def __call__(
        self, model: Any, store_n_calls: int = 3, method_name: str = "forward"
    ) -> Iterator[InputObserver]:
        """Records the calls of a method while the ``with`` block runs.

        Args:
            model: any object.
            store_n_calls: how many calls of this block are kept.
            method_name: the method.

        Raises:
            UsageError, UnsupportedError, KeyTypeError: there is no such method; at the end of the
                block: ``value_if_missing`` does not fit the calls.
        """
        if not hasattr(model, method_name):
            raise UsageError(
                f"Model type {type(model)} does not have a method {method_name!r}",
                advice="name one of its methods",
            )
        segment = _Segment.start(
            self._next_path(), model, store_n_calls, method_name, overwrite=self._overwrite
        )
        self._segments.append(segment)
        try:
            yield self
        finally:
            segment.stop()
        self._check(segment)

    @property
    def info(self) -> ObserverInfo | None:
        """What was seen so far; None before the first ``with`` block."""
        return self._stored().info if self._segments else None

    @property
    def paths(self) -> tuple[Path, ...]:
        """The tapes, one per ``with`` block."""
        return tuple(segment.path for segment in self._segments)

    def num_obs(self) -> int:
        """How many calls are stored."""
        return len(self.info or ())

    def is_empty(self) -> bool:
        """Whether no call is stored."""
        return self.num_obs() == 0

    def infer_dynamic_shapes(
        self, set_batch_dimension_for: BatchFor = None, dim_names: DimNames = None
    ) -> tuple[Any, ...] | dict[str, Any]:
        """What ``torch.export.export(dynamic_shapes=...)`` takes; see
        :meth:`Tape.infer_dynamic_shapes`.

        Raises:
            InferenceError: nothing was recorded, or the calls cannot be one program.
            UsageError: for names and positions that do not exist.
        """
        return self._stored().graph.dynamic_shapes(set_batch_dimension_for, dim_names)

    def infer_arguments(
        self,
        index_or_args_or_kwargs: int | tuple[Any, ...] | dict[str, Any] | None = None,
        flat: bool = False,
        as_args_kwargs: bool = False,
    ) -> Any:
        """Arguments to trace a program with.

        A tensor that other calls have and this one does not is filled in: with
        ``value_if_missing``, else with a tensor of the last recorded shape whose last dynamic
        dimension is 0. If no dimension is dynamic, it is zeros of the whole shape.

        Args:
            index_or_args_or_kwargs: None for a call that stands for all; the position of a call; or
                arguments of the caller's own, a tuple or a dict, that are to be completed.
            flat: whether to return a list of tensors in flattening order.
            as_args_kwargs: whether to return ``(args, kwargs)`` in any case.

        Returns:
            A tuple if all arguments are positional, else a dict by name.

        Raises:
            InferenceError: nothing was recorded, or the calls cannot be one program; there is no
                such call; or the method has ``*args``, and only ``as_args_kwargs=True`` can hold
                them.
            UsageError: for anything but a position, a tuple or a dict.
        """
        stored, index = self._stored(), index_or_args_or_kwargs
        graph = stored.graph
        if index is None:
            call = graph.representative()
        elif isinstance(index, int) and not isinstance(index, bool):
            call = stored.at(index)
            graph.check(call)
        elif isinstance(index, tuple | Mapping):
            call = graph.given(index)
        else:
            raise UsageError(
                f"Unexpected type {type(index)} for the arguments to complete",
                advice="give a position, a tuple of arguments or a dict of them",
            )
        if flat:
            return [tensor for _, tensor, _ in graph.tensors(call)]
        arguments = graph.arguments(call)
        return arguments if as_args_kwargs else as_one(*arguments, stored.signature)

    def remove_inputs(self, input_names: Sequence[Key]) -> int:
        """Leaves arguments out of everything inferred from here on.

        Returns:
            How many arguments of recorded calls that takes out.

        Raises:
            InferenceError: nothing was recorded.
            UsageError: for ``*args`` or ``**kwargs`` as a whole.
        """
        if not self._segments:
            raise InferenceError("No input was captured", advice="record calls first")
        # The tapes of the blocks have one target, and each counts what it loses.
        count = sum(tape.only().remove_inputs(input_names) for tape in self._stored().tapes)
        self._removed += input_names
        self._known = None
        return count

    def check_discrepancies(
        self,
        onnx_program: Any,
        atol: float = 1e-4,
        rtol: float = 0.1,
        progress_bar: bool = False,
        initializer: Callable[[str | bytes], Any] | None = None,
        skip_none: bool = True,
        include_io: bool = False,
    ) -> list[dict[str, Any]]:
        """Runs the recorded calls through an ONNX model and compares the outputs.

        Args:
            onnx_program: ``torch.onnx.ONNXProgram``, ``onnx.ModelProto``, its bytes or a file name.
            atol: largest absolute difference; 1e-2 suits float16.
            rtol: largest relative difference.
            progress_bar: shows one.
            initializer: makes an ``onnxruntime.InferenceSession`` from a file name or bytes.
            skip_none: whether an output that is None on one side is no difference.
            include_io: adds the inputs and outputs on one line each.

        Returns:
            A dict per call: SUCCESS (false as well if nothing could be compared, or a part of
            the output could not), abs, rel (or error), index, duration_torch, ort_duration,
            n_inputs, n_none, n_empty.

        Raises:
            InferenceError: nothing was recorded, no call returned, or the model has other inputs
                than the calls.
        """
        stored = self._stored()
        info = stored.info
        if not info.returned:
            raise InferenceError(
                "no call returned: there is nothing to compare", advice="record a call that returns"
            )
        model = OnnxModel(onnx_program, initializer=initializer)
        rows: list[dict[str, Any]] = []
        try:
            _ = model.session  # an error of loading is not one of the first call
            for index in watched(info.returned, progress_bar):
                arguments = [
                    (slot.name, slot.path, tensor, is_missing)
                    for slot, tensor, is_missing in stored.graph.tensors(stored.at(index))
                    if tensor is not None
                ]
                run = _PeerRun(
                    model, arguments, info.outputs(index), info.unknown(index), skip_none
                )
                row = run.row(info.call(index), atol, rtol, include_io=include_io)
                rows.append({**row, "index": len(rows), "duration_torch": info.latency(index)})
        finally:
            model.close()
        return rows

    def _check(self, segment: _Segment) -> None:
        """Whether ``value_if_missing`` fits the calls of a block; those before it were checked."""
        tape = segment.tape()
        signature = Signature.of(self._segments[0].tape().target)
        stored = _Stored([tape], signature, self.value_if_missing)
        for index in range(len(stored.calls)):
            stored.at(index)

    def _next_path(self) -> Path:
        number = len(self._segments) + 1
        if self._path is None:
            if self._folder is None:
                self._folder = TemporaryFolder()
            return self._folder.path / f"observed-{number}.tape"
        if number == 1:
            return self._path
        return self._path.with_name(f"{self._path.stem}-{number}{self._path.suffix}")

    def _stored(self) -> _Stored:
        """The calls so far, read anew only if there are more of them."""
        if not self._segments:
            raise InferenceError("No inputs were captured", advice="record calls first")
        tapes = [segment.tape() for segment in self._segments]
        before, registrations = self._known, _registrations()
        is_known = before is not None and list(map(id, before[0])) == list(map(id, tapes))
        if before is None or not is_known or before[1] != registrations:
            signature = Signature.of(tapes[0].target)
            removed = frozenset(map(signature.name_of, self._removed))
            stored = _Stored(tapes, signature.without(removed), self.value_if_missing)
            self._known = before = tapes, registrations, stored
        return before[2]


class _Stored:
    """The calls on the tapes of an observer, and what follows from them.

    Attributes:
        tapes: one per ``with`` block.
        calls: of all of them, in order.
        signature: of the method, without what was removed.
        info: what is shown of each call.
    """

    def __init__(
        self, tapes: Sequence[Tape], signature: Signature, value_if_missing: Mapping[Key, Any]
    ) -> None:
        self.tapes = tapes
        self.calls: list[Call] = [call for tape in tapes for call in tape.calls]
        self.signature = signature
        self.info = ObserverInfo(
            self.calls, self.at, lambda index: self.graph.present(self.at(index))
        )
        self._classes = [tape.class_index for tape in tapes for _ in tape.calls]
        self._missing = {k: v for k, v in value_if_missing.items() if k not in signature.removed}
        self._at: dict[int, StoredCall] = {}

    def at(self, index: int) -> StoredCall:
        """The arguments of a call.

        Raises:
            InferenceError: there is no such call.
            UsageError, UnsupportedError, KeyTypeError: ``value_if_missing`` does not fit it.
        """
        if not -len(self.calls) <= index < len(self.calls):
            raise InferenceError(
                f"No stored input set for index {index}: there are {len(self.calls)} calls",
                advice="count from 0",
            )
        position = index % len(self.calls)
        if position not in self._at:
            self._at[position] = StoredCall.of(
                self.calls[position], self._classes[position], self.signature, self._missing
            )
        return self._at[position]

    @cached_property
    def graph(self) -> SingleGraph:
        """The calls as those of one graph.

        Raises:
            InferenceError: there are none, or they cannot be.
        """
        calls = [self.at(index) for index in range(len(self.calls))]
        if not calls:
            raise InferenceError(
                "No inputs were captured", advice="record at least one call of the model"
            )
        returned = [s for s, call in zip(calls, self.calls, strict=True) if not has_raised(call)]
        if returned and len(returned) < len(calls):
            # To the peer calls that raised are evidence. It refuses if one does not fit the others.
            with contextlib.suppress(InferenceError):
                return SingleGraph(calls, self.signature, self._classes[0])
        return SingleGraph(returned or calls, self.signature, self._classes[0])


def _registrations() -> object:
    """What a class flattens to may change with what is registered with torch in this process."""
    pytree = sys.modules.get("torch.utils._pytree")
    registered = dict(getattr(pytree, "SUPPORTED_NODES", {}))  # another thread may register one
    return frozenset(zip(registered, map(id, registered.values()), strict=True))


class _Segment:
    """The tape of one ``with`` block, readable while it is written."""

    def __init__(self, path: Path, recorder: Recorder) -> None:
        self.path = path
        self._recorder: Recorder | None = recorder
        self._classes: dict[str, type] = {}
        self._tape: Tape | None = None

    @classmethod
    def start(
        cls, path: Path, model: Any, max_calls: int, method: str, *, overwrite: bool
    ) -> _Segment:
        # Imported here: reading tapes must not need the recorder.
        from calltape_recorder import Recorder

        recorder = Recorder(
            path,
            overwrite=overwrite,
            max_calls=max_calls,
            max_queue_bytes=_QUEUE_BYTES,
            via="method",
            method=method,
        )
        recorder.attach(model)
        return cls(path, recorder)

    def stop(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._classes = dict(self._recorder.classes)
            self._recorder = self._tape = None

    def tape(self) -> Tape:
        if self._recorder is not None:
            self._recorder.flush()
            if self._tape is None or self._recorder.stats().kept != len(self._tape):
                # Not closed: somebody may still hold calls of it.
                self._tape = None
                self._classes = dict(self._recorder.classes)
        if self._tape is None:
            self._tape = open_tape(self.path, classes=self._classes)
        return self._tape


_Feed = tuple[str, str, Any, bool]
"""Argument, path below it, tensor, and whether the recorded call did not have it."""


@dataclass
class _PeerRun(Run):
    """A recorded call through the model, compared as the peers do: outputs in their order.

    Attributes:
        model: is run.
        given: the tensors that it gets.
        outputs: the tensors that were recorded.
        unknown: the parts of what was recorded that nothing can be compared with.
        skip_none: whether an output that is None on one side is no difference.
    """

    model: ExportedModel
    given: Sequence[_Feed]
    outputs: Sequence[Any]
    unknown: Sequence[Fact]
    skip_none: bool

    def row(self, call: Call, atol: float, rtol: float, *, include_io: bool) -> dict[str, Any]:
        """The row of the call in the table: the absolute and the relative difference each have a
        bound of their own.

        Raises:
            InferenceError: the model has other inputs than the call.
        """
        arguments, names = self.given, self.model.input_names
        values = [
            CallValue(name, path, "tensor", i) for i, (name, path, *_) in enumerate(arguments)
        ]
        matched = match_inputs(names, values).items()
        self._feeds = {name: arguments[value.number][2] for name, value in matched}
        verdict = judge(call, self, Tolerances(rtol=rtol, atol=atol))
        row: dict[str, Any] = {"SUCCESS": verdict.ok}
        row |= {} if verdict.error is None else {"error": str(verdict.error)}
        if verdict.compared and math.isfinite(verdict.max_abs):
            relative = self._relative(rtol)
            is_near = verdict.max_abs <= atol and relative <= rtol
            row |= {"SUCCESS": verdict.ok and is_near, "abs": verdict.max_abs, "rel": relative}
        row |= {
            "ort_duration": self.seconds,
            "n_inputs": len(names),
            "n_none": sum(missing for _, _, _, missing in arguments),
            "n_empty": sum(missing or tensor.numel() == 0 for _, _, tensor, missing in arguments),
        }
        if include_io:
            row |= {
                "inputs": render(self._feeds),
                "outputs_torch": render(self.outputs),
                "outputs_ort": render(self.result),
            }
        return row

    def run(self) -> list[Any]:
        got = self.model.run(self._feeds)
        if not self.skip_none:
            return got
        numbers = [i for i, output in enumerate(self.outputs) if output is not None]
        got = [got[i] for i in numbers] if len(got) == len(self.outputs) else got
        self.outputs = [self.outputs[i] for i in numbers]
        return got

    def leaves(self, result: Any) -> Returned:
        return Returned({f".{i}": tensor for i, tensor in enumerate(result)})

    def expected(self, call: Call) -> tuple[dict[str, Any], Against]:
        return self.leaves(self.outputs).leaves, "tape"

    def explained(self, call: Call, verdict: Verdict, expected: Mapping[str, Any]) -> Verdict:
        return verdict.with_uncompared(self.unknown)

    def _relative(self, rtol: float) -> float:
        """The largest ``|a - b| / (|a| + rtol)``, as in ``torch.onnx.InputObserver``."""
        import torch

        largest = 0.0
        for recorded, theirs in zip(self.outputs, self.result, strict=True):
            if theirs.numel():
                wide = torch.complex128 if theirs.is_complex() else torch.float64
                expected, got = recorded.cpu().to(wide), theirs.to(wide)
                # Equal infinities and NaN on both sides are no difference.
                are_equal = (expected == got) | (expected.isnan() & got.isnan())
                apart = torch.where(
                    are_equal, 0.0, (expected - got).abs() / (expected.abs() + rtol)
                )
                largest = max(largest, float(apart.max()))
        return largest
