"""Casts around operators that ONNX Runtime lacks for a dtype.

The runtime's kernels for the CPU take only some of the dtypes that ONNX allows: there is no
``Where`` of booleans and no ``Gemm`` of bfloat16, and the runtime rejects a model that has one.
Here the inputs of such an operator are cast to a wider dtype, and its results are cast back. The
runtime itself tells which dtypes it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import onnx
from onnxscript import ir

__all__ = ["cast_for_kernels"]

_WIDER = {
    "bool": ("uint8", "int32", "int64", "float"),
    "int8": ("int32", "int64"),
    "uint8": ("int32", "int64"),
    "int16": ("int32", "int64"),
    "uint16": ("int32", "int64"),
    "int32": ("int64",),
    "bfloat16": ("float",),
}
"""Dtypes by name, each with those that hold its values. Sums and products that overflow come out
alike: a cast back keeps the last bits."""
_FLOATS = ("float16", "bfloat16", "float", "double")
"""From the narrowest to the widest."""
_LEFT = frozenset({"Cast", "CastLike", "If", "Loop", "Scan", "QuantizeLinear", "DequantizeLinear"})

Types = Mapping[str, frozenset[str]]
"""What a kernel takes: names of dtypes for each type parameter of its operator."""


def cast_for_kernels(model: Any) -> None:
    """Changes a model, so that ONNX Runtime has a kernel for each operator that it can have one
    for. Does nothing if ONNX Runtime is not installed.

    Args:
        model: an ``onnx_ir.Model`` of known dtypes.
    """
    if not _kernels():
        return
    version = model.graph.opset_imports.get("")
    for node in list(model.graph.all_nodes()):
        if node.domain in ("", "ai.onnx") and node.op_type not in _LEFT and version is not None:
            _cast_around(node, version)
    for node in list(model.graph.all_nodes()):
        _round_once(node)


def _round_once(node: Any) -> None:
    """Removes the casts between two nodes that come from one operator of torch: a linear layer of
    bfloat16 adds its bias before it rounds."""
    for place, value in enumerate(node.inputs):
        if value is None:
            continue
        wide = value.producer()
        narrow = wide.inputs[0].producer() if wide is not None and _is_own_cast(wide) else None
        if narrow is None or not _is_own_cast(narrow):
            continue
        unrounded = narrow.inputs[0]
        is_one = _operator(unrounded.producer()) == _operator(node) is not None
        if is_one and unrounded.dtype == value.dtype and _name(unrounded.dtype) in _FLOATS:
            node.replace_input_with(place, unrounded)
            casts: list[Any] = [wide, narrow]
            for cast in casts:
                if not cast.outputs[0].uses() and not cast.outputs[0].is_graph_output():
                    cast.graph.remove(cast, safe=True)


def _is_own_cast(node: Any) -> bool:
    """Whether a node is a cast that was added here."""
    return node.op_type == "Cast" and _operator(node) is None


def _operator(node: Any) -> str | None:
    """The operator of torch that a node comes from, as torch.onnx notes it; None if unknown."""
    return None if node is None else node.metadata_props.get("pkg.torch.onnx.fx_node")


def _unite(node: Any, schema: Any) -> None:
    """Casts inputs that share a type parameter to one dtype. Under autocast torch normalizes half
    precision with weights of float32: it computes in the wider dtype and returns the narrower."""
    parameters = _parameters(schema.inputs, len(node.inputs))
    known = [(i, v, p) for i, (v, p) in enumerate(zip(node.inputs, parameters, strict=True)) if v]
    for parameter in dict.fromkeys(parameters):
        kinds = {i: _name(v.dtype) for i, v, p in known if p == parameter and v.dtype is not None}
        if len(set(kinds.values())) < 2 or not set(kinds.values()) <= set(_FLOATS):
            continue
        widest = max(kinds.values(), key=_FLOATS.index)
        for place, kind in kinds.items():
            if kind != widest:
                _cast_input(node, place, widest)
        for place, own in enumerate(_parameters(schema.outputs, len(node.outputs))):
            value = node.outputs[place]
            if own == parameter and value.dtype is not None and _name(value.dtype) != widest:
                _cast_output(node, place, _name(value.dtype), widest)


def _cast_around(node: Any, version: int) -> None:
    schema = _schema(node.op_type, version)
    if schema is not None:
        _unite(node, schema)
    kernels = _kernels_of(node.op_type, version)
    if schema is None or not kernels:  # the runtime has it as a function of other operators
        return
    bound = _bound(node, schema)
    if bound is None or any(_takes(kernel, bound) for kernel in kernels):
        return
    wider = next((w for w in _widened(bound) if any(_takes(k, w) for k in kernels)), None)
    if wider is None:
        return
    changed = {name: kind for name, kind in wider.items() if kind != bound[name]}
    for place, parameter in enumerate(_parameters(schema.inputs, len(node.inputs))):
        if parameter in changed and node.inputs[place] is not None:
            _cast_input(node, place, changed[parameter])
    for place, parameter in enumerate(_parameters(schema.outputs, len(node.outputs))):
        if parameter in changed:
            _cast_output(node, place, bound[parameter], changed[parameter])


def _bound(node: Any, schema: Any) -> dict[str, str] | None:
    """The dtypes of an operator's type parameters, by name; None if one is not known."""
    dtypes: dict[str, str] = {}
    parameters = _parameters(schema.inputs, len(node.inputs))
    for value, parameter in zip(node.inputs, parameters, strict=True):
        if value is None:
            continue
        dtype = value.dtype
        if dtype is None and value.const_value is not None:
            dtype = value.const_value.dtype
        if dtype is None:
            return None
        dtypes.setdefault(parameter, _name(dtype))
    return dtypes


