"""Tapes of a server: prompts of many lengths, some of which raise, with a nested module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_recorder import Recorder

__all__ = ["LENGTHS", "Llm", "record"]

LENGTHS = [3 + (7 * number) % 20 for number in range(120)]


class _Inner(torch.nn.Module):
    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * 2


class Llm(torch.nn.Module):
    """Prefill and decode, as a server calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _Inner()

    def forward(self, input_ids: Any, mask: Any = None, past: Any = None, *, keep: int = 1) -> Any:
        if input_ids.shape[1] == 13:
            raise ValueError("13 <b>tokens</b> are unlucky")
        return self.inner(input_ids)


def record(folder: Path) -> Path:
    """Writes ``llm.tape`` and ``inner.tape``."""
    model = Llm()
    outer = Recorder(folder / "llm.tape").attach(model)
    inner = Recorder(folder / "inner.tape", values="none").attach(model.inner)
    for number, length in enumerate(LENGTHS):
        batch = 1 + number % 3
        try:
            if number % 2:
                past = [torch.zeros(batch, 2, length, 4) for _ in range(4)]
                model(torch.zeros(batch, 1, dtype=torch.int64), torch.ones(batch, length), past)
            else:
                model(torch.zeros(batch, length, dtype=torch.int64), keep=1 + number % 7)
        except ValueError:
            pass
    outer.close()
    inner.close()
    return folder
