"""Findings in the form of ``torch.onnx.export(dynamic_axes=...)``, with the names that it needs.

That form (torch's documentation of ``torch.onnx.export``) names every tensor that goes in or comes
out, and gives the dynamic axes of each their names. The outputs are on the tape, so their axes are
seen, not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.inference.aligned_slots import AlignedSlot
from calltape_analyzer.inference.alignment import AlignedRow
from calltape_analyzer.inference.dimension_names import name_dimensions
from calltape_analyzer.inference.patterns import CallPattern
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.declarations import BatchFor, DimNames, is_batch
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import Flattener, Slot
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_analyzer.text import counted

if TYPE_CHECKING:
    from calltape_analyzer.inference.aligned_calls import AlignedCalls
    from calltape_analyzer.tape import Tape
    from calltape_analyzer.variant import Variant
from calltape_schema.records import Tree

__all__ = ["DynamicAxes", "dynamic_axes"]


_MAX_LINES = 16


class DynamicAxes(dict[str, dict[int, str]]):
    """``{tensor name: {axis: dimension name}}``, as ``torch.onnx.export(dynamic_axes=...)`` takes
    it.

    Attributes:
        input_names: of all input tensors in the exporter's order.
        output_names: of all output tensors.
    """

    input_names: list[str]
    output_names: list[str]


@bounded()
def dynamic_axes(
    source: Tape | Variant,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    *,
    set_batch_dimension_for: BatchFor = None,
    dim_names: DimNames = True,
    value_if_missing: dict[str | int, Any] | None = None,
) -> DynamicAxes:
    """The dynamic axes of inputs and outputs, from what went in and what came out.

    An axis is named like an input's that always had the same size, so that one name stands for one
    dimension of the model. Tensors without dynamic axes have no entry.

    Args:
        source: a tape, whose calls count as one program, or a variant; with outputs.
        input_names: for the input tensors, instead of their parameter's (and place in it).
        output_names: for the output tensors, instead of ``output``, ``outputs.0`` or the names of
            the fields.
        set_batch_dimension_for: as for ``infer_dynamic_shapes``. The first axis of an output is
            declared with those of the inputs if it always had their size.
        dim_names: as for ``infer_dynamic_shapes``; True by default, because this form needs names.
        value_if_missing: as for ``infer_dynamic_shapes``.

    Returns:
        A dict with ``input_names`` and ``output_names``::

            axes = dynamic_axes(tape)
            torch.onnx.export(model, args, "model.onnx", dynamic_axes=axes, dynamo=False,
                              input_names=axes.input_names, output_names=axes.output_names)

    Raises:
        InferenceError: the calls cannot be one program, or return different structures.
        UsageError: another number of names than of tensors; or a value for an argument that no
            call of the variant leaves out.
    """
    aligned = source._aligned_calls(value_if_missing)
    inputs, outputs = _slots(aligned)
    tensors = [slot for slot in inputs if slot.shapes]
    declared = [is_batch(t.key, set_batch_dimension_for, aligned.signature) for t in tensors]
    dynamic = [t.dynamic_axes(batch) for t, batch in zip(tensors, declared, strict=True)]
    batches = _batch_sizes([t for t, batch in zip(tensors, declared, strict=True) if batch])
    dynamic += [slot.dynamic_axes(_is_batch_output(slot, batches)) for slot in outputs]
    names = name_dimensions([*tensors, *outputs], dynamic, dim_names or True)

    axes = DynamicAxes()
    own = _tensor_names(tensors, ())
    axes.input_names = _chosen(input_names, own, "input")
    axes.output_names = _chosen(output_names, _tensor_names(outputs, axes.input_names), "output")
    for i, name in enumerate([*axes.input_names, *axes.output_names]):
        if dynamic[i]:
            axes[name] = {axis: names[i, axis] for axis in dynamic[i]}
    return axes


def _slots(aligned: AlignedCalls) -> tuple[list[AlignedSlot], list[AlignedSlot]]:
    """The slots of inputs and outputs over the same patterns, so that their dimensions can be
    compared."""
    inputs = [AlignedSlot(slot.name, slot.path, slot.key) for slot in aligned.slots]
    outputs: list[AlignedSlot] | None = None
    for pattern, row, tree in _observed(aligned):
        for given, leaf in zip(inputs, row, strict=True):
            given.add(pattern, None if leaf is None else pattern.shape(*leaf), None)
        facts = tree.facts()
        slots = _output_slots(tree)
        if outputs is None:
            outputs = [_output_slot(slot, len(slots)) for slot in slots]
        if len(slots) != len(outputs):
            raise InferenceError(
                f"{pattern.label} returned {counted(len(slots), 'tensor')}, and an earlier one "
                f"{len(outputs)}",
                advice="record the two variants on tapes of their own",
            )
        for output, slot in zip(outputs, slots, strict=True):
            assert slot.leaf is not None
            output.add(pattern, facts[slot.leaf].shape, facts[slot.leaf].dtype)
    if outputs is None:
        missing = {call.record.outputs_missing for call in aligned.calls}
        raise InferenceError(
            "No outputs are on the tape",
            advice=f"use dynamic shapes, or {advice_on_outputs(missing)}",
        )
    return inputs, outputs


def _observed(aligned: AlignedCalls) -> list[tuple[CallPattern, AlignedRow, Tree]]:
    """Every combination of input pattern and output tree once, in the order of the calls. A call
    that raised is no evidence, whatever outputs a stranger's tape says it has."""
    found: dict[Any, tuple[CallPattern, Tree]] = {}
    for position, call in enumerate(aligned.calls):
        tree = call.record.outputs
        if tree is not None:
            pattern = aligned.reduced.pattern(call.seen(position))
            if not pattern.calls:
                continue
            found.setdefault((id(pattern), tree.structure, tree.leaves), (pattern, tree))
    return [(pattern, aligned.alignment.row(pattern), tree) for pattern, tree in found.values()]


