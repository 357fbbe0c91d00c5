"""Input data for Triton's ``perf_analyzer`` (``--input-data FILE``), with outputs to validate.

The form is that of its documentation: ``data`` has an object per request, in which each tensor has
its bytes (``content``, base64, row-major, little-endian) and its ``shape``; ``validation_data`` has
the outputs in the same form. Files are written call by call.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any

from calltape_analyzer.converting.flat_calls import OTHER_FORM, FlatCalls
from calltape_analyzer.converting.new_folder import new_file
from calltape_analyzer.converting.written import Written
from calltape_analyzer.errors import UsageError
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.stored_values import stored_bytes
from calltape_schema.leaves import Leaf

__all__ = ["write_triton_json"]

# The dtypes of Triton's KServe protocol. BF16 has two bytes there as in torch.
_DTYPES = frozenset({
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16",
    "float32", "float64", "bfloat16",
})  # fmt: skip


def write_triton_json(
    tape: Tape,
    path: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    batched: bool = False,
    outputs: bool = True,
) -> Written:
    """Writes a request per call that returned.

    Args:
        tape: with values.
        path: of the new JSON file.
        model: the ONNX model that they are for, which gives the names.
        batched: whether the server's model has a batch dimension (``max_batch_size`` above 0). The
            shapes in the file have none then, and each call must have a batch of 1.
        outputs: whether the recorded outputs are written to be validated.

    Returns:
        How many calls were written, and what was left out.

    Raises:
        InferenceError: a value is not on the tape, the calls do not fit the model, or none
            returned.
        UsageError: a dtype that Triton does not have, a batch that is not 1, or outputs that are
            not on the tape.
        TapeError: ``exists``, ``io``, ``invalid``.
    """
    calls = FlatCalls(tape, model)
    with new_file(path) as made, made.open("w", encoding="ascii") as file:
        file.write('{"data": [')
        for count, found in enumerate(calls):
            file.write(",\n" if count else "\n")
            json.dump(_request(found.inputs, batched), file)
        file.write("\n]")
        if outputs:
            file.write(', "validation_data": [')
            for at, found in enumerate(FlatCalls(tape, model)):
                if found.outputs is None:
                    raise UsageError(
                        f"call {found.call.number} has no outputs on the tape",
                        advice="pass outputs=False, or leave such calls out",
                    )
                file.write(",\n" if at else "\n")
                json.dump(_request(found.outputs, batched), file)
            file.write("\n]")
        file.write("}\n")
        return calls.written("inputs", "outputs") if outputs else calls.written("inputs")


def _request(tensors: Mapping[str, Any], batched: bool) -> dict[str, Any]:
    return {name: _tensor(name, tensor, batched) for name, tensor in tensors.items()}


def _tensor(name: str, tensor: Any, batched: bool) -> dict[str, Any]:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise UsageError(f"Triton has no {dtype}, which {name} has", advice=OTHER_FORM)
    shape = list(tensor.shape)
    if batched:
        if not shape or shape[0] != 1:
            raise UsageError(
                f"{name} has the shape {shape}, and a request of a batched model has a batch of 1",
                advice="leave such calls out with `where='x[0] == 1'`",
            )
        shape = shape[1:]
    leaf = Leaf(dtype=dtype, shape=tuple(tensor.shape), key="x")
    data = base64.b64encode(bytes(stored_bytes(leaf, tensor))).decode()
    return {"content": {"b64": data}, "shape": shape}