def _parameters(formal: Any, count: int) -> list[str]:
    """The type parameter of each value. The last formal one may stand for several."""
    names = [parameter.type_str for parameter in formal]
    return [names[min(place, len(names) - 1)] for place in range(count)] if names else []


def _widened(bound: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """The dtypes with one parameter wider; then with all of that dtype."""
    for parameter, kind in bound.items():
        for wider in _WIDER.get(kind, ()):
            yield {**bound, parameter: wider}
    for kind in dict.fromkeys(bound.values()):
        for wider in _WIDER.get(kind, ()):
            yield {name: wider if own == kind else own for name, own in bound.items()}


def _takes(kernel: Types, bound: Mapping[str, str]) -> bool:
    return all(kind in kernel[name] for name, kind in bound.items() if name in kernel)


def _cast_input(node: Any, place: int, kind: str) -> None:
    value = node.inputs[place]
    # An operator's first output has a name that no other value has.
    cast = _cast(value, _dtype(kind), f"{node.outputs[0].name}.input_{place}.{kind}")
    node.graph.insert_before(node, cast)
    node.replace_input_with(place, cast.outputs[0])


def _cast_output(node: Any, place: int, own: str, kind: str) -> None:
    value = node.outputs[place]
    cast = _cast(value, _dtype(own), value.name)
    result = cast.outputs[0]
    value.name = f"{value.name}.{kind}"
    ir.convenience.replace_all_uses_with(value, result, replace_graph_outputs=True)
    cast.replace_input_with(0, value)
    value.dtype = _dtype(kind)
    node.graph.insert_after(node, cast)


def _cast(value: Any, dtype: Any, name: str) -> Any:
    cast = ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype.value)], num_outputs=1)
    cast.outputs[0].dtype = dtype
    cast.outputs[0].shape = value.shape
    cast.outputs[0].name = name
    return cast


def _name(dtype: Any) -> str:
    """The name that the runtime has for a dtype."""
    return str(dtype.name).lower()


def _dtype(name: str) -> Any:
    return ir.DataType[name.upper()]


@cache
def _kernels() -> Mapping[str, tuple[tuple[int, int, Types], ...]]:
    """The kernels for the CPU by operator, each with the first and last version of ONNX that it is
    for; none if ONNX Runtime does not tell."""
    try:
        state: Any = import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        definitions = state.get_all_opkernel_def()
    except (ImportError, AttributeError):
        return {}
    kernels: dict[str, tuple[tuple[int, int, Types], ...]] = {}
    for definition in definitions:
        if definition.provider != "CPUExecutionProvider" or definition.domain not in (
            "",
            "ai.onnx",
        ):
            continue
        first, last = definition.version_range
        types = {
            name: frozenset(kind.removeprefix("tensor(").removesuffix(")") for kind in kinds)
            for name, kinds in definition.type_constraints.items()
        }
        kernels[definition.op_name] = (*kernels.get(definition.op_name, ()), (first, last, types))
    return kernels


@cache
def _kernels_of(operator: str, version: int) -> tuple[Types, ...]:
    schema = _schema(operator, version)
    if schema is None:
        return ()
    since = schema.since_version
    return tuple(
        types for first, last, types in _kernels().get(operator, ()) if first <= since <= last
    )


@cache
def _schema(operator: str, version: int) -> Any:
    try:
        return onnx.defs.get_schema(operator, version, "")
    except Exception:  # an operator that ONNX does not have; onnx raises an error of its own
        return None
