"""A transformers pipeline is recorded by its model, answers the same, and is analyzed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from calltape_analyzer import open_tape
from tests.servers.service import integration_with

pytestmark = integration_with()

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "pipeline.py"


def test_the_pipeline_example_records_all_its_calls(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.tape"
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(path)], capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr  # it compares the answers itself
    assert "recorded 12 of 12 calls" in done.stdout
    tape = open_tape(path)
    assert tape.sealed
    variants = tape.variants()
    assert sum(map(len, variants)) == 12
    # one at a time, then three as a batch
    assert list(variants[0].infer_dynamic_shapes()["input_ids"]) == [1]
