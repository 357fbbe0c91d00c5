"""Inputs for torch's exporters: ``dynamic_axes`` for the older ``torch.onnx.export``, and
``ShapesCollection`` and ``AdditionalInputs`` for ``torch.export`` (checked with torch 2.15)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from calltape_analyzer.errors import InferenceError, UsageError
from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.size_table import Column, Seen, SizeRow, SizeTable
from calltape_analyzer.program_source import BatchFor, DimNames, check_form_of_dim_names
from calltape_analyzer.pytree.classes import ClassIndex
from calltape_analyzer.pytree.flattening import Flattener
from calltape_analyzer.reading.call import advice_on_outputs
from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.engines import only_variant
from calltape_analyzer.text import UniqueNames, counted, unique
from calltape_analyzer.variant import Variant, declare_batch, dimension_names, recorded_call
from calltape_analyzer.variants.facts import VariantFacts
from calltape_analyzer.variants.names import own_dimension_name, usual_dimension_name
from calltape_schema.recent import Recent

if TYPE_CHECKING:
    from torch.export import AdditionalInputs, ShapesCollection

__all__ = ["DynamicAxes", "additional_inputs", "dynamic_axes", "shapes_collection"]


class DynamicAxes(dict[str, dict[int, str]]):
    """``{tensor name: {axis: dimension name}}`` for ``torch.onnx.export(dynamic_axes=...)``.

    Attributes:
        input_names: the names of all input tensors, in the exporter's order.
        output_names: the names of all output tensors.
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
    """The dynamic axes of inputs and outputs, from recorded inputs and outputs.

    Axes that always had the same size share a name. Tensors without dynamic axes have no entry.

    Args:
        source: a variant, or a tape, whose calls are treated as one program. The outputs must be
            recorded.
        input_names: names for the input tensors, instead of their parameters and paths.
        output_names: names for the output tensors, instead of ``output``, ``outputs.0`` or the
            names of the fields.
        set_batch_dimension_for: as for ``infer_dynamic_shapes``. It also applies to the first axis
            of an output that always had the size of the batch.
        dim_names: as for ``infer_dynamic_shapes``, but True by default, because names are required.

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
    facts = declare_batch(variant.facts, set_batch_dimension_for, variant.sorter.signature)
    outputs, table = _with_outputs(variant)
    axes = DynamicAxes()
    places = facts.group.layout.tensors
    inputs = [i for i, place in enumerate(places) if place.kind == "tensor"]
    names = unique(place.input_name for place in places)
    axes.input_names = _checked_names(input_names, [names[i] for i in inputs], "input")
    unique_names = UniqueNames(axes.input_names)
    defaults = [
        unique_names.add(f"outputs.{name}" if name in unique_names.names else name)
        for name in (f"{argument}{path}" for argument, path in outputs)
    ]
    axes.output_names = _checked_names(output_names, defaults, "output")

    check_form_of_dim_names(dim_names)
    given_names = dim_names if isinstance(dim_names, Mapping) else {}
    output_arguments = {argument for argument, _ in outputs}
    for_inputs = {key: names for key, names in given_names.items() if key not in output_arguments}
    name_of_column = dimension_names(facts, for_inputs or True, variant.sorter.signature)
    for i, name in zip(inputs, axes.input_names, strict=True):
        axes[name] = {
            column.axis: name_of_column[column]
            for column in facts.group.dimensions(i)
            if column.axis is not None and column in name_of_column
        }
    output_axes = _axes_of_outputs(facts, outputs, table, name_of_column)
    for (argument, _), name, named_axes in zip(
        outputs, axes.output_names, output_axes, strict=True
    ):
        axes[name] = named_axes | {
            axis: given_name
            for axis, given_name in given_names.get(argument, {}).items()
            if axis in named_axes
        }
    for name in [name for name, named_axes in axes.items() if not named_axes]:
        del axes[name]
    return axes


def _axes_of_outputs(
    facts: VariantFacts,
    outputs: Sequence[tuple[str, str]],
    table: SizeTable,
    name_of_column: dict[Column, str],
) -> list[dict[int, str]]:
    """For each output the names of its dynamic axes: the names of input dimensions that always had
    the same size, or new ones.

    Args:
        facts: of the variant.
        outputs: name and path of each output tensor.
        table: the sizes of inputs and outputs.
        name_of_column: the names of the dynamic dimensions of the inputs.
    """
    declared = [c for c, decision in facts.dimensions.items() if decision.reason == "declared"]
    batches = {table.line(column) for column in declared}
    # Columns that always have equal values share a line.
    by_line = {table.line(column): name for column, name in reversed(name_of_column.items())}
    used_names = UniqueNames(name_of_column.values())
    first_output = len(facts.group.layout.tensors)
    axes_of_outputs: list[dict[int, str]] = []
    for index, (argument, path) in enumerate(outputs, first_output):
        columns = [column for column in table.columns if column.index == index]
        named_axes: dict[int, str] = {}
        for column in columns:
            line, axis = table.line(column), column.axis or 0
            if len(table.distinct(column)) <= 1 and not (axis == 0 and line in batches):
                continue
            if line not in by_line:
                usual = usual_dimension_name(argument, path, len(columns), axis)
                plain = own_dimension_name(argument, "", axis)
                free = [n for n in (usual, plain) if n is not None and n not in used_names.names]
                with_path = own_dimension_name(argument, path, axis)
                by_line[line] = used_names.add(free[0] if free else with_path)
            named_axes[axis] = by_line[line]
        axes_of_outputs.append(named_axes)
    return axes_of_outputs


def _with_outputs(variant: Variant) -> tuple[list[tuple[str, str]], SizeTable]:
    """The name and path of each output tensor, and a table of the sizes of inputs and outputs."""
    facts, table = variant.facts, SizeTable()
    outputs: list[tuple[str, str]] | None = None
    expected: list[tuple[str, int]] = []
    shapes_by_tree = Recent()
    for call in variant.calls:
        tree = call.record.outputs
        placed = variant.sorter.sorted(call.record.inputs)
        row = facts.row_in(placed.key, placed.row)
        if tree is None or row is None:
            continue
        key = tree.structure, tree.leaves
        shapes = shapes_by_tree.get(key)
        if shapes is None:
            leaves = tree.facts()
            # None and constants are no outputs of an ONNX model.
            form = Flattener(leaves, tree.scalars, ClassIndex()).flatten(tree.spec().root)
            shapes = [(s.path, leaves[s.leaf].shape) for s in form.slots() if s.leaf is not None]
            shapes_by_tree.keep(key, shapes, len(tree.structure) + len(tree.leaves))
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


def _output_name(path: str, count: int) -> tuple[str, str]:
    """The name of an output, and the path within it."""
    if path == "":
        return "output", ""
    first, *remainder = path.lstrip(".").split(".")
    if first.isdigit():
        first = "output" if count == 1 else f"outputs.{first}"
    return first, "".join(f".{part}" for part in remainder)


def _checked_names(names: Sequence[str] | None, defaults: list[str], what: str) -> list[str]:
    if names is None:
        return defaults
    if len(names) != len(defaults):
        raise UsageError(
            f"{counted(len(names), f'{what} name')} for {counted(len(defaults), 'tensor')} "
            f"({', '.join(defaults)})",
            advice="name every tensor, nested ones too",
        )
    return list(names)


@bounded()
def shapes_collection(
    source: Tape | Variant, *, dim: Literal["auto", "dynamic"] = "auto", device: Any = None
) -> tuple[ShapesCollection, tuple[Any, ...], dict[str, Any]]:
    """A ``torch.export.ShapesCollection``, and the arguments with the tensors that it describes.

    A collection identifies tensors by identity, so export with exactly these arguments::

        shapes, args, kwargs = shapes_collection(variant)
        torch.export.export(model, args, kwargs, dynamic_shapes=shapes)

    An int that varied is wrapped in torch's class for dynamic ints, which ``torch.export.export``
    unwraps (not with ``strict=True`` in 2.15). A collection cannot contain tensors in objects of
    classes that torch's pytree does not know; see
    :func:`~calltape_analyzer.register_flattening_functions`.

    Args:
        source: a variant, or a tape with one variant.
        dim: ``"auto"`` for ``torch.export.Dim.AUTO``, ``"dynamic"`` for ``Dim.DYNAMIC``.
        device: the device of the tensors; the CPU by default.

    Returns:
        The collection, ``args`` and ``kwargs``.

    Raises:
        InferenceError: an argument holds an object of a class that is not known here.
        UsageError: the tape has several variants.
    """
    import torch

    variant = only_variant(source)
    dynamic = torch.export.Dim.AUTO if dim == "auto" else torch.export.Dim.DYNAMIC
    args, kwargs = variant.infer_arguments(device=device)
    untyped: Any = torch.export.ShapesCollection
    collection: ShapesCollection = untyped()
    tensors = tensors_in(variant, args, kwargs)
    for tensor, finding in zip(tensors, variant.findings.tensors, strict=True):
        axes = {d.axis: dynamic for d in finding.dimensions if d.dynamic}
        if axes:
            collection[tensor].update(axes)  # a tensor may be at two places
    args, kwargs, ints = _with_wrapped_ints(variant, args, kwargs)
    for wrapped in ints:
        collection[wrapped] = torch.export.Dim.DYNAMIC
    return collection, args, kwargs


def _with_wrapped_ints(
    variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """The arguments with dynamic ints in torch's wrapper, and the wrapped ints."""
    from torch.export import dynamic_shapes
    from torch.utils import _pytree as pytree

    wrapper: Any = getattr(dynamic_shapes, "_IntWrapper", None)  # newer releases
    dynamic = {(i.argument, i.path) for i in variant.findings.ints if i.dynamic}
    if wrapper is None or not dynamic:
        return args, kwargs, []
    wrapped: list[Any] = []
    signature = variant.sorter.signature

    def wrap(path: tuple[Any, ...], value: Any) -> Any:
        top, *keys = (getattr(key, "key", getattr(key, "idx", None)) for key in path)
        name = signature.name_at(top) if isinstance(top, int) else top
        place = (name, "".join(f".{key}" for key in keys))
        if type(value) is not int or place not in dynamic:
            return value
        wrapped.append(wrapper(value))
        return wrapped[-1]

    args = pytree.tree_map_with_path(wrap, args)
    return args, pytree.tree_map_with_path(wrap, kwargs), wrapped


