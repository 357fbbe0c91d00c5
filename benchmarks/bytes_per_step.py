"""Bytes on the tape per decode step, over those of the tensors.

One cache of 32 layers stays, and one grows by a token in each step. Each is an argument and the
result of 20 steps, recorded whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from benchmarks.report import Question, Row
from calltape_recorder import record

_STEPS, _LAYERS = 20, 32


class Step(torch.nn.Module):
    """A decoder without weights: only its cache matters."""

    def __init__(self, *, grows: bool) -> None:
        super().__init__()
        self.grows = grows
        self.logits = torch.rand(1, 1, 1000)

    def forward(self, input_ids: Any, past_key_values: Any = None, use_cache: Any = None) -> Any:
        if self.grows:
            for layer in range(_LAYERS):
                past_key_values.update(torch.rand(1, 2, 1, 64), torch.rand(1, 2, 1, 64), layer)
        return CausalLMOutputWithPast(logits=self.logits, past_key_values=past_key_values)


def rows(quick: bool) -> Iterator[Row]:
    """A row for each cache. It takes seconds, so that ``quick`` changes nothing."""
    for grows, name, alternative in (
        (False, "stays", "the cache once, and the rest of each step"),
        (True, "grows by a token a step", "the whole cache after each step"),
    ):
        ratio = f"{bytes_ratio(grows=grows):.2f}"
        yield Row(
            f"bytes on the tape of {_STEPS} decode steps, a cache that {name}",
            ratio, f"{alternative}: 1", f"{ratio} ×", Question.DISK,
        )  # fmt: skip


def bytes_ratio(*, grows: bool) -> float:
    cache = DynamicCache()
    for layer in range(_LAYERS):
        cache.update(torch.rand(1, 2, 60, 64), torch.rand(1, 2, 60, 64), layer)
    ids, step = torch.ones(1, 1, dtype=torch.long), Step(grows=grows)
    new = _size(cache)
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder, "a.tape")
        with record(step, path):
            for _ in range(_STEPS):
                step(ids, past_key_values=cache, use_cache=True)
                new += (_size(cache) if grows else 0) + step.logits.nbytes + ids.nbytes
        return path.stat().st_size / new


def _size(cache: Any) -> int:
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
