"""Tapes for the page, as the recorder writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_recorder import Recorder

__all__ = ["Model", "record_calls", "record_golden", "record_structures"]


class Model(torch.nn.Module):
    def forward(
        self, x: Any, mask: Any = None, past_key_values: Any = None, scale: float = 1.0
    ) -> Any:
        return x if mask is None else x * scale


def record_calls(path: Path, *calls: dict[str, Any]) -> Path:
    """Calls with these arguments, each written by itself."""
    with Recorder(path).attach(model := Model()) as recorder:
        for arguments in calls:
            model(**arguments)
            recorder.flush()
    return path


def record_golden(path: Path) -> Path:
    """Three calls of one kind: ``x`` grows, and ``past_key_values`` have its sizes."""
    calls = [
        {
            "x": torch.full((batch, size), 0.5),
            "mask": torch.arange(batch * size).view(batch, size),
            "past_key_values": [(torch.zeros(batch, 1, size), torch.ones(batch, 1, size))] * 2,
        }
        for batch, size in ((2, 3), (2, 5), (4, 7))
    ]
    return record_calls(path, *calls)


def record_structures(path: Path) -> Path:
    """Calls of two kinds, as prefill and decode steps are."""
    ids = [torch.zeros(1, size, dtype=torch.int64) for size in (5, 1, 1, 4)]
    cache = [None, *([(torch.zeros(1, 1, size, 2),)] for size in (5, 6)), None]
    calls = [
        {"x": one} if held is None else {"x": one, "past_key_values": held}
        for one, held in zip(ids, cache, strict=True)
    ]
    return record_calls(path, *calls)
