"""Which keys of a dict are data, as the ids of requests are: they do not come back.

A key that stands in code comes back in many calls, alone or with others. A key that was made for a
request is there in one call, or in the few calls that serve the request. Such keys are no
structure: each call would be of a structure of its own. The recorder asks this for its policies,
and the analyzer for its variants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

__all__ = ["KeySets"]

_FEW = 8
"""So many values may a text have that selects a program, and so many keys a dict."""
_FEW_THAT_STAY = 32
"""So many keys may come and go in sets of several calls: optional fields do so, too."""
_RARE = 4
"""A key is rare if no more than one in so many sets has it."""
_MAX_SETS = 1024
_MAX_KEYS = 16_384


class KeySets:
    """The different sets of keys that a dict at one place has in calls. Their order does not
    matter. After 1,024 sets no more are looked at."""

    def __init__(self) -> None:
        self._sets: set[Hashable] = set()
        self._counts: Counter[Hashable] = Counter()

    def add(self, keys: Iterable[Hashable]) -> bool:
        """Adds the keys of a call; tells whether there was no such set."""
        found = frozenset(keys)
        if len(self._sets) >= _MAX_SETS or len(self._counts) >= _MAX_KEYS or found in self._sets:
            return False
        self._sets.add(found)
        self._counts.update(found)
        return True

    def lasting(self) -> frozenset[Hashable] | None:
        """The keys that come back, if the others are data; None if none is."""
        sets = len(self._sets)
        if sets <= _FEW:
            return None
        rare = [count for count in self._counts.values() if count * _RARE <= sets]
        many = _FEW if all(count == 1 for count in rare) else _FEW_THAT_STAY
        # Who comes once and goes once changes the set twice.
        if len(rare) <= many or 2 * len(rare) < sets:
            return None
        return frozenset(key for key, count in self._counts.items() if count * _RARE > sets)
