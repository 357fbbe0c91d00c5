"""The script of docs/targets.md makes a folder of FlashInfer's dumps that becomes a tape."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from calltape_analyzer import open_tape
from calltape_analyzer.converting import read_safetensors_folder
from tests.docs.page import DOCS, Page


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_dumps_become_a_tape(tmp_path: Path) -> None:
    queries = [torch.randn(2, 4), torch.randn(3, 4)]
    for number, query in enumerate(queries):
        dump = tmp_path / f"dumps/20260101_0000_decode_call{number:04d}"
        dump.mkdir(parents=True)
        torch.save({"q": query.t()}, dump / "inputs.pt")  # not contiguous, as dumps may be
        if number == 0:  # the kernel of the other one crashed
            torch.save({"result": query + 1}, dump / "outputs.pt")
    script = tmp_path / "from_flashinfer.py"
    script.write_text(Page(DOCS / "targets.md").files[script.name], encoding="utf-8")
    calls, tape = tmp_path / "calls", tmp_path / "decode.tape"
    subprocess.run([sys.executable, script, tmp_path / "dumps", calls], check=True)
    read_safetensors_folder(calls, tape)
    with open_tape(tape) as opened:
        first, second = opened
        assert torch.equal(first.inputs.kwargs["q"], queries[0].t())
        assert torch.equal(second.inputs.kwargs["q"], queries[1].t())
        assert torch.equal(first.outputs["result"], queries[0] + 1)
