"""Calls that nobody recorded, from Python values.

Takes arguments and results; returns a record with the values of its tensors, for
:meth:`NewTape.write <calltape_analyzer.writing.new_tape.NewTape.write>`.
"""

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
"""Stands for outputs that are not on the tape; None is what a call may return."""

_NO_TAPE = bytes(16)  # the writer puts the id of its own tape in its place


class BuiltCall(NamedTuple):
    """A record, and for the key of each leaf its tensor."""

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
        number: of the call.
        args, kwargs: what was passed. A tensor that stands at two places is one leaf.
        outputs: what was returned.
        error: what was raised instead.
        time_ns, duration_ns: as in the record.
        values: ``none`` leaves the values of tensors out.
        training: whether the model was in training mode.

    Raises:
        TapeError: ``limit`` for more than the format can hold.
    """
    found: dict[str, Any] = {}
    given = (tuple(args), dict(kwargs or {}))
    inputs = build_tree(given, "", found, values=values, training=training)
    result = None
    if outputs is not ABSENT and error is None:
        result = build_tree(outputs, "outputs", found, values=values)
    raised = None
    if error is not None:
        raised = ModelError(type=name_of(type(error)), message=str(error))
    record = CallRecord(
        tape=_NO_TAPE, call=number, time_ns=time_ns, duration_ns=duration_ns, thread=0,
        inputs=inputs, outputs=result, error=raised,
    )  # fmt: skip
    return BuiltCall(record, found)


def build_tree(
    value: Any,
    path: str,
    found: dict[str, Any],
    *,
    values: Literal["all", "none"] = "all",
    training: bool = False,
) -> Tree:
    """One side of a call.

    Args:
        value: the results; or ``(args, kwargs)``, with an empty path.
        path: of the root: empty for inputs, ``outputs`` for outputs.
        found: gets the tensor of each key.
        values: ``none`` leaves the values of tensors out.
        training: of inputs, whether the model was in training mode.
    """
    description = describe_result(value) if path else describe_as_recorded(value)
    tensors = list({id(tensor): tensor for tensor in description.tensors}.values())
    number_of = {id(tensor): number for number, tensor in enumerate(tensors)}
    # Of each leaf of the description the number of its tensor.
    numbers = [number_of[id(tensor)] for tensor in description.tensors]
    paths: dict[int, str] = {}
    for at, node in nodes_with_paths(description.node, path):
        if isinstance(node, TensorNode):
            paths.setdefault(numbers[node.leaf], at)
    root = description.node.model_dump(exclude_none=True)
    _renumber(root, numbers)
    documents = []
    for number, storage in enumerate(_storages(tensors)):
        facts = {**_facts(tensors[number]), **({} if storage is None else {"storage": storage})}
        path = paths[number].encode("utf-8", "backslashreplace").decode()
        key = leaf_key(path, number, found)
        documents.append(_leaf(facts, tensors[number], key, found, values))
    scalars = [
        pack_int(one) if type(one) is int else pack_text(one) if type(one) is str else one
        for one in description.scalars
    ]
    document = {"root": root, "leaves": len(documents), "scalars": len(scalars)}
    if training:
        modes = {"grad": True, "inference": False}
        document["context"] = {"autocast": [], **modes, "training": True}
    return Tree.model_construct(
        structure=encode_structure(document),
        leaves=encode_leaves(documents),
        scalars=tuple(scalars),
        ranges=(),
    )


def _storages(tensors: Sequence[Any]) -> list[int | None]:
    """For each tensor the number of the memory that it shares; None if it shares none."""
    import torch

    memory: list[int] = []  # where each begins; 0 if it has none
    for one in tensors:
        has_none = one.layout is not torch.strided or one.is_meta or not one.numel()
        memory.append(0 if has_none else int(one.untyped_storage().data_ptr()))
    counts = Counter(memory)
    shared = [one for one in counts if one and counts[one] > 1]
    numbers = {one: number for number, one in enumerate(shared)}
    return [numbers.get(one) for one in memory]


def _leaf(
    facts: dict[str, Any], tensor: Any, key: str, found: dict[str, Any],
    values: Literal["all", "none"],
) -> dict[str, Any]:  # fmt: skip
    """The facts of a leaf as they are encoded: with its key, which ``found`` has then, or with the
    reason why its value is missing."""
    if "missing" not in facts:
        if stored_as(Leaf.model_validate({**facts, "key": "x"}, strict=False)) is None:
            facts["missing"] = f"{facts['dtype']} has no encoding"
        elif values == "none":
            facts["missing"] = "policy"
    if "missing" in facts:
        facts.pop("quantizer", None)  # it follows from the elements
        return facts
    found[key] = tensor
    return {**facts, "key": key}


def _facts(tensor: Any) -> dict[str, Any]:
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


def _renumber(root: dict[str, Any], places: Sequence[int]) -> None:
    stack = [root]
    while stack:
        node = stack.pop()
        if node["kind"] in ("tensor", "ndarray"):
            node["leaf"] = places[node["leaf"]]
        stack.extend(node.get("children", ()))
        if node["kind"] == "custom":
            stack.append(node["context"])
