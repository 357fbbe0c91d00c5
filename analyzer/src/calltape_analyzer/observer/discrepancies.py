"""Recorded calls through an ONNX model: how far its outputs are from the recorded ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from calltape_analyzer.programs.exported_model import ExportedModel
from calltape_analyzer.programs.input_matching import CallValue, match_inputs
from calltape_analyzer.pytree.rendering import render

__all__ = ["Feed", "PeerTolerance", "compare", "row_of"]


@dataclass(frozen=True)
class PeerTolerance:
    """When two outputs agree: bounds of the absolute and of the relative difference, and whether
    an output that only one side has is no difference."""

    atol: float
    rtol: float
    skip_none: bool


Feed = tuple[str, str, Any, bool]
"""Argument, path below it, tensor, and whether the recorded call did not have it."""


def _feeds_of(names: Sequence[str], given: Sequence[Feed]) -> dict[str, Any]:
    """The tensors of a call by the names of the model's inputs.

    Raises:
        InferenceError: the model has other inputs.
    """
    values = [CallValue(name, path, "tensor", i) for i, (name, path, *_) in enumerate(given)]
    return {name: given[value.number][2] for name, value in match_inputs(names, values).items()}


def row_of(
    model: ExportedModel,
    given: Sequence[Feed],
    expected: Sequence[Any],
    unknown: Sequence[str],
    tolerance: PeerTolerance,
    *,
    include_io: bool,
) -> dict[str, Any]:
    """One recorded call through the model: its row in the table. ``unknown`` are the parts of
    what it returned that nothing can be compared with.

    Raises:
        InferenceError: the model has other inputs than the call.
    """
    names = model.input_names
    feeds = _feeds_of(names, given)
    got, error, seconds = _timed(lambda: model.run(feeds))
    row: dict[str, Any] = {"SUCCESS": False, "error": error}
    if error is None:
        row = compare(expected, got, tolerance)
        if unknown and row["SUCCESS"]:
            row = {**row, "SUCCESS": False, "error": f"not verified: {'; '.join(unknown[:3])}"}
    row |= {
        "ort_duration": seconds,
        "n_inputs": len(names),
        "n_none": sum(missing for _, _, _, missing in given),
        "n_empty": sum(missing or tensor.numel() == 0 for _, _, tensor, missing in given),
    }
    if include_io:
        row |= {
            "inputs": render(feeds),
            "outputs_torch": render(expected),
            "outputs_ort": render(got),
        }
    return row


def compare(
    expected: Sequence[Any],
    got: Sequence[Any],
    tolerance: PeerTolerance,
) -> dict[str, Any]:
    """One row: whether the outputs agree, and the largest absolute and relative difference.

    The relative difference is ``|a - b| / (|a| + rtol)``, as in ``torch.onnx.InputObserver``.
    """
    if len(expected) != len(got) and tolerance.skip_none:
        expected = [tensor for tensor in expected if tensor is not None]
    if len(expected) != len(got):
        return {"SUCCESS": False, "error": "not the same number of outputs"}
    absolute = relative = 0.0
    compared = 0
    for ours, theirs in zip(expected, got, strict=True):
        if ours is None or theirs is None:
            if (ours is None) != (theirs is None) and not tolerance.skip_none:
                return {"SUCCESS": False, "error": "missing output"}
            continue
        if not hasattr(ours, "shape") or ours.device.type == "meta":
            continue  # its value was not kept
        if ours.shape != theirs.shape:
            error = f"not the same shape: {list(ours.shape)} and {list(theirs.shape)}"
            return {"SUCCESS": False, "error": error}
        if ours.dtype != theirs.dtype:
            error = f"not the same type: {ours.dtype} and {theirs.dtype}"
            return {"SUCCESS": False, "error": error}
        compared += 1
        one, other = _distance(ours.detach().cpu(), theirs, tolerance.rtol)
        absolute, relative = max(absolute, one), max(relative, other)
    if not compared:
        return {
            "SUCCESS": False,
            "error": "nothing was compared: no output is a tensor on both sides",
        }
    # NaN is never below a bound.
    agree = absolute <= tolerance.atol and relative <= tolerance.rtol
    return {"SUCCESS": agree, "abs": absolute, "rel": relative}


def _distance(ours: Any, theirs: Any, rtol: float) -> tuple[float, float]:
    import torch

    if ours.numel() == 0:
        return 0.0, 0.0
    wide = torch.complex128 if ours.is_complex() else torch.float64
    ours, theirs = ours.to(wide), theirs.to(wide)
    # Equal infinities and NaN on both sides are no difference.
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    difference = torch.where(same, 0.0, (ours - theirs).abs())
    difference = torch.nan_to_num(difference, nan=float("inf"))
    scaled = torch.where(same, 0.0, difference / (ours.abs() + rtol))
    scaled = torch.nan_to_num(scaled, nan=float("inf"))
    return float(difference.max()), float(scaled.max())


def _timed(action: Callable[[], Any]) -> tuple[Any, str | None, float]:
    """What an action gives, the error that it raised instead, and its seconds."""
    begin = time.perf_counter()
    try:
        result, error = action(), None
    except Exception as failure:  # the runtime's own, which become part of the table
        result, error = None, str(failure)
    return result, error, time.perf_counter() - begin
