"""The main job, end to end: recorded in one process, explained in another without the model,
exported and checked in a third. ``make demo`` is this."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.integration
def test_the_demo_exports_for_torch_and_onnx(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # what other libraries warn of is not what the demo shows
    assert len(done.stdout.splitlines()) <= 36
    assert (tmp_path / "llama.tape").stat().st_size > 0
    assert list((tmp_path / "programs" / "torch").glob("*.pt2"))
    assert list((tmp_path / "programs" / "onnx").glob("*.onnx"))

    recorded = re.search(r"recorded (\d+) of (\d+) calls of LlamaForCausalLM", done.stdout)
    assert recorded is not None
    assert recorded[1] == recorded[2]
    symbols = {line.split()[0] for line in done.stdout.splitlines() if " sizes)" in line}
    assert symbols == {"batch_size", "sequence_length", "past_sequence_length"}
    assert "dimension 1 is dynamic: 2 values in 12 calls" in done.stdout
    for engine in ("torch.export", "ONNX Runtime"):
        promised = f"{engine}: {recorded[1]} of {recorded[1]} recorded calls reproduced"
        assert promised in done.stdout
    agreed = re.findall(r"at (\d+) of (\d+) sizes that no call had, it agrees", done.stdout)
    assert len(agreed) == 2
    assert all(int(same) == int(tried) > 0 for same, tried in agreed)
