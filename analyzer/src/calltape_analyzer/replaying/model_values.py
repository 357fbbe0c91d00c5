"""Matching the values of a recorded call with the inputs and outputs of an exported model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from calltape_analyzer.arguments.plan import float_input, identifier
from calltape_analyzer.arguments.samples import Sample, recorded_sample
from calltape_analyzer.errors import InferenceError
from calltape_analyzer.observing.layout import ArgumentLayout
from calltape_analyzer.observing.sorting import CallSorter
from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.loading import folder_of_programs
from calltape_analyzer.pytree.nodes import Returned, Unknown, values_in
from calltape_analyzer.reading.call import Call
from calltape_analyzer.text import counted, some_of

__all__ = [
    "CallValue",
    "advice_for",
    "inputs_of",
    "match_inputs",
    "outputs_by_path",
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
    found = [CallValue(p.argument, p.path, "tensor", i) for i, p in enumerate(layout.tensors)]
    for i, path in enumerate(layout.scalars):
        if path.kind == "int" or path.kind == "float":
            found.append(CallValue(path.argument, path.path, path.kind, i))
    return found


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
        paths = [path for path, one in values.items() if one is _TENSOR or type(one) in types]
        if len(paths) == len(outputs):
            leaves = dict(zip(paths, outputs, strict=True))
            rest = [p for p, v in values.items() if p not in leaves and not isinstance(v, Unknown)]
            return Returned(leaves, frozenset(rest))
    tensors = counted(sum(one is _TENSOR for one in values.values()), "tensor")
    raise InferenceError(
        f"the model has {counted(len(outputs), 'output')}, and the call returned {tensors}"
    )
