"""Calls as other tools take them: named tensors in, named tensors out.

In comes a tape, and the ONNX model that the values are for, if there is one. Out go for each call
its inputs and outputs by name, in the order of the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from typing import Any, Literal, NamedTuple

from calltape_analyzer.arguments.plan import identifier
from calltape_analyzer.converting.program_inputs import ProgramInputs, program_inputs
from calltape_analyzer.converting.written import Written
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.input_matching import CallValue, match_inputs, values_of_layout
from calltape_analyzer.programs.onnx_checks import CHECKS
from calltape_analyzer.programs.untrusted_files import load_onnx_proto
from calltape_analyzer.pytree.memory import contiguous
from calltape_analyzer.pytree.result_values import values_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import counted

__all__ = ["OTHER_FORM", "FlatCall", "FlatCalls", "Side"]

OTHER_FORM = (
    "write it with `--to safetensors`, which has every dtype of a tape; if the "
    "model does without the argument, leave it out with Tape.remove_inputs"
)
"""What to do if a form has no such dtype."""

Side = Literal["inputs", "outputs"]

_MAX_NAMES = 1000
"""How many names of left out values are kept: a tape may have a name of its own in each call."""

_LACKS_INPUTS = (
    "choose calls that have them (`--variant NAME`, Tape.only in Python), or give a program in the "
    "folder that `calltape export` wrote: its manifest says what a call lacks"
)

_TENSOR = object()
"""Stands for a tensor among values."""


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
        self._program: ProgramInputs | None = None
        if model is not None:
            graph = load_onnx_proto(model).graph
            initial = {one.name for one in graph.initializer}
            self._inputs = [one.name for one in graph.input if one.name not in initial]
            # What a program checks is no output of a call.
            self._outputs = [one.name for one in graph.output if one.name != CHECKS]
            self._program = program_inputs(model, self._inputs)
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
