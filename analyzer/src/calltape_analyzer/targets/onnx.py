"""Findings in the form of ``torch.onnx.export(dynamic_axes=...)``, with the names that it needs.

That form (torch's documentation of ``torch.onnx.export``) names every tensor that goes in or comes
out, and gives the dynamic axes of each their names. The outputs are on the tape, so their axes are
seen, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from calltape_analyzer.alignment import Row
from calltape_analyzer.classes import ClassIndex
from calltape_analyzer.dims import (
    BatchFor,
    DimNames,
    Track,
    dynamic_axes_of,
    is_batch,
    name_dimensions,
    sees,
    track_of,
)
from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.flattening import Flattener, Slot
from calltape_analyzer.patterns import Pattern

if TYPE_CHECKING:
    from calltape_analyzer.evidence import Evidence
    from calltape_analyzer.tape import Tape
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


def dynamic_axes(
    tape: Tape,
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
        tape: with outputs.
        input_names: for the input tensors, instead of their parameter's (and place in it).
        output_names: for the output tensors, instead of ``output`` or the names of the fields.
        set_batch_dimension_for: as for ``infer_dynamic_shapes``. The first axis of an output is
            declared with that of the inputs where it always had their size.
        dim_names: as for ``infer_dynamic_shapes``; True by default, as this form needs names.
        value_if_missing: as for ``infer_dynamic_shapes``.

    Returns:
        A dict with ``input_names`` and ``output_names``::

            axes = dynamic_axes(tape)
            torch.onnx.export(model, args, "model.onnx", dynamic_axes=axes, dynamo=False,
                              input_names=axes.input_names, output_names=axes.output_names)

    Raises:
        InferenceError: the calls cannot be one program, or return different structures.
        UsageError: another number of names than of tensors.
    """
    evidence = tape.inference(value_if_missing).evidence()
    inputs, outputs = _tracks(evidence)
    tensors = [track for track in inputs if track.shapes]
    declared = [is_batch(t.key, set_batch_dimension_for, evidence.signature) for t in tensors]
    dynamic = [dynamic_axes_of(t, batch) for t, batch in zip(tensors, declared, strict=True)]
    batches = _batch_sizes([t for t, batch in zip(tensors, declared, strict=True) if batch])
    dynamic += [dynamic_axes_of(track, _is_batch_output(track, batches)) for track in outputs]
    names = name_dimensions([*tensors, *outputs], dynamic, dim_names or True)

    axes = DynamicAxes()
    own = _tensor_names(tensors, ())
    axes.input_names = _chosen(input_names, own, "input")
    axes.output_names = _chosen(output_names, _tensor_names(outputs, axes.input_names), "output")
    for i, name in enumerate([*axes.input_names, *axes.output_names]):
        if dynamic[i]:
            axes[name] = {axis: names[i, axis] for axis in dynamic[i]}
    return axes


def _tracks(evidence: Evidence) -> tuple[list[Track], list[Track]]:
    """Tracks of inputs and outputs over the same sequence of observations, so that their
    dimensions can be compared."""
    inputs = [track_of(track.name, track.path, track.key) for track in evidence.tracks]
    outputs: list[Track] | None = None
    for pattern, row, tree in _observed(evidence):
        for track, cell in zip(inputs, row, strict=True):
            shape = None if cell is None else pattern.shape(*cell)
            sees(track, pattern, shape, None)
        facts = tree.facts()
        slots = _output_slots(tree)
        if outputs is None:
            outputs = [_output_track(slot, len(slots)) for slot in slots]
        if len(slots) != len(outputs):
            raise InferenceError(
                f"{pattern.label} returned {len(slots)} tensors and an earlier one {len(outputs)}",
                advice="record the two kinds of call on tapes of their own",
            )
        for track, slot in zip(outputs, slots, strict=True):
            assert slot.leaf is not None
            sees(track, pattern, facts[slot.leaf].shape, facts[slot.leaf].dtype)
    if outputs is None:
        raise InferenceError(
            "No outputs are on the tape", advice="record with outputs=True, or use dynamic shapes"
        )
    return inputs, outputs


def _observed(evidence: Evidence) -> list[tuple[Pattern, Row, Tree]]:
    """Every combination of input pattern and output tree once, in the order of the calls."""
    combinations: dict[Any, tuple[int, Pattern, Tree]] = {}
    for pattern in evidence.patterns:
        for position in pattern.calls:
            tree = evidence.calls[position].record.outputs
            if tree is not None:
                key = (id(pattern), tree.structure, tree.leaves)
                combinations.setdefault(key, (position, pattern, tree))
    ordered = sorted(combinations.values(), key=lambda found: found[0])
    return [(pattern, evidence.alignment.row(pattern), tree) for _, pattern, tree in ordered]


def _output_slots(tree: Tree) -> list[Slot]:
    form = Flattener(tree.facts(), tree.scalars, ClassIndex()).flatten(tree.spec().root)
    # None and constants are no outputs of an ONNX model.
    return [slot for slot in form.slots() if slot.leaf is not None]


def _output_track(slot: Slot, count: int) -> Track:
    if slot.path == "":
        return track_of("output", "", "output")
    first, *rest = slot.path.lstrip(".").split(".")
    if first.isdigit():
        name = "output" if count == 1 else f"output_{first}"
    else:
        name = first
    return track_of(name, "".join(f".{part}" for part in rest), name)


def _batch_sizes(batches: Sequence[Track]) -> list[set[int]]:
    """The sizes of dimension 0 of some tensors, by pattern."""
    every = zip(*(batch.by_pattern for batch in batches), strict=True)
    return [{shape[0] for shape in shapes if shape} for shapes in every]


def _is_batch_output(track: Track, batches: Sequence[set[int]]) -> bool:
    if not batches or track.rank == 0:
        return False
    return all(
        shape is None or sizes <= {shape[0]}
        for shape, sizes in zip(track.by_pattern, batches, strict=True)
    )


def _tensor_names(tracks: Sequence[Track], others: Sequence[str]) -> list[str]:
    names: list[str] = []
    taken = set(others)
    lines: dict[str, int] = {}
    for track in tracks:
        name = track.name + re.sub(r"\W+", "_", track.path)
        if name in taken:
            name = f"output_{name}"
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
            f"{len(given)} {what} names for {len(own)} tensors ({', '.join(own)})",
            advice="name every tensor, nested ones too",
        )
    return list(given)
