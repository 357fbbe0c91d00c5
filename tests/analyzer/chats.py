"""Chats with a small language model, on a tape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from calltape_recorder import record

ZEROS = torch.zeros


class ToyLM(torch.nn.Module):
    """Two layers, whose cache is a list of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 8)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        past_key_values: list[torch.Tensor] | None = None,
        scale: float = 1.0,
    ) -> Any:
        x = self.embed(input_ids)
        cache = []
        for layer in range(2):
            keys = x if past_key_values is None else torch.cat([past_key_values[layer], x], 1)
            cache.append(keys)
            x = x + keys.mean(1, keepdim=True) * scale
        return x, cache


def toy_lm() -> ToyLM:
    """The same weights each time."""
    model = ToyLM()
    size = model.embed.weight.numel()
    model.embed.weight.data = torch.linspace(-1, 1, size).reshape(model.embed.weight.shape)
    return model


def record_chats(
    path: Path, chats: tuple[tuple[int, int], ...], *, step: int = 1, scale: float = 1.0
) -> Path:
    """One prompt per (batch, length), with two decoding steps after each."""
    model = toy_lm()
    with record(model, path):
        for batch, length in chats:
            ids = torch.arange(batch * length).reshape(batch, length) % 32
            _, cache = model(ids, attention_mask=torch.ones(batch, length, dtype=torch.int64))
            for _ in range(2):
                length += step
                mask = torch.ones(batch, length, dtype=torch.int64)
                ids = torch.arange(batch * step).reshape(batch, step)
                _, cache = model(ids, mask, past_key_values=cache, scale=scale)
    return path


CHATS = ((2, 5), (3, 7), (1, 4))


def calls_of(*shapes: Any) -> list[Any]:
    """A call per argument: a shape for ``x`` alone, or a dict of shapes and values."""
    made: list[Any] = []
    for given in shapes:
        named = given if isinstance(given, dict) else {"x": given}
        made.append({n: ZEROS(v) if isinstance(v, tuple) else v for n, v in named.items()})
    return made
