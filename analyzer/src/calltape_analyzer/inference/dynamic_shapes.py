"""Findings in the form of ``torch.export.export(dynamic_shapes=...)``.

In come findings. Out go torch objects in the nesting of the arguments (torch's documentation of
``dynamic_shapes``, checked with 2.6 to 2.15): dicts and lists nest, a named tuple wants its own
class, a registered class is the list of its children, and a constant is None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from calltape_analyzer.inference.findings import LeafFinding, Nesting, ShapeFindings
from calltape_analyzer.pytree.nesting import rebuilt_namedtuple

__all__ = ["dynamic_shapes"]


def dynamic_shapes(
    findings: ShapeFindings,
    class_of: Callable[[str], type | None] = lambda _: None,
    dim: Literal["auto", "dynamic"] = "dynamic",
) -> tuple[Any, ...] | dict[str, Any]:
    """The dynamic shapes as torch objects.

    Args:
        findings: of an inference.
        class_of: gives the class of a named tuple; a plain tuple stands in for an unknown one.
        dim: whether ``Dim.AUTO`` or ``Dim.DYNAMIC`` stands for a dynamic axis without a name.
    """
    import torch

    dynamic = torch.export.Dim.AUTO if dim == "auto" else torch.export.Dim.DYNAMIC

    def leaf(found: LeafFinding) -> dict[int, Any]:
        return {axis.axis: axis.name or dynamic for axis in found.axes if axis.dynamic}

    def namedtuple(nesting: Nesting, parts: list[Any]) -> Any:
        cls = class_of(nesting.type) if nesting.type is not None else None
        return rebuilt_namedtuple(cls, nesting, parts)

    return findings.nested(leaf, namedtuple)
