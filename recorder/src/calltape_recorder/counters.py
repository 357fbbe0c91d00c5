"""Counters that every call raises, in any thread, without a lock."""

from __future__ import annotations

import itertools

__all__ = ["Count", "value_of"]

Count = itertools.count
"""``next`` of it is one step under the interpreter lock."""


def value_of(counter: itertools.count[int]) -> int:
    """Where it stands. Its text tells; anything else would count."""
    return int(repr(counter)[len("count(") : -1])
