"""Calls on a device: ``meta`` is one that every machine has."""

from __future__ import annotations

from pathlib import Path

import torch

from calltape_analyzer import open_tape
from calltape_recorder import record


class Both(torch.nn.Module):
    def forward(self, x: torch.Tensor, twice: list[torch.Tensor]) -> torch.Tensor:
        return x + twice[0]


def test_inputs_are_moved_to_a_device(tmp_path: Path) -> None:
    model, x = Both(), torch.ones(2, requires_grad=True)
    with record(model, tmp_path / "t.tape"):
        model(x, [x])
    with open_tape(tmp_path / "t.tape") as tape:
        (found, (same,)), _ = tape.calls[0].inputs_on("meta")
        assert found.device.type == "meta"
        assert found.requires_grad
        assert found is same
        assert tape.calls[0].inputs_on("cpu").args[0].tolist() == [1, 1]
