"""Polygraphy's JSON: inputs for ``--load-inputs``, outputs for ``--load-outputs``.

The form is that of ``polygraphy.json``: an array is an object with the bytes of a ``.npy`` file in
base64. Inputs are a list with a dict of arrays per call; outputs are a ``RunResults``. Files are
written call by call, so that memory does not grow with the tape.
"""

from __future__ import annotations

import base64
import io
import json
import os
from typing import Any

from calltape_analyzer.converting.flat_calls import OTHER_FORM, FlatCall, FlatCalls
from calltape_analyzer.converting.written import Written
from calltape_analyzer.errors import UsageError
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.output_file import OutputFile

__all__ = ["write_polygraphy_inputs", "write_polygraphy_outputs"]

_CLASS = "polygraphy_class"
_RUNNER = "calltape"


def write_polygraphy_inputs(
    tape: Tape, path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None
) -> Written:
    """Writes the inputs of all calls that returned.

    Args:
        tape: with values.
        path: of the new JSON file.
        model: the ONNX model that they are for, which gives the names.

    Returns:
        How many calls were written, and what was left out.

    Raises:
        InferenceError: a value is not on the tape, the calls do not fit the model, or none
            returned.
        UsageError: a dtype that NumPy does not have.
        TapeError: ``exists``, ``io``, ``invalid``.
    """
    calls = FlatCalls(tape, model)
    with OutputFile(path) as file:
        _write(file, "[")
        for count, found in enumerate(calls):
            _write(file, ",\n" if count else "\n")
            arrays = {name: _array(name, one) for name, one in found.inputs.items()}
            _write(file, json.dumps(arrays))
        _write(file, "\n]\n")
        return calls.written("inputs")


def write_polygraphy_outputs(
    tape: Tape, path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None
) -> Written:
    """Writes the recorded outputs of all calls, as those of a runner named ``calltape``; arguments,
    result and errors as :func:`write_polygraphy_inputs`.

    Raises:
        UsageError: a call has no outputs on the tape.
    """
    calls = FlatCalls(tape, model)
    with OutputFile(path) as file:
        _write(file, f'{{"lst": [["{_RUNNER}", [')
        for count, found in enumerate(calls):
            _write(file, ",\n" if count else "\n")
            _write(file, json.dumps(_result(found)))
        _write(file, f'\n]]], "{_CLASS}": "RunResults"}}\n')
        return calls.written("outputs")


def _write(file: OutputFile, text: str) -> None:
    file.append([text.encode("ascii")])


def _result(found: FlatCall) -> dict[str, Any]:
    if found.outputs is None:
        raise UsageError(
            f"call {found.call.number} has no outputs on the tape",
            advice="leave such calls out with tape.only(calls=...)",
        )
    outputs = {
        name: {"values": _array(name, one), _CLASS: "LazyArray"}
        for name, one in found.outputs.items()
    }
    return {
        "outputs": outputs,
        "runtime": found.call.duration,
        "runner_name": _RUNNER,
        _CLASS: "IterationResult",
    }


def _array(name: str, tensor: Any) -> dict[str, str]:
    import numpy as np

    try:
        array = tensor.numpy()
    except TypeError:
        raise UsageError(
            f"NumPy has no {tensor.dtype}, which {name} has", advice=OTHER_FORM
        ) from None
    data = io.BytesIO()
    np.save(data, array, allow_pickle=False)
    return {"array": base64.b64encode(data.getvalue()).decode(), _CLASS: "ndarray"}
