"""A recorded call through an exported model: its inputs by name, its outputs by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calltape_analyzer.arguments.samples import recorded_sample
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.input_matching import match_inputs, values_of_layout
from calltape_analyzer.pytree.nodes import Returned, Unknown, values_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.text import counted

__all__ = ["inputs_of", "outputs_by_path"]

_TENSOR = object()
"""Stands for any tensor among recorded outputs."""


def inputs_of(model: ExportedModel, call: Call, sorter: CallSorter, advice: str) -> dict[str, Any]:
    """The inputs of a recorded call by the names that a model has for them.

    Args:
        model: anything exported, whose inputs may be nested in another way than the call's.
        call: any call.
        sorter: lays the call out.
        advice: what to do if the model has other inputs than the call.

    Raises:
        InferenceError: the model has other inputs than the call.
    """
    layout = sorter.sorted(call.record.inputs).layout
    sample = recorded_sample(call, sorter)
    matched = match_inputs(model.input_names, values_of_layout(layout), advice)
    return {
        name: (sample.tensors if value.kind == "tensor" else sample.scalars)[value.number]
        for name, value in matched.items()
    }


def outputs_by_path(outputs: Sequence[Any], call: Call) -> Returned:
    """Flat outputs by the paths of what was recorded, in its order: all its tensors, its tensors
    and ints, or its tensors and numbers, whichever are as many. What else was recorded is not
    returned by the model: it is left out of the comparison, and the report says so.

    Raises:
        InferenceError: the model has other outputs than the call.
    """
    tree = call.record.outputs
    if tree is None:
        raise InferenceError("the outputs of the call are not on the tape")
    every = values_in(tree.spec().root, lambda _: _TENSOR, tree.scalars.__getitem__)
    for kinds in ((), (int,), (int, float, bool)):
        paths = [path for path, one in every.items() if one is _TENSOR or type(one) in kinds]
        if len(paths) == len(outputs):
            leaves = dict(zip(paths, outputs, strict=True))
            rest = [p for p, v in every.items() if p not in leaves and not isinstance(v, Unknown)]
            return Returned(leaves, frozenset(rest))
    tensors = sum(one is _TENSOR for one in every.values())
    given, returned = counted(len(outputs), "output"), counted(tensors, "tensor")
    raise InferenceError(f"the model has {given}, and the call returned {returned}")
