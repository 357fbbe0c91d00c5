"""Sessions of ONNX Runtime that verify, and take little memory while they do.

Takes a file, a message of bytes, or an ONNX program that still has the weights of its model;
returns a session on the CPU.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from calltape_analyzer.programs.reasons import End
from calltape_analyzer.programs.untrusted_files import load_onnx_proto

__all__ = [
    "NOT_OF_NUMPY", "Feed", "crash_of", "run_once", "session_of_model", "session_of_program",
    "value_of",
]  # fmt: skip

Feed = tuple[Any, int | None]
"""An array of NumPy, and the type that ONNX has for it, if NumPy has none."""

_FEWEST = 1024
"""Smaller weights stay with the runtime: constants that shapes are computed from are among them,
which its optimizer has to see."""
NOT_OF_NUMPY = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
"""The numbers in ONNX of dtypes that NumPy does not have: their bits are an array of ints."""
_BFLOAT16 = NOT_OF_NUMPY["bfloat16"]
_RUN = """import json, pickle, sys
sys.path[:] = json.loads(sys.argv[1])
from calltape_analyzer.programs.onnx_session import run_once
run_once(*pickle.load(sys.stdin.buffer))
"""
_DONE = b"done"


def session_of_model(model: str | bytes) -> Any:
    """The session of a file or of its bytes.

    Raises:
        TapeError: it is no model, or its data are outside of its folder.
    """
    # A runtime that reads any file that a model names would show what is in it as an output.
    load_onnx_proto(model)
    return _session(model, _options())


def session_of_program(program: Any, path: str) -> Any:
    """The session of a program of ``torch.onnx.export``. It has the weights where the model has
    them; a copy would take as much memory as the model.

    Args:
        program: a ``torch.onnx.ONNXProgram``.
        path: of the file that it was saved to, with its weights.
    """
    options = _options()
    # What is packed for the processor is a copy as well.
    options.add_session_config_entry("session.disable_prepacking", "1")
    weights = list(_weights(program.model.graph.initializers))
    for name, value, _ in weights:
        options.add_initializer(name, value)
    session = _session(path, options)
    session._calltape_weights = weights  # the session only refers to their memory
    return session


def value_of(array: Any, kind: int | None = None) -> Any:
    """A value of the runtime that is the memory of an array.

    Args:
        array: of NumPy, without gaps.
        kind: the number that ONNX has for the type, if NumPy does not have it.
    """
    import onnxruntime

    if kind is None:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu", 0)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)


def crash_of(model: str, feeds: Mapping[str, Feed], seconds: float) -> End | None:
    """How a run ends the process that it is in, by a run in another one; None if it does not. Some
    do: a recurrent layer aborts in a thread of its own if the batch is empty.

    Args:
        model: path of a file of our own.
        feeds: the inputs by name.
        seconds: how long the run may take.
    """
    command = [sys.executable, "-c", _RUN, json.dumps(sys.path)]
    question = pickle.dumps((model, feeds))  # for a process of our own
    try:
        ended = subprocess.run(
            command, input=question, capture_output=True, timeout=seconds, check=False
        )
    except OSError:  # there is no Python to start: this process has one built in
        return End.NOT_TRIED
    except subprocess.TimeoutExpired:
        return End.LATE
    if ended.returncode < 0:
        return End.DIED
    return None if ended.stdout.endswith(_DONE) else End.NOT_TRIED  # that was no Python


def run_once(model: str, feeds: Mapping[str, Feed]) -> None:
    """Does a run, and says so. It is called in the other process."""
    options = _options()
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = _session(model, options)
    values = {name: value_of(*feed) for name, feed in feeds.items()}
    with suppress(Exception):  # an error is told where the run is compared
        session.run_with_ort_values(None, values)
    os.write(sys.stdout.fileno(), _DONE)


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # an error is an exception, which a report shows
    # A session keeps the memory of its largest run until it ends, and one run of a UNet takes
    # gigabytes. A verification runs each size once or twice: what it took is given back.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    # A result would lie in the memory of another one whose dimensions have the same names. Such
    # sizes were equal in every recorded call, and a program may take others.
    options.enable_mem_reuse = False
    # All but the optimizations of layout. They are those of one processor, not of the program, and
    # copy the weights of convolutions.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    return options


def _session(model: str | bytes, options: Any) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _weights(initializers: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The name of each weight, a value of the runtime that is its memory, and that memory."""
    import numpy

    for name, initializer in initializers.items():
        tensor = initializer.const_value
        if tensor is None or tensor.nbytes < _FEWEST:
            continue
        array = tensor.numpy()
        if not array.flags.c_contiguous:
            continue  # a copy is made in any case, and the runtime makes its own
        if tensor.dtype.value == _BFLOAT16:
            array = array.view(numpy.int16)
            yield name, value_of(array, _BFLOAT16), array
        elif array.dtype.isbuiltin == 1 and array.dtype.kind in "biufc":
            yield name, value_of(array), array
