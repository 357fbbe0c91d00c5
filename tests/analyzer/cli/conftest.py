"""Tapes that the command is tried with."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_recorder import record
from tests.analyzer.cli.models import MODULE, SOURCE, Model
from tests.analyzer.tapes import write_tape


@pytest.fixture
def tape_file(tmp_path: Path) -> Path:
    calls = [
        ((torch.zeros(2 + i, 8),), {"mask": torch.ones(2 + i, 5, dtype=torch.int64)})
        for i in range(3)
    ]
    return write_tape(
        tmp_path / "a.tape",
        calls,
        target=Model(),
        outputs=[torch.zeros(2 + i, 1) for i in range(3)],
        dropped={"queue full": 2},
        producer={"torch": "2.15.0"},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, with a module of models in it; the module is forgotten afterwards."""
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    sys.modules.pop(MODULE, None)
    yield tmp_path
    sys.modules.pop(MODULE, None)


@pytest.fixture
def classifier_tape(folder: Path) -> Path:
    scope: dict[str, Any] = {"__name__": MODULE}
    exec(SOURCE, scope)
    model = scope["classifier"]().eval()
    path = folder / "a.tape"
    with record(model, path):
        for rows in (3, 5, 2):
            model(torch.randn(rows, 4))
        model(torch.randn(4, 4), mask=torch.ones(4, 2))
    return path
