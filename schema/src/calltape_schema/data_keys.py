"""Finds keys of dicts that are data, such as the ids of requests.

A key is data if it does not recur. A key from code recurs in many calls, alone or with others. A
key made for a request occurs in one call, or in the few calls that serve the request. Such keys are
not structure: otherwise, each call would have a structure of its own. The recorder applies this
rule for its policies, and the analyzer for its variants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

_FEW = 8
"""A dict may have this many keys, and a text that selects a program this many values."""
_FEW_OPTIONAL = 32
"""This many keys may come and go in sets of several calls, as optional fields do."""
_RARE = 4
"""A key is rare if at most one of this many sets has it."""
_MAX_SETS = 1024
_MAX_KEYS = 16_384


class KeySets:
    """The distinct sets of keys that the dict at one place had in calls. Their order does not
    matter. After 1,024 sets, no more are looked at."""

    def __init__(self) -> None:
        self._sets: set[Hashable] = set()
        self._counts: Counter[Hashable] = Counter()

    def add(self, keys: Iterable[Hashable]) -> bool:
        """Adds the keys of a call, and returns whether that set is new."""
        key_set = frozenset(keys)
        if len(self._sets) >= _MAX_SETS or len(self._counts) >= _MAX_KEYS or key_set in self._sets:
            return False
        self._sets.add(key_set)
        self._counts.update(key_set)
        return True

    def lasting(self) -> frozenset[Hashable] | None:
        """The keys that recur, if the others are data; None if no key is data."""
        sets = len(self._sets)
        if sets <= _FEW:
            return None
        rare = [count for count in self._counts.values() if count * _RARE <= sets]
        most_rare = _FEW if all(count == 1 for count in rare) else _FEW_OPTIONAL
        # A key that comes once and goes once changes the set twice.
        if len(rare) <= most_rare or 2 * len(rare) < sets:
            return None
        return frozenset(key for key, count in self._counts.items() if count * _RARE > sets)
