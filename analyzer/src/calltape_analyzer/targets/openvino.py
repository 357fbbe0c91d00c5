"""Partial shapes for OpenVINO's ``model.reshape``, by input.

The forms are those of OpenVINO's documentation ("Dynamic Shapes", ``openvino.PartialShape``): a
dimension is a size, a pair of bounds, or -1 for anything; in text ``64``, ``1..8`` and ``?``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from calltape_analyzer.limits import bounded
from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.inputs import input_tensors, variant_of
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.variant_findings import DimensionFinding

__all__ = ["PartialDimension", "as_text", "openvino_shapes", "partial_shapes"]

PartialDimension = int | tuple[int, int]

_ANY: Literal[-1] = -1


@bounded()
def partial_shapes(
    source: Tape | Variant, *, bounded: bool = True
) -> dict[str, list[PartialDimension]]:
    """The shape of each input as a list of sizes, bounds and -1.

    A dimension that varied has the sizes seen as its bounds, of which OpenVINO makes use to
    allocate memory, and outside of which it refuses a tensor; those of calls that were not kept
    too, if the tape has counters of the whole traffic. A dynamic dimension that had one size
    here is -1. An empty tensor is within OpenVINO's rules.

    Args:
        source: a variant, or a tape whose calls are one.
        bounded: False for -1 wherever a dimension is dynamic.

    Returns:
        By the name that an export with calltape gives the input.

    Raises:
        UsageError: the tape has several variants.
    """
    variant = variant_of(source)
    return {
        found.name: [_dimension(dimension, bounded) for dimension in found.dimensions]
        for _, found in input_tensors(variant)
    }


def _dimension(found: DimensionFinding, bounded: bool) -> PartialDimension:
    if not found.dynamic:
        return found.min
    return (found.min, found.max) if bounded and found.min < found.max else _ANY


def as_text(shape: Sequence[PartialDimension]) -> str:
    """A partial shape as text: ``[1..8,?,64]``. ``ovc --input`` takes it behind a name, and
    ``openvino.PartialShape`` by itself."""

    def text(dimension: PartialDimension) -> str:
        if isinstance(dimension, tuple):
            return f"{dimension[0]}..{dimension[1]}"
        return "?" if dimension == _ANY else str(dimension)

    return f"[{','.join(map(text, shape))}]"


def openvino_shapes(shapes: Mapping[str, Sequence[PartialDimension]]) -> dict[str, Any]:
    """The same as ``openvino.PartialShape`` objects, for ``model.reshape``. Wants openvino."""
    openvino: Any = importlib.import_module("openvino")
    return {name: openvino.PartialShape(list(shape)) for name, shape in shapes.items()}
