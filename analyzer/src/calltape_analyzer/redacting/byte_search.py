"""Many values, looked for in the bytes of a file at once.

In come a file and values. Out go the values that the file has anywhere. Of each value, up to four
words of eight bytes that say most are looked for at each place of the file, those of all values
together. So the time hardly depends on how many values there are.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["found_in"]

_WORD = 8
_MOST_WORDS = 4
_MOST_TRIED = 64
_PART = 2**24
_FACTOR = 6_364_136_223_846_793_005

Pieces = dict[bytes, list[tuple[int, bytes]]]
"""Per piece of so many words the values that have it, and where in them it stands."""


def found_in(path: str, values: Iterable[bytes]) -> list[bytes]:
    """The values that the bytes of a file have anywhere.

    Args:
        path: of the file.
        values: each of at least 8 bytes.

    Raises:
        OSError: it cannot be read.
    """
    every: dict[int, Pieces] = defaultdict(lambda: defaultdict(list))
    for value in values:
        words = min(len(value) // _WORD, _MOST_WORDS)
        start = _telling(value, words * _WORD)
        piece = value[start : start + words * _WORD]
        every[words][piece].append((start, value))
    found: dict[bytes, None] = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for words, pieces in every.items():
            for at in _places(data, words, pieces):
                for start, value in pieces.get(data[at : at + words * _WORD], ()):
                    begin = at - start
                    if begin >= 0 and data[begin : begin + len(value)] == value:
                        found[value] = None
    return list(found)


def _telling(value: bytes, length: int) -> int:
    """Where the part of a value stands that has the most different bytes: zeros are everywhere."""
    starts = range(0, len(value) - length + 1, _WORD)[:_MOST_TRIED]
    return max(starts, key=lambda start: len(set(value[start : start + length])))


def _places(data: mmap.mmap, words: int, pieces: Pieces) -> Iterator[int]:
    """Where any of the pieces may stand."""
    import torch

    each = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.int64)
    wanted = _mixed(each.reshape(-1, words).T).sort().values
    overlap = (words + 1) * _WORD
    for begin in range(0, len(data), _PART):
        part = bytearray(data[begin : begin + _PART + overlap])
        for shift in range(_WORD):
            count = (len(part) - shift) // _WORD - words + 1
            if count <= 0:
                continue
            line = torch.frombuffer(part, dtype=torch.int64, count=count + words - 1, offset=shift)
            mixed = _mixed(line.unfold(0, count, 1))
            near = torch.searchsorted(wanted, mixed).clamp(max=len(wanted) - 1)
            for place in (wanted[near] == mixed).nonzero().flatten().tolist():
                yield begin + shift + _WORD * place


def _mixed(words: torch.Tensor) -> torch.Tensor:
    """A number for each column of some words, equal for equal columns."""
    found = words[0].clone()
    for word in words[1:]:
        found = found * _FACTOR + word
    return found
