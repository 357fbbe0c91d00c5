"""ONNX Runtime verifies with the weights of the model, not with a copy of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from calltape_analyzer import export
from calltape_analyzer.programs.onnx_session import session_of_program
from tests.analyzer.exported import call, taped

pytestmark = pytest.mark.integration
pytest.importorskip("onnxruntime")


class Layers(torch.nn.Module):
    """Weights of several dtypes, shared ones, transposed ones, constants, flags."""

    mask: torch.Tensor
    few: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(300, 64)
        self.short = torch.nn.Embedding(300, 64, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(64, 300, bias=False)
        self.head.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.randn(64, 64).t())
        self.register_buffer("mask", torch.rand(64, 64) > 0.5)
        self.register_buffer("few", torch.arange(3.0))

    def forward(self, ids: Any) -> Any:
        embedded = self.embed(ids)
        found = embedded + self.short(ids).float()
        found = torch.where(self.mask, self.turned, 0.0) @ found.transpose(-1, -2)
        logits = self.head(found.transpose(-1, -2))
        return logits, self.mask & True, self.few + ids.shape[0], embedded


def test_weights_are_those_of_the_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Layers().eval()
    calls = [call(torch.randint(0, 300, (n, 2 * n))) for n in (2, 3)]
    programs = export(taped(tmp_path, model, calls), model, to="onnx")
    report = programs.verify()
    assert report.ok
    assert report.reproduced == 2
    (program,) = programs.values()
    exported: Any = program.exported
    path = str(tmp_path / "model.onnx")
    exported.save(path, external_data=True)
    session = session_of_program(exported, path)
    ids = torch.randint(0, 300, (4, 5))
    with torch.no_grad():
        before = session.run(None, {"ids": ids.numpy()})
        model.short.weight.mul_(2)
        after = session.run(None, {"ids": ids.numpy()})
        expected = model(ids)
    assert not torch.allclose(torch.from_numpy(before[0]), expected[0])
    for one, other in zip(after, expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(one), other, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        model.embed.weight.mul_(2)
    *_, embedded = session.run(None, {"ids": ids.numpy()})
    torch.testing.assert_close(torch.from_numpy(embedded), model.embed(ids).detach())
