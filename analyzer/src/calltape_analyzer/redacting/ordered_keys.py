"""Names for keys of dicts that look like data, in the order that the keys had.

The analysis sorts the keys of a dict, and its answers follow that order. In come the keys of a
tape. Out goes a name for each such key: the plain name that it followed, and a number.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable

from calltape_schema.privacy import is_name

__all__ = ["ordered_keys"]


def ordered_keys(keys: Iterable[str]) -> dict[str, str]:
    """The name of each text that looks like data.

    Args:
        keys: all texts that are keys of dicts on the tape.
    """
    keys = list(keys)
    names = sorted(repr(key) for key in keys if is_name(key))
    private = sorted((key for key in keys if not is_name(key)), key=repr)
    width = len(str(len(private)))
    found: dict[str, str] = {}
    for number, key in enumerate(private):
        at = bisect.bisect_left(names, repr(key))
        before = names[at - 1][1:-1] if at else ""
        # In the order of repr, a bracket comes after the quote and before all letters of names.
        found[key] = f"{before}({number:0{width}d})"
    return found
