"""Calls as other tools take them: named tensors in, named tensors out.

In comes a tape, and the ONNX model that the values are for, if there is one. Out go for each call
its inputs and outputs by name, in the order of the model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from calltape_analyzer.arguments.plan import identifier
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.evidence import has_raised
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.input_matching import match_inputs, values_of_layout
from calltape_analyzer.programs.untrusted_files import load_onnx_proto
from calltape_analyzer.pytree.result_values import values_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.tape import Tape

__all__ = ["FlatCall", "FlatCalls"]


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
        skipped: how many calls were left out so far, because they raised or had not ended.

    Raises:
        TapeError: ``invalid`` if it is no model.
    """

    def __init__(self, tape: Tape, model: str | os.PathLike[str] | None = None) -> None:
        self.skipped = 0
        self._tape = tape
        self._sorter = CallSorter.of(tape)
        self._inputs: Sequence[str] | None = None
        self._outputs: Sequence[str] | None = None
        if model is not None:
            graph = load_onnx_proto(model).graph
            initial = {one.name for one in graph.initializer}
            self._inputs = [one.name for one in graph.input if one.name not in initial]
            self._outputs = [one.name for one in graph.output]

    def __iter__(self) -> Iterator[FlatCall]:
        for call in self._tape:
            if has_raised(call) or call.under_way:
                self.skipped += 1
            else:
                yield FlatCall(call, self._inputs_of(call), self._outputs_of(call))

    def _inputs_of(self, call: Call) -> dict[str, Any]:
        import torch

        tree = call.record.inputs
        layout = self._sorter.sorted(tree).layout
        values = values_of_layout(layout)
        if self._inputs is not None:
            matched = match_inputs(self._inputs, values)
        else:
            tensors = [value for value in values if value.kind == "tensor"]
            named = [identifier(f"{one.argument}{one.path}") for one in tensors]
            matched = dict(zip(_unique(named), tensors, strict=True))
        found: dict[str, Any] = {}
        for name, value in matched.items():
            if value.kind == "tensor":
                one = call.tensor("inputs", layout.tensors[value.number].number)
            else:
                one = torch.tensor(tree.scalars[layout.scalars[value.number].number])
            found[name] = _checked(name, one, call)
        return found

    def _outputs_of(self, call: Call) -> dict[str, Any] | None:
        import torch

        tree = call.record.outputs
        if tree is None or call.record.outputs_missing is not None:
            return None
        leaves = values_in(
            tree.spec().root, lambda leaf: call.tensor("outputs", leaf), tree.scalars.__getitem__
        )
        tensors = {path: one for path, one in leaves.items() if isinstance(one, torch.Tensor)}
        names = self._outputs
        if names is None:
            names = _unique([identifier(f"output{path}") for path in tensors])
        if len(names) != len(tensors):
            raise InferenceError(
                f"call {call.number} returned {len(tensors)} tensors, and the model has "
                f"{len(names)} outputs",
                advice="take the model that was exported from these calls",
            )
        pairs = zip(names, tensors.values(), strict=True)
        return {name: _checked(name, tensor, call) for name, tensor in pairs}


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
    return tensor.detach().resolve_conj().resolve_neg().contiguous()
