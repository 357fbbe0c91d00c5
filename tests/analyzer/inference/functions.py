"""Functions, and tapes of calls of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from calltape_analyzer import (
    open_tape,
)
from tests.analyzer.tapes import write_tape

D = torch.export.Dim.DYNAMIC


def t(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def tape_of(tmp_path: Path, function: Any, *calls: Any, **options: Any) -> Any:
    classes = options.pop("classes", ())
    return open_tape(
        write_tape(tmp_path / "a.tape", calls, target=function, **options), classes=classes
    )


def plain(x, y=None, z=None, n=1):
    return x


def step(input_ids, attention_mask=None, past_key_values=None, use_cache=None):
    return input_ids


class Layer:
    """Like a cache layer of transformers."""

    def __init__(self, length: int, batch: int = 2) -> None:
        self.keys = t(batch, 2, length, 4) if length else None
        self.values = t(batch, 2, length, 4) if length else None
        self.is_initialized = bool(length)
        self.cumulative_length = length
        self._private = torch.tensor(length)


class OwnCache:
    """Like a cache of transformers; this test's own, so it is registered nowhere."""

    def __init__(self, *lengths: int, batch: int = 2) -> None:
        self.layers = [Layer(length, batch) for length in lengths]


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclass
class Options:
    bias: torch.Tensor
    mask: torch.Tensor | None = None
    rate: float = 0.5
