"""Calls as other tools take them: named tensors in, named tensors out.

In comes a tape, and the ONNX model that the values are for, if there is one. Out go for each call
its inputs and outputs by name, in the order of the model. Beside a program that ``calltape export``
wrote is a manifest, which knows what a merged program takes for a call that lacks some inputs: an
empty cache.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import identifier
from calltape_analyzer.arguments.samples import Sample, in_variant
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.observing.groups import SortedCall
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.dispatch import accepting_programs
from calltape_analyzer.programs.input_matching import CallValue, match_inputs, values_of_layout
from calltape_analyzer.programs.loading import declared_programs, folder_of_programs
from calltape_analyzer.programs.onnx_checks import CHECKS
from calltape_analyzer.programs.program import Program
from calltape_analyzer.programs.untrusted_files import load_onnx_proto
from calltape_analyzer.pytree.memory import contiguous
from calltape_analyzer.pytree.memory_limit import memory_limit_of
from calltape_analyzer.pytree.result_values import values_in
from calltape_analyzer.reading.call import Call, Side
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted

__all__ = ["OTHER_FORM", "FlatCall", "FlatCalls", "Written"]

OTHER_FORM = (
    "write it with `--to safetensors`, which has every dtype of a tape; if the "
    "model does without the argument, leave it out with Tape.remove_inputs"
)
"""What to do if a form has no such dtype."""

_MAX_NAMES = 1000
"""How many names of left out values are kept: a tape may have a name of its own in each call."""

_LACKS_INPUTS = (
    "choose calls that have them (`--variant NAME`, Tape.only in Python), or give a program in the "
    "folder that `calltape export` wrote: its manifest says what a call lacks"
)

_TENSOR = object()
"""Stands for a tensor among values."""


class Written(NamedTuple):
    """What was written, and what was left out.

    Attributes:
        calls: how many calls were written.
        raised: how many were left out because they raised.
        under_way: how many were left out because they had not ended.
        without_outputs: how many were written without outputs, which are not on the tape.
        not_tensors: the paths of values that were left out because they are no tensors, at most
            1000; those of outputs begin with ``outputs``.
        not_inputs: the paths of tensors that the model does not take, at most 1000.
        not_in_all: the inputs that were written for some calls only, because the calls are of
            several variants, at most 1000.
    """

    calls: int
    raised: int = 0
    under_way: int = 0
    without_outputs: int = 0
    not_tensors: tuple[str, ...] = ()
    not_inputs: tuple[str, ...] = ()
    not_in_all: tuple[str, ...] = ()


class FlatCall(NamedTuple):
    """A call as named tensors. ``outputs`` is None if they are not on the tape."""

    call: Call
    inputs: dict[str, Any]
    outputs: dict[str, Any] | None


class FlatCalls:
    """The calls of a tape that returned.

    Args:
        tape: with values.
        model: the path of an ONNX model. Names and order are those of its inputs and outputs;
            without it, names are made of the paths on the tape (``past_key_values_0_keys``).

    Attributes:
        returned: how many calls were given out so far.
        raised: how many were left out so far because they raised.
        under_way: how many were left out so far because they had not ended.

    Raises:
        TapeError: ``invalid`` if it is no model.
    """

    def __init__(self, tape: Tape, model: str | os.PathLike[str] | None = None) -> None:
        self.returned = self.raised = self.under_way = 0
        self._without_outputs = 0
        # Of each side, and of the tensors that the model does not take; in order.
        self._left_out: dict[str, dict[str, None]] = {"inputs": {}, "outputs": {}, "unused": {}}
        # By the name of an input, in order, how many calls have it.
        self._have: dict[str, int] = {}
        self._tape = tape
        self._sorter = CallSorter.of(tape)
        self._inputs: Sequence[str] | None = None
        self._outputs: Sequence[str] | None = None
        self._program: _ProgramInputs | None = None
        if model is not None:
            graph = load_onnx_proto(model).graph
            initial = {one.name for one in graph.initializer}
            self._inputs = [one.name for one in graph.input if one.name not in initial]
            # What a program checks is no output of a call.
            self._outputs = [one.name for one in graph.output if one.name != CHECKS]
            self._program = _program_inputs(model, self._inputs)
            if self._program is not None:
                self._sorter = self._program.sorter

    def __iter__(self) -> Iterator[FlatCall]:
        for call in self._tape:
            if call.under_way:
                self.under_way += 1
            elif has_raised(call):
                self.raised += 1
            else:
                found = FlatCall(call, self._inputs_of(call), self._outputs_of(call))
                self.returned += 1
                self._without_outputs += found.outputs is None
                yield found

    def written(self, *sides: Side) -> Written:
        """What was written of the calls, after the last of them.

        Args:
            sides: those that were written.

        Raises:
            InferenceError: there was no call to write.
        """
        if not self.returned:
            raise InferenceError(
                f"there is no call to write: {self.raised} raised, and {self.under_way} had not "
                "ended",
                advice="choose calls that returned; `calltape ls` shows them",
            )
        return Written(
            self.returned,
            self.raised,
            self.under_way,
            self._without_outputs if "outputs" in sides else 0,
            tuple(name for side in sides for name in self._left_out[side]),
            tuple(self._left_out["unused"]) if "inputs" in sides else (),
            tuple(self._not_in_all) if "inputs" in sides else (),
        )

    @property
    def _not_in_all(self) -> list[str]:
        return [name for name, count in self._have.items() if count < self.returned]

    def _leave_out(self, why: str, name: str) -> None:
        names = self._left_out[why]
        if len(names) < _MAX_NAMES:
            names[name] = None

    def _inputs_of(self, call: Call) -> dict[str, Any]:
        import torch

        placed = self._sorter.sorted(call.record.inputs)
        if self._program is not None:
            found = self._program.of(call, placed, self._tape.removed)
            taken = self._program.taken(placed)
        else:
            matched = self._matched(values_of_layout(placed.layout))
            taken = set(matched.values())
            found = {name: _value(call, placed.layout, one) for name, one in matched.items()}
        self._note_left_out(placed.layout, taken)
        tensors = {
            name: torch.tensor(one) if type(one) is int else one for name, one in found.items()
        }
        for name in tensors:
            if name in self._have or len(self._have) < _MAX_NAMES:
                self._have[name] = self._have.get(name, 0) + 1
        return {name: _checked(name, one, call) for name, one in tensors.items()}

    def _matched(self, values: Sequence[CallValue]) -> dict[str, CallValue]:
        """The values of a call by the names of inputs."""
        if self._inputs is not None:
            return match_inputs(self._inputs, values, _LACKS_INPUTS)
        tensors = [value for value in values if value.kind == "tensor"]
        named = [identifier(f"{one.argument}{one.path}") for one in tensors]
        return dict(zip(_unique(named), tensors, strict=True))

    def _note_left_out(self, layout: ArgumentLayout, taken: Set[CallValue]) -> None:
        """Notes the arguments of a call that are not among its inputs."""
        ints = {(one.argument, one.path) for one in taken if one.kind == "int"}
        for value in values_of_layout(layout):
            if value.kind == "tensor" and value not in taken:
                self._leave_out("unused", f"{value.argument}{value.path}")
        for argument, node in layout.nodes.items():
            for path, found in values_in(node, lambda leaf: _TENSOR, int).items():
                if found is not _TENSOR and (argument, path) not in ints:
                    self._leave_out("inputs", f"{argument}{path}")

    def _outputs_of(self, call: Call) -> dict[str, Any] | None:
        import torch

        tree = call.record.outputs
        if tree is None or call.record.outputs_missing is not None:
            return None
        leaves = values_in(
            tree.spec().root, lambda leaf: call.tensor("outputs", leaf), tree.scalars.__getitem__
        )
        tensors = {path: one for path, one in leaves.items() if isinstance(one, torch.Tensor)}
        for path in leaves:
            if path not in tensors:
                self._leave_out("outputs", f"outputs{path}")
        names = self._outputs
        if names is None:
            names = _unique([identifier(f"output{path}") for path in tensors])
        if len(names) != len(tensors):
            raise InferenceError(
                f"call {call.number} returned {counted(len(tensors), 'tensor')}, and the model has "
                f"{counted(len(names), 'output')}",
                advice="take the model that was exported from these calls",
            )
        pairs = zip(names, tensors.values(), strict=True)
        return {name: _checked(name, tensor, call) for name, tensor in pairs}


class _ProgramInputs(NamedTuple):
    """The inputs of one program.

    Attributes:
        program: as its manifest has it.
        sorter: lays calls out as the program has them.
        names: by the name of an input in the file the name in the manifest.
    """

    program: Program
    sorter: CallSorter
    names: Mapping[str, str]

    def of(self, call: Call, placed: SortedCall, ignored: Collection[str]) -> dict[str, Any]:
        """The tensors and ints of a call, by the names in the file.

        Args:
            call: the call.
            placed: the same, as the sorter lays it out.
            ignored: arguments that do not count (:meth:`Tape.remove_inputs`).

        Raises:
            InferenceError: the program does not take the call.
        """
        own = {self.program.name: self.program}
        _, reasons = accepting_programs(own, placed, ignored)
        for name, reason in reasons.items():
            raise InferenceError(
                f"call {call.number} is none of this program ({name}): {reason}",
                advice="choose its calls (`--variant NAME` or `--calls`, Tape.only in Python)",
            )
        sample = Sample(
            [call.tensor("inputs", place.number) for place in placed.layout.tensors],
            placed.layout.scalars_of(call.record.inputs.scalars),
            memory_limit_of(call.tape_bytes),
        )
        whole = in_variant(self.program.variant, sample, placed.key, placed.row)
        known = self.program.inputs(whole)
        return {name: known[own] for name, own in self.names.items()}

    def taken(self, placed: SortedCall) -> set[CallValue]:
        """The values of a call that are inputs."""
        plan, layout = self.program.plan, self.program.variant.group.layout
        own = set(self.names.values())
        used = set[tuple[str, str, str]]()
        for name, leaf in zip(plan.names, plan.leaves, strict=True):
            if name in own:
                place = (layout.tensors if leaf.kind == "tensor" else layout.scalars)[leaf.index]
                used.add((place.argument, place.path, leaf.kind))
        values = values_of_layout(placed.layout)
        return {one for one in values if (one.argument, one.path, one.kind) in used}


def _program_inputs(model: str | os.PathLike[str], names: Sequence[str]) -> _ProgramInputs | None:
    """The inputs of an ONNX file, if a manifest beside it knows it.

    Args:
        model: the path of the file.
        names: of its inputs.

    Raises:
        TapeError: the manifest is damaged.
    """
    folder = folder_of_programs(model)
    if folder is None:
        return None
    programs = declared_programs(folder)
    file = Path(model).name
    program = next((one for one in programs.values() if one.exported == file), None)
    if program is None:
        return None
    known = set(program.plan.names)
    # The exporter adds _orig to the name of an input that is also a value within the graph.
    own = {name: name if name in known else name.removesuffix("_orig") for name in names}
    return _ProgramInputs(program, programs.sorter, own) if known.issuperset(own.values()) else None


def _value(call: Call, layout: ArgumentLayout, value: CallValue) -> Any:
    if value.kind == "tensor":
        return call.tensor("inputs", layout.tensors[value.number].number)
    return call.record.inputs.scalars[layout.scalars[value.number].number]


def _unique(names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        at, own = 0, name
        while own in found:
            at += 1
            own = f"{name}_{at}"
        found[own] = None
    return list(found)


def _checked(name: str, tensor: Any, call: Call) -> Any:
    """A recorded value. Nothing is made up for one that is missing."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.is_meta:
        raise InferenceError(
            f"the value of {name} in call {call.number} is not on the tape",
            advice="record with values='all'",
        )
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain if plain.is_contiguous() else contiguous(plain)
