"""ONNX test data sets: ``test_data_set_0/input_0.pb``, as ONNX's backend tests and
``onnxruntime_perf_test`` read them.

The layout is that of ``onnx.backend.test``: a folder with ``model.onnx``, and per data set one
serialized ``TensorProto`` for each input and output, numbered in the order of the model's.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from calltape_analyzer.converting.flat_calls import OTHER_FORM, FlatCalls, Written
from calltape_analyzer.errors import UsageError
from calltape_analyzer.tape import Tape
from calltape_analyzer.writing.output_file import create_file, new_folder
from calltape_schema.blob import stored_as
from calltape_schema.tree import Leaf

__all__ = ["write_onnx_test_data"]

# By torch's dtype the name in onnx.TensorProto.
_DTYPES = {
    "float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "bfloat16": "BFLOAT16",
    "int8": "INT8", "int16": "INT16", "int32": "INT32", "int64": "INT64", "uint8": "UINT8",
    "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "bool": "BOOL",
    "complex64": "COMPLEX64", "complex128": "COMPLEX128", "float8_e4m3fn": "FLOAT8E4M3FN",
    "float8_e4m3fnuz": "FLOAT8E4M3FNUZ", "float8_e5m2": "FLOAT8E5M2",
    "float8_e5m2fnuz": "FLOAT8E5M2FNUZ",
}  # fmt: skip


def write_onnx_test_data(
    tape: Tape, path: str | os.PathLike[str], *, model: str | os.PathLike[str] | None = None
) -> Written:
    """Writes a folder of test data sets, one per call.

    Args:
        tape: with values.
        path: of the new folder.
        model: the ONNX model that they are for. It is copied to ``model.onnx``, with the data
            beside it left where they are; names and order are taken from it.

    Returns:
        How many calls were written, and what was left out.

    Raises:
        InferenceError: a value is not on the tape, the calls do not fit the model, or none
            returned.
        UsageError: a dtype that ONNX does not have.
        TapeError: ``exists``, ``io``, ``invalid``.
    """
    calls = FlatCalls(tape, model)
    with new_folder(path) as folder:
        if model is not None:
            with open(model, "rb") as given, create_file(folder / "model.onnx") as copy:
                shutil.copyfileobj(given, copy)
        for count, found in enumerate(calls):
            own = folder / f"test_data_set_{count}"
            own.mkdir(mode=0o700)
            sides = (("input", found.inputs), ("output", found.outputs or {}))
            for side, tensors in sides:
                for at, (name, tensor) in enumerate(tensors.items()):
                    with create_file(own / f"{side}_{at}.pb") as file:
                        file.write(_proto(name, tensor))
        return calls.written("inputs", "outputs")


def _proto(name: str, tensor: Any) -> bytes:
    import onnx

    from calltape_analyzer.writing.new_tape import stored_bytes

    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES:
        raise UsageError(f"ONNX has no {dtype}, which {name} has", advice=OTHER_FORM)
    made = onnx.TensorProto()
    made.name = name
    made.data_type = getattr(onnx.TensorProto, _DTYPES[dtype])
    made.dims.extend(tensor.shape)
    leaf = Leaf(dtype=dtype, shape=tuple(tensor.shape), key=name or "x")
    assert stored_as(leaf) is not None
    made.raw_data = bytes(stored_bytes(leaf, tensor))
    data: bytes = made.SerializeToString()
    return data
