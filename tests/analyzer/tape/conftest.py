"""A tape of three calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.analyzer.tape.recorded import calls
from tests.analyzer.tapes import write_tape


@pytest.fixture
def tape_file(tmp_path: Path) -> Path:
    return write_tape(tmp_path / "a.tape", calls(4), outputs=[torch.ones(i + 1) for i in range(4)])
