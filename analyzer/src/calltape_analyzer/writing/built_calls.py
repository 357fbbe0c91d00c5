"""Records of synthetic calls from Python values, for
:meth:`NewTape.write <calltape_analyzer.writing.new_tape.NewTape.write>`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.pytree.description import describe_as_recorded, describe_result
from calltape_analyzer.pytree.nodes import nodes_with_paths
from calltape_schema.blob import stored_as
from calltape_schema.packing import pack_int, pack_text
from calltape_schema.records import CallRecord, ModelError, Tree
from calltape_schema.tree import Leaf, TensorNode, encode_leaves, encode_structure, leaf_key

__all__ = ["ABSENT", "BuiltCall", "build_call", "build_tree"]

ABSENT: Any = object()
"""Outputs that are not on the tape, unlike None, which a call may return."""

_NO_TAPE = bytes(16)  # the writer replaces it by the id of its tape


class BuiltCall(NamedTuple):
    """A record, and the values of its tensors by key."""

    record: CallRecord
    values: dict[str, Any]


def build_call(
    number: int,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    outputs: Any = ABSENT,
    *,
    error: BaseException | None = None,
    time_ns: int = 0,
    duration_ns: int | None = None,
    values: Literal["all", "none"] = "all",
    training: bool = False,
) -> BuiltCall:
    """A call as a recorder would have written it.

    Args:
        number: the number of the call.
        args, kwargs: the arguments. A tensor at two places becomes one leaf.
        outputs: the outputs.
        error: the exception that was raised instead.
        time_ns, duration_ns: as in the record.
        values: ``none`` omits the values of tensors.
        training: whether the model was in training mode.

    Raises:
        TapeError: ``limit`` if the format cannot hold the call.
    """
    stored: dict[str, Any] = {}
    arguments = (tuple(args), dict(kwargs or {}))
    inputs = build_tree(arguments, "", stored, values=values, training=training)
    result = None
    if outputs is not ABSENT and error is None:
        result = build_tree(outputs, "outputs", stored, values=values)
    raised = None
    if error is not None:
        raised = ModelError(type=name_of(type(error)), message=str(error))
    record = CallRecord(
        tape=_NO_TAPE, call=number, time_ns=time_ns, duration_ns=duration_ns, thread=0,
        inputs=inputs, outputs=result, error=raised,
    )  # fmt: skip
    return BuiltCall(record, stored)


def build_tree(
    value: Any,
    path: str,
    stored: dict[str, Any],
    *,
    values: Literal["all", "none"] = "all",
    training: bool = False,
) -> Tree:
    """One side of a call.

    Args:
        value: the outputs; or ``(args, kwargs)``, with an empty path.
        path: the path of the root: empty for inputs, ``outputs`` for outputs.
        stored: receives the tensors by key.
        values: ``none`` omits the values of tensors.
        training: whether the model was in training mode, which is part of the inputs.
    """
    description = describe_result(value) if path else describe_as_recorded(value)
    tensors = list({id(tensor): tensor for tensor in description.tensors}.values())
    number_of = {id(tensor): number for number, tensor in enumerate(tensors)}
    # A description has a leaf for each place of a tensor.
    numbers = [number_of[id(tensor)] for tensor in description.tensors]
    paths: dict[int, str] = {}
    for node_path, node in nodes_with_paths(description.node, path):
        if isinstance(node, TensorNode):
            paths.setdefault(numbers[node.leaf], node_path)
    root = description.node.model_dump(exclude_none=True)
    nodes = [root]
    while nodes:
        document = nodes.pop()
        if document["kind"] in ("tensor", "ndarray"):
            document["leaf"] = numbers[document["leaf"]]
        nodes.extend(document.get("children", ()))
        if document["kind"] == "custom":
            nodes.append(document["context"])
    leaves = []
    for number, storage in enumerate(_storages(tensors)):
        facts = {**_facts(tensors[number]), **({} if storage is None else {"storage": storage})}
        if "missing" not in facts:
            if stored_as(Leaf.model_validate({**facts, "key": "x"}, strict=False)) is None:
                facts["missing"] = f"{facts['dtype']} has no encoding"
            elif values == "none":
                facts["missing"] = "policy"
        if "missing" in facts:
            facts.pop("quantizer", None)  # it follows from the elements
        else:
            valid_path = paths[number].encode("utf-8", "backslashreplace").decode()
            facts["key"] = leaf_key(valid_path, number, stored)
            stored[facts["key"]] = tensors[number]
        leaves.append(facts)
    scalars = [
        pack_int(one) if type(one) is int else pack_text(one) if type(one) is str else one
        for one in description.scalars
    ]
    structure = {"root": root, "leaves": len(leaves), "scalars": len(scalars)}
    if training:
        modes = {"grad": True, "inference": False}
        structure["context"] = {"autocast": [], **modes, "training": True}
    return Tree.model_construct(
        structure=encode_structure(structure),
        leaves=encode_leaves(leaves),
        scalars=tuple(scalars),
        ranges=(),
    )


def _storages(tensors: Sequence[Any]) -> list[int | None]:
    """The number of the storage of each tensor that shares it with others; None for the others."""
    import torch

    pointers: list[int] = []
    for one in tensors:
        has_none = one.layout is not torch.strided or one.is_meta or not one.numel()
        pointers.append(0 if has_none else int(one.untyped_storage().data_ptr()))
    counts = Counter(pointers)
    shared = [pointer for pointer in counts if pointer and counts[pointer] > 1]
    numbers = {pointer: number for number, pointer in enumerate(shared)}
    return [numbers.get(pointer) for pointer in pointers]


def _facts(tensor: Any) -> dict[str, Any]:
    """The encoded facts of a tensor, except for its key and storage."""
    import torch

    facts: dict[str, Any] = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }
    if tensor.device.type != "cpu":
        facts["device"] = str(tensor.device)
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        return facts | {"layout": layout, "missing": f"a tensor of layout {layout}"}
    if not tensor.is_contiguous():
        facts["strides"] = list(tensor.stride())
        axes = enumerate(zip(tensor.shape, tensor.stride(), strict=True))
        facts["expanded"] = [axis for axis, (size, step) in axes if step == 0 and size > 1]
    flags = {
        "requires_grad": tensor.requires_grad,
        "inference": tensor.is_inference(),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
    }
    facts |= {name: True for name, is_set in flags.items() if is_set}
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        facts["subclass"] = name_of(type(tensor))
    if tensor.is_meta:
        facts["missing"] = "policy"
    if tensor.is_quantized:
        if tensor.qscheme() not in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return facts | {"missing": "per-channel quantization has no encoding"}
        facts["quantizer"] = {
            "scheme": str(tensor.qscheme()).removeprefix("torch."),
            "scale": tensor.q_scale(),
            "zero_point": tensor.q_zero_point(),
        }
    return facts
