"""Caches of models that look back so far only."""

from __future__ import annotations

from tests.analyzer.observed import zeros


class WindowCache:
    """A cache with the counter that transformers' sliding layers have."""

    def __init__(self, seen: int, window: int, batch: int = 2) -> None:
        self.keys = zeros(batch, 2, min(seen, window), 4)
        self.cumulative_length = seen
