"""Whether the numbers of a recorder add up."""

from __future__ import annotations

from calltape_recorder.keep.ledger import Stats

__all__ = ["adds_up"]


def adds_up(stats: Stats) -> bool:
    return stats.seen == stats.kept + sum(stats.dropped.values()) + stats.queued
