"""Many values, looked for in the bytes of a tape at once.

In come a tape and values. Out go the values that it has anywhere, also where it is deflated: a
search of the file alone does not see the records of a group, nor the table of inputs. Of
each value, up to four words of eight bytes that say most are looked for at each place, those of all
values together. So the time hardly depends on how many values there are.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from calltape_schema.inputs_document import pack_inputs
from calltape_schema.reader import TapeReader
from calltape_schema.storage import BytesSource

if TYPE_CHECKING:
    import torch

__all__ = ["found_in", "found_in_parts"]

_WORD = 8
_MOST_WORDS = 4
_MOST_TRIED = 64
_PART = 2**24
_FACTOR = 6_364_136_223_846_793_005

Pieces = dict[bytes, list[tuple[int, bytes]]]
"""Per piece of so many words the values that have it, and where in them it stands."""


class TapeBytes(Protocol):
    """Bytes in memory, or of a file that is mapped."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


def found_in(path: str, values: Iterable[bytes]) -> list[bytes]:
    """The values that the bytes of a tape have anywhere, deflated or not.

    Args:
        path: of the file.
        values: each of at least 8 bytes.

    Raises:
        OSError: it cannot be read.
        TapeError: ``damaged``, ``invalid``, ``limit``: it is not as a tape is written.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return found_in_parts(chain((data,), _together(_inflated_parts(data))), values)


def found_in_parts(parts: Iterable[TapeBytes], values: Iterable[bytes]) -> list[bytes]:
    """The values that any of some bytes have. Each value has at least 8 bytes."""
    searches = _searches(values)
    found: dict[bytes, None] = {}
    for part in parts if searches else ():
        for search in searches:
            found.update(dict.fromkeys(search.values_in(part)))
    return list(found)


def _inflated_parts(data: TapeBytes) -> Iterator[bytes]:
    """Each part of a tape that is deflated, as a reader has it, one after another.

    Raises:
        TapeError: ``damaged``, ``invalid``, ``limit``: the tape is not as it was written.
    """
    reader = TapeReader(BytesSource(data))
    for offset in reader.scan().offsets:
        yield reader.group(offset).documents()
    if reader.end is not None:
        table = reader.end.table()
        if table is not None:
            yield pack_inputs(table)


def _searches(values: Iterable[bytes]) -> list[_Search]:
    every: dict[int, Pieces] = defaultdict(lambda: defaultdict(list))
    for value in values:
        words = min(len(value) // _WORD, _MOST_WORDS)
        start = _telling(value, words * _WORD)
        piece = value[start : start + words * _WORD]
        every[words][piece].append((start, value))
    return [_Search(words, pieces) for words, pieces in every.items()]


def _telling(value: bytes, length: int) -> int:
    """Where the part of a value stands that has the most different bytes: zeros are everywhere."""
    starts = range(0, len(value) - length + 1, _WORD)[:_MOST_TRIED]
    return max(starts, key=lambda start: len(set(value[start : start + length])))


def _together(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same parts in fewer pieces of memory: each search begins with work of its own. A zero
    stands between two parts."""
    waiting: list[bytes] = []
    size = 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= _PART:
            yield b"\0".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"\0".join(waiting)


class _Search:
    """A search for values that have pieces of equally many words."""

    def __init__(self, words: int, pieces: Pieces) -> None:
        import torch

        self._words = words
        self._pieces = pieces
        each = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.int64)
        self._wanted = _mixed(each.reshape(-1, words).T).sort().values

    def values_in(self, data: TapeBytes) -> Iterator[bytes]:
        """The values that bytes have; one may come again."""
        for at in self._places(data):
            for start, value in self._pieces.get(data[at : at + self._words * _WORD], ()):
                begin = at - start
                if begin >= 0 and data[begin : begin + len(value)] == value:
                    yield value

    def _places(self, data: TapeBytes) -> Iterator[int]:
        """Where any of the pieces may stand."""
        import torch

        words, wanted = self._words, self._wanted
        overlap = (words + 1) * _WORD
        for begin in range(0, len(data), _PART):
            part = bytearray(data[begin : begin + _PART + overlap])
            for shift in range(_WORD):
                count = (len(part) - shift) // _WORD - words + 1
                if count <= 0:
                    continue
                line = torch.frombuffer(
                    part, dtype=torch.int64, count=count + words - 1, offset=shift
                )
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
