"""Synthetic calls and tapes from Python values.

The result is what a recorder would have written for the same arguments and outputs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from calltape_analyzer.errors import UsageError
from calltape_analyzer.pytree.classes import class_name
from calltape_analyzer.pytree.description import describe_as_recorded, describe_result
from calltape_analyzer.pytree.nodes import nodes_with_paths
from calltape_analyzer.pytree.tensors import facts_of_tensors
from calltape_analyzer.writing.lineage import new_manifest
from calltape_analyzer.writing.new_tape import NewTape
from calltape_schema.blob import stored_as
from calltape_schema.packing import pack_int, pack_text
from calltape_schema.records import CallRecord, ModelError, Parameter, Policy, Target, Tree
from calltape_schema.tree import Leaf, TensorNode, encode_leaves, encode_structure, leaf_key

__all__ = [
    "ABSENT",
    "BuiltCall",
    "CallToWrite",
    "build_call",
    "build_tree",
    "call",
    "write_tape",
]

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
        raised = ModelError(type=class_name(type(error)), message=str(error))
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
    leaves = _leaves_of(tensors, paths, stored, omits_values=values == "none")
    scalars = [
        pack_int(scalar)
        if type(scalar) is int
        else pack_text(scalar)
        if type(scalar) is str
        else scalar
        for scalar in description.scalars
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


def _leaves_of(
    tensors: Sequence[Any], paths: Mapping[int, str], stored: dict[str, Any], *, omits_values: bool
) -> list[dict[str, Any]]:
    """The encoded facts of tensors. Those whose values the format can hold are added to ``stored``
    by their key, unless values are omitted."""
    leaves = []
    for number, leaf in enumerate(facts_of_tensors(tensors)):
        facts = _facts(tensors[number], leaf)
        if "missing" not in facts:
            if stored_as(Leaf.model_validate({**facts, "key": "x"}, strict=False)) is None:
                facts["missing"] = f"{facts['dtype']} has no encoding"
            elif omits_values:
                facts["missing"] = "policy"
        if "missing" in facts:
            facts.pop("quantizer", None)  # it follows from the elements
        else:
            valid_path = paths[number].encode("utf-8", "backslashreplace").decode()
            facts["key"] = leaf_key(valid_path, number, stored)
            stored[facts["key"]] = tensors[number]
        leaves.append(facts)
    return leaves


def _facts(tensor: Any, leaf: Leaf) -> dict[str, Any]:
    """The encoded facts of a tensor, except for its key."""
    import torch

    facts: dict[str, Any] = leaf.model_dump(exclude_none=True, exclude_defaults=True)
    if leaf.layout != "strided":
        return facts | {"missing": f"a tensor of layout {leaf.layout}"}
    if leaf.strides is not None:
        axes = enumerate(zip(leaf.shape, leaf.strides, strict=True))
        facts["expanded"] = [axis for axis, (size, step) in axes if step == 0 and size > 1]
    flags = {
        "requires_grad": tensor.requires_grad,
        "inference": tensor.is_inference(),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
    }
    facts |= {name: True for name, is_set in flags.items() if is_set}
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        facts["subclass"] = class_name(type(tensor))
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


@dataclass(frozen=True)
class CallToWrite:
    """A call for :func:`write_tape`. Create it with :func:`call`; each method returns a new one.

    Attributes:
        args, kwargs: the arguments.
        outputs: what the call returned, unless the tape is to have no outputs.
        error: what it raised, or None.
        seconds: how long it took; None to leave that off the tape.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: Any = ABSENT
    error: BaseException | None = None
    seconds: float | None = None

    def returns(self, outputs: Any) -> CallToWrite:
        """The call with outputs, which may be None. Otherwise, the tape has no outputs."""
        return replace(self, outputs=outputs, error=None)

    def raises(self, error: BaseException) -> CallToWrite:
        """The call with the exception that it raised."""
        return replace(self, outputs=ABSENT, error=error)

    def takes(self, seconds: float) -> CallToWrite:
        """The call with its duration in seconds."""
        return replace(self, seconds=seconds)


def call(*args: Any, **kwargs: Any) -> CallToWrite:
    """A call with these arguments: ``call(x, mask=m).returns(y)``."""
    return CallToWrite(args, kwargs)


def write_tape(
    path: str | os.PathLike[str],
    calls: Iterable[CallToWrite],
    model: Any = None,
    *,
    method: str = "forward",
    values: Literal["all", "none"] = "all",
) -> Path:
    """Writes a sealed tape of calls, numbered from 0.

    Args:
        path: the path of the new file, which must not exist yet.
        calls: the calls.
        model: the module or function that was called. The tape records its class, its signature,
            and whether it is in training mode now. It is not run.
        method: the method of a module that was called.
        values: ``"none"`` omits the values of tensors, like a recording of shapes.

    Returns:
        The path.

    Raises:
        UsageError: an item is not a call, or the module has no such method.
        TapeError: ``exists`` or ``io``; ``limit`` if the format cannot hold a call.
    """
    target = None if model is None else _target(model, method)
    manifest = new_manifest(target, Policy(values=values))
    with NewTape(path, manifest) as writer:
        for number, given_call in enumerate(calls):
            if not isinstance(given_call, CallToWrite):
                advice = "write testing.call(x).returns(y)"
                raise UsageError(f"a {type(given_call).__name__} is not a call", advice=advice)
            built = build_call(
                number,
                given_call.args,
                given_call.kwargs,
                given_call.outputs,
                error=given_call.error,
                time_ns=manifest.created_ns + number,
                duration_ns=None if given_call.seconds is None else round(given_call.seconds * 1e9),
                values=values,
                training=getattr(model, "training", False) is True,
            )
            writer.write(built.record, built.values)
        writer.seal()
    return Path(path)


def _target(model: Any, method: str) -> Target:
    import torch

    if isinstance(model, torch.nn.Module):
        function = getattr(model, method, None)
        if not callable(function):
            raise UsageError(f"{type(model).__name__} has no method {method!r}")
        kind = class_name(type(model))
    else:
        function, kind, method = model, class_name(type(model)), "__call__"
    signature: tuple[Parameter, ...] | None = None
    with suppress(TypeError, ValueError):
        signature = tuple(map(_parameter, inspect.signature(function).parameters.values()))
    return Target(type=kind, method=method, via="hook", signature=signature)


def _parameter(parameter: inspect.Parameter) -> Parameter:
    default = parameter.default
    has_default = default is not parameter.empty
    is_plain = type(default) in (str, int, float, bool, bytes)
    kind: Any = parameter.kind.name
    return Parameter(
        name=parameter.name,
        kind=kind,
        has_default=has_default,
        default=default if has_default and is_plain else None,
        default_missing=has_default and not is_plain and default is not None,
    )
