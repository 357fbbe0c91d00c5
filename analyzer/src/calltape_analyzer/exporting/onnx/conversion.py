"""From an exported program to an ONNX model with readable names, and with its assertions.

A trace that read values has assertions about them: the result is not empty, the length is that of a
mask. torch.onnx (2.15) removes them, because ONNX has no operator that fails, and a model without
them computes something else for other values. Here they stay: one boolean output says which of them
hold, and :class:`~calltape_analyzer.programs.onnx_model.OnnxModel` raises an error if one does not
(docs/decisions/onnx.md).
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from onnxscript import ir
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

from calltape_analyzer.arguments.plan import ArgumentPlan, PlainForm, Template, identifier
from calltape_analyzer.exporting.onnx.kernel_casts import cast_for_kernels
from calltape_analyzer.exporting.onnx.translations import check, translations
from calltape_analyzer.exporting.onnx.untranslated import (
    UntranslatedError,
    reject_draws,
    reject_floats,
    reject_untranslated,
)
from calltape_analyzer.exporting.torch_fixes.kept_assertions import kept_assertions
from calltape_analyzer.exporting.torch_fixes.recurrence import open_lengths
from calltape_analyzer.exporting.torch_fixes.result_counts import result_counts_from_zero
from calltape_analyzer.foreign_errors import says_not_negative
from calltape_analyzer.programs.onnx_model import CHECKS, COMPLEX_OUTPUTS, OnnxModel
from calltape_analyzer.text import UniqueNames
from calltape_analyzer.variants.facts import VariantFacts

__all__ = ["checks_kept", "order_as_stored", "to_onnx"]

_CACHES = re.compile(
    r"past_key_values|\bcache(?=\.(?:layers|self_attention_cache|cross_attention_cache)\b)"
)
"""What a cache is called among the outputs of transformers, before and since 5.24."""
_WORD = re.compile(r"\w+")

_PASSES = "torch.onnx._internal.exporter._fx_passes"
_CORE = "torch.onnx._internal.exporter._core"
_PREPARE = "_prepare_exported_program_for_export"
_REMOVE = "remove_assertion_nodes"


def to_onnx(
    exported: Any,
    plan: ArgumentPlan,
    result: tuple[Template, PlainForm],
    variant: VariantFacts,
    options: Mapping[str, Any],
) -> OnnxModel:
    """The ONNX model of an exported program.

    Args:
        exported: a ``torch.export.ExportedProgram``.
        plan: its inputs, from which the model's inputs get their names.
        result: its outputs.
        variant: its symbols give dynamic dimensions their names.
        options: for ``torch.onnx.export``.

    Raises:
        UntranslatedError: the program does something that no ONNX model can.
        Exception: whatever torch.onnx raises.
    """
    all_options = {"dynamo": True, "verbose": False, **options}
    callers_translations = dict(all_options.get("custom_translation_table") or {})
    reject_untranslated(exported, callers_translations)
    all_options["custom_translation_table"] = {**translations(), **callers_translations}
    order_as_stored(exported.graph_module)
    try:
        program, checks = _convert(exported, all_options, by_values=False)
    except Exception:  # of any type: an operator may be taken apart by values only
        if not _knows_values(exported):
            raise
        program, checks = _convert(exported, all_options, by_values=True)
    reject_draws(program.model)
    _join_checks(program, checks)
    cast_for_kernels(program.model)
    graph = program.model.graph
    _name_values(graph, graph.inputs, list(plan.names))
    if "output_names" not in options:
        names = output_names(result, (*plan.names, CHECKS))
        has_checks = bool(graph.outputs) and graph.outputs[-1].name == CHECKS
        _name_values(graph, graph.outputs, [*names, CHECKS] if has_checks else names)
    _note_complex(program, exported)
    _name_dimensions(program, plan, variant)
    _forget_shapes(program, exported)
    return OnnxModel(program)


def _convert(
    exported: Any, options: Mapping[str, Any], *, by_values: bool
) -> tuple[Any, list[str]]:
    """Runs ``torch.onnx.export`` with what it lacks.

    Args:
        exported: a ``torch.export.ExportedProgram``.
        options: for ``torch.onnx.export``.
        by_values: whether the conversion may use the values of the trace.

    Returns:
        A ``torch.onnx.ONNXProgram``, and the texts of its assertions as of :func:`checks_kept`.
    """
    with (
        warnings.catch_warnings(),
        _small_constants(),
        result_counts_from_zero(),
        # Until torch 2.14 the conversion asks once more for the shape of a recurrent layer.
        open_lengths(True),
        _values_of_trace(exported, visible=by_values),
        kept_assertions(of_model=False),
        checks_kept() as checks,
    ):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(exported, (), None, **options)
    if program is None:
        raise RuntimeError("torch.onnx.export gave no program (dynamo=False is not supported here)")
    return program, checks


@contextmanager
def checks_kept() -> Iterator[list[str]]:
    """Keeps the assertions of a program that is converted within the block: each becomes an
    additional output. Also replaces a few operators by others that ONNX has.

    Yields:
        The messages of the assertions, in torch's words; filled in by the conversion.
    """
    messages: list[str] = []
    passes: Any = importlib.import_module(_PASSES)
    core: Any = importlib.import_module(_CORE)
    remove, prepare = getattr(passes, _REMOVE, None), getattr(core, _PREPARE, None)
    if remove is None or prepare is None:  # another version, which may do it in another way
        yield messages
        return

    def keep(module: Any) -> Any:
        _reject_within(module)
        _widen_indices(module)
        _ask_pairs_for_sizes(module)
        messages[:] = _with_checks(module.graph)
        return remove(module)

    def with_outputs(*args: Any, **kwargs: Any) -> Any:
        program = prepare(*args, **kwargs)
        _add_outputs(program)
        return program

    setattr(passes, _REMOVE, keep)
    setattr(core, _PREPARE, with_outputs)
    try:
        yield messages
    finally:
        setattr(passes, _REMOVE, remove)
        setattr(core, _PREPARE, prepare)


def _reject_within(module: Any) -> None:
    """Rejects assertions within a branch or a loop, whose conditions are not visible outside of it.
    Assertions that a size is not negative always hold, and are ignored."""
    for name, part in module.named_modules():
        for node in part.graph.nodes if name and hasattr(part, "graph") else ():
            text = str(node.args[1]) if node.target in _kinds() and len(node.args) > 1 else ""
            if text and not says_not_negative(text):
                raise UntranslatedError(
                    f"an ONNX model cannot check what a branch or a loop of it asserts: {text}"
                )


def _kinds() -> set[Any]:
    """The operators that assert something."""
    aten = torch.ops.aten
    return {aten._assert_scalar.default, aten._assert_async.msg, aten._assert_async.default}


def _with_checks(graph: Any) -> list[str]:
    """Replaces each assertion of a graph by a check.

    Returns:
        The texts of the assertions.
    """
    kinds = _kinds()
    texts: dict[Any, str] = {}
    for node in list(graph.nodes):
        condition = node.args[0] if node.args else None
        is_assertion = node.target in kinds and isinstance(condition, torch.fx.Node)
        if not is_assertion or condition in texts:
            continue
        reject_floats(node)
        texts[condition] = str(node.args[1]) if len(node.args) > 1 else "a tensor is false"
        with graph.inserting_before(node):
            check_node = graph.call_function(check, (condition,))
        check_node.meta = {**node.meta, "val": torch.ones(1, dtype=torch.bool)}
        graph.erase_node(node)
    return list(texts.values())


def _add_outputs(program: Any) -> None:
    """Adds the checks to the outputs of an exported program, as the last ones."""
    graph = program.graph_module.graph
    checks = [node for node in graph.nodes if node.target is check]
    if not checks:
        return
    output = graph.output_node()
    output.args = ((*output.args[0], *checks),)
    program.graph_signature.output_specs += [
        OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in checks
    ]


def _join_checks(program: Any, messages: list[str]) -> None:
    """Joins the checks of a model into one output.

    Args:
        program: a ``torch.onnx.ONNXProgram``.
        messages: of :func:`checks_kept`.
    """
    if not messages:
        return
    graph = program.model.graph
    first_check = len(graph.outputs) - len(messages)
    checks = list(graph.outputs)[first_check:]
    del graph.outputs[first_check:]
    kind, shape = ir.TensorType(ir.DataType.BOOL), ir.Shape([len(checks)])
    joined = ir.Value(name=CHECKS, type=kind, shape=shape)
    graph.append(ir.Node("", "Concat", checks, [ir.AttrInt64("axis", 0)], outputs=[joined]))
    graph.outputs.append(joined)
    program.model.metadata_props[CHECKS] = json.dumps(messages)


def _ask_pairs_for_sizes(module: Any) -> None:
    """Reads the sizes of complex tensors from the pairs of floats that represent them: torch.onnx
    (2.15) has no size of a complex tensor."""
    aten = torch.ops.aten
    for node in list(module.graph.nodes):
        value = node.args[0].meta.get("val") if node.target is aten.sym_size.int else None
        if value is None or not value.is_complex() or node.args[1] < 0:
            continue
        with module.graph.inserting_before(node):
            pairs = module.graph.call_function(aten.view_as_real.default, (node.args[0],))
        pairs.meta["val"] = torch.view_as_real(value)
        node.args = (pairs, node.args[1])
    module.recompile()


def _widen_indices(module: Any) -> None:
    """Converts int32 tensors that are used as indices to int64, because ONNX's ``GatherND`` takes
    no other (torch 2.15 does not convert them). Offsets of sequences are often int32."""
    aten = torch.ops.aten
    indexing = {
        aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default,
        aten.index_put_.default, aten._unsafe_index_put.default,
    }  # fmt: skip
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in indexing:
            continue
        wide = []
        for index in node.args[1]:
            value = None if index is None else index.meta.get("val")
            if value is None or value.dtype is not torch.int32:
                wide.append(index)
                continue
            with module.graph.inserting_before(node):
                cast = module.graph.call_function(
                    aten._to_copy.default, (index,), {"dtype": torch.int64}
                )
            cast.meta["val"] = value.to(torch.int64)
            wide.append(cast)
        node.args = (node.args[0], wide, *node.args[2:])
    module.recompile()


def _mode_of(exported: Any) -> Any:
    """The mode of the fake tensors of a trace; None if it has none."""
    values = (node.meta.get("val") for node in exported.graph.nodes)
    return next((mode for value in values if (mode := getattr(value, "fake_mode", None))), None)


def _knows_values(exported: Any) -> bool:
    return bool(getattr(_mode_of(exported), "propagate_real_tensors", False))


def _forget_shapes(program: Any, exported: Any) -> None:
    """Removes the shapes of inner values from a model if they depend on values. They would be those
    of the sample, or different sizes would share a name, and ONNX Runtime reuses memory by them."""
    if not any(str(symbol).startswith("u") for symbol in exported.range_constraints):
        return
    graph = program.model.graph
    outer = {id(value) for value in (*graph.inputs, *graph.outputs)}
    for node in graph.all_nodes():
        for value in node.outputs:
            if id(value) not in outer:
                value.shape = None


@contextmanager
def _values_of_trace(exported: Any, *, visible: bool) -> Iterator[None]:
    """Lets the conversion, which traces a program again, use the values of the trace, or hides them
    from it. Where it decomposes an operator, it would make a constant of a number that depends on
    these values: how many boxes the first picture has (torch 2.15)."""
    mode = _mode_of(exported)
    if visible or not _knows_values(exported):
        yield
        return
    values = getattr(mode.shape_env, "real_tensor_prop_unbacked_vals", {})
    before = dict(values)
    try:
        mode.propagate_real_tensors = False
        values.clear()
        yield
    finally:
        values.update(before)
        mode.propagate_real_tensors = True


@contextmanager
def _small_constants() -> Iterator[None]:
    """Keeps ``x + 1e-10`` in a model: the optimizer of torch.onnx (onnxscript 0.7) treats constants
    below 1e-8 as 0 and drops the sum, so that the model divides by zero."""
    try:
        from onnxscript.rewriter._pattern_ir import Constant
    except ImportError:  # another version, which may not do so
        yield
        return
    setattr(Constant, "_abs_tol", property(lambda _: 0.0, lambda *_: None))  # noqa: B010
    try:
        yield
    finally:
        delattr(Constant, "_abs_tol")


def _name_values(graph: Any, values: Any, names: list[str]) -> None:
    """Names inputs or outputs. The exporter itself can give two values of a graph the same name
    (torch 2.15: an output and the value of an operator, both called ``mean``)."""
    if len(values) != len(names):
        return
    renamed = {id(value) for value in values}
    inputs = {id(value) for value in graph.inputs}
    for value in values:
        value.name = f"calltape.{value.name}"  # so that none has the new name of another
    values_by_name = {value.name: value for node in graph.all_nodes() for value in node.outputs}
    values_by_name |= {value.name: value for value in graph.inputs}
    for value, name in zip(values, names, strict=True):
        if id(value) in inputs and values is not graph.inputs:
            # An input that is returned as it is keeps its name as an input.
            value.name = value.name.removeprefix("calltape.")
            continue
        other = values_by_name.get(name)
        if other is not None and id(other) not in renamed:
            other.name = f"{name}.inner"
        initial = graph.initializers.pop(name, None)
        if initial is not None:
            initial.name = f"{name}.inner"
            graph.initializers[initial.name] = initial
        value.name = name


def _note_complex(program: Any, exported: Any) -> None:
    """Writes into a model which of its outputs are pairs that represent complex numbers."""
    nodes = {node.name: node for node in exported.graph.nodes}
    returned = [nodes[name] for name in exported.graph_signature.user_outputs if name in nodes]
    values = [node.meta.get("val") for node in returned]
    are_complex = [bool(getattr(value, "is_complex", bool)()) for value in values]
    if any(are_complex):
        outputs = [value.name for value in program.model.graph.outputs if value.name != CHECKS]
        names = [name for name, is_one in zip(outputs, are_complex, strict=False) if is_one]
        program.model.metadata_props[COMPLEX_OUTPUTS] = json.dumps(names)


def output_names(result: tuple[Template, PlainForm], taken: Any) -> list[str]:
    """The name of each output: ``logits``, ``present.layers.0.keys``; ``outputs.0`` if the model
    has no name for it, and ``outputs.cache`` if an input is called ``cache``."""
    template, form = result
    names: list[str] = []
    unique = UniqueNames(taken)
    for leaf in form.leaves():
        layout = template.layout
        place = (layout.tensors if leaf.kind == "tensor" else layout.scalars)[leaf.index]
        path = _CACHES.sub("present", place.path.lstrip("."))
        if not path:
            path = "output"
        elif path[0].isdigit() or path in unique.names:
            path = f"outputs.{path}"
        names.append(unique.add(path))
    return names


def _name_dimensions(program: Any, plan: ArgumentPlan, variant: VariantFacts) -> None:
    """Gives dimensions the names that ``calltape variants`` shows, instead of torch's (``s77``).

    Dimensions that were equal in every call get one name, although a trace may have several names
    for them (``onnx_session`` still accepts calls in which they differ). A dimension that is an
    expression to the trace (``s77 + 1``), and has a name in the variant, gets that name.
    """
    by_column = {column: symbol.name for symbol in variant.symbols for column in symbol.columns}
    inputs = {value.name.removesuffix("_orig"): value for value in program.model.graph.inputs}
    symbols: list[tuple[str, str]] = []  # torch's text for a size, and the name of its symbol
    for leaf, name in zip(plan.leaves, plan.names, strict=True):
        value = inputs.get(name)
        if leaf.kind != "tensor" or value is None or value.shape is None:
            continue
        for column, size in zip(variant.group.dimensions(leaf.index), value.shape, strict=False):
            text, symbol = getattr(size, "value", None), by_column.get(column)
            if isinstance(text, str) and symbol is not None:
                symbols.append((text, symbol))
    unique = UniqueNames()
    names = {name: unique.add(identifier(name)) for name in dict.fromkeys(n for _, n in symbols)}
    plain = {text: names[name] for text, name in reversed(symbols) if text.isidentifier()}
    if plain:
        program.rename_axes(plain)
    sums = {
        _sorted_sum(_WORD.sub(lambda word: plain.get(word[0], word[0]), text)): names[name]
        for text, name in reversed(symbols)
        if not text.isidentifier()
    }
    graph = program.model.graph
    inner = (value for node in graph.all_nodes() for value in node.outputs)
    for value in (*graph.inputs, *graph.outputs, *inner):
        if value.shape is not None:
            sizes = [_with_name(size, sums) for size in value.shape]
            value.shape = type(value.shape)(sizes)


def _with_name(size: Any, names: Mapping[str, str]) -> Any:
    """A size: if it is an expression, its name, or else the expression with sorted terms."""
    text = getattr(size, "value", None)
    if not isinstance(text, str):
        return size
    text = _sorted_sum(text)
    return names.get(text, text)


def _sorted_sum(text: str) -> str:
    """An expression; the terms of a plain sum are sorted, because torch orders them by the names
    that they had before."""
    terms = text.split(" + ")
    return " + ".join(sorted(terms)) if all(map(_WORD.fullmatch, terms)) else text


_MOST_DIMENSIONS = 6
"""720 orders are tried for six; none of a larger tensor."""


def order_as_stored(module: Any) -> None:
    """Permutes the inputs of ``as_strided`` in a graph, which reads the memory of a tensor.

    torch.onnx (2.15) assumes that the elements lie in memory in the order of the dimensions. After
    a ``transpose`` they do not, and the attention of Longformer would get other elements. Here the
    dimensions are put into the order of the memory first, which changes nothing in torch.

    Args:
        module: a ``torch.fx.GraphModule`` of a program that was exported.

    Raises:
        ValueError: no order of dimensions is that of the memory, because the tensor is a part of
            another one or repeats elements; or it begins within a larger one, from whose beginning
            ``as_strided`` counts its offset.
    """
    aten = torch.ops.aten
    changed = False
    for node in list(module.graph.nodes):
        if node.target not in (aten.as_strided.default, aten.as_strided_copy.default):
            continue
        value = node.args[0].meta["val"]
        dims = range(value.dim())
        orders = itertools.permutations(dims) if len(dims) <= _MOST_DIMENSIONS else [tuple(dims)]
        sizes, strides = value.shape, value.stride()
        order = next((order for order in orders if _is_dense(sizes, strides, order)), None)
        offset = node.args[3] if len(node.args) > 3 else node.kwargs.get("storage_offset")
        begins = offset is None or _is_known(value.storage_offset(), 0)
        if order is None or not begins:
            raise ValueError(
                "as_strided of a tensor that shares memory with a larger one has no translation"
            )
        if order == tuple(range(value.dim())):
            continue
        with module.graph.inserting_before(node):
            permuted = module.graph.call_function(aten.permute.default, (node.args[0], list(order)))
        permuted.meta["val"] = value.permute(order)
        node.args = (permuted, *node.args[1:])
        changed = True
    if changed:
        module.recompile()


def _is_dense(sizes: Sequence[Any], strides: Sequence[Any], order: Sequence[int]) -> bool:
    expected: Any = 1
    for dim in reversed(order):
        if _is_known(sizes[dim], 1):
            continue
        if not _is_known(strides[dim], expected):
            return False
        expected = expected * sizes[dim]
    return True


def _is_known(one: Any, other: Any) -> bool:
    """Whether two sizes are the same in every call. Comparing the symbols would add a guard."""
    return bool(_unclamped(one) == _unclamped(other))


def _unclamped(size: Any) -> Any:
    """A size without the ``Max(1, size)`` that torch writes into strides. It makes no difference,
    because nothing is read from a tensor of size 0."""
    expression = getattr(getattr(size, "node", None), "expr", size)
    if not hasattr(expression, "replace") or isinstance(expression, int):
        return expression
    return expression.replace(
        lambda part: type(part).__name__ == "Max" and len(part.args) == 2 and 1 in part.args,
        lambda part: next(one for one in part.args if one != 1),
    )
