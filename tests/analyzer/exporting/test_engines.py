"""A model that reads the state of an engine: without it no export is right, and the refusal says
what the tape lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from calltape_analyzer import ExportError, Tape, export, open_tape
from calltape_recorder import record
from tests.analyzer.cli.commands import run
from tests.recorder.host import engine

pytestmark = pytest.mark.integration  # each of them traces


def served(path: Path, model: torch.nn.Module) -> Tape:
    with record(model, path), torch.no_grad():
        for tokens in (3, 5, 8):
            with engine.step(float(tokens)):
                model(torch.randn(tokens, 4))
    return open_tape(path)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (engine.OfLayer, "_context"),
        (engine.OfContextVariable, "_variable"),
        (engine.OfThread, "_of_thread"),
        (engine.OfDict, "_caches"),
        (engine.OfObject, "_state"),
    ],
)
def test_the_refusal_names_it(tmp_path: Path, cls: type[torch.nn.Module], name: str) -> None:
    model = cls().eval()
    with served(tmp_path / "a.tape", model) as tape:
        with pytest.raises(ExportError) as caught:
            export(tape, model)
        assert f"its code reads {engine.__name__}.{name}, which is no argument" in str(caught.value)


def test_info_names_it(tmp_path: Path) -> None:
    served(tmp_path / "a.tape", engine.OfLayer()).close()
    found = " ".join(run("info", tmp_path / "a.tape").out.split())
    assert f"outside its code reads {engine.__name__}._context, which is no argument" in found


def test_a_failure_of_another_kind_does_not(tmp_path: Path) -> None:
    class Refuses(torch.nn.Module):
        def forward(self, x):
            if torch.compiler.is_exporting():
                raise RuntimeError("this model is not exported")
            return x * 2

    model = Refuses().eval()
    with served(tmp_path / "a.tape", model) as tape, pytest.raises(ExportError) as caught:
        export(tape, model)
    assert "no argument" not in str(caught.value)
