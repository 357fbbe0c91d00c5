"""Tapes in the forms of other tools, and the other way round: a file for each form.

In come the calls of a tape, or folders that other tools wrote. Out go files that these tools read,
or a tape.
"""

from __future__ import annotations

from calltape_analyzer.converting.flat_calls import Written
from calltape_analyzer.converting.onnx_test_data import write_onnx_test_data
from calltape_analyzer.converting.polygraphy_json import (
    write_polygraphy_inputs,
    write_polygraphy_outputs,
)
from calltape_analyzer.converting.safetensors_folder import (
    read_safetensors_folder,
    write_safetensors_folder,
)

__all__ = [
    "Written",
    "read_safetensors_folder",
    "write_onnx_test_data",
    "write_polygraphy_inputs",
    "write_polygraphy_outputs",
    "write_safetensors_folder",
]
