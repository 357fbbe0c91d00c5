"""What tells data of users from names and settings that stand in code. The recorder withholds by
these rules, and the analyzer redacts by them."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["FEWEST_RANGED", "MANY", "SMALL", "is_name"]

FEWEST_RANGED = 1024
"""With at least this many different elements, the range of a withheld integer tensor says little of
each element."""
MANY = 8
"""Numbers of a container with more children than this are data, not sizes. They are withheld like
the values of a tensor."""
SMALL = 1024
"""An int from -1024 to 1024 that stands in code is taken for a setting."""

_NAME = re.compile(r"[^\W\d][\w.\-/]{0,63}|\d{1,4}")
_MOST_DIGITS = 4


def is_name(key: Any) -> bool:
    """Whether a dict key looks like a name from code: a word with at most four digits, or a small
    int. An address, the number of a customer or a sentence does not. A plain word always does, even
    if a user wrote it."""
    kind = type(key)
    if kind is str:
        digits = sum([character.isdigit() for character in key])
        return digits <= _MOST_DIGITS and _NAME.fullmatch(key) is not None
    if kind is int:
        return bool(-SMALL <= key <= SMALL)
    if kind is tuple:
        return all(map(is_name, key))
    return key is None or kind is bool
