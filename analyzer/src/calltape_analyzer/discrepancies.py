"""Recorded calls through an ONNX model: how far its outputs are from the recorded ones."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calltape_analyzer.errors import InferenceError
from calltape_analyzer.rendering import render
from calltape_analyzer.trust import onnx_model, refuse_data_outside

__all__ = [
    "Feed",
    "Tolerance",
    "compare",
    "feeds_of",
    "open_session",
    "row_of",
    "run",
    "with_progress",
]


@dataclass(frozen=True)
class Tolerance:
    """When two outputs agree: bounds of the absolute and of the relative difference, and whether
    an output that only one side has is no difference."""

    atol: float
    rtol: float
    skip_none: bool


Feed = tuple[str, str, Any, bool]
"""Argument, path below it, tensor, and whether the recorded call did not have it."""


def open_session(
    model: Any, initializer: Callable[[str | bytes], Any] | None
) -> tuple[Any, Callable[[], None]]:
    """An ONNX Runtime session, and what releases it.

    Args:
        model: a file name, an ``onnx.ModelProto``, its bytes, or a ``torch.onnx.ONNXProgram``.
        initializer: makes the session from a file name or bytes; on the CPU by default.

    Raises:
        TapeError: it is no model, or its data are outside of its folder.
    """
    make = initializer or _cpu_session
    if isinstance(model, str | os.PathLike | bytes):
        return make(model if isinstance(model, bytes) else os.fspath(model)), _nothing
    folder = tempfile.TemporaryDirectory(prefix="calltape-")
    path = str(Path(folder.name) / "model.onnx")
    if hasattr(model, "save"):
        # To a file, because a protobuf message ends at 2 GiB and weights may lie beside it.
        model.save(path)
    else:
        refuse_data_outside(model, None)
        Path(path).write_bytes(model.SerializeToString())
    return make(path), folder.cleanup


def _nothing() -> None:
    pass


def _cpu_session(model: str | bytes) -> Any:
    import onnxruntime

    # A runtime that reads any file that a model names, shows what is in it as an output.
    onnx_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is an exception, and part of a report
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def feeds_of(names: Sequence[str], given: Sequence[Feed]) -> dict[str, Any]:
    """The tensors of a call by the names of the model's inputs.

    By name where the names tell it, because an exporter leaves out what the program does not use;
    by order otherwise, where the numbers are the same.

    Raises:
        InferenceError: neither is possible.
    """
    by_name: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for argument, path, tensor, _ in given:
        place = counts[argument] = counts.get(argument, -1) + 1
        for name in (f"{argument}{path.replace('.', '_')}", f"{argument}_{place}"):
            by_name.setdefault(name, tensor)
            by_name.setdefault(f"{name}_orig", tensor)
    if all(name in by_name for name in names):
        return {name: by_name[name] for name in names}
    if len(names) != len(given):
        raise InferenceError(
            f"There are ({len(given)}) tensors but the model expects {len(names)}: "
            f"{', '.join(names)}",
            advice="export with the arguments and shapes of these calls",
        )
    return dict(zip(names, (tensor for _, _, tensor, _ in given), strict=True))


def row_of(
    session: Any,
    given: Sequence[Feed],
    expected: Sequence[Any],
    unknown: Sequence[str],
    tolerance: Tolerance,
    *,
    include_io: bool,
) -> dict[str, Any]:
    """One recorded call through the session: its row in the table. ``unknown`` are the parts of
    what it returned that nothing can be compared with.

    Raises:
        InferenceError: the model has other inputs than the call.
    """
    names = [known.name for known in session.get_inputs()]
    feeds = feeds_of(names, given)
    got, error, seconds = _timed(lambda: run(session, feeds))
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


def run(session: Any, feeds: dict[str, Any]) -> list[Any]:
    """The outputs of the model as torch tensors."""
    values = {name: _to_ort(tensor) for name, tensor in feeds.items()}
    outputs = session.run_with_ort_values(None, values)
    return [_to_torch(output) for output in outputs]


def _to_ort(tensor: Any) -> Any:
    import onnxruntime
    import torch

    plain = tensor.detach().cpu().contiguous()
    if plain.dtype is torch.bfloat16:
        # NumPy does not have it: its bits, with the type beside them (16 is BFLOAT16 in ONNX).
        bits = plain.view(torch.int16).numpy()
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, 16)
    return onnxruntime.OrtValue.ortvalue_from_numpy(plain.numpy(), "cpu", 0)


def _to_torch(value: Any) -> Any:
    import torch
    from torch.utils import dlpack

    if value.data_type() == "tensor(bfloat16)":
        return dlpack.from_dlpack(value._ortvalue.to_dlpack())
    return torch.from_numpy(value.numpy().copy())


def compare(
    expected: Sequence[Any],
    got: Sequence[Any],
    tolerance: Tolerance,
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


def with_progress(items: Sequence[Any], shown: bool) -> Iterable[Any]:
    """The items, with a progress bar on stderr where one is wanted."""
    if not shown:
        return items
    from rich.console import Console
    from rich.progress import track

    return track(items, description="calls", console=Console(stderr=True), transient=True)
