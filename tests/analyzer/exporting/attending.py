"""A model with a cache, and its calls."""

from __future__ import annotations

import torch

from tests.analyzer.exported import Call, call
from tests.analyzer.exporting.models import Model, t


class ToyCache:
    def __init__(
        self, keys: torch.Tensor | None = None, values: torch.Tensor | None = None
    ) -> None:
        self.keys = keys
        self.values = values


class Attending(Model):
    """Attends to what is cached and to what comes; gives the grown cache back."""

    def forward(self, x, cache=None):
        keys, values = self.linear(x), x * 2
        if cache is not None and cache.keys is not None:
            keys, values = torch.cat([cache.keys, keys], 1), torch.cat([cache.values, values], 1)
        scores = (x @ keys.transpose(1, 2)).softmax(-1)
        return {"y": scores @ values, "cache": ToyCache(keys, values)}


def step(batch: int, new: int, past: int) -> Call:
    cache = ToyCache(t(batch, past, 3), t(batch, past, 3)) if past else None
    return call(t(batch, new, 3), cache)


STEPS = [step(1, 5, 0), step(1, 1, 5), step(1, 1, 6), step(2, 4, 0), step(2, 2, 4), step(2, 1, 6)]


UNSEEN = [step(3, 7, 0), step(3, 2, 9), step(1, 3, 2)]
