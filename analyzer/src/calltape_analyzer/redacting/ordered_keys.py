"""Names for keys of dicts that look like data, in the order that the keys had.

The analysis sorts the keys of a dict by what ``repr`` shows of them, and its answers follow that
order. In come the keys of a tape. Out goes a name for each such key: the plain name that it
followed, and a number. A key that is an int gets another int by the same rule.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from calltape_schema.privacy import SMALL, is_name

__all__ = ["ordered_keys"]

_ZEROS = "0" * len(str(SMALL))
"""Behind the digits of a small int: no other small int comes between it and what begins so."""


def ordered_keys(keys: Iterable[str | int]) -> dict[str | int, str | int]:
    """The name of each text, and the int for each int, that looks like data.

    Args:
        keys: all texts and ints that are keys of dicts on the tape, or parts of such keys.
    """
    keys = list(keys)
    texts = [key for key in keys if isinstance(key, str)]
    ints = [key for key in keys if isinstance(key, int)]
    found: dict[str | int, str | int] = dict(_of_texts(texts))
    found.update(_of_ints([key for key in ints if key >= 0], ""))
    found.update(_of_ints([key for key in ints if key < 0], "-"))
    return found


def _of_texts(keys: Sequence[str]) -> Iterable[tuple[str, str]]:
    names = sorted(repr(key) for key in keys if is_name(key))
    private = sorted((key for key in keys if not is_name(key)), key=repr)
    width = len(str(len(private)))
    for number, key in enumerate(private):
        before = _before(repr(key), names)[1:-1]
        # In the order of repr, a bracket comes after the quote and before all letters of names.
        yield key, f"{before}({number:0{width}d})"


def _of_ints(keys: Sequence[int], sign: str) -> Iterable[tuple[int, int]]:
    """The same of ints of one sign: the digits of the small int before it, zeros and a number."""
    small = sorted(repr(key) for key in keys if is_name(key) and key)
    private = sorted((key for key in keys if not is_name(key)), key=repr)
    width = len(str(len(private)))
    for number, key in enumerate(private):
        before = _before(repr(key), small) or f"{sign}1"
        yield key, int(f"{before}{_ZEROS}{number:0{width}d}")


def _before(shown: str, others: Sequence[str]) -> str:
    """The last of these that comes before a text, or nothing."""
    at = bisect.bisect_left(others, shown)
    return others[at - 1] if at else ""