@bounded()
def additional_inputs(
    source: Tape | Variant, limit: int = 8, *, device: Any = None
) -> AdditionalInputs:
    """A ``torch.export.AdditionalInputs`` with the inputs of recorded calls.

    Use it with the representative arguments::

        args, kwargs = variant.infer_arguments()
        torch.export.export(model, args, kwargs, dynamic_shapes=additional_inputs(variant))

    torch treats dimensions that differ between these inputs as dynamic, and checks that the program
    accepts all of them. Calls that show another dimension to be dynamic come first, then those of
    the most frequent sizes. A dimension that never varied in this variant becomes static, even if
    other variants show that it is dynamic.

    Args:
        source: a variant, or a tape with one variant.
        limit: the largest number of calls, which are all in memory.
        device: the device of the tensors; the CPU by default.

    Raises:
        InferenceError: an argument holds an object of a class that is not known here.
        UsageError: the tape has several variants.
    """
    import torch

    variant = only_variant(source)
    untyped: Any = torch.export.AdditionalInputs
    inputs = untyped()
    for row in _informative_rows(variant, limit):
        inputs.add(*variant.arguments_of(recorded_call(variant, row), device, None))
    additional: AdditionalInputs = inputs
    return additional


def _informative_rows(variant: Variant, limit: int) -> list[int]:
    """Numbers of rows: first those that show that another column varies, then frequent ones."""
    rows = variant.facts.rows
    dynamic = variant.facts.dynamic()
    order = sorted(
        range(len(rows)), key=lambda r: (-rows.calls_of(r).calls, rows.calls_of(r).first)
    )
    seen: dict[Column, set[int]] = {column: set() for column in dynamic}
    selected: list[int] = []
    # Two values of a column show that it varies.
    unsettled = list(dynamic)
    for r in order:
        if not unsettled:
            break
        with_new_values = [c for c in unsettled if rows.value(r, c) not in seen[c]]
        if with_new_values:
            selected.append(r)
        for column in with_new_values:
            seen[column].add(rows.value(r, column))
        unsettled = [c for c in unsettled if len(seen[c]) < 2]
    return list(dict.fromkeys(selected + order))[:limit]


def tensors_in(variant: Variant, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The tensor objects in arguments, in the order of ``variant.findings.tensors``. None stands
    for a tensor that these arguments lack, and that a merged variant completes.

    Raises:
        UsageError: the variant does not take these arguments.
    """
    from calltape_analyzer.arguments.samples import LiveCall

    live = LiveCall(tuple(args), kwargs, variant.sorter)
    if variant.facts.group.key.covers(live.placed.key):
        return live.sample.tensors
    completion = variant.facts.completion_of(live.placed.key)
    if completion is None:
        reason = variant.accepts(args, kwargs).reason
        raise UsageError(
            f"variant {variant.name} does not take these arguments ({reason})",
            advice="ask tape.variants() for the one whose accepts() is true",
        )
    return [None if n is None else live.sample.tensors[n] for n in completion.tensors]
