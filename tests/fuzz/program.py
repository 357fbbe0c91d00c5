"""A program that calls are held to."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["onnx_model"]


@functools.cache
def onnx_model() -> Any:
    """An ONNX model of one input, ``x``."""
    from onnx import TensorProto, helper

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    node = helper.make_node("Identity", ["x"], ["y"])
    return helper.make_model(helper.make_graph([node], "g", [x], [y]))
