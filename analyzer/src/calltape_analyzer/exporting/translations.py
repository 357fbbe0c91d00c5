"""ONNX for operators that torch.onnx does not translate (torch 2.15), in terms of ONNX's own."""

from __future__ import annotations

from typing import Any

__all__ = ["translations"]


def translations() -> dict[Any, Any]:
    """Translations by operator, as ``torch.onnx.export(custom_translation_table=...)`` takes them.
    Empty where onnxscript is not installed."""
    import torch

    try:
        from onnxscript import opset18
    except ImportError:
        return {}
    op: Any = opset18
    integer, boolean = 7, 9  # of onnx.TensorProto.DataType

    def is_all_true(values: Any) -> Any:
        return op.Cast(op.ReduceMin(op.Cast(values, to=integer), keepdims=0), to=boolean)

    def distances(one: Any, other: Any, p: float, compute_mode: int | None = None) -> Any:
        if p != 2.0:
            raise ValueError(f"torch.cdist with p={p} has no translation, only p=2")
        rows = op.Unsqueeze(one, op.Constant(value_ints=[-2]))
        columns = op.Unsqueeze(other, op.Constant(value_ints=[-3]))
        squares = op.ReduceSumSquare(
            op.Sub(rows, columns), op.Constant(value_ints=[-1]), keepdims=0
        )
        return op.Sqrt(squares)

    own = {"_is_all_true": is_all_true, "_cdist_forward": distances}
    aten = torch.ops.aten
    return {getattr(aten, n).default: made for n, made in own.items() if hasattr(aten, n)}