def _output_slots(tree: Tree) -> list[Slot]:
    form = Flattener(tree.facts(), tree.scalars, ClassIndex()).flatten(tree.spec().root)
    # None and constants are no outputs of an ONNX model.
    return [slot for slot in form.slots() if slot.leaf is not None]


def _output_slot(slot: Slot, count: int) -> AlignedSlot:
    if slot.path == "":
        return AlignedSlot("output", "", "output")
    first, *rest = slot.path.lstrip(".").split(".")
    if first.isdigit():
        name = "output" if count == 1 else f"outputs.{first}"
    else:
        name = first
    return AlignedSlot(name, "".join(f".{part}" for part in rest), name)


def _batch_sizes(batches: Sequence[AlignedSlot]) -> list[set[int]]:
    """The sizes of dimension 0 of some tensors, by pattern."""
    every = zip(*(batch.by_pattern for batch in batches), strict=True)
    return [{shape[0] for shape in shapes if shape} for shapes in every]


def _is_batch_output(slot: AlignedSlot, batches: Sequence[set[int]]) -> bool:
    if not batches or slot.rank == 0:
        return False
    return all(
        shape is None or sizes <= {shape[0]}
        for shape, sizes in zip(slot.by_pattern, batches, strict=True)
    )


def _tensor_names(slots: Sequence[AlignedSlot], others: Sequence[str]) -> list[str]:
    names: list[str] = []
    taken = set(others)
    lines: dict[str, int] = {}
    for slot in slots:
        name = f"{slot.name}{slot.path}"
        if name in taken:
            name = f"outputs.{name}"
        made, count = name, lines.get(name, 0)
        while made in taken:
            count += 1
            made = name + "_" * count if count <= _MAX_LINES else f"{name}_{count}"
            lines[name] = count
        taken.add(made)
        names.append(made)
    return names


def _chosen(given: Sequence[str] | None, own: list[str], what: str) -> list[str]:
    if given is None:
        return own
    if len(given) != len(own):
        raise UsageError(
            f"{counted(len(given), f'{what} name')} for {counted(len(own), 'tensor')} "
            f"({', '.join(own)})",
            advice="name every tensor, nested ones too",
        )
    return list(given)
