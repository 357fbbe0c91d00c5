"""Findings in the form of ``torch.export.export(dynamic_shapes=...)``.

The form follows the inputs (torch's documentation of ``dynamic_shapes``, checked with 2.6 to
2.15): dicts and lists nest, a named tuple wants its own class, a registered class is the list of
its children, a constant is None, what ``*args`` and ``**kwargs`` took stands under their names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calltape_analyzer.classes import is_namedtuple
from calltape_analyzer.findings import LeafFinding, Nesting, ShapeFindings

__all__ = ["dynamic_shapes"]


def dynamic_shapes(
    findings: ShapeFindings, class_of: Callable[[str], type | None] = lambda _: None
) -> tuple[Any, ...] | dict[str, Any]:
    """The dynamic shapes as torch objects.

    Args:
        findings: of an inference.
        class_of: gives the class of a named tuple; a plain tuple stands in for an unknown one.
    """
    import torch

    dynamic = torch.export.Dim.DYNAMIC

    def leaf(found: LeafFinding) -> dict[int, Any]:
        return {axis.axis: axis.name or dynamic for axis in found.axes if axis.dynamic}

    def namedtuple(nesting: Nesting, parts: list[Any]) -> Any:
        cls: Any = class_of(nesting.type) if nesting.type is not None else None
        return tuple.__new__(cls, parts) if is_namedtuple(cls, nesting.keys) else tuple(parts)

    return findings.nested(leaf, namedtuple)
