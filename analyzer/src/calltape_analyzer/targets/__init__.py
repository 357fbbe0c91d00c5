"""The findings of a variant or a tape in the form that other tools take.

Each function takes a `Tape` or a `Variant` as its first parameter::

    from calltape_analyzer import targets

    profile = targets.optimization_profile(tape)
    flags = profile.trtexec_flags()

Functions for one program take a tape only if all its calls belong to one variant; otherwise, select
one with ``tape.only(variant=...)``.
"""

from __future__ import annotations

from calltape_analyzer.targets.engines import (
    InputRange,
    OptimizationProfile,
    PartialDimension,
    as_text,
    openvino_shapes,
    optimization_profile,
    partial_shapes,
    polygraphy_flags,
    trtexec_flags,
)
from calltape_analyzer.targets.exporters import (
    DynamicAxes,
    additional_inputs,
    dynamic_axes,
    shapes_collection,
)

__all__ = [
    "DynamicAxes",
    "InputRange",
    "OptimizationProfile",
    "PartialDimension",
    "additional_inputs",
    "as_text",
    "dynamic_axes",
    "openvino_shapes",
    "optimization_profile",
    "partial_shapes",
    "polygraphy_flags",
    "shapes_collection",
    "trtexec_flags",
]
