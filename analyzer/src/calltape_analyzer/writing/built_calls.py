"""Calls that nobody recorded, from Python values.

In come arguments and results. Out goes a record with the values of its tensors, for
:meth:`TapeWriter.write <calltape_analyzer.writing.tape_writer.TapeWriter.write>`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from calltape_analyzer.pytree.classes import name_of
from calltape_analyzer.pytree.description import Description
from calltape_analyzer.pytree.node_paths import nodes_with_paths
from calltape_analyzer.pytree.recorded_description import describe_as_recorded, describe_result
from calltape_schema.blob import stored_as
from calltape_schema.packing import pack_int, pack_text
from calltape_schema.records import CallRecord, ModelError, Tree
from calltape_schema.tree import Leaf, TensorNode, encode_leaves, encode_structure

__all__ = ["ABSENT", "BuiltCall", "build_call", "build_tree"]

ABSENT: Any = object()
"""Stands for outputs that are not on the tape; None is what a call may return."""

_MAX_KEY = 900
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
    thread: int = 0,
    values: Literal["all", "none"] = "all",
) -> BuiltCall:
    """A call as a recorder would have written it.

    Args:
        number: of the call.
        args, kwargs: what was passed. A tensor that stands at two places is one leaf.
        outputs: what was returned.
        error: what was raised instead.
        time_ns, duration_ns, thread: as in the record.
        values: ``none`` leaves the values of tensors out.

    Raises:
        TapeError: ``limit`` for more than the format can hold.
    """
    found: dict[str, Any] = {}
    inputs = build_tree((tuple(args), dict(kwargs or {})), "", found, values=values)
    result = None
    if outputs is not ABSENT and error is None:
        result = build_tree(outputs, "outputs", found, values=values)
    raised = None
    if error is not None:
        raised = ModelError(type=name_of(type(error)), message=str(error))
    record = CallRecord(
        tape=_NO_TAPE, call=number, time_ns=time_ns, duration_ns=duration_ns, thread=thread,
        inputs=inputs, outputs=result, error=raised,
    )  # fmt: skip
    return BuiltCall(record, found)


def build_tree(
    value: Any, path: str, found: dict[str, Any], *, values: Literal["all", "none"] = "all"
) -> Tree:
    """One side of a call.

    Args:
        value: the results; or ``(args, kwargs)``, with an empty path.
        path: of the root: empty for inputs, ``outputs`` for outputs.
        found: gets the tensor of each key.
        values: ``none`` leaves the values of tensors out.
    """
    description = describe_result(value) if path else describe_as_recorded(value)
    leaves = _Leaves(description, found, values)
    root = description.node.model_dump(exclude_none=True)
    paths: dict[int, str] = {}
    for at, node in nodes_with_paths(description.node, path):
        if isinstance(node, TensorNode):
            paths.setdefault(leaves.places[node.leaf], at)
    _renumber(root, leaves.places)
    documents = [leaves.document(place, paths[place]) for place in range(len(leaves.tensors))]
    scalars = [_packed(one) for one in description.scalars]
    document = {"root": root, "leaves": len(documents), "scalars": len(scalars)}
    return Tree.model_construct(
        structure=encode_structure(document),
        leaves=encode_leaves(documents),
        scalars=tuple(scalars),
        ranges=(),
    )


class _Leaves:
    """The distinct tensors of a description. ``places`` has for each leaf of the description the
    number of its tensor."""

    def __init__(
        self, description: Description, found: dict[str, Any], values: Literal["all", "none"]
    ) -> None:
        self.tensors: list[Any] = []
        self.places: list[int] = []
        self._found = found
        self._values = values
        known: dict[int, int] = {}
        for tensor in description.tensors:
            place = known.setdefault(id(tensor), len(self.tensors))
            if place == len(self.tensors):
                self.tensors.append(tensor)
            self.places.append(place)
        memory = [_memory_of(tensor) for tensor in self.tensors]
        shared = [one for one in dict.fromkeys(memory) if one and memory.count(one) > 1]
        self._storages = [shared.index(one) if one in shared else None for one in memory]

    def document(self, place: int, path: str) -> dict[str, Any]:
        tensor = self.tensors[place]
        facts = _facts(tensor)
        if self._storages[place] is not None:
            facts["storage"] = self._storages[place]
        if "missing" not in facts and stored_as(_leaf(facts)) is None:
            facts["missing"] = f"{facts['dtype']} has no encoding"
        if "missing" not in facts and self._values == "none":
            facts["missing"] = "policy"
        if "missing" in facts:
            facts.pop("quantizer", None)  # it follows from the elements
        else:
            key = path.encode("utf-8", "backslashreplace").decode()
            if len(key) > _MAX_KEY or key in self._found:
                key = f"{key[:_MAX_KEY]}~{len(self._found)}"
            facts["key"] = key
            self._found[key] = tensor
        return facts


def _leaf(facts: dict[str, Any]) -> Leaf:
    return Leaf.model_validate({**facts, "key": "x"}, strict=False)


def _memory_of(tensor: Any) -> int | None:
    import torch

    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return None
    pointer: int = tensor.untyped_storage().data_ptr()
    return pointer or None


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


def _packed(value: Any) -> Any:
    if type(value) is int:
        return pack_int(value)
    return pack_text(value) if type(value) is str else value
