"""The sizes that were seen of a dimension, as both analyses report them."""

from __future__ import annotations

from calltape_analyzer.plain_data import PlainData

__all__ = ["MAX_SIZES_SHOWN", "SizeSeen"]

MAX_SIZES_SHOWN = 64
"""How many sizes of a dimension a finding lists."""


class SizeSeen(PlainData):
    """One size of a dimension, or one value of an int.

    Attributes:
        size: the size, or the value.
        calls: how many calls had it.
        first_call: the number of the first of them.
    """

    size: int
    calls: int
    first_call: int
