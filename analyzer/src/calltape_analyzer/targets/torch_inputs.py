"""A variant as the two kinds of inputs from which ``torch.export`` takes dynamic shapes.

Both classes are alternatives to a nested ``dynamic_shapes`` (torch's documentation of
``torch.export.dynamic_shapes``, checked with 2.15): a ``ShapesCollection`` says per tensor *object*
what is dynamic, ``AdditionalInputs`` finds it by comparing example inputs with each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from calltape_analyzer.limits import bounded
from calltape_analyzer.observing.size_table import Column
from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.inputs import tensors_given, variant_of
from calltape_analyzer.variant import Variant

if TYPE_CHECKING:
    from torch.export import AdditionalInputs, ShapesCollection

__all__ = ["additional_inputs", "shapes_collection"]


@bounded()
def shapes_collection(
    source: Tape | Variant, *, dim: Literal["auto", "dynamic"] = "auto", device: Any = None
) -> tuple[ShapesCollection, tuple[Any, ...], dict[str, Any]]:
    """A ``torch.export.ShapesCollection``, with the arguments whose tensors it speaks of.

    It knows tensors by identity, so that it is of use with these very arguments only::

        shapes, args, kwargs = shapes_collection(variant)
        torch.export.export(model, args, kwargs, dynamic_shapes=shapes)

    An int that varied comes in torch's wrapper for ints, by which a collection knows it;
    ``torch.export.export`` takes it out again (not with ``strict=True`` in 2.15). Tensors in
    objects of classes that torch's pytree does not know are out of a collection's reach, see
    :func:`~calltape_analyzer.register_flattening_functions`.

    Args:
        source: a variant, or a tape whose calls are one.
        dim: ``"auto"`` for ``torch.export.Dim.AUTO``, ``"dynamic"`` for ``Dim.DYNAMIC``.
        device: where the tensors are made; the CPU by default.

    Returns:
        The collection, ``args`` and ``kwargs``.

    Raises:
        InferenceError: an argument holds an object of a class that is not known here.
        UsageError: the tape has several variants.
    """
    import torch

    variant = variant_of(source)
    shown = torch.export.Dim.AUTO if dim == "auto" else torch.export.Dim.DYNAMIC
    args, kwargs = variant.infer_arguments(device=device)
    made: Any = torch.export.ShapesCollection  # untyped
    collection: ShapesCollection = made()
    tensors = tensors_given(variant, args, kwargs)
    for tensor, finding in zip(tensors, variant.findings.tensors, strict=True):
        axes = {d.axis: shown for d in finding.dimensions if d.dynamic}
        if axes:
            collection[tensor].update(axes)  # one tensor may stand in two places
    args, kwargs, ints = _with_wrapped_ints(variant, args, kwargs)
    for wrapped in ints:
        collection[wrapped] = torch.export.Dim.DYNAMIC
    return collection, args, kwargs


def _with_wrapped_ints(
    variant: Variant, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """The arguments with each dynamic int in torch's wrapper, and the wrappers."""
    from torch.export import dynamic_shapes
    from torch.utils import _pytree as pytree

    wrapper: Any = getattr(dynamic_shapes, "_IntWrapper", None)  # newer releases
    dynamic = {(found.argument, found.path) for found in variant.findings.ints if found.dynamic}
    if wrapper is None or not dynamic:
        return args, kwargs, []
    made: list[Any] = []
    signature = variant.sorter.signature

    def wrapped(path: tuple[Any, ...], value: Any) -> Any:
        top, *rest = (getattr(key, "key", getattr(key, "idx", None)) for key in path)
        name = signature.name_at(top) if isinstance(top, int) else top
        place = (name, "".join(f".{key}" for key in rest))
        if type(value) is not int or place not in dynamic:
            return value
        made.append(wrapper(value))
        return made[-1]

    args = pytree.tree_map_with_path(wrapped, args)
    return args, pytree.tree_map_with_path(wrapped, kwargs), made


@bounded()
def additional_inputs(
    source: Tape | Variant, limit: int = 8, *, device: Any = None
) -> AdditionalInputs:
    """Makes a ``torch.export.AdditionalInputs`` of recorded calls.

    Export ``variant.infer_arguments()`` with it::

        args, kwargs = variant.infer_arguments()
        torch.export.export(model, args, kwargs, dynamic_shapes=additional_inputs(variant))

    torch takes for dynamic what differs between these inputs, and checks that the program takes
    all of them. Calls that show one more dimension to be dynamic come first, then the most
    frequent sizes; each combination of sizes is there once. A dimension that never varied in this
    variant is static by this rule, even if others show that it is dynamic.

    Args:
        source: a variant, or a tape whose calls are one.
        limit: the largest number of calls; each is held in memory.
        device: where the tensors are made; the CPU by default.

    Raises:
        InferenceError: an argument holds an object of a class that is not known here.
        UsageError: the tape has several variants.
    """
    import torch

    variant = variant_of(source)
    made: Any = torch.export.AdditionalInputs  # untyped
    given = made()
    for row in _telling_rows(variant, limit):
        call = variant._tape.calls.at(variant.facts.rows.calls_of(row).first)
        given.add(*variant.arguments_of(call, device, None))
    chosen: AdditionalInputs = given
    return chosen


def _telling_rows(variant: Variant, limit: int) -> list[int]:
    """Rows by their place: those that show that a further column varies, then frequent ones."""
    rows = variant.facts.rows
    dynamic = variant.facts.dynamic()
    order = sorted(
        range(len(rows)), key=lambda r: (-rows.calls_of(r).calls, rows.calls_of(r).first)
    )
    seen: dict[Column, set[int]] = {column: set() for column in dynamic}
    chosen: list[int] = []
    # A column of which two values were seen tells nothing more.
    unsettled = list(dynamic)
    for r in order:
        if not unsettled:
            break
        told = [c for c in unsettled if rows.value(r, c) not in seen[c]]
        if told:
            chosen.append(r)
        for column in told:
            seen[column].add(rows.value(r, column))
        if any(len(seen[c]) > 1 for c in told):
            unsettled = [c for c in unsettled if len(seen[c]) < 2]
    return list(dict.fromkeys(chosen + order))[:limit]
