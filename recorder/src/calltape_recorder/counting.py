"""Counters that every call raises, in any thread, without a lock."""

from __future__ import annotations

import itertools

__all__ = ["Count", "value_of"]

Count = itertools.count
"""A counter. ``next`` of it is one step under the interpreter lock, so it needs no other lock."""


def value_of(counter: itertools.count[int]) -> int:
    """How far a counter has counted. It is read from its text, because ``next`` would count."""
    return int(repr(counter)[len("count(") : -1])
