"""Which value of a call is which input of an exported model, and which output is which."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from calltape_analyzer.arguments.plan import identifier
from calltape_analyzer.arguments.samples import recorded_sample
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
    """A tensor or an int of a call: its argument, the path below it, and its number among the
    tensors or the scalars."""

    argument: str
    path: str
    kind: Literal["tensor", "int"]
    number: int


def values_of_layout(layout: ArgumentLayout) -> list[CallValue]:
    """The tensors of a layout, and then its ints."""
    found = [CallValue(p.argument, p.path, "tensor", i) for i, p in enumerate(layout.tensors)]
    return found + [
        CallValue(path.argument, path.path, "int", i)
        for i, path in zip(layout.int_scalars, layout.ints, strict=True)
    ]


def advice_for(source: Any, command: str) -> str:
    """What to do if the inputs of a model are not in a call.

    Args:
        source: the model, or the path of its file.
        command: the verb of ``calltape`` that needs them.
    """
    folder = folder_of_programs(source)
    if folder is None:
        return EXPORT_FOR_CALLS
    return f"give the directory, which has a manifest: calltape {command} TAPE {folder}"


def match_inputs(
    names: Sequence[str], values: Iterable[CallValue], advice: str = EXPORT_FOR_CALLS
) -> dict[str, CallValue]:
    """The value of a call for each input of a model.

    By name if the names tell it (``cache.layers.0.keys``, the same as an identifier, or an argument
    and the number of the value in it), because an exporter leaves out what the program does not
    use; otherwise by order, if there are as many tensors as inputs.

    Args:
        names: of the inputs.
        values: of the call.
        advice: what to do if neither is possible.

    Raises:
        InferenceError: neither is possible.
    """
    known: dict[str, CallValue] = {}
    counts: Counter[str] = Counter()
    tensors: list[CallValue] = []
    for value in values:
        argument, number = identifier(value.argument), counts[value.argument]
        counts[value.argument] += 1
        place = f"{value.argument}{value.path}"
        for name in (place, identifier(place), f"{argument}_{number}"):
            known.setdefault(name, value)
        if value.kind == "tensor":
            tensors.append(value)
    # The exporter adds _orig to the name of an input that is also a value within the graph.
    found = {name: known.get(name) or known.get(name.removesuffix("_orig")) for name in names}
    missing = [name for name, value in found.items() if value is None]
    if not missing:
        return {name: value for name, value in found.items() if value is not None}
    if len(names) != len(tensors):
        raise InferenceError(
            f"the model's inputs {some_of(missing, 3)} are not in the call, which has "
            f"{counted(len(tensors), 'tensor')} for {counted(len(names), 'input')}",
            advice=advice,
        )
    return dict(zip(names, tensors, strict=True))


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
