"""Ranges for the flexible inputs of a Core ML model.

The form follows coremltools' documentation ("Flexible Input Shapes", ``ct.RangeDim``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from calltape_analyzer.tape import Tape
from calltape_analyzer.targets.given import variant_of
from calltape_analyzer.targets.input_shapes import input_tensors, most_common_shapes
from calltape_analyzer.variant import Variant
from calltape_analyzer.variants.variant_findings import DimensionFinding

__all__ = ["RangeDimension", "coreml_shapes", "range_dimensions"]


class RangeDimension(TypedDict):
    """A dynamic dimension: its bounds, both inclusive, its default size, and its symbol, which
    dimensions share that were always equal."""

    lower: int
    upper: int
    default: int
    symbol: str


def range_dimensions(source: Tape | Variant) -> dict[str, list[RangeDimension | int]]:
    """The shape of each input as a list of sizes and ranges, as plain data.

    Bounds are the sizes seen: an ML program wants an upper one. They are those of the whole traffic
    if the tape has counters of it; the warnings of ``variant.findings`` say if that is more
    than the kept calls show. The default is what most calls had, all inputs together; Core ML
    prepares the model for it. A Core ML size is at least 1, so that a 0 on the tape is raised to 1:
    calls with empty tensors need a model of their own.

    Args:
        source: a variant, or a tape whose calls are one.

    Returns:
        By the name that an export with calltape gives the input.

    Raises:
        UsageError: the tape has several variants.
    """
    variant = variant_of(source)
    common = most_common_shapes(variant.facts.every)
    return {
        found.name: [
            _dimension(dimension, common[i][dimension.axis]) for dimension in found.dimensions
        ]
        for i, found in input_tensors(variant)
    }


def _dimension(found: DimensionFinding, default: int) -> RangeDimension | int:
    if not found.dynamic:
        return found.min
    assert found.symbol is not None, "a dynamic dimension has a symbol"
    return RangeDimension(
        lower=max(found.min, 1),
        upper=max(found.max, 1),
        default=max(default, 1),
        symbol=found.symbol,
    )


def coreml_shapes(shapes: Mapping[str, Sequence[RangeDimension | int]]) -> dict[str, Any]:
    """The same as ``coremltools.Shape`` objects. Wants coremltools::

        inputs = [
            ct.TensorType(name=name, shape=shape)
            for name, shape in coreml_shapes(range_dimensions(variant)).items()
        ]

    Dimensions of one symbol share one ``RangeDim``, by which coremltools knows them to be equal.
    """
    ct: Any = importlib.import_module("coremltools")
    ranges: dict[str, Any] = {}

    def dimension(found: RangeDimension | int) -> Any:
        if isinstance(found, int):
            return found
        if found["symbol"] not in ranges:
            # Named by coremltools: a name of ours could be used once per process.
            bounds = found["lower"], found["upper"], found["default"]
            ranges[found["symbol"]] = ct.RangeDim(*bounds)
        return ranges[found["symbol"]]

    return {name: ct.Shape([dimension(d) for d in shape]) for name, shape in shapes.items()}
