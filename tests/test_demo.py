"""The main job, end to end: recorded in one process, inferred in another without transformers,
exported and checked in a third. ``make demo`` is this."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.integration
def test_demo(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "llama.tape").stat().st_size > 0
    assert list((tmp_path / "programs" / "torch").glob("*.pt2"))
    assert list((tmp_path / "programs" / "onnx").glob("*.onnx"))
    recorded = re.search(r"recorded (\d+) of (\d+) calls", done.stdout)
    assert recorded is not None
    assert recorded[1] == recorded[2]
    for engine in ("torch.export", "ONNX Runtime"):
        promised = f"{engine}: {recorded[1]} of {recorded[1]} recorded calls reproduced"
        assert promised in done.stdout
