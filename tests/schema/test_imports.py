"""The schema goes everywhere: no torch, no NumPy, nothing heavy."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import calltape_schema, calltape_schema.blob, calltape_schema.tar, calltape_schema.packing
import calltape_schema.reader, calltape_schema.tree, calltape_schema.writer
heavy = {"torch", "numpy", "safetensors", "transformers", "calltape_recorder", "calltape_analyzer"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
calltape_schema.tree.encode_structure({"root": {"kind": "none"}, "leaves": 0, "scalars": 0})
calltape_schema.tree.encode_leaves([{"dtype": "float32", "shape": [2], "key": "x"}])
assert not heavy & set(sys.modules)
print("clean")
"""


def test_no_tensor_library_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("clean", "")
