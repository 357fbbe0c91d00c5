"""Findings in the form of ``torch.onnx.export(dynamic_axes=...)``, with the names that it needs.

That form (torch's documentation of ``torch.onnx.export``) names every tensor that goes in or comes
out, and gives the dynamic axes of each their names. The outputs are on the tape, so their axes are
seen, not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.size_table import Seen, SizeRow, SizeTable
from calltape_analyzer.program_source import BatchFor, DimNames, check_form_of_dim_names
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import Flattener
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_analyzer.tape import Tape
from calltape_analyzer.text import UniqueNames, counted, unique
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.names import own_dimension_name, usual_dimension_name
from calltape_schema.recent import Recent
from calltape_schema.records import Tree

__all__ = ["DynamicAxes", "dynamic_axes"]


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

    Returns:
        A dict with ``input_names`` and ``output_names``::

            axes = dynamic_axes(tape)
            torch.onnx.export(model, args, "model.onnx", dynamic_axes=axes, dynamo=False,
                              input_names=axes.input_names, output_names=axes.output_names)

    Raises:
        InferenceError: the calls cannot be one program, or return different structures.
        UsageError: another number of names than of tensors.
    """
    variant = source.single if isinstance(source, Tape) else source
    facts = variant._declared(set_batch_dimension_for)
    outputs, table = _with_outputs(variant)
    axes = DynamicAxes()
    places = facts.group.layout.tensors
    inputs = [i for i, place in enumerate(places) if place.kind == "tensor"]
    names = unique(place.input_name for place in places)
    axes.input_names = _chosen(input_names, [names[i] for i in inputs], "input")
    others = UniqueNames(axes.input_names)
    shown = [f"{argument}{path}" for argument, path in outputs]
    own_names = [others.add(f"outputs.{one}" if one in others.names else one) for one in shown]
    axes.output_names = _chosen(output_names, own_names, "output")

    check_form_of_dim_names(dim_names)
    given = dim_names if isinstance(dim_names, Mapping) else {}
    of_outputs = {name for name, _ in outputs}
    of_inputs = {key: own for key, own in given.items() if key not in of_outputs}
    named = variant._dimension_names(facts, of_inputs or True)
    for i, name in zip(inputs, axes.input_names, strict=True):
        axes[name] = {
            c.axis: named[c] for c in facts.group.dimensions(i) if c.axis is not None and c in named
        }
    declared = [c for c, found in facts.dimensions.items() if found.reason == "declared"]
    batches = {table.line(column) for column in declared}
    by_line = {table.line(column): name for column, name in reversed(named.items())}
    taken = UniqueNames(named.values())
    for i, ((argument, path), name) in enumerate(zip(outputs, axes.output_names, strict=True)):
        own = [column for column in table.columns if column.index == len(places) + i]
        axes[name] = {}
        for column in own:
            line, axis = table.line(column), column.axis or 0
            if len(table.distinct(column)) > 1 or (axis == 0 and line in batches):
                if line not in by_line:
                    usual = usual_dimension_name(argument, path, len(own), axis)
                    plain = own_dimension_name(argument, "", axis)
                    free = [n for n in (usual, plain) if n is not None and n not in taken.names]
                    whole = own_dimension_name(argument, path, axis)
                    by_line[line] = taken.add(free[0] if free else whole)
                axes[name][axis] = given.get(argument, {}).get(axis, by_line[line])
    for name in [name for name, own in axes.items() if not own]:
        del axes[name]
    return axes


def _with_outputs(variant: Variant) -> tuple[list[tuple[str, str]], SizeTable]:
    """The output tensors, each with its name and the path below it, and the sizes of inputs and
    outputs of all calls, so that they can be compared."""
    facts, table = variant.facts, SizeTable()
    outputs: list[tuple[str, str]] | None = None
    expected: list[tuple[str, int]] = []
    known = Recent()
    for call in variant.calls:
        tree = call.record.outputs
        placed = variant.sorter.sorted(call.record.inputs)
        row = facts.row_in(placed.key, placed.row)
        if tree is None or row is None:
            continue
        key = tree.structure, tree.leaves
        shapes = known.once(key, partial(_output_shapes, tree), sum(map(len, key)))
        ranks = [(path, len(shape)) for path, shape in shapes]
        if outputs is None:
            outputs = [_output_name(path, len(shapes)) for path, _ in shapes]
            expected = ranks
        if ranks != expected:
            raise InferenceError(
                f"call {call.number} returned {counted(len(shapes), 'tensor')}, and an earlier one "
                f"{len(outputs)}, or tensors of other ranks or at other places",
                advice="record the two variants on tapes of their own",
            )
        table.add(SizeRow((*row.shapes, *(shape for _, shape in shapes)), ()), Seen(1, call.ref))
    if outputs is None:
        missing = {call.record.outputs_missing for call in variant.calls}
        raise InferenceError(
            "No outputs are on the tape",
            advice=f"use dynamic shapes, or {advice_on_outputs(missing)}",
        )
    return outputs, table


def _output_shapes(tree: Tree) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors in an output, by path and shape. None and constants are no outputs of
    an ONNX model."""
    facts = tree.facts()
    form = Flattener(facts, tree.scalars, ClassIndex()).flatten(tree.spec().root)
    return [(s.path, facts[s.leaf].shape) for s in form.slots() if s.leaf is not None]


def _output_name(path: str, count: int) -> tuple[str, str]:
    if path == "":
        return "output", ""
    first, *rest = path.lstrip(".").split(".")
    if first.isdigit():
        first = "output" if count == 1 else f"outputs.{first}"
    return first, "".join(f".{part}" for part in rest)


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
