"""What the caller of an inference declares: batch dimensions, and names of dimensions.

In come the arguments of ``infer_dynamic_shapes`` and its like. Out goes an error for what they do
not take, and whether a dimension was declared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from calltape_analyzer.errors import UsageError
from calltape_analyzer.observing.signature import Key, Signature

__all__ = [
    "BatchFor",
    "DimNames",
    "check_arguments",
    "check_batch",
    "check_dim_names",
    "check_form_of_dim_names",
    "is_batch",
]

BatchFor: TypeAlias = "set[int | str] | bool | None"
"""The arguments (names, positions, or True for all) whose dimension 0 is declared dynamic."""

DimNames: TypeAlias = "Mapping[int | str, Mapping[int, str]] | bool | None"
"""None for Dim.DYNAMIC, True for readable shared names, or names by argument and axis."""


def check_arguments(what: str, names: Any) -> None:
    """Raises UsageError if ``names`` is not a collection of names and positions of arguments;
    ``what`` says to which parameter it was passed."""
    is_collection = isinstance(names, Collection) and not isinstance(names, str | bytes)
    if not is_collection or not all(_is_key(name) for name in names):
        example = names if _is_key(names) else "x"
        raise UsageError(
            f"{what} takes names or positions of arguments, not {names!r}",
            advice=f"pass a list, such as [{example!r}]",
        )


def check_batch(declared: Any, known: Collection[Key] | None = None) -> None:
    """Raises UsageError if this is not None, a bool or a collection of names and positions, or
    names an argument that is not among the ``known`` ones, if these are given."""
    if declared is None or isinstance(declared, bool):
        return
    check_arguments("set_batch_dimension_for", declared)
    for key in declared if known is not None else ():
        if isinstance(key, str):
            _check_known("set_batch_dimension_for", key, known or ())


def _check_known(what: str, key: Key, known: Collection[Key]) -> None:
    if key not in known:
        shown = ", ".join(name for name in sorted(map(str, known)) if not name.isdigit())
        raise UsageError(
            f"{what} has {key!r}, which is not an argument", advice=f"name one of {shown}"
        )


def is_batch(key: Key, declared: BatchFor, signature: Signature) -> bool:
    """Whether dimension 0 of an argument was declared dynamic: by its name, or, if it was passed by
    position, by the position too (the rule of ``torch.onnx.InputObserver``)."""
    if not declared:
        return False
    check_batch(declared)
    if isinstance(declared, bool) or key in declared:
        return True
    return isinstance(key, int) and signature.parameter(key) in declared


def check_dim_names(names: Any, known: Collection[Key]) -> None:
    """Raises UsageError if this is not None, a bool or ``{argument: {axis: name}}``, or names an
    argument that is not among the ``known`` ones."""
    check_form_of_dim_names(names)
    for key in names if isinstance(names, Mapping) else ():
        _check_known("dim_names", key, known)


def check_form_of_dim_names(names: Any) -> None:
    """Raises UsageError if this is not None, a bool or ``{argument: {axis: name}}``."""
    if names is None or isinstance(names, bool):
        return
    if not isinstance(names, Mapping) or not all(_is_axis_names(n) for n in names.values()):
        raise UsageError(
            f"dim_names is {names!r}, which does not name dimensions",
            advice="pass True, or names by argument and axis, such as {'x': {0: 'batch'}}",
        )


def _is_key(name: Any) -> bool:
    return isinstance(name, int | str) and not isinstance(name, bool)


def _is_axis_names(names: Any) -> bool:
    return isinstance(names, Mapping) and all(
        isinstance(axis, int) and isinstance(name, str) for axis, name in names.items()
    )
