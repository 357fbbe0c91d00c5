"""The findings of a variant or a tape in the terms of each tool that exports.

Takes a `Tape` or a `Variant`, always as the first parameter; returns the shapes, profiles and flags
that the tool takes.

A module per tool, and each function of one by its name from here as well::

    from calltape_analyzer.targets import optimization_profile, tensorrt

    profile = optimization_profile(tape)
    flags = tensorrt.trtexec_flags([profile])

What is said of one program takes a tape if its calls are one variant; choose one with
``tape.only(variant=...)`` otherwise.
"""

from __future__ import annotations

from calltape_analyzer.targets import (
    onnx,
    openvino,
    tensorrt,
    torch_inputs,
)
from calltape_analyzer.targets.onnx import DynamicAxes, dynamic_axes
from calltape_analyzer.targets.openvino import (
    PartialDimension,
    as_text,
    openvino_shapes,
    partial_shapes,
)
from calltape_analyzer.targets.tensorrt import (
    InputRange,
    OptimizationProfile,
    optimization_profile,
    polygraphy_flags,
    trtexec_flags,
)
from calltape_analyzer.targets.torch_inputs import additional_inputs, shapes_collection

__all__ = [
    "DynamicAxes",
    "InputRange",
    "OptimizationProfile",
    "PartialDimension",
    "additional_inputs",
    "as_text",
    "dynamic_axes",
    "onnx",
    "openvino",
    "openvino_shapes",
    "optimization_profile",
    "partial_shapes",
    "polygraphy_flags",
    "shapes_collection",
    "tensorrt",
    "torch_inputs",
    "trtexec_flags",
]
